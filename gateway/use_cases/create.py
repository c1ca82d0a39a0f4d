"""Create a sandbox: from a request to a ready record.

Owns the order of the steps, from the queue to the ready record, and what each failure leaves behind: another replica or the controller
completes what this one cannot. Each step is safe to repeat by any replica. A create outlives its request, so that a client that has
disconnected may ask again under the same key. ``provision`` obtains the sandbox from the runtime; ``outcome`` waits for other replicas.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import math
import time
from dataclasses import dataclass, field, replace
from typing import Final

from holdfast_wire.errors import HoldfastError

from gateway.identity.limits import limits_for
from gateway.identity.principal import Principal, member_of, project_of
from gateway.model.records import Cause, Record, SandboxSpec
from gateway.placement.errors import PlacementUnavailableError, RebuildingError
from gateway.runtimes.base import OneMachine, RuntimeUnavailableError

from . import recordings
from .admission import QueuePlace
from .groups import raise_if_refused
from .outcome import failure, wait_until_settled
from .provision import begin, provision
from .service import Gateway, live

_MARGIN_S: Final = 2.0
_MARGIN_SHARE: Final = 0.1
_RECORD_PAUSE_S: Final = 0.5
_TOUCH_S: Final = 5.0
"""How often the record of a sandbox in creation is renewed: more often than the controller looks for abandoned ones."""


@dataclass(frozen=True, slots=True)
class NewSandbox:
    """A requested sandbox."""

    spec: SandboxSpec
    fingerprint: str
    """The same for the same request; another request under the same key is refused."""
    env: dict[str, str] = field(default_factory=dict)
    key: str | None = None
    """The request's idempotency key."""
    chosen_id: bool = False
    """Whether the caller chose the id, which an earlier sandbox may have had."""
    exclusive: bool = False
    """Refuse an id that the same request has created already."""
    lease: str = ""
    """The lease of the group, if the caller holds it."""
    sizes: frozenset[str] = frozenset()
    """Which of ``cpu`` and ``memory`` the caller requested; the others are the service's defaults."""
    branch_point: str = ""
    """What it is created from in place of its image (``branch``)."""
    wait: bool = False
    """Return when the sandbox is ready, not when its record is written. A temporary failure then leaves no record."""


async def create(gateway: Gateway, principal: Principal, new: NewSandbox) -> Record:
    """The record of the sandbox. With ``new.wait`` it is ready, otherwise it may be pending.

    Raises ``invalid_quantity``, ``quota_exceeded``, ``overloaded``, ``no_capacity``, ``sandbox_exists``, ``idempotency_conflict``, the
    refusals of a group, and with ``new.wait`` the cause of a failure.
    """
    assert new.spec.owner == principal.owner
    new = _lowered(gateway, new)
    await _check_sizes(gateway, new)
    reserved: asyncio.Future[Record] = asyncio.get_running_loop().create_future()
    creation = gateway.background.start(_create(gateway, new, reserved), f"creation of {new.spec.sandbox_id}")
    if not new.wait:
        await asyncio.wait((reserved, creation), return_when=asyncio.FIRST_COMPLETED)
        return reserved.result() if reserved.done() else creation.result()
    record: Record = await asyncio.shield(creation)  # a client that disconnects may ask again
    if record.status != "ready":
        raise failure(record)
    return record


async def _create(gateway: Gateway, new: NewSandbox, reserved: asyncio.Future[Record]) -> Record:
    """All steps of a create, in a task of their own. ``reserved`` gets the record as soon as it is written."""
    with gateway.admission.enter(member_of(new.spec.owner)) as place:
        with gateway.stage("reserve"):
            record = await _reserve(gateway, new, queued=not place.admitted.done())
        reserved.set_result(record)
        made = (record.sandbox_id, record.incarnation)
        running = gateway.creations.get(made)
        if record.status == "pending" and running is None:
            # Also for a repeated request: the replica that began may be gone.
            gateway.creations[made] = asyncio.current_task()  # type: ignore[assignment]
            gateway.in_creation[made] = record.spec
            try:
                return await _carry_out(gateway, record, new, place)
            finally:
                del gateway.creations[made], gateway.in_creation[made]
    return await asyncio.shield(running) if running is not None and new.wait else record


def _lowered(gateway: Gateway, new: NewSandbox) -> NewSandbox:
    """The request with no more cpu than the one machine has: task files ask for four on any laptop. The record has what is given."""
    runtime, spec = gateway.runtime, new.spec
    if "cpu" not in new.sizes or not isinstance(runtime, OneMachine) or spec.cores <= runtime.cores:
        return new
    return replace(new, spec=replace(spec, cpu=f"{runtime.cores:g}", cores=runtime.cores))


async def _check_sizes(gateway: Gateway, new: NewSandbox) -> None:
    """Refuse requested sizes that no machine has: such a sandbox would never become ready."""
    if not new.sizes:
        return
    try:
        largest = await gateway.runtime.largest()
    except HoldfastError:
        return  # the runtime is down, which the create will report
    cores, size = largest or (math.inf, math.inf)
    spec, hint = new.spec, "request less, or leave it out; GET /resources shows what there is"
    if "cpu" in new.sizes and spec.cores > cores:
        message = f"cpu={spec.cpu} is more than any machine here has: {cores:g} cores"
        raise HoldfastError("invalid_quantity", message, hint=hint)
    if "memory" in new.sizes and spec.memory_bytes > size:
        message = f"memory={spec.memory} is more than any machine here has: {size / 2**30:.1f}Gi"
        raise HoldfastError("invalid_quantity", message, hint=hint)


