"""Routes about the service itself: health, readiness, capacity, images, the API's document, metrics.

Owns their answers. ``/``, ``/health``, ``/healthz``, ``/readyz``, ``/metrics`` and ``/openapi.json`` need no key: they reveal nothing
about owners.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import logging
import os
import re
import tempfile
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import orjson
import yaml
from holdfast_wire.errors import HoldfastError
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from gateway.http.request_fields import Fields, body_chunk, read_json
from gateway.http.responses import json_response
from gateway.placement.errors import RebuildingError
from gateway.runtimes.base import Image, Images
from gateway.service import Gateway, authenticated, gateway_of

log = logging.getLogger("gateway")

_READY_S = 1.0
_START_S = 10.0
"""How long after its start a gateway that is not ready yet is no reason for a warning: the processes of one machine start together."""
_REMOVALS_S = 10.0
_IMAGE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]{0,254}")
_CHUNK = 1024 * 1024
_OPENAPI = Path(__file__).resolve().parents[2] / "schemas" / "openapi.yaml"


@functools.cache
def version() -> str:
    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version("holdfast")
    return "0"


async def root(request: Request) -> Response:
    return json_response({"service": "holdfast", "version": version(), "status": "running"})


async def health(request: Request) -> Response:
    return json_response({"status": "healthy"})


async def ready(request: Request) -> Response:
    """200 if all parts that creates need are available; otherwise 503, with the names of the parts that are not."""
    gateway = gateway_of(request)
    away = {name: text for name, text in (await _parts(gateway)).items() if text}
    if gateway.attached.draining:
        away["gateway"] = "shutting down"
    starting = bool(away) and not gateway.was_ready and time.monotonic() < gateway.started_at + _START_S
    if (set(away), starting) != gateway.logged_readiness:  # probes come every second: only changes are logged
        gateway.logged_readiness = (set(away), starting)
        parts = "; ".join(f"{name}: {text}" for name, text in away.items())
        if starting:
            log.info("starting; still missing: %s", parts)
        elif away:
            log.warning("not ready: %s", parts)
        else:
            log.info("ready")
    gateway.was_ready |= not away
    body = {"status": "unavailable" if away else "ready", "unavailable": away}
    return json_response(body, 503 if away else 200, {"Retry-After": "1"} if away else None)


async def metrics(request: Request) -> Response:
    gateway = gateway_of(request)
    gateway.metrics.gauge("attached_sessions", len(gateway.attached))
    gateway.metrics.gauge("creates_waiting", gateway.admission.waiting)
    gateway.metrics.gauge("creates_running", gateway.admission.running)
    with contextlib.suppress(HoldfastError):  # the other metrics are reported even if the runtime does not answer
        for state, count in (await gateway.runtime.spares()).items():
            gateway.metrics.gauge("node_spares", count, state=state)
        for state, size in (await gateway.runtime.room()).items():
            gateway.metrics.gauge("node_disk_bytes", size, state=state)
    return PlainTextResponse(gateway.metrics.render(), media_type="text/plain; version=0.0.4")


async def openapi(request: Request) -> Response:
    return Response(_openapi_json(), media_type="application/json")


@functools.cache
def document() -> dict[str, Any]:
    """The API's document as a map."""
    body: dict[str, Any] = yaml.safe_load(_OPENAPI.read_text())
    return body


@functools.cache
def _openapi_json() -> bytes:
    return orjson.dumps(document())


async def doctor(request: Request) -> Response:
    """Problems of this installation and how to fix them: the runtime's own checks and the gateway's."""
    gateway, _ = authenticated(request)
    away = await _parts(gateway)
    checks: list[dict[str, Any]] = [
        {"name": name, "ok": not text, "detail": text or "answers", "fix": _FIXES[name] if text else ""} for name, text in away.items()
    ]
    if not away["runtime"]:
        checks += await gateway.runtime.doctor()
    return json_response(
        {"version": version(), "ok": all(check.get("ok") is True or check.get("required") is False for check in checks), "checks": checks}
    )


async def resources(request: Request) -> Response:
    gateway, _ = authenticated(request)
    stats = await gateway.runtime.stats()
    stats = {name: value for name, value in stats.items() if name not in ("id", "ok", "usage")}
    cores, memory = stats["cpu_total"] or 0.0, stats["memory_total"] or 0
    cores_requested, memory_requested = stats["cpu_requested"], stats["memory_requested"]
    return json_response(
        {
            "status": "ok",
            "total_capacity": {"cpu": cores, "memory_bytes": memory},
            "total_requested": {"cpu": cores_requested, "memory_bytes": memory_requested},
            "available": {"cpu": max(cores - cores_requested, 0.0), "memory_bytes": max(memory - memory_requested, 0)},
            "defaults": {
                "cpu": gateway.settings.rest.default_cpu,
                "memory": gateway.settings.rest.default_memory,
                "lifetime_s": gateway.settings.rest.default_lifetime_s,
            },
            "runtime": stats,
        }
    )


