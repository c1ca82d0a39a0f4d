"""The results of operations on files: entries, matches, events, patches and transfers, and their validation.

Owns field names and units. The readers take maps from the agent, which code in the sandbox may own (``_results.take_all``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from holdfast_wire.records import dataclass

from ._results import Fields, take, take_all

_TEXT, _NO_TEXT, _NUMBER, _NO_BYTES = ((str,), ""), ((str,), None), ((int,), 0), ((bytes,), None)
_ENTRY_FIELDS: Fields = (
    ("name", *_TEXT), ("path", *_TEXT), ("type", (str,), "other"), ("size", *_NUMBER), ("mode", *_NUMBER), ("mtime", (int, float), 0.0),
    ("uid", *_NUMBER), ("gid", *_NUMBER), ("target", *_NO_TEXT), ("raw_path", *_NO_BYTES),
)  # fmt: skip
_MATCH_FIELDS: Fields = (("path", *_TEXT), ("line", (int,), None), ("text", *_TEXT), ("raw_path", *_NO_BYTES))
_EVENT_FIELDS: Fields = (
    ("type", (str,), "overflow"), ("path", *_TEXT), ("to", *_NO_TEXT), ("directory", (bool,), False), ("raw_path", *_NO_BYTES),
    ("raw_to", *_NO_BYTES),
)  # fmt: skip


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


for _public in (FileEntry, FileEvent, FileMatch, PatchResult, TransferResult):
    _public.__module__ = "holdfast"  # where they are imported from
