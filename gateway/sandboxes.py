"""Lifecycle routes: create, read, list, wait, heartbeat, delete.

Owns what a create means: reserve in placement, make in the runtime, mark ready, each step safe to repeat by any replica. Keeps
Orchard Env's routes and answers. It does not decide when a sandbox ends by itself (``controller``).
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from typing import Any

import orjson
from holdfast_wire.errors import HoldfastError
from holdfast_wire.proof import agent_token
from holdfast_wire.rest import SandboxRecord, parse_bytes, parse_cpu
from starlette.requests import Request
from starlette.responses import Response

from .claims import claim
from .clocks import to_labels
from .parsing import SANDBOX_ID, Fields, check_label, read_json
from .placement.redis_store import derived_id
from .placement.store import Cause, Record, SandboxSpec, Tombstone
from .pools import key_of
from .runtimes.base import Made, Order
from .runtimes.options import Egress
from .service import Gateway, gateway_of, live, owned_entry, reachable

_POLL_LEAST_S = 0.02
_POLL_MOST_S = 0.5
_PAGE_LOOKS = 10
"""Most store pages one filtered listing reads."""
_KEY_CHARACTERS = 255


def json_response(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(orjson.dumps(body), status, headers, "application/json")


async def create(request: Request) -> Response:
    """``POST /sandboxes``."""
    gateway = gateway_of(request)
    owner = gateway.owner(request)
    body = await read_json(request, 1024 * 1024)
    fields = Fields(body)
    key = request.headers.get("idempotency-key")
    if key is not None and not 0 < len(key) <= _KEY_CHARACTERS:
        raise HoldfastError("invalid_argument", f"Idempotency-Key must have 1 to {_KEY_CHARACTERS} characters")
    spec, env = _spec(gateway, owner, fields, key)
    wait = fields.boolean("wait", False)
    fingerprint = hashlib.sha256(orjson.dumps({**body, "wait": None}, option=orjson.OPT_SORT_KEYS)).hexdigest()
    created = await gateway.store.create(spec, fingerprint=fingerprint, idempotency_key=key)
    record = live(created.entry)
    making = gateway.making.get(spec.sandbox_id)
    if record.status == "pending" and making is None:
        # Also for a request that was made before: whoever began with it may be gone, and making is safe to repeat.
        making = gateway.background.start(_make(gateway, record.spec, env, forget=wait), f"making {spec.sandbox_id}")
        gateway.making[spec.sandbox_id] = making
        making.add_done_callback(lambda _: gateway.making.pop(spec.sandbox_id, None))
    if wait and making is not None:
        # Shielded: a client that hangs up may ask again under the same key and find the sandbox made.
        record = await asyncio.shield(making)
    if wait and record.status != "ready":
        raise _failure(record)
    headers = {"Location": f"/sandboxes/{record.sandbox_id}"}
    return json_response(describe(gateway, record), headers=headers)


async def read(request: Request) -> Response:
    """``GET /sandboxes/{id}``: a failed sandbox answers with its cause; one that has ended is 410."""
    gateway = gateway_of(request)
    record = await gateway.record(gateway.owner(request), request.path_params["sandbox_id"])
    return json_response(describe(gateway, record))


async def wait(request: Request) -> Response:
    """``GET /sandboxes/{id}/wait?timeout=``: answers when it is ready or has failed, 408 when neither in time."""
    gateway = gateway_of(request)
    owner = gateway.owner(request)
    timeout_s = Fields(dict(request.query_params)).seconds("timeout") or gateway.settings.rest.ready_timeout_s
    record = await _until_settled(gateway, owner, request.path_params["sandbox_id"], timeout_s)
    return json_response(describe(gateway, record))


async def list_owned(request: Request) -> Response:
    """``GET /sandboxes?label=k=v&limit=&cursor=``."""
    gateway = gateway_of(request)
    owner = gateway.owner(request)
    query = request.query_params
    limit = Fields(dict(query)).integer("limit", 100, least=1, most=1000)
    wanted = []
    for text in query.getlist("label"):
        name, equals, value = text.partition("=")
        if not equals:
            raise HoldfastError("invalid_argument", "label must be name=value")
        wanted.append((check_label(name), value))
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
    """``POST /sandboxes/{id}/heartbeat``: from the first one on, the sandbox expires without them."""
    gateway = gateway_of(request)
    owner = gateway.owner(request)
    sandbox_id = request.path_params["sandbox_id"]
    record = live(owned_entry(await gateway.store.heartbeat(sandbox_id, owner), owner, sandbox_id))
    if record.status == "failed":
        reachable(record)  # raises why
    return json_response({"status": "ok", "sandbox_id": sandbox_id})


async def delete(request: Request) -> Response:
    """``DELETE /sandboxes/{id}``: also for one that has ended, as long as that is remembered."""
    gateway = gateway_of(request)
    owner = gateway.owner(request)
    sandbox_id = request.path_params["sandbox_id"]
    entry = await gateway.store.delete(sandbox_id, Cause("deleted", "caller", "it was deleted"), owner=owner)
    entry = owned_entry(entry, owner, sandbox_id)
    if not isinstance(entry, Tombstone) or entry.cause.reason == "deleted":
        try:
            await gateway.runtime.delete(sandbox_id)
        except HoldfastError:
            pass  # the tombstone stands: the controller removes what is left
    gateway.metrics.count("deletes_total")
    return json_response({"status": "deleted", "sandbox_id": sandbox_id})


def describe(gateway: Gateway, record: Record) -> dict[str, Any]:
    """A record as REST shows it: Orchard's fields and ours. The owner is not told."""
    spec, cause = record.spec, record.cause
    message = ""
    if cause is not None:
        message = cause.message or cause.reason
    return SandboxRecord(
        sandbox_id=spec.sandbox_id,
        namespace=gateway.settings.rest.namespace,
        image=spec.image,
        block_network=spec.block_network,
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
        expires_at=record.expires_at,
        reason=cause.reason if cause else None,
        fault=cause.fault if cause else None,
    ).to_map()


