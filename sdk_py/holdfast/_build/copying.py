"""Where COPY and ADD put their sources, as a tar stream for the root directory of a sandbox.

Owns the rules of docker: into a directory or under the name of the target, the content of directories, owners, permissions, and which
archives ADD unpacks. What exists in the sandbox is asked through ``Kind``.
"""

from __future__ import annotations

import io
import posixpath
import stat
import tarfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import IO, cast

from holdfast._build.context import Entry, Source

_BLOCK = 512
_PIECE = 1024 * 1024
_JOIN = 128 * 1024
_COMPRESSED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ\0")


@dataclass(frozen=True, slots=True)
class Placed:
    """One entry at its path in the image."""

    path: str
    entry: Entry


@dataclass(slots=True)
class Placing:
    """``is_dir`` answers whether a path of the sandbox is a directory, with links followed."""

    target: str
    owner: tuple[int, int] | None = None
    mode: int | None = None
    placed: list[Placed] = field(default_factory=list)

    def add(self, sources: Sequence[Source], *, into: bool) -> None:
        """Place the sources. ``into``: the target is a directory, or will be one."""
        for source in sources:
            base = self.target
            if not source.is_dir and into:
                base = posixpath.join(self.target, source.name)
            for entry in source.entries:
                if source.is_dir and not entry.path and (into or self.target == "/"):
                    continue  # only the content is copied; the target keeps or gets the usual permissions
                self.placed.append(Placed(posixpath.normpath(posixpath.join(base, entry.path)), entry))

    def parents(self) -> list[str]:
        """The directories above the entries that are not entries themselves, the outermost first."""
        own = {one.path for one in self.placed if one.entry.is_dir}
        found: dict[str, None] = {}
        for one in self.placed:
            parent = posixpath.dirname(one.path)
            while parent not in ("/", "") and parent not in own:
                found[parent] = None
                parent = posixpath.dirname(parent)
        return sorted(found, key=lambda path: path.count("/"))

    def pieces(self, missing: Sequence[str]) -> Iterator[bytes]:
        """The tar stream. ``missing``: the parents that do not exist yet."""
        pending = bytearray()
        for piece in self._members(missing):
            pending += piece
            if len(pending) >= _JOIN:
                yield bytes(pending)
                pending.clear()
        yield bytes(pending + b"\0" * (2 * _BLOCK))

    def _members(self, missing: Sequence[str]) -> Iterator[bytes]:
        for path in missing:
            yield from self._member(path, Entry("", stat.S_IFDIR | 0o755, mtime=time.time()), keep_mode=True)
        for one in self.placed:
            yield from self._member(one.path, one.entry)

    def _member(self, path: str, entry: Entry, *, keep_mode: bool = False) -> Iterator[bytes]:
        info = tarfile.TarInfo(path.lstrip("/"))
        info.mtime = int(entry.mtime)
        info.uid, info.gid = self.owner or (entry.uid, entry.gid)
        info.mode = stat.S_IMODE(entry.mode) if self.mode is None or keep_mode else self.mode
        if entry.is_dir:
            info.type = tarfile.DIRTYPE
        elif entry.hard_link:
            info.type, info.linkname = tarfile.LNKTYPE, posixpath.join(self.target, entry.hard_link).lstrip("/")
        elif stat.S_ISLNK(entry.mode):
            info.type, info.linkname, info.mode = tarfile.SYMTYPE, entry.link, 0o777
        else:
            info.size = entry.size
        yield info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
        if info.size and entry.open is not None:
            yield from _exactly(entry.open, info.size, path)


def _exactly(opened: Callable[[], IO[bytes]], size: int, path: str) -> Iterator[bytes]:
    left = size
    with opened() as file:
        while left:
            data = file.read(min(_PIECE, left))
            if not data:
                raise OSError(5, "the file became shorter while it was read", path)
            left -= len(data)
            yield data
    yield b"\0" * (-size % _BLOCK)


def tar_source(file: IO[bytes], name: str = "", *, is_dir: bool = True, keep_owners: bool = True) -> Source:
    """The members of a tar archive as a source; ``file`` stays open as long as the entries are used."""
    entries: list[Entry] = []
    archive = tarfile.open(fileobj=file, mode="r:*")  # noqa: SIM115  its decompressor is read later, through the entries
    for member in archive:
        path = posixpath.normpath(member.name.lstrip("/"))
        path = "" if path == "." else path
        if path.startswith("../") or path == "..":
            raise ValueError(f"the archive has a member {member.name!r:.100} outside of its directory")
        kind = _kind(member)
        if kind is None:
            continue
        owner = (member.uid, member.gid) if keep_owners else (0, 0)
        link = member.linkname if member.issym() else ""
        hard = posixpath.normpath(member.linkname.lstrip("/")) if member.islnk() else ""
        opened = _reader(file, archive, member) if member.isreg() else None
        size = member.size if member.isreg() else 0
        entries.append(Entry(path, kind | member.mode & 0o7777, size, float(member.mtime), link, hard, *owner, opened))
    if not is_dir:
        entries = [Entry("", *_fields(one)) for one in entries[:1]]
    return Source(name, is_dir, entries)


def _fields(one: Entry) -> tuple[int, int, float, str, str, int, int, Callable[[], IO[bytes]] | None]:
    return one.mode, one.size, one.mtime, one.link, one.hard_link, one.uid, one.gid, one.open


def _kind(member: tarfile.TarInfo) -> int | None:
    if member.isdir():
        return stat.S_IFDIR
    if member.issym():
        return stat.S_IFLNK
    return stat.S_IFREG if member.isreg() or member.islnk() else None


def _reader(file: IO[bytes], archive: tarfile.TarFile, member: tarfile.TarInfo) -> Callable[[], IO[bytes]]:
    source = archive.fileobj  # the decompressing one
    start = member.offset_data
    if member.issparse():
        return lambda: cast("IO[bytes]", archive.extractfile(member))

    def opened() -> IO[bytes]:
        assert source is not None
        source.seek(start)
        return cast("IO[bytes]", _Part(cast("IO[bytes]", source), member.size))

    return opened


class _Part(io.RawIOBase):
    """A part of an open file, which stays open."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self._file, self._left = file, size

    def read(self, size: int = -1) -> bytes:
        """At most ``size`` bytes."""
        data = self._file.read(self._left if size < 0 else min(size, self._left))
        self._left -= len(data)
        return data


def is_archive(file: IO[bytes]) -> bool:
    """Whether ADD unpacks a local file: a tar archive, plain or compressed with gzip, bzip2 or xz. Decided by the content."""
    try:
        head = file.read(_BLOCK)
        file.seek(0)
        if not head.startswith(_COMPRESSED) and head[257:262] != b"ustar":
            return False
        with tarfile.open(fileobj=file, mode="r:*") as archive:
            return archive.next() is not None
    except (OSError, EOFError, tarfile.TarError):
        return False
    finally:
        file.seek(0)