async def _reserve(gateway: Gateway, new: NewSandbox, *, queued: bool) -> Record:
    """Count the sandbox, add it to its group, and write its record, in this order: then counts and groups include every sandbox with a
    record."""
    spec = new.spec
    limits = gateway.tenants.tenants.limits
    if limits:
        await gateway.rates.create(limits_for(limits, member_of(spec.owner), project_of(spec.owner), spec.key_id))
    counted = await gateway.quotas.reserve(spec)
    try:
        if spec.group:
            outcome, group = await gateway.store.group_join(spec.owner, spec.group, spec.sandbox_id, lease=new.lease)
            raise_if_refused(outcome, group)
            spec = replace(spec, group_ttl_s=group.ttl_s)
        created = await gateway.store.create(
            spec,
            fingerprint=new.fingerprint,
            idempotency_key=new.key,
            used_before=new.chosen_id or new.key is not None,
            exclusive=new.exclusive,
            queued=queued,
        )
        record = live(created.entry)
    except HoldfastError:
        await gateway.quotas.release(counted, spec.sandbox_id)
        raise
    if record.status == "failed":  # an earlier request has created it
        await gateway.quotas.release(counted, spec.sandbox_id)
    return record


async def _carry_out(gateway: Gateway, record: Record, new: NewSandbox, place: QueuePlace) -> Record:
    """Create the sandbox of a pending record. A failure is recorded, and raised for a waiting caller."""
    spec, queued = record.spec, record.begun_at is None  # then the record does not state yet that the creation has begun
    deadline = asyncio.get_running_loop().time() + _own_time(spec.ready_timeout_s)
    try:
        queued = queued or not place.admitted.done()  # after a wait it may have been deleted
        with gateway.stage("queue"):
            await place.turn()
        gateway.metrics.observe("create_queue_seconds", place.waited_s)
        if queued:
            await begin(gateway, spec)
        begun = time.monotonic()
        with gateway.stage("provision"):
            endpoint = await provision(gateway, spec, new.env, deadline, new.branch_point)
            await recordings.begin(gateway, record, endpoint)
    except HoldfastError as error:
        gateway.metrics.count("create_failed_total", code=error.code)
        if waited_s := round(place.waited_s, 3):
            error.detail.setdefault("queued_s", waited_s)
        if error.code == "sandbox_exists":  # another replica is creating it
            return await wait_until_settled(gateway, spec.owner, spec.name, spec.ready_timeout_s, spec.incarnation)
        nothing = isinstance(error, RuntimeUnavailableError) and error.made_nothing
        if nothing or error.code != "runtime_unavailable":  # otherwise the sandbox may exist: the controller checks that
            ready = await _fail(gateway, spec, error, forget=new.wait and error.retryable, created=not nothing)
            if ready is not None:
                return ready
        raise
    mark_ready = functools.partial(gateway.store.mark_ready, spec.sandbox_id, spec.incarnation, endpoint)
    try:
        with gateway.stage("record"):
            entry = await mark_ready()
    except PlacementUnavailableError:  # the caller may retry; only this replica can report that an adopted sandbox is ready
        gateway.background.repeat(mark_ready, itertools.repeat(_RECORD_PAUSE_S), f"record of {spec.sandbox_id}", until=deadline)
        raise
    if entry is None:  # perhaps the store was wiped
        await gateway.store.rebuild(spec, "", time.time(), status="pending", term=None)
        entry = await mark_ready()
    if not isinstance(entry, Record) or entry.incarnation != spec.incarnation or entry.status != "ready":
        # It was deleted or given up during its creation.
        await gateway.removals.start(gateway.runtime, spec.sandbox_id, spec.incarnation)
        if entry is None:
            raise RebuildingError  # or another replica gave it up: either way the request can be repeated
        raise failure(live(entry))
    gateway.metrics.count("creates_total")
    gateway.metrics.observe("ready_seconds", asyncio.get_running_loop().time() - place.entered_at)
    if gateway.settings.metrics_owners:
        gateway.metrics.count_owner("creates_of_owner_total", member_of(spec.owner))
    gateway.metrics.observe("create_seconds", time.monotonic() - begun)
    return entry


async def _fail(gateway: Gateway, spec: SandboxSpec, error: HoldfastError, *, forget: bool, created: bool) -> Record | None:
    """Record the failure, then remove what was ``created``. Returns the record if another replica has created the sandbox.

    With ``forget`` no record is left, so that the request can be repeated under the same key.
    """
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


async def renew(gateway: Gateway) -> None:
    """Renew, until cancelled, the records of the sandboxes that this replica is creating: the controller gives up abandoned ones.

    A store that was wiped gets their records again; the runtime may not have them yet.
    """
    while True:
        await asyncio.sleep(_TOUCH_S)
        with contextlib.suppress(PlacementUnavailableError):
            await gateway.store.renew(list(gateway.in_creation.values()))


def _own_time(ready_timeout_s: float) -> float:
    """A little less than the record's own timeout: this replica can report why the sandbox is late, the controller only that it is late."""
    return ready_timeout_s - min(_MARGIN_S, _MARGIN_SHARE * ready_timeout_s)