def _spec(gateway: Gateway, owner: str, fields: Fields, key: str | None) -> tuple[SandboxSpec, dict[str, str]]:
    rest = gateway.settings.rest
    chosen = fields.text("sandbox_id", most=200)
    if chosen is not None and not SANDBOX_ID.fullmatch(chosen):
        raise HoldfastError(
            "invalid_argument",
            "sandbox_id cannot be used",
            hint="begin with a small letter or digit; small letters, digits, '.', '_' and '-' may follow; at most 63",
        )
    image = fields.required("image", most=512)
    if any(c <= " " or c > "~" for c in image):
        raise HoldfastError("invalid_argument", "image must be an image name: printable ASCII without spaces")
    cpu, memory, disk = fields.get("cpu"), fields.get("memory"), fields.get("disk")
    cpu = rest.default_cpu if cpu is None else cpu
    memory = rest.default_memory if memory is None else memory
    block_network = fields.boolean("block_network", True)
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
        block_network=block_network,
        labels=fields.labels(),
        ready_timeout_s=fields.seconds("timeout") or rest.ready_timeout_s,
        lifetime_s=fields.seconds("lifetime_s"),
        idle_timeout_s=fields.seconds("idle_timeout_s"),
        heartbeat_timeout_s=fields.seconds("heartbeat_timeout_s"),
        egress=Egress() if block_network else Egress("internet"),
    )
    return spec, fields.environment()


