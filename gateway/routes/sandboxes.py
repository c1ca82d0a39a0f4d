"""Lifecycle routes: create, read, list, wait, heartbeat, delete.

Owns the steps of a create (reserve in placement, create in the runtime, mark ready), each safe to repeat by any replica, and Orchard Env's
routes and answers. The controller ends sandboxes whose time runs out.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import secrets
import time
from dataclasses import replace
from typing import Any

from holdfast_wire.errors import HoldfastError
from holdfast_wire.rest import SandboxRecord, parse_bytes, parse_cpu
from starlette.requests import Request
from starlette.responses import Response

from gateway.admission import QueuePlace
from gateway.http.request_fields import SANDBOX_ID, Fields, canonical, check_label, read_json
from gateway.http.responses import json_response
from gateway.lifecycle.creation import create as create_sandbox
from gateway.lifecycle.creation import failure, wait_until_settled
from gateway.model.option_fields import OPTION_FIELDS, egress_of, network_map, options_map, read_options
from gateway.model.records import Cause, PlannedEnd, Record, SandboxSpec, Tombstone
from gateway.placement.errors import RebuildingError
from gateway.placement.store import derived_id
from gateway.service import Gateway, authenticated, live, program_of, reachable, sandbox_request

from .groups import group_name, raise_if_refused

_PAGE_LOOKS = 10
"""Most store pages that one filtered listing reads."""
_KEY_CHARACTERS = 255


async def create(request: Request) -> Response:
    """``POST /sandboxes``."""
    gateway, owner = authenticated(request)
    body = await read_json(request, 1024 * 1024)
    fields = Fields(body)
    key = _key(request, "Idempotency-Key")
    spec, env = _spec(gateway, owner, fields, key)
    await _check_sizes(gateway, spec, fields)
    wait, shared = fields.boolean("wait", False), fields.boolean("exist_ok", True)
    fingerprint = hashlib.sha256(
        canonical({name: value for name, value in body.items() if name not in ("wait", "exist_ok")} | {"wait": None})
    ).hexdigest()
    place, started = gateway.admission.enter(owner), False
    try:
        lease = fields.text("group_lease", "", most=64) or ""
        chosen, queued = fields.get("sandbox_id") is not None, not place.admitted.done()
        record = await _reserve(gateway, spec, lease, fingerprint, key, chosen=chosen, shared=shared, queued=queued)
        made = (record.sandbox_id, record.incarnation)
        creation = gateway.creations.get(made)
        if record.status == "pending" and creation is None:
            # Also for a repeated request: the replica that began may be gone, and creating is safe to repeat.
            work = create_sandbox(gateway, record.spec, env, place, queued=record.begun_at is None, forget=wait)
            creation = gateway.background.start(work, f"creation of {spec.sandbox_id}")
            gateway.creations[made] = creation
            creation.add_done_callback(lambda _: _creation_ended(gateway, made, place))
            started = True
    finally:
        if not started:
            place.leave()
    if wait and creation is not None:
        # Shielded: a client that disconnects may ask again under the same key and find the sandbox created.
        record = await asyncio.shield(creation)
    if wait and record.status != "ready":
        raise failure(record)
    headers = {"Location": f"/sandboxes/{record.sandbox_id}"}
    return json_response(describe(gateway, record), headers=headers)


async def _check_sizes(gateway: Gateway, spec: SandboxSpec, fields: Fields) -> None:
    """Refuse requested sizes that no machine has: such a sandbox would never become ready. The defaults are the service's own."""
    cpu, memory = fields.get("cpu") is not None, fields.get("memory") is not None
    if not cpu and not memory:
        return
    try:
        largest = await gateway.runtime.largest()
    except HoldfastError:
        return  # the runtime is down, which the create will report
    cores, size = largest or (math.inf, math.inf)
    hint = "request less, or leave it out; GET /resources shows what there is"
    if cpu and spec.cores > cores:
        message = f"cpu={spec.cpu} is more than any machine here has: {cores:g} cores"
        raise HoldfastError("invalid_quantity", message, hint=hint)
    if memory and spec.memory_bytes > size:
        message = f"memory={spec.memory} is more than any machine here has: {size / 2**30:.1f}Gi"
        raise HoldfastError("invalid_quantity", message, hint=hint)


def _key(request: Request, header: str) -> str | None:
    key = request.headers.get(header)
    if key is not None and not 0 < len(key) <= _KEY_CHARACTERS:
        raise HoldfastError("invalid_argument", f"{header} must have 1 to {_KEY_CHARACTERS} characters")
    return key


def _creation_ended(gateway: Gateway, made: tuple[str, str], place: QueuePlace) -> None:
    gateway.creations.pop(made, None)
    place.leave()  # also when the task was cancelled before it began


async def _reserve(
    gateway: Gateway, spec: SandboxSpec, lease: str, fingerprint: str, key: str | None, *, chosen: bool, shared: bool, queued: bool
) -> Record:
    """Count the sandbox, add it to its group, and write its record, in this order: then counts and groups include every sandbox with a
    record."""
    counted = await gateway.quotas.reserve(spec)
    try:
        if spec.group:
            outcome, group = await gateway.store.group_join(spec.owner, spec.group, spec.sandbox_id, lease=lease)
            raise_if_refused(outcome, group)
            spec = replace(spec, group_ttl_s=group.ttl_s)
        created = await gateway.store.create(
            spec,
            fingerprint=fingerprint,
            idempotency_key=key,
            used_before=chosen or key is not None,
            exclusive=not shared,
            queued=queued,
        )
        return live(created.entry)
    except HoldfastError:
        await gateway.quotas.release(counted, spec.sandbox_id)
        raise


