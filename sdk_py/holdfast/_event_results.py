"""The events of ``client.events()`` and their reading from a stream of server-sent events (WHATWG HTML §9.2.6).

Pure. Owns the types of events, which fields they have, and which are delivered: those whose position is known, so that a connection that is
lost in the middle repeats none. Does not own connections (``_async.events``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, get_args

from holdfast_wire.fast_dataclass import dataclass, field

from ._errors import ServiceError
from ._results import Fields, take_all

EventType = Literal["created", "ready", "paused", "leaving", "failed", "deleted"]
_TYPES: Final = frozenset(get_args(EventType))
_LINE_BYTES: Final = 1024 * 1024
_MOST_HELD: Final = 10_000
"""So many events are delivered although their position has not arrived."""


@dataclass(frozen=True, slots=True)
class SandboxEvent:
    """One sandbox of yours after a change. Times are seconds since the epoch, by the service's clock."""

    type: EventType
    """What it is now: ``created`` (not ready yet), ``ready``, ``paused``, ``leaving`` (it will end soon), ``failed`` or ``deleted``."""
    sandbox_id: str
    """Its id."""
    time: float
    """When it was created, became ready or ended, whichever was last."""
    image: str = ""
    """The image; empty for ``deleted``, as all fields down to ``ready_at``."""
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Its labels."""
    group: str | None = None
    """Its group."""
    created_at: float | None = None
    """When it was created."""
    ready_at: float | None = None
    """When it became ready."""
    reason: str | None = None
    """Why it ended, failed or is about to end."""
    fault: str | None = None
    """Which side caused that: ``workload``, ``infrastructure`` or ``caller``."""
    message: str | None = None
    """The same as a sentence."""
    parent: str | None = None
    """Of a branch: the sandbox that it continues."""
    turn: int | None = None
    """Of a branch: the turn of the episode that the request named."""
    paused: str | None = None
    """While it is paused: ``memory`` or ``disk``."""


@dataclass(frozen=True, slots=True)
class EventGap:
    """Events before this one may be missing: list the sandboxes again."""

    message: str
    """Why they may be missing."""
    type: Literal["gap"] = "gap"
    """Always ``gap``."""


_NUMBER = (int, float)
_SANDBOX_FIELDS: Fields = (
    ("sandbox_id", (str,), ""), ("time", _NUMBER, 0.0), ("image", (str,), ""), ("labels", (dict,), {}), ("group", (str,), None),
    ("created_at", _NUMBER, None), ("ready_at", _NUMBER, None), ("reason", (str,), None), ("fault", (str,), None),
    ("message", (str,), None), ("parent", (str,), None), ("turn", (int,), None), ("paused", (str,), None),
)  # fmt: skip
_GAP_FIELDS: Fields = (("message", (str,), ""),)


class EventReader:
    """Reads one answer: feed it the bytes of the body."""

    def __init__(self, position: str) -> None:
        self.position = position
        """The id of the last event, "" before any."""
        self.begun = False
        """Whether a position has arrived."""
        self._unread = b""
        self._name = self._data = self._id = ""
        self._held: list[SandboxEvent | EventGap] = []

    def feed(self, data: bytes) -> list[SandboxEvent | EventGap]:
        """The events that ``data`` completes. Raises ``ServiceError`` for what is no such stream, ``ProtocolError`` for a wrong type."""
        *lines, self._unread = (self._unread + data).split(b"\n")
        if len(self._unread) > _LINE_BYTES:
            raise ServiceError("internal", "the service sent an event of over 1 MiB")
        found: list[SandboxEvent | EventGap] = []
        for raw in lines:
            line = raw.rstrip(b"\r").decode("utf-8", "replace")
            if line:
                self._field(*line.split(":", 1))
                continue
            if self._data:
                self._held += _read(self._name, self._data)
            if self._id or len(self._held) >= _MOST_HELD:
                self.position, self.begun = self._id or self.position, True
                found += self._held
                self._held = []
            self._name = self._data = self._id = ""
        return found

    def _field(self, name: str, value: str = "") -> None:
        value = value.removeprefix(" ")
        if name == "event":
            self._name = value
        elif name == "data":
            self._data += value
        elif name == "id":
            self._id = value


def _read(name: str, data: str) -> list[SandboxEvent | EventGap]:
    """The event; none for a kind that this version does not know."""
    if name != "gap" and name not in _TYPES:
        return []
    import json

    try:
        body: Any = json.loads(data)
    except (ValueError, RecursionError):
        raise ServiceError("internal", "the service sent an event without JSON") from None
    if name == "gap":
        return [EventGap(*take_all(body, _GAP_FIELDS, "event"))]
    found = take_all(body, _SANDBOX_FIELDS, "event")
    return [SandboxEvent(name, *found)]  # type: ignore[arg-type]


for _public in (EventGap, SandboxEvent):
    _public.__module__ = "holdfast"  # where they are imported from