async def list_images(request: Request) -> Response:
    gateway, owner = authenticated(request)
    return json_response({"images": [_image(image) for image in await _images(gateway).list_all(owner)]})


async def import_image(request: Request) -> Response:
    """``POST /images?name=``: the body is an archive; it is written to a file beside the node's data, never held in memory."""
    gateway, owner = authenticated(request)
    name = _image_name(request.query_params.get("name"))
    owner = _image_owner(gateway, owner, shared=request.query_params.get("shared", "").lower() in ("true", "1"))
    limit = gateway.settings.rest.image_bytes
    folder = gateway.settings.data_dir / "uploads"
    folder.mkdir(mode=0o700, exist_ok=True)
    handle, path = tempfile.mkstemp(prefix="image-", suffix=".tar", dir=folder)
    size, more = 0, True
    try:
        with os.fdopen(handle, "wb") as file:
            while more:
                chunk, more = await body_chunk(request)
                size += len(chunk)
                if size > limit:
                    raise HoldfastError("request_too_large", f"the archive is over {limit} bytes")
                await asyncio.to_thread(file.write, chunk) if len(chunk) >= _CHUNK else file.write(chunk)
        if not size:
            raise HoldfastError("image_invalid", "the body is empty, where an image archive was expected")
        image = await _images(gateway).load(Path(path), name, owner)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        hint = "free space in the service's data folder, or remove images; then send it again"
        raise HoldfastError("no_space", f"the archive cannot be stored: {error.strerror}", hint=hint, fault="infrastructure") from None
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
    return json_response(_image(image), 201)


async def pull_image(request: Request) -> Response:
    """``POST /images/pull`` ``{name, shared}``."""
    gateway, owner = authenticated(request)
    fields = Fields(await read_json(request, 64 * 1024))
    name = _image_name(fields.required("name"))
    owner = _image_owner(gateway, owner, shared=fields.boolean("shared", False))
    return json_response(_image(await _images(gateway).pull(name, owner)), 201)


async def remove_image(request: Request) -> Response:
    gateway, owner = authenticated(request)
    name = _image_name(request.path_params["name"])
    owner = _image_owner(gateway, owner, shared=request.query_params.get("shared", "").lower() in ("true", "1"))
    await gateway.removals.wait(_REMOVALS_S)  # deleted sandboxes stop using the image
    await _images(gateway).remove(name, owner)
    return json_response({"status": "deleted", "name": name})


_FIXES = {
    "placement": "start Redis, or set HOLDFAST_REDIS_URL to a running one; while records are being rebuilt, check that a controller runs",
    "runtime": "start the node (`holdfast up` does), or set HOLDFAST_NODE_SOCKET",
}


async def _parts(gateway: Gateway) -> dict[str, str]:
    """Each part that the gateway needs, with its problem or an empty text."""

    async def answers(part: Any) -> str:
        try:
            async with asyncio.timeout(_READY_S):
                await part
        except HoldfastError as error:
            return error.message
        except TimeoutError:
            return f"no answer within {_READY_S:g} s"
        return ""

    placement, runtime = await asyncio.gather(answers(_records(gateway)), answers(gateway.runtime.ping()))
    return {"placement": placement, "runtime": runtime}


async def _records(gateway: Gateway) -> None:
    await gateway.store.ping()
    if await gateway.store.marker() is None:
        raise RebuildingError


def _images(gateway: Gateway) -> Images:
    images = gateway.runtime.images
    if images is None:
        raise HoldfastError("unsupported", "this runtime has no image store", hint="push images to the cluster's registry")
    return images


def _image_owner(gateway: Gateway, owner: str, *, shared: bool) -> str:
    """Whose image is changed: the caller's, or with ``shared`` everybody's, which only operators may change."""
    if not shared:
        return owner
    if owner not in gateway.settings.operators:
        hint = "leave out shared to use an image of your own, or ask the operator; HOLDFAST_OPERATORS of the gateway lists them"
        raise HoldfastError("permission_denied", "only an operator's key may change shared images", hint=hint)
    return ""


def _image_name(name: str | None) -> str:
    if not name or not _IMAGE_NAME.fullmatch(name) or ".." in name:
        raise HoldfastError("invalid_argument", "name must be an image name such as 'python:3.11-slim'")
    return name


def _image(image: Image) -> dict[str, Any]:
    body = {"name": image.name, "digest": image.digest, "size_bytes": image.size_bytes, "created": image.created, "shared": image.shared}
    return body if image.wanted is None else {**body, "nodes": {"ready": image.ready, "wanted": image.wanted}}
