"""The results of the SDK's methods: small frozen records, and their validation when they come from an untrusted peer.

Owns field names and units of results. Does not own how they are gathered (``_transport.session.sinks``) or fetched. The parsers take
maps from the agent, which code in the sandbox may own: every type is checked, a wrong one raises ``ProtocolError``.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from holdfast_wire.errors import ProtocolError
from holdfast_wire.records import dataclass, field
from holdfast_wire.rest import SandboxRecord

from ._errors import CommandFailedError

STDOUT = 1
STDERR = 2

_SHOWN = 60


class Chunk(NamedTuple):
    """A piece of live output: ``stream`` is 1 (stdout) or 2 (stderr). ``text`` decodes it, unknown bytes replaced."""

    stream: int
    """1 (stdout) or 2 (stderr); a terminal has 1 alone."""
    data: bytes
    """The bytes as they were written."""

    @property
    def text(self) -> str:
        return self.data.decode("utf-8", "replace")


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
    """The cause in words."""

    @property
    def is_infrastructure(self) -> bool:
        """Whether the service or its machines ended it."""
        return self.fault == "infrastructure"


@dataclass(frozen=True, slots=True)
class StreamCount:
    """How many bytes one output stream had."""

    seen: int = 0
    """Bytes that the agent saw."""
    dropped: int = 0
    """Of these, bytes that were reported lost to this client."""
    sha256: str = ""
    """SHA-256 (hex) of all that it saw."""


@dataclass(frozen=True, slots=True, repr=False)
class CommandResult:
    """The one outcome of a command.

    Where no process ran there is no result but an exception. If ``cause`` is set and
    ``cause.is_infrastructure``, mask the rollout instead of scoring it.
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
    """Whether not all output is here: dropped by the agent (see ``streams``) or over ``max_output_bytes``."""
    signal: str | None = None
    """The name of the signal that ended it."""
    cause: Cause | None = None
    """Why it was ended from outside, where it was."""
    streams: Mapping[int, StreamCount] = field(default_factory=dict, hash=False)
    """Of stdout (1) and stderr (2): how many bytes there were, and their SHA-256."""
    shell_restarted: bool = False
    """Whether the living shell had to be rebuilt."""
    cwd: str | None = None
    """The living shell's directory afterwards."""

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
        """This result, when the exit code is 0. Raises ``CommandFailedError`` otherwise."""
        if self.ok:
            return self
        why = f" ({self.cause.reason})" if self.cause else ""
        raise CommandFailedError(f"the command ended with exit code {self.exit_code}{why}", self)

    def __repr__(self) -> str:
        parts = [f"exit_code={self.exit_code}", f"stdout={_shown(self.stdout_bytes)}", f"stderr={_shown(self.stderr_bytes)}"]
        parts += [name for name in ("timed_out", "truncated", "shell_restarted") if getattr(self, name)]
        if self.cause:
            parts.append(f"cause={self.cause.reason}")
        return f"CommandResult({', '.join(parts)}, duration_s={self.duration_s:.3f})"


def cut(result: CommandResult, limit: int) -> CommandResult:
    """The same with at most ``limit`` bytes of each stream."""
    if max(len(result.stdout_bytes), len(result.stderr_bytes)) <= limit:
        return result
    from dataclasses import replace

    return replace(result, stdout_bytes=result.stdout_bytes[:limit], stderr_bytes=result.stderr_bytes[:limit], truncated=True)


def _shown(data: bytes) -> str:
    text = data[:_SHOWN].decode("utf-8", "replace")
    return repr(text) if len(data) <= _SHOWN else f"{text!r}… ({len(data)} bytes)"


@dataclass(frozen=True, slots=True)
class FileMatch:
    """One match of a search."""

    path: str
    """The file, as it was reached from the path that was searched."""
    line: int | None = None
    """The number of the line, from 1; None where no pattern was looked for."""
    text: str = ""
    """The line, cut at 2000 bytes."""
    raw_path: bytes | None = None
    """The path's bytes where they are not UTF-8."""


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One entry of a directory, or what ``stat`` answers. ``mtime`` is seconds since the epoch, ``mode`` the permission bits."""

    name: str
    """The last part of the path."""
    path: str
    """The whole path."""
    type: Literal["file", "directory", "symlink", "other"]
    """What it is."""
    size: int
    """Bytes."""
    mode: int
    """The permission bits."""
    mtime: float
    """When it was changed, in seconds since the epoch."""
    uid: int = 0
    """The user id of its owner."""
    gid: int = 0
    """The id of its group."""
    target: str | None = None
    """Where a symbolic link leads."""
    raw_path: bytes | None = None
    """The path's bytes where they are not UTF-8 (``path`` then shows U+FFFD); methods take it as a path."""

    @property
    def is_dir(self) -> bool:
        return self.type == "directory"


