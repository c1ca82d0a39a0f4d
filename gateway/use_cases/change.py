"""Change a running sandbox: its lifetime, its network access, its activity.

Owns the order for the network: the runtime enforces it first, then the record is changed, so that a caller with an answer can rely on it.
Safe to repeat. Called by faces.
"""

from __future__ import annotations

from holdfast_wire.errors import HoldfastError

from gateway.identity.principal import Principal
from gateway.model.options import Egress
from gateway.model.records import Record
from gateway.runtimes.base import EgressChanges

from .service import Gateway, live, reachable


async def lifetime(gateway: Gateway, principal: Principal, sandbox_id: str, from_now_s: float | None, longer_s: float = 0.0) -> Record:
    """End the sandbox ``from_now_s`` from now, or with None ``longer_s`` after its current end. Returns the changed record."""
    entry = await gateway.store.change_lifetime(sandbox_id, principal.owner, from_now_s=from_now_s, longer_s=longer_s)
    record = live(await gateway.owned(entry, principal.owner, sandbox_id))
    if record.status == "failed":
        reachable(record)  # raises the reason
    return record


async def network(gateway: Gateway, principal: Principal, sandbox_id: str, egress: Egress) -> Record:
    """Change what the sandbox may reach; returns the changed record. Raises ``unsupported`` where the runtime cannot enforce it."""
    record = await gateway.ready(principal.owner, sandbox_id)
    if isinstance(gateway.runtime, EgressChanges):
        await gateway.runtime.set_egress(sandbox_id, record.incarnation, egress)
    elif (egress.mode, egress.reaches, egress.domains) != (record.spec.egress.mode, (), ()):
        message = "this runtime cannot change the network of a running sandbox"
        raise HoldfastError("unsupported", message, hint="use a cluster")
    entry = await gateway.store.mark_egress(sandbox_id, record.incarnation, egress)
    return live(await gateway.owned(entry, principal.owner, sandbox_id))


async def heartbeat(gateway: Gateway, principal: Principal, sandbox_id: str, *, used: bool) -> None:
    """Note that the client lives: a sandbox with a heartbeat limit expires without heartbeats. ``used`` resets its idle time."""
    entry = await gateway.store.heartbeat(sandbox_id, principal.owner, used=used)
    record = live(await gateway.owned(entry, principal.owner, sandbox_id))
    if record.status == "failed":
        reachable(record)  # raises the reason
