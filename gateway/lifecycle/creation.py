"""Making a sandbox, from a reserved record to a ready one.

Owns the steps and what becomes of a failure in each: whatever a replica leaves half-done, another, or the controller, finishes. Called by
``sandboxes``; what a request asks for is read there.
"""

from __future__ import annotations

import asyncio
import contextlib

from holdfast_wire.errors import HoldfastError
from holdfast_wire.proof import agent_token

from gateway.admission import QueuePlace
from gateway.model.records import Cause, Entry, Record, SandboxSpec
from gateway.placement.store import PlacementUnavailableError, RebuildingError
from gateway.pools import key_of
from gateway.runtimes.base import CreateRequest, Endpoint, RuntimeUnavailableError
from gateway.service import Gateway, live, owned_entry

from .pool_claims import claim
from .reserved_labels import to_labels

_MARGIN_S = 2.0
_MARGIN_SHARE = 0.1
_POLL_LEAST_S = 0.02
_POLL_MOST_S = 0.5
_EXISTS_MOST_S = 5.0
_NOTE_S = 5.0
"""How often it is noted that a sandbox is being made: more often than the controller looks."""
_REBUILD_S = 30.0
"""How long a sandbox that was made while records were lost is waited for: the controller looks every ten seconds."""


async def make(gateway: Gateway, spec: SandboxSpec, env: dict[str, str], place: QueuePlace, *, forget: bool) -> Record:
    """From reserved to ready. Whatever goes wrong is recorded, and raised for whoever waits.

    With ``forget``, a failure that may pass leaves nothing: the request can be repeated under the same key. ``place`` is given up.
    """
    request = CreateRequest(
        sandbox_id=spec.sandbox_id,
        incarnation=spec.incarnation,
        token=agent_token(gateway.secret, spec.sandbox_id, spec.incarnation),
        other_tokens=tuple(agent_token(secret, spec.sandbox_id, spec.incarnation) for secret in gateway.secrets[1:]),
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
    end = asyncio.get_running_loop().time() + _own_time(spec.ready_timeout_s)
    noting = gateway.background.start(_note_often(gateway, spec.sandbox_id), f"that {spec.sandbox_id} is being made")
    try:
        waited = not place.turn.done()
        async with place:
            if waited:
                await _still_wanted(gateway, spec)
            made = await _obtain(gateway, spec, request, end)
    except HoldfastError as error:
        noting.cancel()  # whoever else is at it notes that itself
        gateway.metrics.count("create_failed_total", code=error.code)
        if error.code == "sandbox_exists":  # another replica is at it
            return await wait_until_settled(gateway, spec.owner, spec.sandbox_id, spec.ready_timeout_s, spec.incarnation)
        nothing = isinstance(error, RuntimeUnavailableError) and error.made_nothing
        if nothing or error.code != "runtime_unavailable":  # else it may have been made: the controller finds out
            ready = await _fail(gateway, spec, error, forget=forget and error.retryable, made=not nothing)
            if ready is not None:
                return ready
        raise
    finally:
        noting.cancel()
    try:
        entry = await gateway.store.mark_ready(spec.sandbox_id, spec.incarnation, made.endpoint, made.agent_epoch)
    except PlacementUnavailableError:  # whoever waits may ask again, and nobody knows as well that it is made
        gateway.background.start(_say_later(gateway, spec, made, end), f"that {spec.sandbox_id} is made")
        raise
    if entry is None and not await gateway.store.knows(spec.sandbox_id):
        return await _until_rebuilt(gateway, spec)
    if not isinstance(entry, Record) or entry.incarnation != spec.incarnation or entry.status != "ready":
        await gateway.runtime.delete(spec.sandbox_id, spec.incarnation)  # deleted or given up while it was being made
        if entry is None:
            raise RebuildingError  # or another replica gave it up: either way it can be asked for again
        raise failure(live(owned_entry(entry, spec.owner, spec.sandbox_id)))
    gateway.metrics.count("creates_total")
    return entry


async def _say_later(gateway: Gateway, spec: SandboxSpec, made: Endpoint, end: float) -> None:
    """Until the store has heard it. What else became of the sandbox meanwhile the controller sees to."""
    while asyncio.get_running_loop().time() < end:
        await asyncio.sleep(_POLL_MOST_S)
        with contextlib.suppress(PlacementUnavailableError):
            await gateway.store.mark_ready(spec.sandbox_id, spec.incarnation, made.endpoint, made.agent_epoch)
            return


async def _note_often(gateway: Gateway, sandbox_id: str) -> None:
    """Somebody is at it, be it in a queue or while a node is bought and an image pulled: the controller gives up what nobody makes."""
    while True:
        await asyncio.sleep(_NOTE_S)
        with contextlib.suppress(PlacementUnavailableError):
            await gateway.store.touch([sandbox_id])


async def _still_wanted(gateway: Gateway, spec: SandboxSpec) -> None:
    """A turn may come after many minutes. Raises ``sandbox_exists`` when there is nothing left to be made."""
    with contextlib.suppress(PlacementUnavailableError):
        entry = await gateway.store.get(spec.sandbox_id)
        if entry is not None and not _pending(entry, spec):
            raise HoldfastError("sandbox_exists", "it is made already, or has ended")


def _pending(entry: Entry, spec: SandboxSpec) -> bool:
    return isinstance(entry, Record) and entry.incarnation == spec.incarnation and entry.status == "pending"


async def _until_rebuilt(gateway: Gateway, spec: SandboxSpec) -> Record:
    """The store was wiped while the sandbox was made; it is there, so the controller records it. Raises what placement says till then."""
    end = asyncio.get_running_loop().time() + _REBUILD_S
    while True:
        try:
            return await gateway.record(spec.owner, spec.sandbox_id)
        except HoldfastError as error:
            if error.code not in ("placement_unavailable", "sandbox_not_found") or asyncio.get_running_loop().time() > end:
                raise
        await asyncio.sleep(_POLL_MOST_S)


def _own_time(ready_timeout_s: float) -> float:
    """A little less than the record gets: who makes it knows why it is late, the controller only that it is."""
    return ready_timeout_s - min(_MARGIN_S, _MARGIN_SHARE * ready_timeout_s)


async def _obtain(gateway: Gateway, spec: SandboxSpec, request: CreateRequest, end: float) -> Endpoint:
    """A spare where one fits and waits, else a new one. ``end`` is on the loop's clock; waiting for a turn has used of it."""
    clock = asyncio.get_running_loop().time
    pools = gateway.pools.read()
    pool = pools.get(key_of(spec)) if pools else None
    made = await claim(gateway, spec, request, pool.key, max(end - clock(), 0.01)) if pool is not None else None
    return made or await _create(gateway, spec, request, end)


async def _create(gateway: Gateway, spec: SandboxSpec, request: CreateRequest, end: float) -> Endpoint:
    """Again and again while another incarnation has the id, or the runtime says that somebody is at it: who that was may be gone."""
    clock = asyncio.get_running_loop().time
    pause_s = _POLL_LEAST_S
    while True:
        try:
            return await gateway.runtime.create(request, max(end - clock(), 0.01))
        except HoldfastError as error:
            if error.code != "sandbox_exists" or clock() >= end:
                raise
        statuses = await gateway.runtime.list_all()
        await _still_wanted(gateway, spec)  # after the list: what is in it and is not ours is older than ours
        for sandbox in statuses:
            if sandbox.sandbox_id == request.sandbox_id and sandbox.incarnation != request.incarnation:
                await gateway.runtime.delete(request.sandbox_id, sandbox.incarnation)  # the record is ours: its former holder has ended
        await asyncio.sleep(pause_s)
        pause_s = min(pause_s * 1.5, _EXISTS_MOST_S)


async def _fail(gateway: Gateway, spec: SandboxSpec, error: HoldfastError, *, forget: bool, made: bool = True) -> Record | None:
    """End what nobody made: first the record, then what there is of it, which is nothing unless ``made``.

    The record, where somebody else has made it after all.
    """
    cause = Cause(error.reason or error.code.replace("_", "-"), error.fault, error.message)
    entry = await gateway.store.mark_failed(spec.sandbox_id, spec.incarnation, cause, was="pending")
    if not isinstance(entry, Record) or entry.incarnation != spec.incarnation:
        return None
    if entry.status == "ready":
        return entry
    await gateway.quotas.ended(spec)
    try:
        if made:
            await gateway.runtime.delete(spec.sandbox_id, spec.incarnation)
    except HoldfastError:
        return None  # the controller removes it, on the evidence of the record
    if forget:
        await gateway.store.delete(spec.sandbox_id, cause, owner=spec.owner, incarnation=spec.incarnation, forget=True)
    return None


def failure(record: Record) -> HoldfastError:
    cause = record.cause or Cause("unknown", "infrastructure")
    message = f"sandbox {record.sandbox_id!r} has failed: {cause.message or cause.reason}"
    code = cause.reason.replace("-", "_")
    if code in ("image_not_found", "unsupported", "invalid_argument"):
        return HoldfastError(code, cause.message or message)
    return HoldfastError("sandbox_failed", message, fault=cause.fault, reason=cause.reason)


async def wait_until_settled(gateway: Gateway, owner: str, sandbox_id: str, timeout_s: float, incarnation: str = "") -> Record:
    """The record once it is ready or failed; with ``incarnation``, of that one only.

    Raises ``wait_timeout``, ``sandbox_gone`` and ``sandbox_not_found``.
    """
    pause_s = _POLL_LEAST_S
    clock = asyncio.get_running_loop().time
    end = clock() + timeout_s
    while True:
        record = await gateway.record(owner, sandbox_id)
        if incarnation not in ("", record.incarnation):
            message = f"sandbox {sandbox_id!r} was deleted while it was being made"
            raise HoldfastError("sandbox_gone", message, fault="caller", reason="deleted")
        if record.status != "pending":
            return record
        left = end - clock()
        if left <= 0:
            raise HoldfastError("wait_timeout", f"sandbox {sandbox_id!r} is still being made")
        await asyncio.sleep(min(pause_s, left))
        pause_s = min(pause_s * 1.5, _POLL_MOST_S)