@dataclass(frozen=True, slots=True)
class FileEvent:
    """A change that ``files.watch`` saw. ``overflow``: others were lost; list the directory again."""

    type: Literal["created", "modified", "deleted", "moved", "overflow"]
    """What happened; ``modified`` is content or attributes, ``moved`` a new name in what is watched."""
    path: str
    """What it happened to; what was moved had this name before."""
    to: str | None = None
    """The new name of what was moved."""
    is_dir: bool = False
    """Whether it is a directory."""
    raw_path: bytes | None = None
    """The bytes of ``path`` where they are not UTF-8."""
    raw_to: bytes | None = None
    """The bytes of ``to`` where they are not UTF-8."""


@dataclass(frozen=True, slots=True)
class PatchResult:
    """What applying a patch did. A patch that does not apply is a result with ``success`` False, and changes nothing."""

    success: bool
    """Whether all of it was applied; else nothing was changed."""
    exit_code: int
    """0, or 1 where it does not apply."""
    stdout: str
    """What was done, file by file."""
    stderr: str
    """Why it does not apply."""
    files: tuple[str, ...] = ()
    """The paths that were changed."""


@dataclass(frozen=True, slots=True)
class TransferResult:
    """What an upload or download moved."""

    size_bytes: int
    """Bytes of content."""
    entries: int = 1
    """Files and directories; 1 for a file."""
    sha256: str | None = None
    """SHA-256 (hex) of a file as the sandbox has it."""
    skipped: int = 0
    """Entries of a directory that were left out: special files, what could not be read, links that lead out."""
    changed: int = 0
    """Files that were written to while they were read, so that what arrived may never have been there as a whole."""


@dataclass(frozen=True, slots=True)
class ImageInfo:
    """One image of the service's store."""

    name: str
    """Its name, as ``create_sandbox`` takes it."""
    digest: str = ""
    """Its digest, ``sha256:…``."""
    size_bytes: int = 0
    """Bytes of its layers."""
    created: float | str | None = None
    """When it was made."""
    nodes_ready: int | None = None
    """In a cluster, where images are pulled ahead to every node: how many of ``nodes_wanted`` have it."""
    nodes_wanted: int | None = None
    """How many nodes are to have it."""


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """The service's record of a group."""

    name: str
    """Its name."""
    status: Literal["open", "ended"]
    """Whether its lease lasts."""
    ttl_s: float | None
    """How long the lease lasts without a heartbeat."""
    expires_at: float | None
    """When it ends if no heartbeat comes, in seconds since the epoch."""
    sandboxes: tuple[str, ...] = ()
    """Ids, at most 1000."""
    leaving: tuple[str, ...] = ()
    """Ids of those that will end soon whatever they do."""
    reason: str | None = None
    """Why it ended."""

    @classmethod
    def read(cls, body: Mapping[str, Any]) -> GroupInfo:
        """From a REST answer."""
        ids = {name: tuple(str(id_) for id_ in take(body, name, list, default=[])) for name in ("sandboxes", "leaving")}
        return cls(
            name=take(body, "name", str, default=""),
            status="ended" if body.get("status") == "ended" else "open",
            ttl_s=take(body, "ttl_s", int, float),
            expires_at=take(body, "expires_at", int, float),
            reason=take(body, "reason", str),
            **ids,
        )


@dataclass(frozen=True, slots=True)
class SandboxInfo(SandboxRecord):
    """The service's record of a sandbox. Times are seconds since the epoch."""

    @classmethod
    def read(cls, body: dict[str, Any]) -> SandboxInfo:
        """From a REST answer."""
        return cls(**SandboxRecord.from_map(body).to_map())


def ending(info: SandboxInfo | None) -> str:
    """When a sandbox ends, as far as that is known; empty where it is not."""
    if info is None or info.expires_at is None:
        return ""
    return time.strftime(" until %Y-%m-%d %H:%M:%S UTC", time.gmtime(info.expires_at))


# Reading what an agent sends -------------------------------------------------------------------------------------


