"""The results of the SDK's methods: small frozen records, and their validation when they come from an untrusted peer.

Owns field names and units of all results except those of files (``_file_results``). Does not own how they are collected
(``_transport.session.sinks``) or fetched. The parsers take maps from the agent, which code in the sandbox may own: every type is checked, a
wrong one raises ``ProtocolError``.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, Self

from holdfast_wire.errors import ProtocolError
from holdfast_wire.fast_dataclass import dataclass, field
from holdfast_wire.rest import SandboxRecord

from ._errors import CommandFailedError

STDOUT = 1
STDERR = 2

_SHOWN = 60

NotExecuted = Literal["not_found", "permission_denied", "not_executable"]


class Chunk(NamedTuple):
    """A piece of live output: ``stream`` is 1 (stdout) or 2 (stderr). ``text`` decodes it and replaces invalid bytes.

    A character whose bytes arrive in two chunks is in the ``text`` of the second one.
    """

    stream: int
    """1 (stdout) or 2 (stderr); a terminal has only 1."""
    data: bytes
    """The bytes as they were written."""

    @property
    def text(self) -> str:
        return self.data.decode("utf-8", "replace")


class _DecodedChunk(Chunk):
    """A chunk with the text that the bytes before it in its stream lead to."""

    decoded: str
    """The text."""

    @property
    def text(self) -> str:
        return self.decoded


def decoded_chunk(chunk: Chunk, text: str) -> Chunk:
    """``chunk`` with another ``text``."""
    if text == chunk.text:
        return chunk
    result = _DecodedChunk(*chunk)
    result.decoded = text
    return result


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a command was ended from outside.

    An ``infrastructure`` fault (``is_infrastructure``) is not caused by the code that ran: mask the rollout instead of scoring it.
    """

    fault: str
    """``workload`` or ``infrastructure``."""
    reason: str
    """``timeout``, ``oom``, ``cancelled``, ``evicted``, …"""
    message: str = ""
    """A description of the cause."""

    @property
    def is_infrastructure(self) -> bool:
        """Whether the service or its machines ended it."""
        return self.fault == "infrastructure"


@dataclass(frozen=True, slots=True)
class StreamCount:
    """How many bytes one output stream had."""

    seen: int = 0
    """Bytes that the command wrote."""
    dropped: int = 0
    """Of these, bytes that were reported to this client as lost."""
    sha256: str = ""
    """SHA-256 (hex) of all bytes that the command wrote."""


@dataclass(frozen=True, slots=True, repr=False)
class CommandResult:
    """The one outcome of a command.

    If no process ran, there is no result but an exception. If ``cause`` is set and ``cause.is_infrastructure``, mask the rollout instead of
    scoring it.
    """

    exit_code: int
    """What a shell would show: 128+n after signal n, 124 after a time-out, 127 for a command that was not found."""
    stdout_bytes: bytes
    """Standard output, up to ``max_output_bytes``: its head, tail or both ends, as ``keep`` selected."""
    stderr_bytes: bytes
    """Standard error, likewise; empty with ``stderr="stdout"``."""
    duration_s: float
    """How long it ran, in seconds, by the sandbox's clock."""
    command_id: str = ""
    """Its id; ``sandbox.follow(command_id)`` attaches to it again."""
    timed_out: bool = False
    """Whether its time ran out and it was killed."""
    truncated: bool = False
    """Whether some output is missing: it was dropped by the agent (see ``streams``) or exceeded ``max_output_bytes``."""
    late: bool = False
    """Whether a process of the command, such as one of ``> >(tee log)``, could still write output when the result was made, 2 s after the
    command's end; that output is dropped. Background jobs do not count."""
    not_executed: NotExecuted | None = None
    """Why the program that a list named was not executed, None if it was: ``not_found`` (exit code 127), ``permission_denied`` or
    ``not_executable`` (126). A string is run by a shell, which reports such a failure of the programs in it by its exit code only."""
    signal: str | None = None
    """The name of the signal that ended it."""
    cause: Cause | None = None
    """Why the command was ended from outside; None if it was not."""
    streams: Mapping[int, StreamCount] = field(default_factory=dict, hash=False)
    """For stdout (1) and stderr (2): how many bytes the command wrote, and their SHA-256."""
    shell_restarted: bool = False
    """Whether the living shell had to be rebuilt, in a new process that loaded its state; ``lost`` names what it could not load."""
    cwd: str | None = None
    """The living shell's directory afterwards."""
    lost: tuple[str, ...] = ()
    """With ``shell_restarted``: what of its state the living shell does not have any more, such as ``function f``, ``variable BIG``,
    ``directory /gone`` or ``the whole state``; at most 101 names. Jobs, open descriptors, limits and ``$@`` are never kept or named."""

    @property
    def stdout(self) -> str:
        """Standard output as text; bytes that are not UTF-8 become U+FFFD."""
        return self.stdout_bytes.decode("utf-8", "replace")

    @property
    def stderr(self) -> str:
        """Standard error as text; bytes that are not UTF-8 become U+FFFD."""
        return self.stderr_bytes.decode("utf-8", "replace")

    @property
    def output(self) -> str:
        """All output as text: with ``stderr="stdout"`` in the order of writing, else standard output and then standard error."""
        return self.stdout + self.stderr

    @property
    def ok(self) -> bool:
        """Whether the exit code is 0."""
        return self.exit_code == 0

    def check(self) -> CommandResult:
        """Return this result if the exit code is 0. Raises ``CommandFailedError`` otherwise."""
        if self.ok:
            return self
        why = f" ({self.cause.reason})" if self.cause else ""
        raise CommandFailedError(f"the command ended with exit code {self.exit_code}{why}", self)

    def __repr__(self) -> str:
        parts = [f"exit_code={self.exit_code}", f"stdout={_shown(self.stdout_bytes)}", f"stderr={_shown(self.stderr_bytes)}"]
        parts += [name for name in ("timed_out", "truncated", "late", "shell_restarted") if getattr(self, name)]
        if self.lost:
            parts.append(f"lost={list(self.lost)}")
        if self.cause:
            parts.append(f"cause={self.cause.reason}")
        return f"CommandResult({', '.join(parts)}, duration_s={self.duration_s:.3f})"


