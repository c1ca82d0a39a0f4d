"""Routes about the service itself: health, readiness, capacity, the API's document, metrics.

Owns their answers. Those that need no key reveal nothing about owners.
"""

from __future__ import annotations

import contextlib
import functools
from importlib import metadata
from pathlib import Path
from typing import Any

import orjson
import yaml
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response

from gateway.faces.table import gateway_of, parts
from gateway.http.responses import json_response
from gateway.use_cases import condition, debugging

_OPENAPI = Path(__file__).resolve().parents[3] / "schemas" / "openapi.yaml"
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the one in C, where PyYAML was built with it, takes a tenth of the time


@functools.cache
def version() -> str:
    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version("holdfast")
    return "0"


async def root(request: Request) -> Response:
    """``GET /``: a browser is sent to the page for people, if the service has one."""
    home: str = request.scope["app"].home
    if home and "text/html" in request.headers.get("accept", ""):
        return RedirectResponse(home, 303, {"Vary": "Accept"})
    return json_response({"service": "holdfast", "version": version(), "status": "running"})


async def health(request: Request) -> Response:
    return json_response({"status": "healthy"})


async def ready(request: Request) -> Response:
    """200 if all parts that creates need are available; otherwise 503, with the names of the parts that are not."""
    away = await condition.unavailable(gateway_of(request))
    body = {"status": "unavailable" if away else "ready", "unavailable": away}
    return json_response(body, 503 if away else 200, {"Retry-After": "1"} if away else None)


async def metrics(request: Request) -> Response:
    return PlainTextResponse(await condition.rendered_metrics(gateway_of(request)), media_type="text/plain; version=0.0.4")


async def openapi(request: Request) -> Response:
    return Response(_openapi_json(), media_type="application/json")


@functools.cache
def document() -> dict[str, Any]:
    """The API's document as a map."""
    body: dict[str, Any] = yaml.load(_OPENAPI.read_text(), Loader=_Loader)  # noqa: S506 - one of the two safe ones
    return body


@functools.cache
def _openapi_json() -> bytes:
    return orjson.dumps(document())


async def debug(request: Request) -> Response:
    """What this replica does at this moment, for operators."""
    return json_response(debugging.snapshot(gateway_of(request)))


async def doctor(request: Request) -> Response:
    """Problems of this installation and how to fix them: the runtime's own checks and the gateway's."""
    gateway, principal = parts(request)
    checks = await condition.diagnose(gateway, principal)
    return json_response(
        {"version": version(), "ok": all(check.get("ok") is True or check.get("required") is False for check in checks), "checks": checks}
    )


async def resources(request: Request) -> Response:
    gateway, principal = parts(request)
    stats = await condition.capacity(gateway, principal)
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
