"""Creation of a sandbox: from a reserved record to a ready one.

Owns the steps, including the adoption of a spare, and the cleanup after a failure in each of them: another replica or the controller
completes what this one cannot. Called by ``routes.sandboxes``, which reads the request.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import logging
import time

from holdfast_wire.errors import HoldfastError
from holdfast_wire.proof import agent_token

from gateway.admission import QueuePlace
from gateway.model.records import Cause, Record, SandboxSpec
from gateway.placement.errors import PlacementUnavailableError, RebuildingError
from gateway.placement.redis_spares import COLD_START
from gateway.pools import key_of
from gateway.runtimes.base import CreateRequest, RuntimeUnavailableError
from gateway.service import EndedError, Gateway, live

log = logging.getLogger("gateway")

_MARGIN_S = 2.0
_MARGIN_SHARE = 0.1
_POLL_LEAST_S = 0.02
_POLL_MOST_S = 0.5
_EXISTS_MOST_S = 5.0
_TRIES = 3
"""How many spares are tried before a new sandbox is created instead: a lost spare is only noticed when it is adopted."""
_ADOPT_S = 10.0
_TOUCH_S = 5.0
"""How often the record of a sandbox in creation is renewed: more often than the controller looks for abandoned ones."""


async def create(gateway: Gateway, spec: SandboxSpec, env: dict[str, str], place: QueuePlace, *, queued: bool, forget: bool) -> Record:
    """See ``_create``; while it runs, its record is renewed."""
    made = (spec.sandbox_id, spec.incarnation)
    gateway.in_creation[made] = spec
    try:
        return await _create(gateway, spec, env, place, queued=queued, forget=forget)
    finally:
        gateway.in_creation.pop(made, None)


async def _create(gateway: Gateway, spec: SandboxSpec, env: dict[str, str], place: QueuePlace, *, queued: bool, forget: bool) -> Record:
    """Create the sandbox of a pending record.

    A failure is recorded, and raised for a waiting caller. With ``forget``, a temporary failure leaves no record, so that the request can
    be repeated under the same key. ``queued``: the record does not state yet that the creation has begun. ``place`` is released at the end.
    """
    request = _request(gateway, spec, env)
    deadline = asyncio.get_running_loop().time() + _own_time(spec.ready_timeout_s)
    try:
        queued = queued or not place.admitted.done()  # after a wait it may have been deleted
        async with place:
            gateway.metrics.observe("create_queue_seconds", place.waited_s)
            if queued:
                await _begin(gateway, spec)
            begun = time.monotonic()
            endpoint = await _obtain(gateway, spec, request, deadline)
    except HoldfastError as error:
        gateway.metrics.count("create_failed_total", code=error.code)
        if waited_s := round(place.waited_s, 3):
            error.detail.setdefault("queued_s", waited_s)
        if error.code == "sandbox_exists":  # another replica is creating it
            return await wait_until_settled(gateway, spec.owner, spec.sandbox_id, spec.ready_timeout_s, spec.incarnation)
        nothing = isinstance(error, RuntimeUnavailableError) and error.made_nothing
        if nothing or error.code != "runtime_unavailable":  # otherwise the sandbox may exist: the controller checks that
            ready = await _fail(gateway, spec, error, forget=forget and error.retryable, created=not nothing)
            if ready is not None:
                return ready
        raise
    mark_ready = functools.partial(gateway.store.mark_ready, spec.sandbox_id, spec.incarnation, endpoint)
    try:
        entry = await mark_ready()
    except PlacementUnavailableError:  # the caller may retry; only this replica can report that an adopted sandbox is ready
        gateway.background.repeat(mark_ready, itertools.repeat(_POLL_MOST_S), f"record of {spec.sandbox_id}", until=deadline)
        raise
    if entry is None:  # perhaps the store was wiped
        await gateway.store.rebuild(spec, "", time.time(), status="pending", term=None)
        entry = await mark_ready()
    if not isinstance(entry, Record) or entry.incarnation != spec.incarnation or entry.status != "ready":
        # It was deleted or given up during its creation.
        await gateway.removals.start(gateway.runtime, spec.sandbox_id, spec.incarnation)
        if entry is None:
            raise RebuildingError  # or another replica gave it up: either way the request can be repeated
        raise failure(live(await gateway.owned(entry, spec.owner, spec.sandbox_id)))
    gateway.metrics.count("creates_total")
    gateway.metrics.observe("create_seconds", time.monotonic() - begun)
    return entry


async def renew(gateway: Gateway) -> None:
    """Renew, until cancelled, the records of the sandboxes that this replica is creating: the controller gives up abandoned ones.

    A store that was wiped gets their records again; the runtime may not have them yet.
    """
    while True:
        await asyncio.sleep(_TOUCH_S)
        with contextlib.suppress(PlacementUnavailableError):
            await gateway.store.renew(list(gateway.in_creation.values()))


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
            message = f"sandbox {sandbox_id!r} was deleted during its creation"
            raise EndedError("sandbox_gone", message, fault="caller", reason="deleted")
        if record.status != "pending":
            return record
        left = end - clock()
        if left <= 0:
            raise HoldfastError("wait_timeout", f"sandbox {sandbox_id!r} is still being created")
        await asyncio.sleep(min(pause_s, left))
        pause_s = min(pause_s * 1.5, _POLL_MOST_S)


def failure(record: Record) -> HoldfastError:
    """The error of a failed sandbox."""
    cause = record.cause or Cause("unknown", "infrastructure")
    message = f"sandbox {record.sandbox_id!r} has failed: {cause.message or cause.reason}"
    if cause.reason == "image-pull":  # the fault distinguishes a missing image from a registry that does not answer
        code = "image_not_found" if cause.fault == "caller" else "image_pull_failed"
        return HoldfastError(code, cause.message or message, fault=cause.fault, reason=cause.reason, retryable=False)  # it stays failed
    if cause.reason in ("timeout", "ready-timeout"):
        return HoldfastError("create_timeout", message, fault=cause.fault, reason=cause.reason)
    code = cause.reason.replace("-", "_")
    if code in ("image_not_found", "unsupported", "invalid_argument"):
        return HoldfastError(code, cause.message or message)
    return HoldfastError("sandbox_failed", message, fault=cause.fault, reason=cause.reason)


def _request(gateway: Gateway, spec: SandboxSpec, env: dict[str, str]) -> CreateRequest:
    token, *others = (agent_token(secret, spec.sandbox_id, spec.incarnation) for secret in gateway.secrets)
    return CreateRequest(spec, token, env, tuple(others))


def _own_time(ready_timeout_s: float) -> float:
    """A little less than the record's own timeout: this replica can report why the sandbox is late, the controller only that it is late."""
    return ready_timeout_s - min(_MARGIN_S, _MARGIN_SHARE * ready_timeout_s)