def cut(result: CommandResult, limit: int) -> CommandResult:
    """The same result with at most ``limit`` bytes of each stream."""
    if max(len(result.stdout_bytes), len(result.stderr_bytes)) <= limit:
        return result
    from dataclasses import replace

    return replace(result, stdout_bytes=result.stdout_bytes[:limit], stderr_bytes=result.stderr_bytes[:limit], truncated=True)


def _shown(data: bytes) -> str:
    text = data[:_SHOWN].decode("utf-8", "replace")
    return repr(text) if len(data) <= _SHOWN else f"{text!r}… ({len(data)} bytes)"


@dataclass(frozen=True, slots=True)
class ImageInfo:
    """One image of the service's store."""

    name: str
    """Its name, as for ``create_sandbox``."""
    digest: str = ""
    """Its digest, ``sha256:…``."""
    size_bytes: int = 0
    """Bytes of its layers."""
    created: float | str | None = None
    """When it was created."""
    nodes_ready: int | None = None
    """In a cluster, where images are pulled to every node in advance: how many of ``nodes_wanted`` nodes have it."""
    nodes_wanted: int | None = None
    """How many nodes should have it."""
    shared: bool = True
    """Whether all owners may use it; otherwise it is your own."""
    parent: str | None = None
    """Of a snapshot: the digest of the image that its sandbox was created from."""


@dataclass(frozen=True, slots=True)
class Lost:
    """Something of a sandbox that does not continue in a branch, or after a pause to disk."""

    kind: str
    """What it was: ``command``, ``terminal``, ``process``, ``descriptor``, ``shell``, …"""
    name: str
    """Its command id, its name, or its process id and command line. Code in the sandbox may have chosen it."""
    reason: str
    """Why it does not continue."""


@dataclass(frozen=True, slots=True)
class PauseResult:
    """What ``pause`` and ``resume`` return."""

    info: SandboxInfo
    """The service's record of the sandbox."""
    lost: list[Lost]
    """What was not kept, or could not be restored."""


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """The service's record of a group."""

    name: str
    """Its name."""
    status: Literal["open", "ended"]
    """Whether its lease is valid."""
    ttl_s: float | None
    """How long the lease lasts without a heartbeat."""
    expires_at: float | None
    """When the lease expires if no heartbeat comes, in seconds since the epoch."""
    sandboxes: tuple[str, ...] = ()
    """Ids of its sandboxes, at most 1000."""
    leaving: tuple[str, ...] = ()
    """Ids of the sandboxes that will end soon for a reason outside of them, such as a drained node."""
    reason: str | None = None
    """Why it ended."""

    @classmethod
    def read(cls, body: Mapping[str, Any]) -> GroupInfo:
        """From a REST answer."""
        name, status, ttl_s, expires_at, sandboxes, leaving, reason = take_all(body, _GROUP_FIELDS)
        ids = tuple(map(str, sandboxes)), tuple(map(str, leaving))
        return cls(name, "ended" if status == "ended" else "open", ttl_s, expires_at, *ids, reason)


@dataclass(frozen=True, slots=True)
class SandboxInfo(SandboxRecord):
    """The service's record of a sandbox. Times are seconds since the epoch."""

    @classmethod
    def read(cls, body: dict[str, Any]) -> SandboxInfo:
        """From a REST answer."""
        return cls(**SandboxRecord.from_map(body).to_map())


def ending(info: SandboxInfo | None) -> str:
    """When a sandbox ends, as text; empty if that is not known."""
    if info is None or info.expires_at is None:
        return ""
    return time.strftime(" until %Y-%m-%d %H:%M:%S UTC", time.gmtime(info.expires_at))


# Reading what an agent sends -------------------------------------------------------------------------------------


def take(body: Mapping[Any, Any], name: str, *types: type, default: Any = None) -> Any:
    """``body[name]`` if it is one of ``types``, ``default`` if it is missing or None. Raises ``ProtocolError``."""
    return take_all(body, ((name, types, default),))[0]


