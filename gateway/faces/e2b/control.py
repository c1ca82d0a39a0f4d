"""E2B's control plane: create, list, describe, connect, kill, time-out.

Owns the translation of requests into the use cases of REST. ``templateID`` is the name of an image, and a template is an image that was
given a name (``holdfast image tag``). The time-out of a sandbox is its lifetime. ``shown`` has the form of the answers.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from datetime import datetime
from typing import Any, Final
from urllib.parse import parse_qsl, unquote

from holdfast_wire.errors import HoldfastError
from holdfast_wire.rest import parse_bytes, parse_cpu
from starlette.requests import Request
from starlette.responses import Response

from gateway.faces.table import parts, program_of
from gateway.http.request_fields import Fields, canonical, check_label, read_json
from gateway.http.responses import json_response
from gateway.identity.principal import Principal
from gateway.model.names import id_of, name_of
from gateway.model.options import Egress
from gateway.model.records import Record, SandboxSpec
from gateway.placement.store import derived_id
from gateway.runtimes.base import OwnMachine
from gateway.use_cases import change, describe, snapshots
from gateway.use_cases.create import NewSandbox
from gateway.use_cases.create import create as create_sandbox
from gateway.use_cases.delete import delete as delete_sandbox
from gateway.use_cases.service import Gateway

from .egress import egress_of
from .shown import created, detail, listed, state_of

_BODY_BYTES: Final = 1024 * 1024
_DEFAULT_TIMEOUT_S: Final = 300.0
"""Of a sandbox whose request names none, as in E2B's SDKs."""
_MOST_TIMEOUT_S: Final = 366 * 86400.0
_KEY_CHARACTERS: Final = 255
_UNSUPPORTED: Final = {
    "autoPause": "a sandbox whose time is over ends here; pause it before",
    "autoPauseMemory": "a sandbox whose time is over ends here; pause it before",
    "autoResume": "a paused sandbox continues when a client connects to it",
    "mcp": "start the MCP server as a command",
    "iam": "give the sandbox what it needs in envVars",
    "volumeMounts": "this service has no volumes of E2B's kind",
}
"""Fields of a create that cannot be honoured, and what to do instead."""


async def create(request: Request) -> Response:
    """``POST /v2/sandboxes``: answers when the sandbox is ready."""
    gateway, principal = parts(request)
    body = await read_json(request, _BODY_BYTES)
    fields, key = Fields(body), request.headers.get("Idempotency-Key")
    if key is not None and not 0 < len(key) <= _KEY_CHARACTERS:
        raise HoldfastError("invalid_argument", f"Idempotency-Key must have 1 to {_KEY_CHARACTERS} characters")
    fingerprint = hashlib.sha256(canonical(body)).hexdigest()
    new = NewSandbox(_spec(gateway, principal, fields, key), fingerprint, env=fields.environment("envVars"), key=key, wait=True)
    return json_response(created(gateway, principal, await create_sandbox(gateway, principal, new)), 201)


async def list_owned(request: Request) -> Response:
    """``GET /v2/sandboxes?metadata=&state=&template=&startedAfter=&order=&limit=&nextToken=``.

    A page has the newest sandboxes first, as E2B's. The store has no order, so a first page reads all of the owner's records, and the token
    of the next page is where the last one ended.
    """
    gateway, principal = parts(request)
    query = Fields(dict(request.query_params))
    limit = query.integer("limit", 100, least=1, most=100)
    order = query.text("order", "desc")
    if order not in ("asc", "desc"):
        raise HoldfastError("invalid_argument", "order must be asc or desc")
    states = [one for one in (query.text("state", "") or "").split(",") if one] or ["running", "paused"]
    wanted = _metadata(query.text("metadata", "", most=16 * 1024) or "")
    template = query.text("template", "")
    after = _moment(query.text("startedAfter", ""))
    found = [
        one
        for one in await describe.all_owned(gateway, principal, wanted)
        if one.status == "ready"
        and state_of(one) in states
        and template in ("", None, one.spec.image)
        and (one.ready_at or one.created_at) >= after
    ]
    found.sort(key=_place, reverse=order == "desc")
    begin = _begin(found, query.text("nextToken", "", most=200) or "", descending=order == "desc")
    page = found[begin : begin + limit]
    headers = {"X-Total-Running": str(sum(not one.paused for one in found))}
    if begin + limit < len(found):
        headers["X-Next-Token"] = _token(page[-1])
    return json_response([listed(one) for one in page], headers=headers)


async def read(request: Request) -> Response:
    """``GET /sandboxes/{id}``."""
    gateway, principal = parts(request)
    record = await describe.describe(gateway, principal, _name(request, principal.owner))
    if record.status == "failed":
        await describe.ready(gateway, principal, record.name)  # raises the reason
    return json_response(detail(gateway, principal, record))


async def kill(request: Request) -> Response:
    """``DELETE /sandboxes/{id}``: 204, or 404 if there was none."""
    gateway, principal = parts(request)
    name = _name(request, principal.owner)
    if not await delete_sandbox(gateway, principal, name, program=program_of(request)):
        raise HoldfastError("sandbox_not_found", f"there is no sandbox {name!r}")
    return Response(status_code=204)


async def set_timeout(request: Request) -> Response:
    """``POST /sandboxes/{id}/timeout`` ``{timeout}``: the sandbox ends so many seconds from now."""
    gateway, principal = parts(request)
    timeout_s = timeout_of(Fields(await read_json(request, _BODY_BYTES)), None)
    if timeout_s is None:
        raise HoldfastError("invalid_argument", "timeout must be a number of seconds")
    await change.lifetime(gateway, principal, _name(request, principal.owner), timeout_s)
    return Response(status_code=204)


