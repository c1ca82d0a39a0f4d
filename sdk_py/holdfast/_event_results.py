"""The events of ``client.events()`` and their reading from a stream of server-sent events (WHATWG HTML §9.2.6).

Pure. Owns the types of events, which fields they have, and which are delivered: those whose position is known, so that a connection that is
lost in the middle repeats none. Does not own connections (``_async.events``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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


ActivityType = Literal[
    "command_started", "command_ended", "progress", "files_written", "files_changed", "attached", "resumed", "lost", "detached", "usage",
    "ports",
]  # fmt: skip
_ACTIVITY: Final = frozenset(get_args(ActivityType))


@dataclass(frozen=True, slots=True)
class ActivityEvent:
    """What happened in a sandbox, as the sandbox reports it: code in it may have changed the report."""

    type: ActivityType
    """``command_started``, ``command_ended``, ``progress`` (of a running command), ``files_written`` (by a client), ``files_changed``,
    ``attached``, ``resumed``, ``lost`` and ``detached`` (a client), ``usage``, ``ports``."""
    sandbox_id: str
    """The sandbox."""
    time: float = 0.0
    """When, in seconds since the epoch by the sandbox's clock."""
    command_id: str | None = None
    """Of a command: its id; of a terminal its name."""
    kind: str | None = None
    """Of a command: ``command``, ``run`` of a living shell, or ``terminal``."""
    shell: str | None = None
    """The shell of a run."""
    line: str | None = None
    """The first line of a command, at most 200 characters."""
    late: bool | None = None
    """Whether the command ran before this was followed."""
    exit_code: int | None = None
    """Of ``command_ended``."""
    duration_s: float | None = None
    """Of ``command_ended``."""
    signal: str | None = None
    """Of ``command_ended``: the name of the signal that ended it."""
    reason: str | None = None
    """Of ``command_ended``: why it was ended from outside, or ``not_started``."""
    cpu_s: float | None = None
    """CPU time: of a command, or with ``usage`` of the sandbox so far."""
    stdout_bytes: int | None = None
    """So much has the command written to standard output."""
    stderr_bytes: int | None = None
    """So much has the command written to standard error."""
    session: str | None = None
    """Of a client: the beginning of its session's id."""
    generation: int | None = None
    """Of a client: how often it has attached."""
    received_bytes: int | None = None
    """Of ``resumed``: up to which byte the client had its channels, their sum."""
    memory_bytes: int | None = None
    """Of ``usage``."""
    ports: Sequence[int] | None = field(default=None, hash=False)
    """Of ``ports``: the TCP ports on which programs listen."""
    operation: str | None = None
    """Of ``files_written``: ``write``, ``upload`` or ``patch``."""
    path: str | None = None
    """Of ``files_written``: the file or directory."""
    size: int | None = None
    """Of ``files_written`` by ``write``: the size of the file in bytes."""
    sha256: str | None = None
    """Of ``files_written`` by ``write``: the digest of the file."""
    files: Sequence[str] | None = field(default=None, hash=False)
    """Of ``files_written`` by ``patch``: the changed files."""
    changes: Sequence[Mapping[str, Any]] | None = field(default=None, hash=False)
    """Of ``files_changed``: maps with ``type`` (``created``, ``modified``, ``deleted``, ``moved``, ``overflow``), ``path``, ``to``."""


@dataclass(frozen=True, slots=True)
class PullEvent:
    """How far the pull of an image is."""

    name: str
    """The image."""
    state: str
    """``waiting``, ``fetching``, ``importing``, ``done`` or ``failed``."""
    received_bytes: int = 0
    """So much has been received."""
    error: str = ""
    """The code of the error of a failed one."""
    time: float = 0.0
    """When, in seconds since the epoch."""
    type: Literal["pull"] = "pull"
    """Always ``pull``."""


@dataclass(frozen=True, slots=True)
class EventGap:
    """Events before this one may be missing: list the sandboxes again. With a ``sandbox_id``, only what happened in that one."""

    message: str
    """Why they may be missing."""
    sandbox_id: str | None = None
    """The sandbox, None for all."""
    type: Literal["gap"] = "gap"
    """Always ``gap``."""


AnyEvent = SandboxEvent | ActivityEvent | PullEvent | EventGap


