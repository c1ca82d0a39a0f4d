"""Routes of snapshots, branches and pauses of sandboxes.

Owns the form of their requests and answers.
"""

from __future__ import annotations

import secrets
from dataclasses import asdict
from typing import Any

from holdfast_wire.errors import HoldfastError
from starlette.requests import Request
from starlette.responses import Response

from gateway.faces.table import parts
from gateway.http.request_fields import Fields, read_json
from gateway.http.responses import json_response
from gateway.model.records import SANDBOX_NAME
from gateway.placement.store import derived_id
from gateway.use_cases import branch as branching
from gateway.use_cases import snapshots
from gateway.use_cases.shell_states import Lost

from .images import image_map
from .sandboxes import fingerprint, idempotency_key, shown

_BODY_BYTES = 64 * 1024
_IDLE_S = 60.0
"""How long the shells may take to finish their commands, if the request does not say."""
_IDLE_MOST_S = 3600.0
_TURN_MOST = 2**31


async def snapshot(request: Request) -> Response:
    """``POST /sandboxes/{id}/snapshot`` ``{name}``: without a name the image is named by its digest."""
    gateway, principal = parts(request)
    name = Fields(await read_json(request, _BODY_BYTES)).text("name")
    return json_response(image_map(await snapshots.snapshot(gateway, principal, request.path_params["sandbox_id"], name)), 201)


async def branch(request: Request) -> Response:
    """``POST /sandboxes/{id}/branch`` ``{count, when, timeout, turn, sandbox_ids}``: answers when all branches are ready."""
    gateway, principal = parts(request)
    parent = request.path_params["sandbox_id"]
    body = await read_json(request, _BODY_BYTES)
    fields, key = Fields(body), idempotency_key(request, "Idempotency-Key")
    names = _names(fields)
    chosen = bool(names)
    count = fields.integer("count", len(names) or 1, least=1, most=branching.MOST)
    if chosen and len(names) != count:
        raise HoldfastError("invalid_argument", f"sandbox_ids has {len(names)} ids for count={count} branches")
    for number in range(0 if chosen else count):
        names.append(derived_id(principal.owner, f"{key}\0{number}") if key else f"sb-{secrets.token_hex(10)}")
    turn = None if fields.get("turn") is None else fields.integer("turn", 0, least=0, most=_TURN_MOST)
    wanted = branching.Branching(tuple(names), chosen, fingerprint(body | {"parent": parent}), key, _wait_s(fields), turn)
    made = await branching.branch(gateway, principal, parent, wanted)
    return json_response({"sandboxes": [shown(gateway, record) for record in made.records], "lost": _lost(made.lost)}, 201)


async def pause(request: Request) -> Response:
    """``POST /sandboxes/{id}/pause`` ``{to_disk, when, timeout}``."""
    gateway, principal = parts(request)
    fields = Fields(await read_json(request, _BODY_BYTES))
    record, lost = await snapshots.pause(
        gateway, principal, request.path_params["sandbox_id"], to_disk=fields.boolean("to_disk", False), wait_s=_wait_s(fields)
    )
    return json_response({"sandbox": shown(gateway, record), "lost": _lost(lost)})


async def resume(request: Request) -> Response:
    """``POST /sandboxes/{id}/resume``: does nothing for a sandbox that is not paused."""
    gateway, principal = parts(request)
    record, lost = await snapshots.resume(gateway, principal, request.path_params["sandbox_id"])
    return json_response({"sandbox": shown(gateway, record), "lost": _lost(lost)})


def _names(fields: Fields) -> list[str]:
    value = fields.get("sandbox_ids")
    if value is None:
        return []
    if not isinstance(value, list) or not 0 < len(value) <= branching.MOST or len(set(map(str, value))) != len(value):
        raise HoldfastError("invalid_argument", f"sandbox_ids must be a list of 1 to {branching.MOST} different ids")
    for name in value:
        if not isinstance(name, str) or not SANDBOX_NAME.fullmatch(name):
            hint = "begin with a small letter or digit; small letters, digits, '.', '_' and '-' may follow; at most 63"
            raise HoldfastError("invalid_argument", f"sandbox_ids: {str(name)[:100]!r} cannot be used", hint=hint)
    return list(value)


def _wait_s(fields: Fields) -> float:
    when = fields.text("when", "idle")
    if when not in ("idle", "now"):
        raise HoldfastError("invalid_argument", "when must be idle, which waits until no shell runs a command, or now")
    return (fields.seconds("timeout", most=_IDLE_MOST_S) or _IDLE_S) if when == "idle" else 0.0


def _lost(lost: list[Lost]) -> list[dict[str, Any]]:
    return [asdict(one) for one in lost]
