"""The placement store's interface.

Owns the operations of placement and their errors. The values are in ``gateway.model.records``, the implementation in ``redis_store``, the
decisions in routes and controller. Every method is one atomic step; each raises ``PlacementUnavailableError`` when the store is down,
and never blocks longer than the step timeout.

    HoldfastError
    ├── PlacementUnavailableError   the store did not answer; nothing is known to have happened
    └── FencedError                 a newer controller leads: this write was refused
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Protocol

from holdfast_wire.errors import HoldfastError

from gateway.model.options import Egress
from gateway.model.records import (
    Cause,
    Changes,
    Created,
    Entry,
    Expired,
    Group,
    GroupStatus,
    Leaving,
    Page,
    Quota,
    Record,
    SandboxSpec,
    Status,
    Tombstone,
    Usage,
)

AskIdle = Callable[[Record], Awaitable[float | None]]
"""Asks a sandbox's agent for how many seconds it has been idle; see ``claim_expired``."""

SHARDS = 64
"""Slots the records are spread over; a sandbox's keys are all in one of them."""

COLD_START = "cold"
"""The value of ``assign_spare`` for a sandbox that is created without a spare."""


class PlacementUnavailableError(HoldfastError):
    """The store is down. Safe to retry: every step is idempotent or guarded."""

    def __init__(self, message: str = "the placement store does not answer") -> None:
        super().__init__("placement_unavailable", message)


class UnreadableError(PlacementUnavailableError):
    """A key of the gateway holds a value that no replica wrote; the controller writes the records of living sandboxes again."""

    def __init__(self) -> None:
        super().__init__("the placement store holds an unreadable value in the place of this record")


class RebuildingError(PlacementUnavailableError):
    """The store was wiped, or is new, and does not know all sandboxes yet: an unknown id may belong to a living one."""

    def __init__(self) -> None:
        super().__init__("the placement store is new or was emptied, and its records are being rebuilt from the running sandboxes")


class FencedError(HoldfastError):
    """The write carried an old term: another controller leads now."""

    def __init__(self, message: str = "another controller has taken over") -> None:
        super().__init__("internal", message)


