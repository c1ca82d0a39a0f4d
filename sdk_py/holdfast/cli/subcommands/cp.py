"""``cp``: copy a file or a directory in or out, to the path that ``docker cp`` would choose. The remote side is written ``SANDBOX:PATH``.

Owns docker's rules (``_place``): the target path for each kind of source, and what is refused. ``-`` is a tar archive on standard input or
output. Two differences to docker are intended: relative remote paths start at the working directory, and a link that is named as the source
in a sandbox is followed, because a copied link could point to any file of this machine.
"""

from __future__ import annotations

import io
import os
import posixpath
import sys
import tarfile
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import IO, TYPE_CHECKING, Any, cast

from holdfast import (
    ArchiveError,
    FileEntry,
    RemoteFileNotFoundError,
    RemoteNotADirectoryError,
    SandboxClient,
    TransferResult,
    UnsupportedError,
)
from holdfast._file_results import read_transfer
from holdfast._progress import TransferBar
from holdfast._results import take
from holdfast._sync.transfers import Transfer
from holdfast.cli.command_line import Arguments, UsageError
from holdfast.cli.output import print_json, print_note
from holdfast.cli.sandbox_names import opened

if TYPE_CHECKING:
    from holdfast import Sandbox
    from holdfast._sync.files import Files

PIECE_BYTES = 256 * 1024
_TAR_MAGIC_AT = 257
_COMPRESSED = ((b"\x1f\x8b", "gzip"), (b"BZh", "bz2"), (b"\xfd7zXZ\0", "lzma"))
"""First bytes of compressed data, and the module that decompresses it."""
_NO_ENTRY = (RemoteFileNotFoundError, RemoteNotADirectoryError)


def copy(arguments: Arguments) -> None:
    source, target = remote(arguments.source), remote(arguments.target)
    if source is not None and target is not None:
        raise UsageError(
            "cp cannot copy from one sandbox to another",
            hint="copy through this machine: holdfast cp SANDBOX:/path - | holdfast cp - OTHER:/path",
        )
    if source is None and target is None:
        raise UsageError(
            "either SOURCE or TARGET must be SANDBOX:PATH", hint="write holdfast cp LOCAL SANDBOX:/path, or holdfast cp SANDBOX:/path LOCAL"
        )
    if arguments.json and arguments.target == "-":
        raise UsageError("standard output cannot hold both the archive and JSON", hint="leave out --json, or copy to a file")
    if "" in (arguments.source, arguments.target):
        raise UsageError("a local path is empty", hint="write . for the working directory")
    archive: IO[bytes] | None = _archive_here() if arguments.source == "-" else None
    if source is None and archive is None:
        _local_source(arguments.source)  # before any request: this check needs no service
    bar = None if arguments.quiet or arguments.json else TransferBar()
    try:
        with SandboxClient() as client, opened(client, (source or target or ("", ""))[0]) as sandbox:
            if target is None:
                assert source is not None
                path = source[1]
                moved = _to_output(sandbox, path) if arguments.target == "-" else _download(sandbox.files, path, arguments.target, bar)
            elif archive is None:
                moved = _upload(sandbox, arguments.source, target[1], bar, follow=arguments.follow_link)
            else:
                moved = _unpack_there(sandbox, archive, target[1])
    finally:
        if bar is not None:
            bar.clear()
    if arguments.json:
        print_json({"size_bytes": moved.size_bytes, "entries": moved.entries, "sha256": moved.sha256, "skipped": moved.skipped})
    elif moved.skipped and not arguments.quiet:
        what = "1 entry was" if moved.skipped == 1 else f"{moved.skipped} entries were"
        print_note(f"holdfast: {what} left out: special files, or links that lead out of the directory")


def remote(word: str) -> tuple[str, str] | None:
    """(sandbox, path) of ``SANDBOX:PATH``; None for a local path. ``./a:b`` and ``/a:b`` are local."""
    sandbox, separator, path = word.partition(":")
    if not separator or not sandbox or "/" in sandbox or sandbox == ".":
        return None
    return sandbox, path or "."


def _place(source: tuple[str, bool, bool], target: str, kind: Callable[[str], str | None], where: str = "", mkdir: str = "mkdir -p") -> str:
    """The path to which a source is copied.

    ``source`` is its name, whether it is a directory, and whether it was written with ``/.``; ``kind`` returns the kind of entry at a path.
    Raises ``UsageError`` for what docker refuses: a target of another kind than the source, or a target whose parent directory does not
    exist.
    """
    name, is_directory, contents = source
    there, place = kind(target), target
    if there == "directory":
        place = target if is_directory and contents else posixpath.join(target, name)
    elif is_directory:
        place = target.rstrip("/") or "/"
    elif target.endswith(("/", "/.")):
        raise UsageError(f"there is no directory {target}", hint="create it first, or leave out the slash to name the file itself")
    if there is None and kind(parent := posixpath.dirname(place) or ".") != "directory":
        raise UsageError(f"there is no directory {parent}{where}", hint=f"create it first: {mkdir} {parent}")
    present = kind(place) if there == "directory" and place != target else there
    if present is not None and (present == "directory") != is_directory:
        kinds = ("directory", "file") if is_directory else ("file", "directory")
        raise UsageError(f"a {kinds[0]} cannot replace the {kinds[1]} {place}{where}", hint="remove it first, or name another target")
    return place


def _wants_contents(path: str) -> bool:
    return path == "." or path.endswith("/.") or not path.strip("/")


# Out of the sandbox --------------------------------------------------------------------------------------------------


def _kind_here(path: str) -> str | None:
    return "directory" if os.path.isdir(path) else "file" if os.path.lexists(path) else None