async def _obtain(gateway: Gateway, spec: SandboxSpec, request: CreateRequest, deadline: float) -> str:
    """Adopt a spare if one fits, else create a sandbox. ``deadline`` is on the loop's clock; queueing has used part of the time.

    Creating is repeated while another incarnation has the id, or another replica is creating this one: that replica may have ended.
    """
    clock = asyncio.get_running_loop().time
    pools = gateway.pools.read()
    pool = pools.get(key_of(spec)) if pools else None
    if pool is not None and (adopted := await _claim(gateway, spec, request, pool.key, max(deadline - clock(), 0.01))):
        return adopted
    pause_s = _POLL_LEAST_S
    while True:
        try:
            return await gateway.runtime.create(request, max(deadline - clock(), 0.01))
        except HoldfastError as error:
            if error.code != "sandbox_exists" or clock() >= deadline:
                raise
        found = await gateway.runtime.get(spec.sandbox_id)
        await _begin(gateway, spec)  # afterwards: any other incarnation found is then older than this one
        for sandbox in found:
            if sandbox.incarnation != spec.incarnation:
                await gateway.runtime.delete(spec.sandbox_id, sandbox.incarnation)
        await asyncio.sleep(pause_s)
        pause_s = min(pause_s * 1.5, _EXISTS_MOST_S)