async def _make(gateway: Gateway, spec: SandboxSpec, env: dict[str, str], *, forget: bool) -> Record:
    """From reserved to ready. Whatever goes wrong is recorded, and raised for whoever waits.

    With ``forget``, a failure that may pass leaves nothing: the request can be repeated under the same key.
    """
    order = Order(
        sandbox_id=spec.sandbox_id,
        incarnation=spec.incarnation,
        token=agent_token(gateway.secret, spec.sandbox_id, spec.incarnation),
        owner=spec.owner,
        image=spec.image,
        cores=spec.cores,
        memory_bytes=spec.memory_bytes,
        disk_bytes=spec.disk_bytes,
        env=env,
        labels=to_labels(spec),
        egress=spec.egress,
        options=spec.options,
    )
    try:
        made = await _obtain(gateway, spec, order)
    except HoldfastError as error:
        gateway.metrics.count("create_failed_total", code=error.code)
        if error.code == "sandbox_exists":  # another replica is at it
            return await _until_settled(gateway, spec.owner, spec.sandbox_id, spec.ready_timeout_s)
        if error.code != "runtime_unavailable":  # else it may have been made: the controller finds out
            await _record_failure(gateway, spec, error, forget=forget and error.retryable)
        raise
    entry = await gateway.store.mark_ready(spec.sandbox_id, spec.incarnation, made.endpoint, made.agent_epoch)
    if not isinstance(entry, Record) or entry.incarnation != spec.incarnation or entry.status != "ready":
        await gateway.runtime.delete(spec.sandbox_id)  # deleted or given up while it was being made
        raise _failure(live(owned_entry(entry, spec.owner, spec.sandbox_id)))
    gateway.metrics.count("creates_total")
    return entry


async def _obtain(gateway: Gateway, spec: SandboxSpec, order: Order) -> Made:
    """A spare where one fits and waits, else a new one."""
    pools = gateway.pools.read()
    pool = pools.get(key_of(spec)) if pools else None
    made = await claim(gateway, spec, order, pool.key, spec.ready_timeout_s) if pool is not None else None
    return made or await _create(gateway, order, spec.ready_timeout_s)


async def _create(gateway: Gateway, order: Order, timeout_s: float) -> Made:
    try:
        return await gateway.runtime.create(order, timeout_s)
    except HoldfastError as error:
        if error.code != "sandbox_exists":
            raise
    present = [one for one in await gateway.runtime.list_all() if one.sandbox_id == order.sandbox_id]
    if not present or present[0].incarnation == order.incarnation:
        raise HoldfastError("sandbox_exists", "it is being made")
    await gateway.runtime.delete(order.sandbox_id)  # what is left of the id's former holder, which has ended
    return await gateway.runtime.create(order, timeout_s)


async def _record_failure(gateway: Gateway, spec: SandboxSpec, error: HoldfastError, *, forget: bool) -> None:
    cause = Cause(error.reason or error.code.replace("_", "-"), error.fault, error.message)
    if forget:
        await gateway.store.delete(spec.sandbox_id, cause, owner=spec.owner, incarnation=spec.incarnation, forget=True)
    else:
        await gateway.store.mark_failed(spec.sandbox_id, spec.incarnation, cause)


def _failure(record: Record) -> HoldfastError:
    cause = record.cause or Cause("unknown", "infrastructure")
    message = f"sandbox {record.sandbox_id!r} has failed: {cause.message or cause.reason}"
    code = cause.reason.replace("-", "_")
    if code in ("image_not_found", "unsupported", "invalid_argument"):
        return HoldfastError(code, cause.message or message)
    return HoldfastError("sandbox_failed", message, fault=cause.fault, reason=cause.reason)


async def _until_settled(gateway: Gateway, owner: str, sandbox_id: str, timeout_s: float) -> Record:
    """The record once it is ready or failed. Raises ``wait_timeout``, ``sandbox_gone`` and ``sandbox_not_found``."""
    pause_s = _POLL_LEAST_S
    clock = asyncio.get_running_loop().time
    end = clock() + timeout_s
    while True:
        record = await gateway.record(owner, sandbox_id)
        if record.status != "pending":
            return record
        left = end - clock()
        if left <= 0:
            raise HoldfastError("wait_timeout", f"sandbox {sandbox_id!r} is still being made")
        await asyncio.sleep(min(pause_s, left))
        pause_s = min(pause_s * 1.5, _POLL_MOST_S)
