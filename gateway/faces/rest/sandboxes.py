"""Routes of sandboxes: create, read, list, wait, heartbeat, change, delete.

Owns the form of their requests and answers, with the fields of Orchard Env and of Holdfast.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from dataclasses import replace
from typing import Any, Final

from holdfast_wire.errors import HoldfastError
from holdfast_wire.rest import SandboxRecord, parse_bytes, parse_cpu
from starlette.requests import Request
from starlette.responses import Response

from gateway.faces.table import note, parts, program_of
from gateway.http.conditions import document_response, wanted_versions
from gateway.http.preferences import preference_of
from gateway.http.request_fields import Fields, canonical, check_label, read_json
from gateway.http.responses import json_response
from gateway.identity.principal import Principal, member_of, project_of
from gateway.model.names import id_of
from gateway.model.option_fields import OPTION_FIELDS, egress_of, network_map, options_map, read_network, read_options
from gateway.model.records import SANDBOX_NAME, Change, PlannedEnd, Record, SandboxSpec
from gateway.model.selectors import Requirement, read_selector
from gateway.placement.store import derived_id
from gateway.recordings.files import recording_id
from gateway.use_cases import change, describe, recordings
from gateway.use_cases.create import NewSandbox
from gateway.use_cases.create import create as create_sandbox
from gateway.use_cases.delete import delete as delete_sandbox
from gateway.use_cases.groups import group_name
from gateway.use_cases.service import Gateway

_KEY_CHARACTERS = 255
_CHANGEABLE: Final = ("labels", "lifetime_s", "extend_s", "idle_timeout_s", "heartbeat_timeout_s")


async def create(request: Request) -> Response:
    """``POST /sandboxes``."""
    gateway, principal = parts(request)
    new = new_sandbox(gateway, principal, await read_json(request, 1024 * 1024), idempotency_key(request, "Idempotency-Key"))
    note(request, sandbox=new.spec.name, image=new.spec.image)
    prefers = preference_of(request)
    if prefers is not None:  # in place of `wait`, for clients that know HTTP but not this API
        new = replace(new, wait=prefers.waits and prefers.wait_s is None)
    record = await create_sandbox(gateway, principal, new)
    if prefers is not None and prefers.wait_s:
        record = await describe.wait_or_look(gateway, principal, record.name, prefers.wait_s)
    headers = {"Location": f"/sandboxes/{record.name}"} | (prefers.headers if prefers is not None else {})
    return document_response(request, shown(gateway, record), version=record.version, headers=headers)


def new_sandbox(gateway: Gateway, principal: Principal, body: dict[str, Any], key: str | None) -> NewSandbox:
    """The sandbox that the body of a create requests, under an idempotency key. Raises ``invalid_argument`` and its like."""
    fields = Fields(body)
    new = NewSandbox(
        _spec(gateway, principal, fields, key),
        fingerprint=fingerprint(body),
        env=fields.environment(),
        key=key,
        chosen_id=fields.get("sandbox_id") is not None,
        exclusive=not fields.boolean("exist_ok", True),
        lease=fields.text("group_lease", "", most=64) or "",
        sizes=frozenset(fields.given(("cpu", "memory"))),
        wait=fields.boolean("wait", False),
    )
    if new.spec.record:
        recordings.check(gateway)
    return new


def fingerprint(body: dict[str, Any]) -> str:
    """The same for requests that differ only in how they wait."""
    same = {name: value for name, value in body.items() if name not in ("wait", "exist_ok")} | {"wait": None}
    return hashlib.sha256(canonical(same)).hexdigest()


def idempotency_key(request: Request, header: str) -> str | None:
    key = request.headers.get(header)
    if key is not None and not 0 < len(key) <= _KEY_CHARACTERS:
        raise HoldfastError("invalid_argument", f"{header} must have 1 to {_KEY_CHARACTERS} characters")
    return key


async def read(request: Request) -> Response:
    """``GET /sandboxes/{id}``: a failed sandbox answers with its cause; one that has ended is 410.

    With ``Prefer: wait=…`` it answers when the sandbox is ready or has failed, or with its state when the wait runs out.
    """
    gateway, principal = parts(request)
    name, prefers = request.path_params["sandbox_id"], preference_of(request)
    if prefers is not None and prefers.waits:
        record = await describe.wait_or_look(gateway, principal, name, prefers.wait_s)
    else:
        record = await describe.describe(gateway, principal, name)
    return document_response(request, shown(gateway, record), version=record.version, headers=None if prefers is None else prefers.headers)


async def wait(request: Request) -> Response:
    """``GET /sandboxes/{id}/wait?timeout=``: answers when it is ready or has failed, 408 when neither in time."""
    gateway, principal = parts(request)
    timeout_s = Fields(dict(request.query_params)).seconds("timeout")
    return json_response(shown(gateway, await describe.wait(gateway, principal, request.path_params["sandbox_id"], timeout_s)))


async def list_owned(request: Request) -> Response:
    """``GET /sandboxes?label=k=v&owners=all&limit=&cursor=``."""
    gateway, principal = parts(request)
    query = request.query_params
    limit = Fields(dict(query)).integer("limit", 100, least=1, most=1000)
    wanted = selector_of(request)
    owners = query.get("owners", "own")
    if owners not in ("own", "all"):
        raise HoldfastError("invalid_argument", f"owners must be own or all, not {owners[:40]!r}")
    look = describe.list_others if owners == "all" else describe.list_owned
    page = await look(gateway, principal, wanted, query.get("cursor") or None, limit)
    rows = [shown(gateway, record, owner=owners == "all") for record in page.records]
    return document_response(request, {"sandboxes": rows, "cursor": page.cursor})


def selector_of(request: Request) -> list[Requirement]:
    """The requirements of the parameters ``label``. Raises ``invalid_argument``."""
    found = read_selector(request.query_params.getlist("label"))
    for one in found:
        check_label(one.name)
    return found


async def heartbeat(request: Request) -> Response:
    """``POST /sandboxes/{id}/heartbeat``: a sandbox with a heartbeat limit expires without them.

    ``{"used": false}`` does not reset its idle time: automatic heartbeats show that the client lives, not that the sandbox is used.
    """
    gateway, principal = parts(request)
    sandbox_id = request.path_params["sandbox_id"]
    used = Fields(await read_json(request, 64 * 1024)).boolean("used", True)
    await change.heartbeat(gateway, principal, sandbox_id, used=used)
    return json_response({"status": "ok", "sandbox_id": sandbox_id})


async def lifetime(request: Request) -> Response:
    """``PUT /sandboxes/{id}/lifetime``: ``{"lifetime_s": …}`` counts from now, ``{"extend_s": …}`` from the current end."""
    gateway, principal = parts(request)
    fields = Fields(await read_json(request, 64 * 1024))
    from_now_s, longer_s = fields.seconds("lifetime_s"), fields.seconds("extend_s")
    if (from_now_s is None) == (longer_s is None):
        raise HoldfastError("invalid_argument", "give lifetime_s, which counts from now, or extend_s, which is added to what is left")
    record = await change.lifetime(gateway, principal, request.path_params["sandbox_id"], from_now_s, longer_s or 0.0)
    return json_response(shown(gateway, record))


async def network(request: Request) -> Response:
    """``PUT /sandboxes/{id}/network``."""
    gateway, principal = parts(request)
    egress = read_network(await read_json(request, 256 * 1024))
    return json_response(shown(gateway, await change.network(gateway, principal, request.path_params["sandbox_id"], egress)))


async def update(request: Request) -> Response:
    """``PATCH /sandboxes/{id}``: labels, ``lifetime_s`` or ``extend_s``, ``idle_timeout_s``, ``heartbeat_timeout_s``; null removes one.

    What the body does not have stays. With ``If-Match`` nothing changes unless the sandbox has that version.
    """
    gateway, principal = parts(request)
    fields = Fields(await read_json(request, 256 * 1024))
    if unknown := fields.unknown(_CHANGEABLE):
        raise HoldfastError("invalid_argument", f"{unknown[0][:100]!r} cannot be changed", hint=f"one of {', '.join(_CHANGEABLE)}")
    changed = Change(
        labels=None if fields.get("labels") is None else fields.changed_labels(),
        lifetime_s=fields.seconds("lifetime_s"),
        longer_s=fields.seconds("extend_s"),
        idle_timeout_s=fields.limit_s("idle_timeout_s"),
        heartbeat_timeout_s=fields.limit_s("heartbeat_timeout_s"),
    )
    if changed.lifetime_s is not None and changed.longer_s is not None:
        raise HoldfastError("invalid_argument", "give lifetime_s, which counts from now, or extend_s, which is added to what is left")
    note(request, changed=sorted(fields.given(_CHANGEABLE)))
    record = await change.update(gateway, principal, request.path_params["sandbox_id"], changed, wanted_versions(request))
    return document_response(request, shown(gateway, record), version=record.version)


async def delete(request: Request) -> Response:
    """``DELETE /sandboxes/{id}``: answered once the record is removed.

    ``X-Holdfast-Cancelled-Create`` is the key of a create that its client has cancelled.
    """
    gateway, principal = parts(request)
    sandbox_id = request.path_params["sandbox_id"]
    cancelled_key = idempotency_key(request, "X-Holdfast-Cancelled-Create")
    existed = await delete_sandbox(gateway, principal, sandbox_id, program=program_of(request), cancelled_key=cancelled_key)
    return json_response({"status": "deleted", "sandbox_id": sandbox_id, "existed": existed})


def shown(gateway: Gateway, record: Record, *, owner: bool = False) -> dict[str, Any]:
    """A record in REST's form, with the fields of Orchard Env and of Holdfast; ``owner``: also with its owner and project."""
    spec, cause, leaving = record.spec, record.cause, record.leaving
    message, queued_s = "", round(record.queued_s(time.time()), 3)
    if cause is not None:
        message = cause.message or cause.reason
    elif record.begun_at is None and record.status == "pending":
        message = f"its creation has been queued for {queued_s:.0f} s"
    elif record.paused:
        message = "paused, in memory" if record.paused == "memory" else "paused, on disk"
    return SandboxRecord(
        sandbox_id=spec.name,
        namespace=gateway.settings.namespace,
        image=spec.image,
        block_network=spec.egress.mode == "none",
        network=network_map(spec.egress),
        options=options_map(spec.options),
        cpu=spec.cpu,
        memory=spec.memory,
        timeout=spec.ready_timeout_s,
        status=record.status,
        ready=record.status == "ready",
        status_message=message,
        labels=spec.labels,
        incarnation=spec.incarnation,
        created_at=record.created_at,
        ready_at=record.ready_at,
        queued_s=queued_s,
        lifetime_s=record.lifetime_s,
        expires_at=record.expires_at,
        reason=cause.reason if cause else None,
        fault=cause.fault if cause else None,
        group=spec.group or None,
        leaving=_leaving(leaving) if leaving else None,
        paused=record.paused or None,
        parent=spec.parent or None,
        turn=spec.turn,
        recording=recording_id(spec.name, spec.incarnation) if spec.record else None,
        owner=member_of(spec.owner) if owner else None,
        project=(project_of(spec.owner) or None) if owner else None,
        idle_timeout_s=spec.idle_timeout_s,
        heartbeat_timeout_s=spec.heartbeat_timeout_s,
    ).to_map()


