"""Change a running sandbox: its labels and limits, its network access, its activity.

Owns the order for the network: the runtime enforces it first, then the record is changed, so that a caller with an answer can rely on it.
Safe to repeat. Called by faces.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence

from holdfast_wire.errors import HoldfastError

from gateway.identity.principal import Principal
from gateway.model.labels import MOST_LABELS
from gateway.model.options import Egress
from gateway.model.records import Change, Entry, Record
from gateway.runtimes.base import EgressChanges

from .service import Gateway, live, reachable


async def lifetime(gateway: Gateway, principal: Principal, name: str, from_now_s: float | None, longer_s: float = 0.0) -> Record:
    """End the sandbox ``from_now_s`` from now, or with None ``longer_s`` after its current end. Returns the changed record."""
    owner = principal.owner

    def step(sandbox_id: str) -> Awaitable[Entry]:
        return gateway.store.change_lifetime(sandbox_id, owner, from_now_s=from_now_s, longer_s=longer_s)

    record = live(await gateway.owned(owner, name, step))
    if record.status == "failed":
        reachable(record)  # raises the reason
    return record


async def update(gateway: Gateway, principal: Principal, name: str, change: Change, versions: Sequence[str] | None = None) -> Record:
    """Change labels and limits in one step; returns the changed record.

    ``versions``: of which the record must have one; raises ``precondition_failed`` otherwise. Raises ``invalid_argument`` for too many
    labels.
    """
    owner, outcome = principal.owner, "ok"
    before = live(await gateway.owned(owner, name, gateway.store.get))
    if before.status == "failed":
        reachable(before)  # raises the reason
    if versions is not None and before.version not in versions:
        raise _other_version()

    async def step(sandbox_id: str) -> Entry:
        nonlocal outcome
        entry, outcome = await gateway.store.update(sandbox_id, owner, change, "" if versions is None else before.version)
        return entry

    record = live(await gateway.owned(owner, name, step))
    if outcome == "version":
        raise _other_version()
    if outcome == "labels":
        raise HoldfastError("invalid_argument", f"a sandbox has at most {MOST_LABELS} labels", hint="remove some: set them to null")
    if record.status == "failed":
        reachable(record)
    return record


def _other_version() -> HoldfastError:
    return HoldfastError("precondition_failed", "the sandbox has changed since the version that If-Match names")


async def network(gateway: Gateway, principal: Principal, name: str, egress: Egress) -> Record:
    """Change what the sandbox may reach; returns the changed record. Raises ``unsupported`` where the runtime cannot enforce it."""
    record = await gateway.ready(principal.owner, name)
    if isinstance(gateway.runtime, EgressChanges):
        await gateway.runtime.set_egress(record.sandbox_id, record.incarnation, egress)
    elif (egress.mode, egress.reaches, egress.domains) != (record.spec.egress.mode, (), ()):
        message = "this runtime cannot change the network of a running sandbox"
        raise HoldfastError("unsupported", message, hint="use a cluster")
    return live(await gateway.owned(record.owner, name, lambda id_: gateway.store.mark_egress(id_, record.incarnation, egress)))


async def heartbeat(gateway: Gateway, principal: Principal, name: str, *, used: bool) -> None:
    """Note that the client lives: a sandbox with a heartbeat limit expires without heartbeats. ``used`` resets its idle time."""
    owner = principal.owner
    record = live(await gateway.owned(owner, name, lambda id_: gateway.store.heartbeat(id_, owner, used=used)))
    if record.status == "failed":
        reachable(record)  # raises the reason