async def read(request: Request) -> Response:
    """``GET /sandboxes/{id}``: a failed sandbox answers with its cause; one that has ended is 410."""
    gateway, owner, sandbox_id = sandbox_request(request)
    return json_response(describe(gateway, await gateway.record(owner, sandbox_id)))


async def wait(request: Request) -> Response:
    """``GET /sandboxes/{id}/wait?timeout=``: answers when it is ready or has failed, 408 when neither in time."""
    gateway, owner, sandbox_id = sandbox_request(request)
    timeout_s = Fields(dict(request.query_params)).seconds("timeout") or gateway.settings.rest.ready_timeout_s
    return json_response(describe(gateway, await wait_until_settled(gateway, owner, sandbox_id, timeout_s)))


async def list_owned(request: Request) -> Response:
    """``GET /sandboxes?label=k=v&limit=&cursor=``."""
    gateway, owner = authenticated(request)
    query = request.query_params
    limit = Fields(dict(query)).integer("limit", 100, least=1, most=1000)
    wanted = []
    for text in query.getlist("label"):
        name, equals, value = text.partition("=")
        if not equals:
            raise HoldfastError("invalid_argument", "label must be name=value")
        wanted.append((check_label(name), value))
    if not await gateway.store.complete():
        raise RebuildingError  # an incomplete list would be taken for complete
    cursor = query.get("cursor") or None
    found: list[Record] = []
    for _ in range(_PAGE_LOOKS if wanted else 1):
        page = await gateway.store.list_owned(owner, cursor=cursor, limit=limit - len(found))
        found += [one for one in page.records if all(one.spec.labels.get(name) == value for name, value in wanted)]
        cursor = page.cursor
        if cursor is None or len(found) >= limit:
            break
    return json_response({"sandboxes": [describe(gateway, record) for record in found], "cursor": cursor})


async def heartbeat(request: Request) -> Response:
    """``POST /sandboxes/{id}/heartbeat``: a sandbox with a heartbeat limit expires without them.

    ``{"used": false}`` does not reset its idle time: automatic heartbeats show that the client lives, not that the sandbox is used.
    """
    gateway, owner, sandbox_id = sandbox_request(request)
    used = Fields(await read_json(request, 64 * 1024)).boolean("used", True)
    record = live(await gateway.owned(await gateway.store.heartbeat(sandbox_id, owner, used=used), owner, sandbox_id))
    if record.status == "failed":
        reachable(record)  # raises the reason
    return json_response({"status": "ok", "sandbox_id": sandbox_id})


async def delete(request: Request) -> Response:
    """``DELETE /sandboxes/{id}``: also for one that has ended, as long as its tombstone exists.

    Answered once the record is removed; the runtime's removal continues in the background, or is completed by the controller.
    ``X-Holdfast-Cancelled-Create`` is the key of a create that its client has cancelled: only what that create made is deleted, and it is
    refused if it arrives later.
    """
    gateway, owner, sandbox_id = sandbox_request(request)
    cause, key = (
        Cause("deleted", "caller", "a client deleted the sandbox", program_of(request)),
        _key(request, "X-Holdfast-Cancelled-Create"),
    )
    entry = await gateway.store.delete(sandbox_id, cause, owner=owner, cancelled_key=key)
    entry = await gateway.owned(entry, owner, sandbox_id)
    if isinstance(entry, Record):
        await gateway.quotas.ended(entry.spec)
    if not isinstance(entry, Tombstone) or entry.cause.reason == "deleted":
        await gateway.removals.start(gateway.runtime, sandbox_id, entry.incarnation)
    gateway.metrics.count("deletes_total")
    return json_response({"status": "deleted", "sandbox_id": sandbox_id, "existed": isinstance(entry, Record)})


def describe(gateway: Gateway, record: Record) -> dict[str, Any]:
    """A record in REST's form, with the fields of Orchard Env and of Holdfast, without the owner."""
    spec, cause, leaving = record.spec, record.cause, record.leaving
    message, queued_s = "", round(record.queued_s(time.time()), 3)
    if cause is not None:
        message = cause.message or cause.reason
    elif record.begun_at is None and record.status == "pending":
        message = f"its creation has been queued for {queued_s:.0f} s"
    return SandboxRecord(
        sandbox_id=spec.sandbox_id,
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
    ).to_map()


def _leaving(planned: PlannedEnd) -> dict[str, Any]:
    cause = planned.cause
    return {"reason": cause.reason, "fault": cause.fault, "message": cause.message, "deadline": planned.deadline}


def _spec(gateway: Gateway, owner: str, fields: Fields, key: str | None) -> tuple[SandboxSpec, dict[str, str]]:
    rest = gateway.settings.rest
    chosen = fields.text("sandbox_id", most=200)
    if chosen is not None and not SANDBOX_ID.fullmatch(chosen):
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
    spec = SandboxSpec(
        sandbox_id=chosen or (derived_id(owner, key) if key else f"sb-{secrets.token_hex(10)}"),
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
    )
    return spec, fields.environment()
