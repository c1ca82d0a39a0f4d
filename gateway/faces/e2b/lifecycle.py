"""E2B's control plane: pause, resume, snapshots, forks, metrics, network.

Owns the translation. A snapshot is an image of the owner with the files alone, and its id is that image's name. A fork is a branch: it
continues with the files and living shells of its parent, not with its other processes. Metrics are one sample of the moment.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from datetime import UTC, datetime
from typing import Any, Final

from holdfast_wire.errors import HoldfastError
from starlette.requests import Request
from starlette.responses import Response

from gateway.faces.table import parts
from gateway.http.request_fields import Fields, canonical, read_json
from gateway.http.responses import json_response
from gateway.identity.principal import Principal
from gateway.model.names import name_of
from gateway.runtimes.base import Image
from gateway.use_cases import branch, change, describe, images, snapshots, usage

from .control import egress, timeout_of
from .shown import created

_BODY_BYTES: Final = 256 * 1024
_FORKS: Final = 100
_UNNAMED: Final = "snapshot-"
"""The beginning of the image's name of a snapshot to which its request gives none; the sandbox's name follows."""
_SLACK_S: Final = 10.0


async def pause(request: Request) -> Response:
    """``POST /sandboxes/{id}/pause`` ``{memory}``: 204, or 409 if it is paused. Without memory only the files and shells are kept."""
    gateway, principal, name = _named(request)
    keeps_memory = Fields(await read_json(request, _BODY_BYTES)).boolean("memory", True)
    if (await describe.describe(gateway, principal, name)).paused:
        raise HoldfastError("sandbox_paused", f"sandbox {name!r} is paused already")
    await snapshots.pause(gateway, principal, name, to_disk=not keeps_memory, wait_s=0.0)
    return Response(status_code=204)


async def resume(request: Request) -> Response:
    """``POST /sandboxes/{id}/resume`` ``{timeout}``: 201."""
    gateway, principal, name = _named(request)
    timeout_s = timeout_of(Fields(await read_json(request, _BODY_BYTES)), None)
    record, _ = await snapshots.resume(gateway, principal, name)
    if timeout_s is not None:
        record = await change.lifetime(gateway, principal, name, timeout_s)
    return json_response(created(gateway, principal, record), 201)


async def snapshot(request: Request) -> Response:
    """``POST /sandboxes/{id}/snapshots`` ``{name}``: 201."""
    gateway, principal, name = _named(request)
    wanted = Fields(await read_json(request, _BODY_BYTES)).text("name", most=200) or f"{_UNNAMED}{name}-{secrets.token_hex(4)}"
    return json_response(_snapshot(await snapshots.snapshot(gateway, principal, name, wanted)), 201)


async def list_snapshots(request: Request) -> Response:
    """``GET /snapshots?sandboxID=&name=&limit=&nextToken=``: by name. Only snapshots without a name of their own tell their sandbox."""
    gateway, principal = parts(request)
    query = Fields(dict(request.query_params))
    limit = query.integer("limit", 100, least=1, most=100)
    name, sandbox = query.text("name", ""), query.text("sandboxID", "")
    begin = f"{_UNNAMED}{name_of(principal.owner, sandbox)}-" if sandbox else ""
    found = sorted(
        one.name
        for one in await images.list_all(gateway, principal)
        if one.parent and not one.shared and one.name.startswith(begin) and (not name or name in (one.name, one.name.partition(":")[0]))
    )
    after = query.text("nextToken", "") or ""
    page = [one for one in found if one > after][: limit + 1]
    headers = {"X-Next-Token": page[limit - 1]} if len(page) > limit else None
    return json_response([{"snapshotID": one, "names": [one]} for one in page[:limit]], headers=headers)


async def remove_template(request: Request) -> Response:
    """``DELETE /templates/{id}``: an image of the owner, snapshots included. 204, or 404 if there is none."""
    gateway, principal = parts(request)
    await images.remove(gateway, principal, request.path_params["name"], shared=False)
    return Response(status_code=204)


async def fork(request: Request) -> Response:
    """``POST /sandboxes/{id}/fork`` ``{count, timeout}``: 201 with all forks, which are ready."""
    gateway, principal, name = _named(request)
    body = await read_json(request, _BODY_BYTES)
    fields = Fields(body)
    count, timeout_s = fields.integer("count", 1, least=1, most=_FORKS), timeout_of(fields, None)
    fingerprint = hashlib.sha256(canonical({**body, "parent": name})).hexdigest()
    names = tuple(f"sb-{secrets.token_hex(10)}" for _ in range(count))
    made = await branch.branch(gateway, principal, name, branch.Branching(names, False, fingerprint, None, 0.0))
    records = made.records
    if timeout_s is not None:
        records = [await change.lifetime(gateway, principal, record.name, timeout_s) for record in records]
    return json_response([{"sandbox": created(gateway, principal, record)} for record in records], 201)


async def metrics(request: Request) -> Response:
    """``GET /sandboxes/{id}/metrics?start=&end=``: a sample of the moment, if that is in the range."""
    gateway, principal, name = _named(request)
    query = request.query_params
    record = await describe.ready(gateway, principal, name)
    now = time.time()
    if not _second(query.get("start"), 0.0) - _SLACK_S <= now <= _second(query.get("end"), now) + _SLACK_S:
        return json_response([])
    found = await usage.sample(gateway, record)
    return json_response(
        [
            {
                "timestamp": datetime.fromtimestamp(now, UTC).isoformat(),
                "timestampUnix": int(now),
                "cpuCount": max(int(record.spec.cores), 1),
                "cpuUsedPct": round(100 * found.cores / record.spec.cores, 2),
                "memUsed": found.memory_bytes,
                "memTotal": record.spec.memory_bytes,
                "memCache": found.cache_bytes,
                "diskUsed": found.disk_bytes,
                "diskTotal": found.disk_total_bytes,
            }
        ]
    )


async def network(request: Request) -> Response:
    """``PUT /sandboxes/{id}/network``: 204."""
    gateway, principal, name = _named(request)
    body = await read_json(request, _BODY_BYTES)
    await change.network(gateway, principal, name, egress(gateway, body.get("allow_internet_access", True), body))
    return Response(status_code=204)


def _named(request: Request) -> tuple[Any, Principal, str]:
    gateway, principal = parts(request)
    return gateway, principal, name_of(principal.owner, request.path_params["sandbox_id"])


def _snapshot(image: Image) -> dict[str, Any]:
    return {"snapshotID": image.name, "names": [image.name]}


def _second(text: str | None, default: float) -> float:
    if not text:
        return default
    if not text.isascii() or not text.isdecimal() or len(text) > 12:
        raise HoldfastError("invalid_argument", "start and end must be seconds since the epoch", hint="")
    return float(text)