class PlacementStore(Protocol):
    """One interface, one conformance suite (``tests/conformance/placement.py``)."""

    async def create(
        self,
        spec: SandboxSpec,
        *,
        fingerprint: str,
        idempotency_key: str | None = None,
        used_before: bool = False,
        exclusive: bool = False,
        queued: bool = False,
    ) -> Created:
        """Reserve ``spec.sandbox_id``; ``used_before``: the id may have been used before; ``queued``: see ``begin``.

        The same owner, id and fingerprint again answers what exists; where that was rebuilt after a wipe, the same key does. With
        ``exclusive`` only the same key does, as long as the record was not rebuilt. Raises ``idempotency_conflict`` (the key was
        used for another request), ``sandbox_exists`` (the id belongs to another request or owner), or ``RebuildingError`` (it is not known
        whether it was used).
        """

    async def get(self, sandbox_id: str) -> Entry:
        """What is known about the id; the caller checks its owner."""

    async def begin(self, sandbox_id: str, incarnation: str) -> Entry:
        """The creation of a queued sandbox begins. The answer is the resulting entry; nothing changes for another incarnation."""

    async def mark_ready(self, sandbox_id: str, incarnation: str, endpoint: str, agent_epoch: str, *, term: int | None = None) -> Entry:
        """pending → ready. The answer is the resulting entry; nothing changes for another incarnation."""

    async def mark_failed(
        self, sandbox_id: str, incarnation: str, cause: Cause, *, was: Status | None = None, term: int | None = None
    ) -> Entry:
        """pending or ready → failed, kept with its cause; with ``was``, only from that. Nothing changes for another incarnation."""

    async def mark_egress(self, sandbox_id: str, incarnation: str, egress: Egress) -> Entry:
        """Store what it may reach from now on. Nothing changes for another incarnation."""

    async def change_lifetime(self, sandbox_id: str, owner: str, *, from_now_s: float | None = None, longer_s: float = 0.0) -> Entry:
        """End it ``from_now_s`` seconds from now, or ``longer_s`` later than planned; one without a lifetime is unchanged by the latter."""

    async def heartbeat(self, sandbox_id: str, owner: str, *, used: bool = True) -> Entry:
        """Record a heartbeat, and whether it counts as use; never creates anything. Another owner's sandbox is None."""

    async def touch(self, sandbox_ids: Iterable[str], ago_s: float = 0.0) -> None:
        """Record that these were in use ``ago_s`` seconds ago; a later time that is stored stays. Unknown ids are ignored."""

    async def delete(
        self,
        sandbox_id: str,
        cause: Cause,
        *,
        owner: str | None = None,
        incarnation: str | None = None,
        forget: bool = False,
        term: int | None = None,
        cancelled_key: str | None = None,
    ) -> Entry:
        """Remove the record and leave a tombstone (none with ``forget``, which also frees the idempotency key).

        Where there is no record yet, a later ``create`` under ``cancelled_key`` raises ``sandbox_gone``.

        The answer is the record that was removed, the tombstone that was there already, or None.
        """

    async def group_beat(self, owner: str, name: str, ttl_s: float, lease: str = "") -> tuple[GroupStatus, Group]:
        """Begin the group's lease, or extend the one the caller holds. Never revives a lapsed one."""

    async def group_join(
        self, owner: str, name: str, sandbox_id: str, *, lease: str = "", ttl_s: float | None = None, term: int | None = None
    ) -> tuple[GroupStatus, Group]:
        """Add a sandbox that is about to be created, or (with a term) was rebuilt: then the group's lease begins with ``ttl_s``."""

    async def group(self, owner: str, name: str, limit: int = 1000) -> Group | None:
        """The group, or None."""

    async def group_end(self, owner: str, name: str, cause: Cause) -> Group | None:
        """End it; the controller deletes its sandboxes. None when there is none."""

    async def reserve(self, owner: str, spec: SandboxSpec, quota: Quota, *, term: int | None = None) -> Usage:
        """Count a sandbox towards an owner's usage (owner "": all owners') unless that would exceed ``quota``."""

    async def release(self, owner: str, sandbox_id: str, since: str = "", *, term: int | None = None) -> None:
        """Stop counting it. With ``since``, only if it has been counted without a break since then (``usage_entries``)."""

    async def records(self, sandbox_ids: Iterable[str]) -> list[Record]:
        """The records of those ids that have one."""

    async def take_spare(self, pool: str) -> str | None:
        """Remove the oldest spare from what a pool offers; None when it offers none. Only adopting it shows whether it is still there."""

    async def offer_spares(self, pool: str, spares: Mapping[str, float], *, term: int | None = None) -> None:
        """These can be taken from now on; with them, when they were created. Without a term: one that was taken and not used."""

    async def assign_spare(self, sandbox_id: str, incarnation: str, spare_id: str, instead_of: str = "") -> str:
        """Store what a pending sandbox is created from: a spare or ``COLD_START``. Set once; ``instead_of`` is what the caller saw fail.

        The answer is the stored value, "" when the sandbox is no longer pending.
        """

    async def list_owned(self, owner: str, *, cursor: str | None = None, limit: int = 100) -> Page:
        """A page of the owner's records. Stable under change: what exists throughout is seen exactly once."""

    async def ping(self) -> None:
        """Raises when the store is down."""

    async def aclose(self) -> None: ...

    # What only the controller uses --------------------------------------------------------------------------------

    async def lead(self, holder: str, ttl_s: float, least_term: int = 0) -> int | None:
        """Take or renew the lease: the fencing term when ``holder`` leads, None when another does."""

    async def lease_left_s(self) -> float:
        """How long the lease is still valid if it is not renewed; 0 when there is none."""

    async def resign(self, holder: str) -> None:
        """Release the lease, if ``holder`` has it."""

    async def fence(self, term: int) -> None:
        """Refuse every later write of an older term, in every shard. Raises ``FencedError`` when this term is the older."""

    async def check_term(self, term: int) -> None:
        """Raises ``FencedError`` when another holds the lease, or none does: checked before actions that the store cannot refuse."""

    async def claim_expired(self, term: int, limit: int = 100, ask: AskIdle | None = None) -> list[Expired]:
        """End up to ``limit`` sandboxes whose time ran out, each atomically and re-checked.

        ``ask`` is called before one ends for being idle: for how many seconds it has been (None: unknown for ever). It may raise
        ``HoldfastError``; then that one is left for the next call.
        """

    async def mark_leaving(self, sandbox_id: str, incarnation: str, leaving: Leaving, *, term: int) -> Entry:
        """Record that it will end soon. Its end is then attributed to that, unless the workload ended first."""

    async def due_groups(self, limit: int = 20) -> list[str]:
        """Keys of groups whose lease has expired, or that have ended and have sandboxes left."""

    async def group_lapse(self, key: str, cause: Cause, *, term: int) -> Group | None:
        """End a group whose lease has expired, with some of its members. None when its lease has not expired or it is gone."""

    async def group_leave(self, key: str, sandbox_id: str, joined_at: float, *, term: int) -> None:
        """Remove a member that joined then."""

    async def group_keys(self) -> list[str]:
        """Every group."""

    async def group_members(self, key: str) -> dict[str, float]:
        """All of a group's members and when they joined."""

    async def usage_owners(self) -> set[str]:
        """Every owner with a usage."""

    async def usage_entries(self, owner: str) -> dict[str, str]:
        """What is counted, and since when (ms)."""

    async def spares(self, pool: str) -> dict[str, float] | None:
        """The spares that the pool offers, and when they were created; None while the store is being rebuilt."""

    async def withdraw_spares(self, pool: str, spare_ids: Iterable[str], *, term: int) -> None:
        """They cannot be taken any more. A gateway that has taken one may still adopt it."""

    async def rebuild(self, spec: SandboxSpec, endpoint: str, created_at: float, *, term: int) -> bool:
        """Write a ready record for a sandbox that the runtime has and the store lost. True when it was written."""

    def scan(self, shards: Iterable[int] | None = None) -> AsyncIterator[Record]:
        """Every record, or those of some shards, in no order; one that exists throughout is seen at least once."""

    async def changes(self, cursor: Sequence[int] | None = None) -> Changes:
        """Whose records were created, changed state or ended since ``cursor``, and the next cursor; without one, all shards are lost.

        Heartbeats and use, and changes of lifetime and egress, do not count.
        """

    async def tombstones(self, sandbox_ids: Iterable[str]) -> dict[str, Tombstone]:
        """Those of the ids that have one."""

    async def generation(self) -> str | None:
        """The marker of a complete store: None when any shard lost it."""

    async def knows(self, sandbox_id: str) -> bool:
        """Whether an id without an entry is known to be unused: not while records are being rebuilt."""

    async def mark_generation(self, marker: str, *, term: int) -> None:
        """Set the marker in every shard, once records are rebuilt."""
