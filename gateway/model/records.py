"""What placement knows: the values its store takes and answers.

Owns what is known about a sandbox outside the sandbox: identity, owner, endpoint, status, expiry, cause of its end; and the same for
groups, usages and pools. Does not own how that is asked for (``store``) or kept (``redis_store``), nor any decision about it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from .options import Egress, Options

Status = Literal["pending", "ready", "failed"]
Fault = Literal["workload", "infrastructure", "caller"]

RESERVED_LABEL = "holdfast/"
"""Labels of this prefix belong to the gateway: they carry a sandbox's limits and sizes to the runtime and back."""


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a sandbox ended, and whose doing that was."""

    reason: str
    """deleted, ttl, idle, heartbeat, ready-timeout, oom, exited, node-lost, image-pull, …"""
    fault: Fault
    message: str = ""


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """What was asked for; never changes during an incarnation."""

    sandbox_id: str
    owner: str
    incarnation: str
    image: str
    cpu: str = "4"
    """As the caller wrote it; ``cores`` is the number."""
    memory: str = "16Gi"
    cores: float = 4.0
    memory_bytes: int = 16 * 1024**3
    disk_bytes: int | None = None
    block_network: bool = True
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
    """The group's lease when it was made: what a rebuilt group is given."""


@dataclass(frozen=True, slots=True)
class Leaving:
    """An end that was announced: why, and when it is due (seconds since the epoch)."""

    cause: Cause
    deadline: float


@dataclass(frozen=True, slots=True)
class Record:
    """A sandbox as placement knows it. Times are seconds since the epoch, on the store's clock."""

    spec: SandboxSpec
    status: Status
    created_at: float
    endpoint: str = ""
    agent_epoch: str = ""
    ready_at: float | None = None
    active_at: float | None = None
    """When it was last known to be in use or, while pending, to be still in the making. May lie ahead."""
    ended_at: float | None = None
    lifetime_s: float | None = None
    """From when it was made; as changed since it was asked for."""
    expires_at: float | None = None
    """The earliest moment one of its clocks runs out as things stand; moves with activity and heartbeats."""
    cause: Cause | None = None
    leaving: Leaving | None = None
    """Set once it is known that it will end soon whatever it does."""

    @property
    def sandbox_id(self) -> str:
        return self.spec.sandbox_id

    @property
    def owner(self) -> str:
        return self.spec.owner

    @property
    def incarnation(self) -> str:
        return self.spec.incarnation


@dataclass(frozen=True, slots=True)
class Tombstone:
    """What remains of a sandbox for an hour."""

    sandbox_id: str
    owner: str
    incarnation: str
    cause: Cause
    ended_at: float


Entry = Record | Tombstone | None
"""What is known about an id: a sandbox, a grave, or nothing."""


@dataclass(frozen=True, slots=True)
class Created:
    """The answer to ``create``. ``fresh`` is false when the same request had been made before."""

    entry: Record | Tombstone
    fresh: bool


@dataclass(frozen=True, slots=True)
class Page:
    """Some records of an owner and where to go on; no cursor means that was all."""

    records: list[Record]
    cursor: str | None


@dataclass(frozen=True, slots=True)
class Expired:
    """A sandbox whose time ran out; its runtime part is now to be removed."""

    sandbox_id: str
    incarnation: str
    cause: Cause
    kept: bool
    """Its record stays for a while (it never became ready), rather than a tombstone."""


@dataclass(frozen=True, slots=True)
class Group:
    """Sandboxes of one owner that end together. Times are seconds since the epoch, on the store's clock."""

    key: str
    owner: str
    name: str
    lease: str
    """Known to whoever began the lease; "" before anybody did."""
    ttl_s: float | None
    expires_at: float | None
    members: dict[str, float]
    """Some ids and when they joined. They may be gone, or not yet made: their records say."""
    count: int
    cause: Cause | None = None
    """Why it has ended."""


GroupWord = Literal["ok", "lapsed", "freeing"]
"""What became of a heartbeat or a joining: the lease is over, or the former group of this name is still being freed."""


@dataclass(frozen=True, slots=True)
class Quota:
    """Most that an owner, or everybody, may have at a time. None: no limit."""

    sandboxes: int | None = None
    cores: float | None = None
    memory_bytes: int | None = None

    def __bool__(self) -> bool:
        return (self.sandboxes, self.cores, self.memory_bytes) != (None, None, None)


@dataclass(frozen=True, slots=True)
class Usage:
    """What sandboxes add up to. ``word`` tells a reservation's outcome; with ``over`` it is what it would have been."""

    word: Literal["fresh", "known", "over"]
    sandboxes: int
    cores: float
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class PoolState:
    """What is known of a pool's spares: ids, and for how many seconds they have been where they are."""

    making: dict[str, float] = field(default_factory=dict)
    spares: dict[str, float] = field(default_factory=dict)
    taken: dict[str, float] = field(default_factory=dict)
