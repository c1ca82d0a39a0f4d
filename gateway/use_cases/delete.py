"""Delete a sandbox: first its record, then, behind the answer, the sandbox itself.

Owns the order. The controller completes a removal that this replica cannot. Called by faces.
"""

from __future__ import annotations

from gateway.identity.principal import Principal
from gateway.model.records import Cause, Record, Tombstone

from . import recordings
from .service import Gateway


async def delete(gateway: Gateway, principal: Principal, name: str, *, program: str, cancelled_key: str | None = None) -> bool:
    """Whether there was a sandbox; also for one that has ended, as long as its tombstone exists.

    ``program`` names the program that requests it, "" if that is unknown. ``cancelled_key`` is the key of a create that its client has
    cancelled: only what that create made is deleted, and it is refused if it arrives later.
    """
    cause = Cause("deleted", "caller", "a client deleted the sandbox", program)
    owner = principal.owner
    entry = await gateway.owned(owner, name, lambda id_: gateway.store.delete(id_, cause, owner=owner, cancelled_key=cancelled_key))
    if isinstance(entry, Record):
        await gateway.quotas.ended(entry.spec)
        await recordings.settle(gateway, entry)
    if not isinstance(entry, Tombstone) or entry.cause.reason == "deleted":
        await gateway.removals.start(gateway.runtime, entry.sandbox_id, entry.incarnation)
    gateway.metrics.count("deletes_total")
    return isinstance(entry, Record)