async def refresh(request: Request) -> Response:
    """``POST /sandboxes/{id}/refreshes`` ``{duration}``: the sandbox lives at least so many seconds from now."""
    gateway, principal = parts(request)
    fields = Fields(await read_json(request, _BODY_BYTES))
    await _extend(gateway, principal, _name(request, principal.owner), fields.seconds("duration", most=_MOST_TIMEOUT_S) or 15.0)
    return Response(status_code=204)


async def connect(request: Request) -> Response:
    """``POST /v2/sandboxes/{id}/connect`` ``{timeout}``: 200. The time-out never becomes shorter."""
    gateway, principal = parts(request)
    fields, name = Fields(await read_json(request, _BODY_BYTES)), _name(request, principal.owner)
    if not fields.boolean("memory", True) and (await describe.describe(gateway, principal, name)).paused == "memory":
        hint = "resume it with its memory; a pause that keeps only the files is restarted from them"
        raise HoldfastError("unsupported", "a sandbox that is paused with its memory cannot be restarted from its files", hint=hint)
    record = await _extend(gateway, principal, name, timeout_of(fields, None) or _DEFAULT_TIMEOUT_S)
    return json_response(created(gateway, principal, record))


async def _extend(gateway: Gateway, principal: Any, name: str, timeout_s: float) -> Record:
    """A sandbox that lives at least ``timeout_s`` from now, resumed if it was paused."""
    record = await describe.describe(gateway, principal, name)
    if record.paused:
        record, _ = await snapshots.resume(gateway, principal, name)
    record = await describe.ready(gateway, principal, name)
    if record.lifetime_s is None or record.created_at + record.lifetime_s >= time.time() + timeout_s:
        return record
    return await change.lifetime(gateway, principal, name, timeout_s)


def _spec(gateway: Gateway, principal: Principal, fields: Fields, key: str | None) -> SandboxSpec:
    rest, owner = gateway.settings.rest, principal.owner
    for name, hint in _UNSUPPORTED.items():
        if fields.get(name) not in (None, False, [], {}, {"enabled": False}):
            raise HoldfastError("unsupported", f"{name} is not supported", hint=hint)
    image = fields.required("templateID", most=512)
    if any(c <= " " or c > "~" for c in image):
        raise HoldfastError("invalid_argument", "templateID must be an image name: printable ASCII without spaces")
    metadata = fields.get("metadata") or {}
    if not isinstance(metadata, dict):
        raise HoldfastError("invalid_argument", "metadata must be an object of texts")
    return SandboxSpec(
        sandbox_id=id_of(owner, derived_id(owner, key) if key else f"sb-{secrets.token_hex(10)}"),
        owner=owner,
        incarnation=secrets.token_hex(8),
        image=image,
        cpu=rest.default_cpu,
        memory=rest.default_memory,
        cores=parse_cpu(rest.default_cpu),
        memory_bytes=parse_bytes(rest.default_memory),
        labels=Fields({"labels": metadata}).labels(),
        ready_timeout_s=rest.ready_timeout_s,
        lifetime_s=timeout_of(fields, _DEFAULT_TIMEOUT_S),
        key_id=principal.key_id,
        egress=egress(gateway, fields.get("allow_internet_access"), fields.get("network")),
    )


def egress(gateway: Gateway, allowed: Any, network: Any) -> Egress:
    """What the sandbox may reach. E2B's default is the internet; on one machine it has to be requested, as over REST."""
    return egress_of(allowed, network, default=Egress() if isinstance(gateway.runtime, OwnMachine) else Egress("internet"))


def timeout_of(fields: Fields, default: float | None) -> float | None:
    """The requested time-out. 0 ends the sandbox at once, as nearly as a lifetime can. Raises ``invalid_argument``."""
    if fields.get("timeout") in (0, 0.0):
        return 0.001
    found = fields.seconds("timeout", most=_MOST_TIMEOUT_S)
    return default if found is None else found


def _name(request: Request, owner: str) -> str:
    """What the owner calls the sandbox of the path, which has its id or its name."""
    return name_of(owner, request.path_params["sandbox_id"])


def _metadata(text: str) -> list[tuple[str, str]]:
    """The pairs of a filter. These SDKs encode each word twice."""
    return [(check_label(unquote(name)), unquote(value)) for name, value in parse_qsl(text, keep_blank_values=True)]


def _moment(text: str | None) -> float:
    try:
        return datetime.fromisoformat(text).timestamp() if text else 0.0
    except (ValueError, OverflowError):
        raise HoldfastError("invalid_argument", "startedAfter must be a time such as 2026-01-31T12:00:00Z") from None


def _place(record: Record) -> tuple[float, str]:
    """The order of a list: by the time of the creation, then by id."""
    return record.created_at, record.sandbox_id


def _token(record: Record) -> str:
    return f"{record.created_at!r}_{record.sandbox_id}"


def _begin(found: list[Record], token: str, *, descending: bool) -> int:
    """Where the page behind ``token`` begins, also if its sandbox has ended meanwhile."""
    if not token:
        return 0
    moment, _, sandbox_id = token.partition("_")
    try:
        last = float(moment), sandbox_id
    except ValueError:
        raise HoldfastError("invalid_argument", "nextToken is not one of this list") from None
    return sum((_place(one) >= last) if descending else (_place(one) <= last) for one in found)
