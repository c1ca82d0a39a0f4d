"""Packing local directories into tar streams, and unpacking tar streams from a sandbox.

Packing is a generator of bytes with bounded memory. Unpacking reads a spooled file, which is untrusted; the extraction is the agent's own
(``holdfast_wire.archives``), with the rules for a client's machine and limits on entries and bytes.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from holdfast_wire.errors import HoldfastError as WireError

from holdfast._errors import ArchiveError

PIECE_BYTES = 1024 * 1024
MOST_ENTRIES = 1_000_000
MOST_BYTES = 1 << 40
_BLOCK = 512
_JOIN_BYTES = 128 * 1024
LocalImage = str | os.PathLike[str]


def pack(root: Path, *, owners: bool = False, left_out: list[Path] | None = None, exclude: Sequence[str] = ()) -> Iterator[bytes]:
    """The tree below ``root`` as a tar stream (pax); ``root`` itself is ``.``. Sockets, pipes and devices are left out.

    With ``owners`` the numeric owners are included. The paths that are left out are appended to ``left_out``, but those that match
    ``exclude``: patterns of names, or of paths below ``root`` where they have a slash.
    """
    pending = bytearray()  # small pieces are joined, because each piece costs the sender a thread switch
    for piece in _members(root, owners, left_out, exclude):
        if len(pending) + len(piece) > _JOIN_BYTES:
            if pending:
                yield bytes(pending)
                pending.clear()
            if len(piece) > _JOIN_BYTES:
                yield piece
                continue
        pending += piece
    yield bytes(pending + b"\0" * (2 * _BLOCK))


def _members(root: Path, owners: bool, left_out: list[Path] | None, exclude: Sequence[str]) -> Iterator[bytes]:
    import tarfile

    for path, state in _walk(root, exclude):
        info = tarfile.TarInfo("." if path == root else path.relative_to(root).as_posix())
        info.mode = stat.S_IMODE(state.st_mode)
        info.mtime = int(state.st_mtime)
        if owners:
            info.uid, info.gid = state.st_uid, state.st_gid
        if stat.S_ISDIR(state.st_mode):
            info.type = tarfile.DIRTYPE
        elif stat.S_ISLNK(state.st_mode):
            info.type = tarfile.SYMTYPE
            info.linkname = os.readlink(path)
        elif stat.S_ISREG(state.st_mode):
            info.size = state.st_size
        else:
            if left_out is not None:
                left_out.append(path)
            continue
        yield info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
        if info.size:
            yield from _content(path, info.size)


def _walk(root: Path, exclude: Sequence[str]) -> Iterator[tuple[Path, os.stat_result]]:
    """Each directory before its entries. An unreadable directory is an error: if it were left out, the copy would look complete."""
    waiting = [root]  # no recursion: a tree may be deeper than Python's limit
    while waiting:
        path = waiting.pop()
        state = path.stat() if path is root else path.lstat()
        yield path, state
        if stat.S_ISDIR(state.st_mode):
            inner = [path / name for name in sorted(os.listdir(path), reverse=True)]
            waiting += [one for one in inner if not _excluded(one, root, exclude)] if exclude else inner


def _excluded(path: Path, root: Path, exclude: Sequence[str]) -> bool:
    """Whether a pattern matches, by the rule of the agent for downloads."""
    from fnmatch import fnmatchcase

    return any(fnmatchcase(path.relative_to(root).as_posix() if "/" in glob else path.name, glob) for glob in exclude)


def _content(path: Path, size: int) -> Iterator[bytes]:
    """Exactly ``size`` bytes, as announced in the header, even if the file shrinks or grows during the copy."""
    left = size
    with path.open("rb") as file:
        while left:
            data = file.read(min(PIECE_BYTES, left))
            if not data:
                raise ArchiveError("archive_invalid", f"{path.name} was truncated while it was being read", hint="send it again")
            left -= len(data)
            yield data
    if size % _BLOCK:
        yield b"\0" * (-size % _BLOCK)


def image_pieces(path: LocalImage) -> Iterator[bytes]:
    """An archive as it is, a directory as a tar. Raises ``FileNotFoundError`` at once."""
    source = Path(path).expanduser()
    source.stat()
    return pack(source, owners=True) if source.is_dir() else _read(source)


def _read(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while data := file.read(PIECE_BYTES):
            yield data


def unpack(file: IO[bytes], target: Path) -> tuple[int, int, int]:
    """Unpack the tar in ``file`` below ``target``; returns entries, bytes and links left out.

    Nothing is written outside of ``target``: links that lead out, devices and FIFOs are left out. Raises ``ArchiveError`` and ``OSError``.
    """
    from holdfast_wire.archives.extraction import ClientRules, extract
    from holdfast_wire.archives.tar import TarLimits

    target.mkdir(parents=True, exist_ok=True)
    extraction = extract(os.fspath(target), TarLimits(MOST_ENTRIES, MOST_BYTES), ClientRules())
    try:
        next(extraction)
        while True:
            extraction.send(file.read(PIECE_BYTES) or None)
    except StopIteration as done:
        counts = done.value
    except WireError as refused:
        raise ArchiveError(refused.code, refused.message, hint=refused.hint, detail=refused.detail) from None
    left_out = counts["left_out"]
    return counts["entries"] - left_out - counts["skipped"], counts["bytes"], left_out + counts["skipped"]