def take(body: Mapping[Any, Any], name: str, *types: type, default: Any = None) -> Any:
    """``body[name]`` when it is one of ``types``, ``default`` when it is missing or None. Raises ``ProtocolError``."""
    return take_all(body, ((name, types, default),))[0]


Fields = tuple[tuple[str, tuple[type, ...], Any], ...]


def take_all(body: Any, fields: Fields, what: str = "map") -> list[Any]:
    """What ``take`` answers for each of ``fields``: its name, types and default. Raises ``ProtocolError``, also where it is no map."""
    if type(body) is not dict:
        raise ProtocolError(f"the agent answered a malformed {what}")
    values: list[Any] = []
    for name, types, default in fields:
        value = body.get(name)
        if value is None:
            value = default
        elif type(value) not in types:
            raise ProtocolError(f"the agent answered {name} as {type(value).__name__}")
        values.append(value)
    return values


_TEXT, _NO_TEXT, _NUMBER, _NO_BYTES = ((str,), ""), ((str,), None), ((int,), 0), ((bytes,), None)
_ENTRY_FIELDS: Fields = (
    ("name", *_TEXT), ("path", *_TEXT), ("type", (str,), "other"), ("size", *_NUMBER), ("mode", *_NUMBER), ("mtime", (int, float), 0.0),
    ("uid", *_NUMBER), ("gid", *_NUMBER), ("target", *_NO_TEXT), ("raw_path", *_NO_BYTES),
)  # fmt: skip
_CAUSE_FIELDS: Fields = (("fault", (str,), "workload"), ("reason", (str,), "unknown"), ("message", *_TEXT))
_MATCH_FIELDS: Fields = (("path", *_TEXT), ("line", (int,), None), ("text", *_TEXT), ("raw_path", *_NO_BYTES))
_EVENT_FIELDS: Fields = (
    ("type", (str,), "overflow"), ("path", *_TEXT), ("to", *_NO_TEXT), ("directory", (bool,), False), ("raw_path", *_NO_BYTES),
    ("raw_to", *_NO_BYTES),
)  # fmt: skip


def read_cause(body: Any) -> Cause | None:
    """``cause`` of an exit record."""
    if body is None:
        return None
    return Cause(*take_all(body, _CAUSE_FIELDS, "cause"))


def read_streams(body: Any, dropped: Mapping[int, int]) -> dict[int, StreamCount]:
    """``streams`` of an exit record: {1: [seen, dropped, sha256], 2: …}. What another reader missed or got does not concern this one:
    to it, exactly the reported gaps are ``dropped``."""
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


def read_entry(body: Any) -> FileEntry:
    """One directory entry."""
    name, path, kind, size, mode, mtime, *more = take_all(body, _ENTRY_FIELDS, "directory entry")
    type_: Any = kind if kind in ("file", "directory", "symlink") else "other"
    return FileEntry(name, path, type_, size, mode, float(mtime), *more)


def read_match(body: Any) -> FileMatch:
    """One match of a search."""
    return FileMatch(*take_all(body, _MATCH_FIELDS, "match"))


def read_event(body: Any) -> FileEvent:
    """One event of a watch. An unknown kind means that something changed."""
    kind, *more = take_all(body, _EVENT_FIELDS, "event")
    return FileEvent(kind if kind in ("created", "modified", "deleted", "moved") else "overflow", *more)


def read_patch(body: Mapping[str, Any]) -> PatchResult:
    """What closes a patch channel, or what REST answers to one."""
    stdout, stderr = (take(body, name, str, default="") for name in ("stdout", "stderr"))
    files = tuple(map(str, take(body, "files", list, default=[])))
    return PatchResult(take(body, "success", bool, default=False), take(body, "exit_code", int, default=1), stdout, stderr, files)


def read_transfer(body: Mapping[str, Any], left_out: int = 0) -> TransferResult:
    """What closes an upload or a copy; ``left_out`` entries were not sent."""
    size, entries, skipped = (take(body, name, int, default=0) for name in ("bytes", "entries", "skipped"))
    return TransferResult(size, entries, skipped=skipped + left_out)


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


for _public in (
    Address, Cause, Chunk, CommandResult, FileEntry, FileEvent, FileMatch, GroupInfo, ImageInfo, PatchResult, SandboxInfo, StreamCount,
    TransferResult,
):  # fmt: skip
    _public.__module__ = "holdfast"  # where they are imported from