async def _claim(gateway: Gateway, spec: SandboxSpec, request: CreateRequest, pool: str, timeout_s: float) -> str | None:
    """Adopt a spare as the requested sandbox; None if one has to be created.

    Several replicas may create the same sandbox, so its record stores, once, what it is created from. The runtime decides which request
    gets a spare; the store's offers are only hints. Raises ``sandbox_exists`` when another replica is creating the sandbox, and what the
    store raises.
    """
    store, failed = gateway.store, ""
    for number in range(_TRIES):
        spare = await store.take_spare(pool)
        source = await store.assign_spare(spec.sandbox_id, spec.incarnation, spare or COLD_START, failed)
        if spare is not None and source != spare:
            await store.offer_spares(pool, {spare: time.time()})
        if source == COLD_START:
            _count_claim(gateway, "empty" if number == 0 else "failed")
            return None
        if not source:
            raise HoldfastError("sandbox_exists", "the sandbox has been created already, or has ended")
        try:
            endpoint = await gateway.runtime.adopt(source, request, min(timeout_s, _ADOPT_S))
        except HoldfastError as error:
            log.info("the spare %s cannot be used: %s", source, error.code)
            if error.code != "sandbox_not_found":
                await _discard(gateway, source, spec)
            elif any(one.incarnation == spec.incarnation for one in await gateway.runtime.get(spec.sandbox_id)):
                # The spare is not lost: another replica has found it in the record and adopted it.
                raise HoldfastError("sandbox_exists", "another replica is already creating this sandbox") from None
            failed = source
            continue
        _count_claim(gateway, "warm")
        return endpoint
    if await store.assign_spare(spec.sandbox_id, spec.incarnation, COLD_START, failed) != COLD_START:
        raise HoldfastError("sandbox_exists", "another replica is already creating this sandbox, or it has ended")
    _count_claim(gateway, "failed")
    return None


async def _discard(gateway: Gateway, spare: str, spec: SandboxSpec) -> None:
    """Remove a spare whose adoption failed before its end, under its own id and under the new one."""
    for sandbox_id, incarnation in ((spare, None), (spec.sandbox_id, spec.incarnation)):
        with contextlib.suppress(HoldfastError):  # the controller removes what remains
            await gateway.runtime.delete(sandbox_id, incarnation)


def _count_claim(gateway: Gateway, outcome: str) -> None:
    gateway.metrics.count("pool_claims_total", outcome=outcome)


async def _begin(gateway: Gateway, spec: SandboxSpec) -> None:
    """The creation begins. Raises ``sandbox_exists`` when the record is no longer pending: it may have been deleted meanwhile."""
    with contextlib.suppress(PlacementUnavailableError):
        entry = await gateway.store.begin(spec.sandbox_id, spec.incarnation)
        pending = isinstance(entry, Record) and entry.incarnation == spec.incarnation and entry.status == "pending"
        if entry is not None and not pending:
            raise HoldfastError("sandbox_exists", "the sandbox has been created already, or has ended")


async def _fail(gateway: Gateway, spec: SandboxSpec, error: HoldfastError, *, forget: bool, created: bool) -> Record | None:
    """Record the failure, then remove what was ``created``. Returns the record if another replica has created the sandbox."""
    cause = Cause(error.reason or error.code.replace("_", "-"), error.fault, error.message)
    entry = await gateway.store.mark_failed(spec.sandbox_id, spec.incarnation, cause, was="pending")
    if not isinstance(entry, Record) or entry.incarnation != spec.incarnation:
        return None
    if entry.status == "ready":
        return entry
    await gateway.quotas.ended(spec)
    try:
        if created:
            await gateway.runtime.delete(spec.sandbox_id, spec.incarnation)
    except HoldfastError:
        return None  # the controller removes it, because its record has failed
    if forget:
        await gateway.store.delete(spec.sandbox_id, cause, owner=spec.owner, incarnation=spec.incarnation, forget=True)
    return None