def _download(files: Files, path: str, local: str, bar: TransferBar | None) -> TransferResult:
    source = files.stat(path)
    return files.download(path, _place((_name_of(source, path), source.is_dir, _wants_contents(path)), local, _kind_here), progress=bar)


def _name_of(source: FileEntry, path: str) -> str:
    """The last component of the path as it was written: for a link, the name of the link."""
    last = posixpath.basename(path.rstrip("/").removesuffix("/."))
    return last if last not in ("", ".", "..") else posixpath.basename(source.path.rstrip("/"))


def _to_output(sandbox: Sandbox, path: str) -> TransferResult:
    """Write a tar archive to standard output. Its members begin with the source's name, or with ``./`` for ``DIR/.``."""
    source = sandbox.files.stat(path)
    top = "." if source.is_dir and _wants_contents(path) else _name_of(source, path) or "."
    out = sys.stdout.buffer
    entries = size = 0
    try:
        with (
            Transfer(sandbox._attached(), "download", {"path": path}) as transfer,
            tarfile.open(fileobj=cast(Any, SimpleNamespace(read=lambda _size: transfer.read())), mode="r|") as packed,
            tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT) as archive,
        ):
            for member in packed:
                inner = posixpath.normpath(member.name) if source.is_dir else ""
                member.name = top if inner in ("", ".") else f"{top}/{inner}"
                member.pax_headers = {}  # they contain the old name
                archive.addfile(member, packed.extractfile(member) if member.isreg() else None)
                entries, size = entries + 1, size + member.size
            archive.close()
            out.flush()
            result = transfer.closed()
    except tarfile.TarError as wrong:
        raise ArchiveError("archive_invalid", f"the archive from the sandbox cannot be read: {wrong}") from None
    return TransferResult(size, entries, skipped=take(result, "skipped", int, default=0))


# Into the sandbox ----------------------------------------------------------------------------------------------------


def _local_source(local: str) -> Path:
    source = Path(local)
    if not source.is_symlink() or local.endswith("/"):
        source.stat()
    return source


def _kind(files: Files, path: str) -> str | None:
    """The kind of entry at a remote path: ``directory``, ``file`` for any other kind, None if it does not exist."""
    try:
        return "directory" if files.stat(path).is_dir else "file"
    except _NO_ENTRY:
        return None


def _upload(sandbox: Sandbox, local: str, path: str, bar: TransferBar | None, *, follow: bool) -> TransferResult:
    source, files = Path(local), sandbox.files
    as_link = source.is_symlink() and not follow and not local.endswith(("/", "/."))
    is_directory = source.is_dir() and not as_link
    if not is_directory and local.endswith(("/", "/.")):
        raise UsageError(f"{local} is not a directory", hint="leave out the / or /. at its end")
    named = (os.path.basename(os.path.abspath(local)), is_directory, _wants_contents(local))
    try:
        place = _place(named, path, partial(_kind, files), " in the sandbox", f"holdfast exec {sandbox.id} mkdir -p")
    except UnsupportedError:  # over REST the path cannot be checked: then it is used as the path of the file
        return files.upload(local, path, progress=bar)
    if as_link:
        link = _link_archive(source, posixpath.basename(place))
        return read_transfer(files._upload_archive(link, posixpath.dirname(place) or "."))
    return files.upload(os.path.realpath(local) if follow else local, place, progress=bar)


def _link_archive(link: Path, name: str) -> Iterator[bytes]:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w", format=tarfile.PAX_FORMAT) as packed:
        member = tarfile.TarInfo(name)
        member.type, member.linkname, member.mtime = tarfile.SYMTYPE, os.readlink(link), int(link.lstat().st_mtime)
        packed.addfile(member)
    yield archive.getvalue()


def _archive_here() -> Any:
    """The archive on standard input, decompressed if necessary. Raises ``UsageError`` if it is not an archive."""
    source = _Input()
    begun = source.begun
    for magic, module in _COMPRESSED:
        if begun.startswith(magic):
            return import_module(module).open(source)
    if begun[_TAR_MAGIC_AT : _TAR_MAGIC_AT + 5] != b"ustar" and (len(begun) < tarfile.BLOCKSIZE or any(begun)):
        raise UsageError(
            "standard input is not a tar archive",
            hint="an archive: tar c DIR | holdfast cp - SANDBOX:/path; one file: holdfast exec -i SANDBOX sh -c 'cat > /path' < FILE",
        )
    return source


class _Input:
    """Standard input, of which the first block has been read."""

    def __init__(self) -> None:
        self._source: Any = sys.stdin.buffer
        self.begun: bytes = self._source.read(tarfile.BLOCKSIZE)

    def read(self, size: int) -> bytes:
        if not self.begun:
            return bytes(self._source.read1(size))
        data, self.begun = self.begun[:size], self.begun[size:]
        return data


def _unpack_there(sandbox: Sandbox, archive: IO[bytes], path: str) -> TransferResult:
    if _kind(sandbox.files, path) != "directory":
        raise UsageError(f"the target of an archive must be a directory: {path}", hint=f"holdfast exec {sandbox.id} mkdir -p {path}")
    return read_transfer(sandbox.files._upload_archive(_pieces(archive), path))


def _pieces(archive: IO[bytes]) -> Iterator[bytes]:
    while True:
        try:
            piece = archive.read(PIECE_BYTES)
        except Exception as wrong:  # noqa: BLE001  each library that decompresses has its own kinds
            hint = "the archive is incomplete or damaged: send it again"
            raise UsageError(f"the archive on standard input cannot be decompressed: {wrong}", hint=hint) from None
        if not piece:
            return
        yield piece