def _leaving(planned: PlannedEnd) -> dict[str, Any]:
    cause = planned.cause
    return {"reason": cause.reason, "fault": cause.fault, "message": cause.message, "deadline": planned.deadline}


def _spec(gateway: Gateway, principal: Principal, fields: Fields, key: str | None) -> SandboxSpec:
    owner = principal.owner
    rest = gateway.settings.rest
    chosen = fields.text("sandbox_id", most=200)
    if chosen is not None and not SANDBOX_NAME.fullmatch(chosen):
        raise HoldfastError(
            "invalid_argument",
            f"sandbox_id {chosen!r} cannot be used",
            hint="begin with a small letter or digit; small letters, digits, '.', '_' and '-' may follow; at most 63",
        )
    image = fields.required("image", most=512)
    if any(c <= " " or c > "~" for c in image):
        raise HoldfastError("invalid_argument", "image must be an image name: printable ASCII without spaces")
    cpu, memory, disk = fields.get("cpu"), fields.get("memory"), fields.get("disk")
    cpu = rest.default_cpu if cpu is None else cpu
    memory = rest.default_memory if memory is None else memory
    group = fields.text("group", most=100)
    egress = egress_of(fields.get("network"), None if fields.get("block_network") is None else fields.boolean("block_network", True))
    return SandboxSpec(
        sandbox_id=id_of(owner, chosen or (derived_id(owner, key) if key else f"sb-{secrets.token_hex(10)}")),
        owner=owner,
        incarnation=secrets.token_hex(8),
        image=image,
        cpu=str(cpu),
        memory=str(memory),
        cores=parse_cpu(cpu),
        memory_bytes=parse_bytes(memory),
        disk_bytes=None if disk is None else parse_bytes(disk, "disk"),
        labels=fields.labels(),
        ready_timeout_s=fields.seconds("timeout") or rest.ready_timeout_s,
        lifetime_s=fields.seconds("lifetime_s") or rest.default_lifetime_s,
        idle_timeout_s=fields.seconds("idle_timeout_s"),
        heartbeat_timeout_s=fields.seconds("heartbeat_timeout_s"),
        group=group_name(group) if group else "",
        egress=egress,
        options=read_options(fields.given(OPTION_FIELDS)),
        record=fields.boolean("record", False),
        key_id=principal.key_id,
    )