_NUMBER = (int, float)
_SANDBOX_FIELDS: Fields = (
    ("sandbox_id", (str,), ""), ("time", _NUMBER, 0.0), ("image", (str,), ""), ("labels", (dict,), {}), ("group", (str,), None),
    ("created_at", _NUMBER, None), ("ready_at", _NUMBER, None), ("reason", (str,), None), ("fault", (str,), None),
    ("message", (str,), None), ("parent", (str,), None), ("turn", (int,), None), ("paused", (str,), None),
)  # fmt: skip
_ACTIVITY_FIELDS: Fields = (
    ("sandbox_id", (str,), ""), ("time", _NUMBER, 0.0), ("command_id", (str,), None), ("kind", (str,), None), ("shell", (str,), None),
    ("line", (str,), None), ("late", (bool,), None), ("exit_code", (int,), None), ("duration_s", _NUMBER, None), ("signal", (str,), None),
    ("reason", (str,), None), ("cpu_s", _NUMBER, None), ("stdout_bytes", (int,), None), ("stderr_bytes", (int,), None),
    ("session", (str,), None), ("generation", (int,), None), ("received_bytes", (int,), None), ("memory_bytes", (int,), None),
    ("ports", (list,), None), ("operation", (str,), None), ("path", (str,), None), ("size", (int,), None), ("sha256", (str,), None),
    ("files", (list,), None), ("changes", (list,), None),
)  # fmt: skip
_PULL_FIELDS: Fields = (
    ("name", (str,), ""),
    ("state", (str,), ""),
    ("received_bytes", (int,), 0),
    ("error", (str,), ""),
    ("time", _NUMBER, 0.0),
)
_GAP_FIELDS: Fields = (("message", (str,), ""), ("sandbox_id", (str,), None))
Seen = dict[str, tuple[str, int, set[str]]]
"""For each sandbox the journal and the position of the last event, and the types that came with it: after a loss some come twice."""


class EventReader:
    """Reads one answer: feed it the bytes of the body."""

    def __init__(self, position: str, seen: Seen | None = None) -> None:
        self.seen = {} if seen is None else seen
        self.position = position
        """The id of the last event, "" before any."""
        self.begun = False
        """Whether a position has arrived."""
        self._unread = b""
        self._name = self._data = self._id = ""
        self._held: list[AnyEvent] = []

    def feed(self, data: bytes) -> list[AnyEvent]:
        """The events that ``data`` completes. Raises ``ServiceError`` for what is no such stream, ``ProtocolError`` for a wrong type."""
        *lines, self._unread = (self._unread + data).split(b"\n")
        if len(self._unread) > _LINE_BYTES:
            raise ServiceError("internal", "the service sent an event of over 1 MiB")
        found: list[AnyEvent] = []
        for raw in lines:
            line = raw.rstrip(b"\r").decode("utf-8", "replace")
            if line:
                self._field(*line.split(":", 1))
                continue
            if self._data:
                self._held += _read(self._name, self._data, self.seen)
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


def _read(name: str, data: str, seen: Seen) -> list[AnyEvent]:
    """The event; none for a kind that this version does not know, or that has come before."""
    if name not in ("gap", "pull") and name not in _TYPES and name not in _ACTIVITY:
        return []
    import json

    try:
        body: Any = json.loads(data)
    except (ValueError, RecursionError):
        raise ServiceError("internal", "the service sent an event without JSON") from None
    if name == "gap":
        return [EventGap(*take_all(body, _GAP_FIELDS, "event"))]
    if name == "pull":
        return [PullEvent(*take_all(body, _PULL_FIELDS, "event"))]
    if name in _ACTIVITY:
        if isinstance(body, dict) and _repeated(name, body, seen):
            return []
        return [ActivityEvent(name, *take_all(body, _ACTIVITY_FIELDS, "event"))]  # type: ignore[arg-type]
    found = take_all(body, _SANDBOX_FIELDS, "event")
    return [SandboxEvent(name, *found)]  # type: ignore[arg-type]


def _repeated(name: str, body: Mapping[str, Any], seen: Seen) -> bool:
    """Whether the event has come before."""
    sandbox_id, journal, position = body.get("sandbox_id"), body.get("journal"), body.get("seq")
    if not isinstance(sandbox_id, str) or not isinstance(journal, str) or not isinstance(position, int):
        return False
    last = seen.get(sandbox_id)
    if last is None or last[0] != journal or position > last[1]:
        seen[sandbox_id] = journal, position, {name}
        return False
    if position < last[1] or name in last[2]:
        return True
    last[2].add(name)
    return False


for _public in (ActivityEvent, EventGap, PullEvent, SandboxEvent):
    _public.__module__ = "holdfast"  # where they are imported from
