"""The results of operations on files: entries, matches, events, patches and transfers, and their validation.

Owns field names and units. The readers take maps from the agent, which code in the sandbox may own (``_results.take_all``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

from holdfast_wire.fast_dataclass import dataclass

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
    """The number of the line, from 1; None if the search had no pattern."""
    text: str = ""
    """The line, cut at 2000 bytes."""
    raw_path: bytes | None = None
    """The path's bytes if they are not UTF-8."""


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One entry of a directory, as ``list`` and ``stat`` return it. ``mtime`` is seconds since the epoch, ``mode`` the permission bits."""

    name: str
    """The last part of the path."""
    path: str
    """The whole path."""
    type: Literal["file", "directory", "symlink", "other"]
    """The kind of entry."""
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
    """The target of a symbolic link."""
    raw_path: bytes | None = None
    """The path's bytes if they are not UTF-8 (``path`` then contains U+FFFD); methods accept them as a path."""

    @property
    def is_dir(self) -> bool:
        return self.type == "directory"


@dataclass(frozen=True, slots=True)
class FileEvent:
    """A change that ``files.watch`` reported. ``overflow``: further changes were lost; list the directory again."""

    type: Literal["created", "modified", "deleted", "moved", "overflow"]
    """What happened. ``modified``: content or attributes changed; ``moved``: the entry has a new name in the watched tree."""
    path: str
    """The changed entry; for ``moved``, its old name."""
    to: str | None = None
    """For ``moved``, the new name."""
    is_dir: bool = False
    """Whether the entry is a directory."""
    raw_path: bytes | None = None
    """The bytes of ``path`` if they are not UTF-8."""
    raw_to: bytes | None = None
    """The bytes of ``to`` if they are not UTF-8."""


@dataclass(frozen=True, slots=True)
class PatchResult:
    """The result of applying a patch. A patch that does not apply has ``success`` False and changes nothing."""

    success: bool
    """Whether the whole patch was applied; if not, nothing was changed."""
    exit_code: int
    """0, or 1 if the patch does not apply."""
    stdout: str
    """A line for each file with what was done."""
    stderr: str
    """Why the patch does not apply."""
    files: tuple[str, ...] = ()
    """The changed paths."""


@dataclass(frozen=True, slots=True)
class TransferResult:
    """The result of an upload, download or copy."""

    size_bytes: int
    """Bytes of content."""
    entries: int = 1
    """Files and directories; 1 for a file."""
    sha256: str | None = None
    """SHA-256 (hex) of the file in the sandbox."""
    skipped: int = 0
    """Entries of a directory that were left out: special files, unreadable entries, links that lead out of the directory."""
    changed: int = 0
    """Files that changed while they were read: their transferred content may be a mixture of old and new."""


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
    """The result of a patch, from the fields of ``Closed`` or from a REST answer."""
    stdout, stderr = (take(body, name, str, default="") for name in ("stdout", "stderr"))
    files = tuple(map(str, take(body, "files", list, default=[])))
    return PatchResult(take(body, "success", bool, default=False), take(body, "exit_code", int, default=1), stdout, stderr, files)


def read_transfer(body: Mapping[str, Any], left_out: int = 0) -> TransferResult:
    """The result of an upload or a copy, from the fields of ``Closed``; ``left_out`` is the number of entries that were not sent."""
    size, entries, skipped = (take(body, name, int, default=0) for name in ("bytes", "entries", "skipped"))
    return TransferResult(size, entries, skipped=skipped + left_out)


class FileLink(str):
    """A signed address of a file, which any HTTP client can use, without a key."""

    __slots__ = ("expires_at", "method")

    method: str
    """``GET`` to read the file, ``PUT`` to write it."""
    expires_at: float
    """When it stops to work, in seconds since the epoch."""

    def __new__(cls, url: str, method: str, expires_at: float) -> Self:
        made = super().__new__(cls, url)
        made.method = method
        made.expires_at = expires_at
        return made

    def __reduce__(self) -> tuple[type[FileLink], tuple[Any, ...]]:
        return FileLink, (str(self), self.method, self.expires_at)


for _public in (FileEntry, FileEvent, FileLink, FileMatch, PatchResult, TransferResult):
    _public.__module__ = "holdfast"  # where they are imported from
