"""The records that travel over REST, and the quantities in them.

Owns the shape of a sandbox's specification and record as JSON maps, and how ``"500m"`` or ``"4Gi"`` are read. Called by the gateway
(which validates) and the SDK (which renders); neither keeps a second copy of these names.
"""

from __future__ import annotations

from typing import Any, Literal

from .errors import HoldfastError
from .records import dataclass, field

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
        message = f"{name} must be a size in bytes, at least 1 and at most {_BYTES_MAX // 2**40}Ti, not {_shown(value)}"
        raise HoldfastError("invalid_quantity", message, hint=f"write it as '512Mi', '4Gi' or a number of bytes; the units are {units}")
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
    """What the service knows of one sandbox. Times are seconds since the epoch, sizes bytes as the caller wrote them.

    ``status_message``, ``reason`` and ``fault``: why a failed sandbox failed and whose fault it is. ``leaving`` is set once it is known
    that it will end soon whatever it does: a map of ``reason``, ``fault``, ``message`` and ``deadline`` (seconds since the epoch).
    """

    sandbox_id: str
    """Its id."""
    namespace: str
    """Where the service makes sandboxes."""
    image: str
    """The image it was made from."""
    block_network: bool
    """Whether it reaches no network."""
    cpu: str
    """Cores, as they were asked for."""
    memory: str
    """Memory, as it was asked for."""
    timeout: float
    """How long it might take to become ready, in seconds."""
    status: Status
    """``pending``, ``ready`` or ``failed``."""
    ready: bool
    """Whether it can be used."""
    status_message: str = ""
    """Why it failed, or how long its creation has been queued; for people."""
    labels: dict[str, str] = field(default_factory=dict)
    """The labels it was made with."""
    incarnation: str = ""
    """Distinguishes it from others that had the same id."""
    created_at: float = 0.0
    """When it was made."""
    ready_at: float | None = None
    """When it became ready."""
    queued_s: float = 0.0
    """How many seconds its creation waited for its turn, or has waited so far."""
    lifetime_s: float | None = None
    """How long it may live from when it was made, whatever happens in it; None: until it is deleted."""
    expires_at: float | None = None
    """When it ends as things stand, by the first of its clocks."""
    reason: str | None = None
    """Why it failed or ended, in a word."""
    fault: str | None = None
    """Whose fault that was: ``workload``, ``infrastructure`` or ``caller``."""
    group: str | None = None
    """The group it ends with."""
    leaving: dict[str, Any] | None = None
    """Why and when it will end, where that is known."""
    network: dict[str, Any] = field(default_factory=dict)
    """What it may reach: ``mode`` and what is listed."""
    options: dict[str, Any] = field(default_factory=dict)
    """What was asked of a cluster beyond image and size."""

    def to_map(self) -> dict[str, Any]:
        """The record as it stands in JSON."""
        return {name: getattr(self, name) for name in self.__match_args__}

    @classmethod
    def from_map(cls, body: dict[str, Any]) -> SandboxRecord:
        """Read a record, ignoring fields of newer services. Raises ``HoldfastError`` when a needed one is missing."""
        known = {name: body[name] for name in cls.__match_args__ if name in body}
        try:
            return cls(**known)
        except TypeError as error:
            raise HoldfastError("internal", f"the service answered a sandbox record that cannot be read: {error}") from None
