"""The values that the placement store takes and returns.

Identity, owner, endpoint, status, expiry and cause of the end of a sandbox; and the same for groups, quota usage and pools. The operations
are in ``placement.store``.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from .names import name_of
from .options import Egress, Options

SANDBOX_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
"""The form of a sandbox's name."""

Status = Literal["pending", "ready", "failed"]
Fault = Literal["workload", "infrastructure", "caller"]
Paused = Literal["", "memory", "disk"]
"""How a sandbox is paused: stopped with its memory, or with its files alone; "" if it is not."""


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a sandbox ended, and which side is at fault."""

    reason: str
    """deleted, ttl, idle, heartbeat, ready-timeout, oom, exited, node-lost, image-pull, …"""
    fault: Fault
    message: str = ""
    by: str = ""
    """Of reason ``deleted``: the program that deleted it, as its requests name it; "" if that is unknown."""


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """What was requested. During an incarnation only labels, idle and heartbeat limit and egress may be changed."""

    sandbox_id: str
    """Unique in the service; its owner knows the sandbox by its ``name``."""
    owner: str
    incarnation: str
    image: str
    cpu: str = "4"
    """As the caller wrote it; ``cores`` is the number."""
    memory: str = "16Gi"
    cores: float = 4.0
    memory_bytes: int = 16 * 1024**3
    disk_bytes: int | None = None
    labels: dict[str, str] = field(default_factory=dict)
    ready_timeout_s: float = 3600.0
    lifetime_s: float | None = None
    idle_timeout_s: float | None = None
    heartbeat_timeout_s: float | None = None
    egress: Egress = field(default_factory=Egress)
    options: Options = field(default_factory=Options)
    group: str = ""
    """The group of the owner's sandboxes it belongs to; it ends with that group's lease."""
    group_ttl_s: float | None = None
    """The group's lease when it was created: given to a rebuilt group."""
    request: str = ""
    """Identifies the keyed request that created it: a hash of its idempotency key, so that it can be cancelled after a wipe, too."""
    parent: str = ""
    """The name of the sandbox that this one is a branch of."""
    record: bool = False
    """Whether what happens in it is recorded."""
    turn: int | None = None
    """The turn of the parent's episode that it branched from, if the caller stated it."""
    key_id: str = ""
    """The key that created it, which its quota counts; "" from a version before."""

    @property
    def name(self) -> str:
        return name_of(self.owner, self.sandbox_id)


@dataclass(frozen=True, slots=True)
class PlannedEnd:
    """An announced end: why, and when it is due (seconds since the epoch)."""

    cause: Cause
    deadline: float


@dataclass(frozen=True, slots=True)
class Record:
    """A sandbox as placement knows it. Times are seconds since the epoch, on the store's clock."""

    spec: SandboxSpec
    status: Status
    created_at: float
    endpoint: str = ""
    ready_at: float | None = None
    active_at: float | None = None
    """When it was last in use, as far as is known, or, while it is pending, in creation. May be in the future."""
    ended_at: float | None = None
    lifetime_s: float | None = None
    """In seconds after the creation; as changed since it was requested."""
    expires_at: float | None = None
    """The earliest time at which one of its limits is reached if nothing changes; it moves with activity and heartbeats."""
    cause: Cause | None = None
    leaving: PlannedEnd | None = None
    """Set once it is known that the sandbox will end soon."""
    begun_at: float | None = None
    """When its creation began; None while that is queued."""
    paused: Paused = ""
    state: str = field(default="", compare=False, repr=False)
    """What ``version`` is computed from."""

    @property
    def version(self) -> str:
        """Changes with everything that a request can change, and with the state; not with activity."""
        return hashlib.sha1(self.state.encode(), usedforsecurity=False).hexdigest()

    def queued_s(self, now: float) -> float:
        """How long its creation waited in the queue, or has waited so far."""
        until = self.begun_at or self.ready_at or self.ended_at or self.created_at
        if self.begun_at is None and self.status == "pending":
            until = now
        return max(until - self.created_at, 0.0)

    @property
    def sandbox_id(self) -> str:
        return self.spec.sandbox_id

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def owner(self) -> str:
        return self.spec.owner

    @property
    def incarnation(self) -> str:
        return self.spec.incarnation


@dataclass(frozen=True, slots=True)
class Change:
    """What a request changes of a sandbox; None leaves as it is."""

    labels: dict[str, str | None] | None = None
    """Labels to set, None to remove one. The others stay."""
    lifetime_s: float | None = None
    """From now on."""
    longer_s: float | None = None
    """In place of ``lifetime_s``: after its current end."""
    idle_timeout_s: float | None = None
    """0 removes the limit."""
    heartbeat_timeout_s: float | None = None
    """0 removes the limit."""


@dataclass(frozen=True, slots=True)
class Tombstone:
    """The record of an ended sandbox, which is kept for an hour."""

    sandbox_id: str
    owner: str
    incarnation: str
    cause: Cause
    ended_at: float

    @property
    def name(self) -> str:
        return name_of(self.owner, self.sandbox_id)


Entry = Record | Tombstone | None
"""The entry of an id: a sandbox, a tombstone, or None."""


@dataclass(frozen=True, slots=True)
class Created:
    """The answer to ``create``. ``fresh`` is false when the same request had been made before."""

    entry: Record | Tombstone
    fresh: bool


@dataclass(frozen=True, slots=True)
class Page:
    """Some records of an owner, and the cursor of the next page; None on the last page."""

    records: list[Record]
    cursor: str | None


@dataclass(frozen=True, slots=True)
class Changes:
    """The ids whose records were created, changed state or ended since a ``cursor``, which has one position for each shard."""

    cursor: Sequence[str]
    ids: set[str]
    lost: Sequence[int]
    """Shards where more may have changed than ``ids`` shows."""


@dataclass(frozen=True, slots=True)
class Expired:
    """A sandbox that has reached a limit; it must now be removed from the runtime."""

    sandbox_id: str
    incarnation: str
    cause: Cause
    spec: SandboxSpec
    kept: bool
    """Its record stays for a while (it never became ready), rather than a tombstone."""


@dataclass(frozen=True, slots=True)
class Group:
    """Sandboxes of one owner that end together. Times are seconds since the epoch, on the store's clock."""

    key: str
    owner: str
    name: str
    lease: str
    """A value that the client which began the lease knows; "" before there is a lease."""
    ttl_s: float | None
    expires_at: float | None
    members: dict[str, float]
    """Some ids and when they joined. These sandboxes may have ended, or may not be created yet: see their records."""
    count: int
    cause: Cause | None = None
    """Why it has ended."""


GroupStatus = Literal["ok", "lapsed", "freeing"]
"""The outcome of a heartbeat or a joining: accepted, the lease expired, or the previous group of this name is still being deleted."""


@dataclass(frozen=True, slots=True)
class Quota:
    """The limits of an owner, or of all owners together. None: no limit."""

    sandboxes: int | None = None
    cores: float | None = None
    memory_bytes: int | None = None

    def __bool__(self) -> bool:
        return (self.sandboxes, self.cores, self.memory_bytes) != (None, None, None)


@dataclass(frozen=True, slots=True)
class Usage:
    """Sums over sandboxes. ``outcome`` is the outcome of a reservation; with ``over`` they are what it would have been."""

    outcome: Literal["fresh", "known", "over"]
    sandboxes: int
    cores: float
    memory_bytes: int