Fields = tuple[tuple[str, tuple[type, ...], Any], ...]


def take_all(body: Any, fields: Fields, what: str = "map") -> list[Any]:
    """The results of ``take`` for each of ``fields`` (name, types and default). Raises ``ProtocolError``, also if ``body`` is not a map."""
    if type(body) is not dict:
        raise ProtocolError(f"the agent sent a malformed {what}")
    values: list[Any] = []
    for name, types, default in fields:
        value = body.get(name)
        if value is None:
            value = default
        elif type(value) not in types:
            raise ProtocolError(f"the agent answered {name} as {type(value).__name__}")
        values.append(value)
    return values


class FieldReader:
    """``take_all`` of the same fields for many maps: the types of all values at once are compared with those that were legal before."""

    __slots__ = ("_fields", "_legal", "_names")

    def __init__(self, fields: Fields) -> None:
        self._fields = fields
        self._names = tuple(name for name, _, _ in fields)
        self._legal: dict[tuple[type, ...], list[tuple[int, Any]]] = {}
        """By the types of the values: positions and defaults of those that are missing. A few, since each value has few legal types."""

    def read(self, body: dict[Any, Any]) -> list[Any]:
        """As ``take_all``."""
        values = [*map(body.get, self._names)]
        missing = self._legal.get(types := tuple(map(type, values)))
        if missing is None:
            take_all(body, self._fields)
            missing = [(at, field[2]) for at, field in enumerate(self._fields) if values[at] is None]
            self._legal[types] = missing
        for at, default in missing:
            values[at] = default
        return values


_GROUP_FIELDS: Fields = (
    ("name", (str,), ""), ("status", (str,), "open"), ("ttl_s", (int, float), None), ("expires_at", (int, float), None),
    ("sandboxes", (list,), ()), ("leaving", (list,), ()), ("reason", (str,), None),
)  # fmt: skip
_CAUSE_FIELDS: Fields = (("fault", (str,), "workload"), ("reason", (str,), "unknown"), ("message", (str,), ""))


def read_cause(body: Any, *, by_agent: bool = False) -> Cause | None:
    """``cause`` of an exit record. An agent can only report a fault of its own sandbox."""
    if body is None:
        return None
    fault, *more = take_all(body, _CAUSE_FIELDS, "cause")
    return Cause("workload" if by_agent else fault, *more)


def read_not_executed(value: str | None) -> NotExecuted | None:
    """``not_executed`` of an exit record. A reason that this version does not know counts as ``not_executable``."""
    return None if value is None else _NOT_EXECUTED.get(value, "not_executable")


_NOT_EXECUTED: dict[str, NotExecuted] = {"not_found": "not_found", "permission_denied": "permission_denied"}


def read_streams(body: Any, dropped: Mapping[int, int]) -> dict[int, StreamCount]:
    """``streams`` of an exit record: {1: [seen, dropped, sha256], 2: …}.

    ``dropped`` counts the gaps that were reported to this reader, whatever other readers received.
    """
    counts: dict[int, StreamCount] = {}
    if body is None:
        return counts
    if type(body) is not dict:
        raise ProtocolError("the agent answered malformed stream counts")
    for stream, row in body.items():
        if stream not in dropped or type(row) is not list or [*map(type, row)] != _STREAM_ROW:
            raise ProtocolError("the agent answered malformed stream counts")
        counts[stream] = StreamCount(row[0], dropped[stream], row[2])
    return counts


_STREAM_ROW = [int, int, str]


class Address(NamedTuple):
    """A host and a port: a pair for ``socket.connect``, ``host:port`` as text."""

    host: str
    """A name or an address."""
    port: int
    """A TCP port."""

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)


class ListeningPort(NamedTuple):
    """A TCP port of a sandbox on which a program listens, as the sandbox reports it."""

    port: int
    """Its number, 1 to 65535."""
    address: str
    """Where the program listens: ``127.0.0.1``, or ``0.0.0.0`` and ``::`` for all addresses of the sandbox."""
    uid: int
    """The user of the program."""


class PreviewUrl(str):
    """The signed address of a port, a string for a browser. A program uses ``address`` with ``headers``."""

    __slots__ = ("address", "expires_at", "headers")

    address: str
    """The same without the token."""
    headers: dict[str, str]
    """The header that carries the token."""
    expires_at: float
    """When it stops to work, in seconds since the epoch."""

    def __new__(cls, url: str, address: str, header: str, token: str, expires_at: float) -> Self:
        made = super().__new__(cls, url)
        made.address = address
        made.headers = {header: token}
        made.expires_at = expires_at
        return made

    def __reduce__(self) -> tuple[type[PreviewUrl], tuple[Any, ...]]:
        ((header, token),) = self.headers.items()
        return PreviewUrl, (str(self), self.address, header, token, self.expires_at)


for _public in (
    Address, Cause, Chunk, CommandResult, GroupInfo, ImageInfo, ListeningPort, Lost, PauseResult, PreviewUrl, SandboxInfo,
    StreamCount,
):  # fmt: skip
    _public.__module__ = "holdfast"  # where they are imported from
