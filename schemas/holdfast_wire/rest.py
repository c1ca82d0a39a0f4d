"""The records that REST sends and receives, and the quantities in them.

Owns the shape of a sandbox's specification and record as JSON maps, and how ``"500m"`` or ``"4Gi"`` are read. Called by the gateway
(which validates) and the SDK (which renders); neither keeps a second copy of these names.
"""

from __future__ import annotations

from typing import Any, Literal

from .errors import HoldfastError
from .fast_dataclass import dataclass, field

Status = Literal["pending", "ready", "failed"]

_CPU_MAX = 4096.0
_BYTES_MAX = 2**60
_SHOWN = 60
_UNITS = {
    "": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40,
    "m": 2**20, "g": 2**30, "t": 2**40,
}  # fmt: skip
"""Kubernetes' units, and docker's small letters, which are powers of 1024."""


def parse_cpu(value: object, name: str = "cpu") -> float:
    """Cores from ``2``, ``0.5``, ``"2"`` or ``"500m"``. Raises ``HoldfastError`` ``invalid_quantity``."""
    cores: float | None = None
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        cores = float(value)
    elif isinstance(value, str):
        text, scale = (value[:-1], 0.001) if value.endswith("m") else (value, 1.0)
        cores = _decimal(text, scale)
    if cores is None or not 0 < cores <= _CPU_MAX:
        message = f"{name} must be a number of cores above 0 and up to {_CPU_MAX:g}, not {_shown(value)}"
        raise HoldfastError("invalid_quantity", message, hint="write it as 2, 0.5 or '500m' (half a core)")
    return cores


def parse_bytes(value: object, name: str = "memory") -> int:
    """Bytes from ``1048576``, ``"512Mi"``, ``"4Gi"``, ``"1G"`` or docker's ``"512m"``. Raises ``HoldfastError`` ``invalid_quantity``."""
    size: float | None = None
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        size = float(value)
    elif isinstance(value, str):
        digits = value.rstrip("kKMGTimgt")
        unit = _UNITS.get(value[len(digits) :])
        size = None if unit is None else _decimal(digits, unit)
    if size is None or not 1 <= size <= _BYTES_MAX:
        units = ", ".join(filter(None, _UNITS))
        most = f"{_BYTES_MAX // 2**40}Ti"
        message = f"{name} must be a size in bytes above 0 and up to {most}, with one of the units {units} or none, not {_shown(value)}"
        raise HoldfastError("invalid_quantity", message, hint="write it as '512Mi', '4Gi' or a number of bytes")
    return int(size)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _decimal(text: str, scale: float) -> float | None:
    if not text or not text.isascii() or not all(c.isdigit() or c == "." for c in text) or text.count(".") > 1 or text == ".":
        return None
    return float(text) * scale


@dataclass(frozen=True, slots=True)
class SandboxRecord:
    """The service's record of one sandbox. Times are seconds since the epoch; sizes are in the form in which the caller wrote them.

    ``status_message``, ``reason`` and ``fault``: why a failed sandbox failed and whose fault it is. ``leaving`` is set once it is known
    that the sandbox will end soon for a reason outside of it: a map of ``reason``, ``fault``, ``message`` and ``deadline`` (seconds since
    the epoch).
    """

    sandbox_id: str
    """Its id."""
    namespace: str
    """The namespace in which the service creates sandboxes."""
    image: str
    """The image it was created from."""
    block_network: bool
    """Whether it has no network access."""
    cpu: str
    """Cores, as they were requested."""
    memory: str
    """Memory, as it was requested."""
    timeout: float
    """How long it may take to become ready, in seconds."""
    status: Status
    """``pending``, ``ready`` or ``failed``."""
    ready: bool
    """Whether it can be used."""
    status_message: str = ""
    """Why it failed, or how long its creation has been queued, as text."""
    labels: dict[str, str] = field(default_factory=dict)
    """Its labels."""
    incarnation: str = ""
    """Distinguishes it from others that had the same id."""
    created_at: float = 0.0
    """When it was created."""
    ready_at: float | None = None
    """When it became ready."""
    queued_s: float = 0.0
    """How many seconds its creation waited in the queue, or has waited so far."""
    lifetime_s: float | None = None
    """How many seconds after its creation it is deleted, whatever happens in it; None: it has no such limit."""
    expires_at: float | None = None
    """When it will be deleted, by the first of its limits that is reached, if nothing changes."""
    reason: str | None = None
    """The reason why it failed or ended, as one word."""
    fault: str | None = None
    """Which side caused that: ``workload``, ``infrastructure`` or ``caller``."""
    group: str | None = None
    """The group to which it belongs."""
    leaving: dict[str, Any] | None = None
    """Why and when it will end, if that is known."""
    network: dict[str, Any] = field(default_factory=dict)
    """What it may reach over the network: ``mode`` and the lists."""
    options: dict[str, Any] = field(default_factory=dict)
    """The further options that were requested of a cluster."""
    paused: Literal["memory", "disk"] | None = None
    """Whether it is paused: ``memory`` with its processes, ``disk`` with its files alone; None: it runs."""
    parent: str | None = None
    """The sandbox that it is a branch of."""
    recording: str | None = None
    """The id of its recording, if it is recorded."""
    turn: int | None = None
    """The turn at which it branched, if that was stated."""
    owner: str | None = None
    """Whose it is, in a list of other owners' sandboxes."""
    project: str | None = None
    """The project in which it was created, in such a list."""
    idle_timeout_s: float | None = None
    """After how many seconds without use it is deleted; None: it has no such limit."""
    heartbeat_timeout_s: float | None = None
    """After how many seconds without a heartbeat it is deleted; None: it has no such limit."""

    def to_map(self) -> dict[str, Any]:
        """The record as a JSON map."""
        return {name: getattr(self, name) for name in self.__match_args__}

    @classmethod
    def from_map(cls, body: dict[str, Any]) -> SandboxRecord:
        """Read a record; fields of newer services are ignored. Raises ``HoldfastError`` if a required one is missing."""
        known = {name: body[name] for name in cls.__match_args__ if name in body}
        try:
            return cls(**known)
        except TypeError as error:
            raise HoldfastError("internal", f"the service answered a sandbox record that cannot be read: {error}") from None
