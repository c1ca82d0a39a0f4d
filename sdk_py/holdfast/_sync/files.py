# Generated from ../_async by infra/scripts/generate_sync.py: edit that, then run `make generate`.
"""Files of a sandbox: reading, writing, listing, moving and copying them.

Owns the public ``sandbox.files``. The content of a file is checked by its CRC-32 on every transfer; large files and trees are transferred
with bounded memory. Paths are absolute, or relative to the sandbox's working directory.
"""

from __future__ import annotations

import builtins
import contextlib
import os
from binascii import crc32
from collections.abc import Iterator, Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any

import msgpack

from holdfast._archives import MOST_BYTES, PIECE_BYTES, pack, unpack
from holdfast._arguments import RemotePath, bad, content_of, given, part_of, path_of, text_path, words_of
from holdfast._sync.transfers import Transfer
from holdfast._sync.watch import Watch
from holdfast._errors import (
    ArchiveError,
    RemoteIsADirectoryError,
    RequestTooLargeError,
    UnsupportedError,
)
from holdfast._file_results import FileEntry, FileMatch, TransferResult, read_entry, read_match, read_transfer
from holdfast._local_files import Found, LocalPath, Transferred, announced, create_part, is_special, local_path, read_each
from holdfast._progress import CountedFile, Moved, counted
from holdfast._public import public
from holdfast._results import take
from holdfast._transport.threads.events import finished, run_blocking
from holdfast._transport.threads.opening import opening
from holdfast._transport.session.policy import breach

if TYPE_CHECKING:
    from holdfast._sync.attachable import Attachable

_MOST_FOUND = 1_000_000
_MOST_LISTED_BYTES = 1 << 30
GROWTH_BYTES = 1 << 30
"""A file may grow by this much, or by its size, between the look at it and its download."""
Entries = list[FileEntry]
Matches = list[FileMatch]


def _patterns(exclude: Sequence[str] | str) -> Sequence[str]:
    """Patterns of what a transfer leaves out."""
    return [exclude] if isinstance(exclude, str) else words_of(exclude, "exclude")


@public
class Files:
    """The files of one sandbox. Every method raises ``RemoteFileError`` or a subclass, such as ``RemoteFileNotFoundError``.

    With ``user``, a name or uid of the sandbox, optionally followed by ``:group``, a method has that user's permissions, and files that it
    creates belong to that user. Without ``user`` no permission is checked, and new files belong to the sandbox's own user.
    """

    def __init__(self, sandbox: Attachable) -> None:
        self._sandbox = sandbox

    # Contents ---------------------------------------------------------------------------------------------------

    def read(self, path: RemotePath, *, offset: int = 0, length: int | None = None, user: str | int | None = None) -> bytes:
        """The content of a file, or ``length`` bytes of it from ``offset``.

        ``path`` is the file.
        ``user``: the user whose permissions apply (default: nothing is refused).
        """
        part_of(offset, length)
        rest = self._sandbox._fallback()
        if rest is not None:
            data = rest.read_file(self._sandbox.id, text_path(path), user)
            return data[offset:] if length is None else data[offset : offset + length]
        return b"".join([piece for piece in self.stream(path, offset=offset, length=length, user=user)])

    def read_text(self, path: RemotePath, *, encoding: str = "utf-8", errors: str = "strict", user: str | int | None = None) -> str:
        """The content of a text file. Raises ``UnicodeDecodeError`` with ``errors="strict"``.

        ``path`` is the file, ``encoding`` that of its text.
        ``user``: the user whose permissions apply (default: nothing is refused).
        """
        return (self.read(path, user=user)).decode(encoding, errors)

    def stream(
        self, path: RemotePath, *, offset: int = 0, length: int | None = None, user: str | int | None = None
    ) -> Iterator[bytes]:
        """The content of a file piece by piece, checked at the end. Raises ``ChecksumError`` if it differs from what the agent sent.

        ``path`` is the file; ``offset`` and ``length`` select a range of its bytes.
        ``user``: the user whose permissions apply (default: nothing is refused).
        """
        for piece in self._pieces(path, offset, length, Transferred(), user):
            yield piece

    def _pieces(
        self, path: RemotePath, offset: int, length: int | None, seen: Transferred, user: str | int | None
    ) -> Iterator[bytes]:
        part_of(offset, length)
        params: dict[str, Any] = {"path": path_of(path), **given(offset=offset or None, length=length, user=user)}
        with Transfer(self._sandbox._attached(), "read", params) as transfer:
            most = announced(transfer.opened(), offset, length)
            while data := transfer.read():
                seen.note(data)
                if seen.size > most:
                    raise breach("the agent sent more bytes than it announced, or than a file without a size may have")
                yield data
            seen.check(transfer.closed())

    def write(
        self,
        path: RemotePath,
        data: bytes | str | IO[bytes] | IO[str],
        *,
        mode: int | None = None,
        parents: bool = True,
        atomic: bool = True,
        user: str | int | None = None,
    ) -> TransferResult:
        """Write a file.

        ``path`` is the file; ``data`` is bytes, text (written as UTF-8), or a file object opened for bytes or text. ``mode`` is the
        permission bits of a new file (an existing file keeps its own); ``parents`` creates missing directories. ``atomic``: the target is
        replaced at the end in one step, so that readers see either the old or the new content. A file that ``user`` may write but does not
        own is written in place.
        """
        whole = None if hasattr(data, "read") else content_of(data)
        rest = self._sandbox._fallback()
        if rest is not None:
            if mode is not None or not parents or not atomic:
                raise UnsupportedError("unsupported", "file operations over REST take no options", hint="use a session (WebSocket)")
            content = content_of(run_blocking(data.read)) if whole is None else whole  # type: ignore[union-attr]
            return TransferResult(rest.write_file(self._sandbox.id, text_path(path), content, user))
        params = given(path=path_of(path), mode=mode, user=user)
        params |= {"parents": parents, "atomic": atomic}
        if whole is not None:
            params |= {"size": len(whole), "crc32": crc32(whole)}
        return self._send(params, whole, None if whole is not None else data)  # type: ignore[arg-type]

    def append(self, path: RemotePath, data: bytes | str, *, user: str | int | None = None) -> TransferResult:
        """Append to a file, or create it. Writers that append at the same time do not overwrite each other's data. Not atomic.

        ``path`` is the file, ``data`` bytes, or text as UTF-8.
        ``user``: the user whose permissions apply (default: nothing is refused).
        """
        return self._send({"path": path_of(path), "append": True, **given(user=user)}, content_of(data), None)

    def edit(self, path: RemotePath, old: str, new: str, *, replace_all: bool = False, user: str | int | None = None) -> int:
        """Replace the text ``old`` in a file by ``new``; returns how often.

        ``old`` must occur exactly once, unless ``replace_all``; otherwise ``InvalidArgumentError`` is raised and nothing is changed. The
        file ``path`` is replaced in one step; a change that another program makes between the reading and that step is lost. ``user``: the
        user whose permissions apply (default: nothing is refused).
        """
        part, whole = content_of(old, "old"), self.read(path, user=user)
        count = whole.count(part) if part else 0
        if count == 0 or (count > 1 and not replace_all):
            many = f"occurs {count} times in" if count else "does not occur in"
            hint = "take more of the text around it, or set replace_all" if count else "read the file: spaces and line ends have to match"
            raise bad(f"the text to replace {many} {path!s:.200}", hint)
        self.write(path, whole.replace(part, content_of(new, "new")), user=user)
        return count

    def _send(self, params: dict[str, Any], whole: bytes | None, source: IO[bytes] | IO[str] | None) -> TransferResult:
        seen = Transferred()
        with Transfer(self._sandbox._attached(), "write", params) as transfer:
            if source is None:
                transfer.write(whole or b"", eof=True)
                seen.note(whole or b"")
            else:
                while data := content_of(run_blocking(source.read, PIECE_BYTES), "the data of a file object"):
                    seen.note(data)
                    transfer.write(data)
                transfer.write(b"", eof=True)
            result = transfer.closed()
        if "append" not in params:
            seen.check(result)
        return TransferResult(seen.size, 1, seen.sha256)

    # Names ------------------------------------------------------------------------------------------------------

    def list(self, path: RemotePath = ".", *, recursive: bool = False, user: str | int | None = None) -> Entries:
        """The entries of a directory by name; with ``recursive`` all below it.

        Raises ``RequestTooLargeError`` if there are more than a million, or if a directory is so deep that no path can name it. ``path`` is
        a directory. ``user``: the user whose permissions apply (default: nothing is refused).
        """
        rest = self._sandbox._fallback()
        if rest is not None:
            if recursive:
                raise UnsupportedError("unsupported", "over REST one directory is listed at a time", hint="use a session (WebSocket)")
            return rest.list_files(self._sandbox.id, text_path(path), user)
        return self._maps("list", path, read_entry, recursive=recursive or None, user=user)

    def search(
        self,
        path: RemotePath = ".",
        *,
        glob: str | None = None,
        pattern: str | None = None,
        ignore_case: bool = False,
        limit: int = 1000,
        exclude: Sequence[str] | str | None = None,
        user: str | int | None = None,
    ) -> Matches:
        """Names below ``path`` that match ``glob``, or the lines of such files that contain the plain text ``pattern``; at most ``limit``.

        A ``glob`` with a slash is matched against the path below ``path``. Directories matching ``exclude`` are left out: by default
        ``.git``, ``node_modules``, ``__pycache__`` and ``.venv``. Links are not followed. Sessions only. ``ignore_case``: do not
        distinguish upper and lower case. ``user``: the user whose permissions apply (default: nothing is refused).
        """
        skip = None if exclude is None else _patterns(exclude)
        params = {"glob": glob, "pattern": pattern, "ignore_case": ignore_case or None, "limit": limit, "exclude": skip, "user": user}
        return self._maps("search", path, read_match, **params)

    def _maps(self, operation: str, path: RemotePath, read: Callable[[Any], Found], **params: Any) -> builtins.list[Found]:
        found: builtins.list[Found] = []
        left = _MOST_LISTED_BYTES
        unpacker = msgpack.Unpacker(raw=False, strict_map_key=True, max_buffer_size=4 * PIECE_BYTES)
        with self._open("fs", path, op=operation, **params) as transfer:
            while data := transfer.read():
                left -= len(data)
                found += read_each(unpacker, data, read, "directory")
                if left < 0 or len(found) > _MOST_FOUND:
                    raise breach("the agent sent more entries than it may")
            result = transfer.closed()
        if operation == "list" and result.get("truncated") is True:
            message = f"{path!s:.200} has more below it than the {len(found)} entries of this list"
            raise RequestTooLargeError("request_too_large", message, hint="list the directories below it one by one, or run find")
        return found

    @opening
    def watch(self, path: RemotePath = ".", *, recursive: bool = False, user: str | int | None = None) -> Watch:
        """Watch a file or a directory, or with ``recursive`` a whole tree: iterate the watch for ``FileEvent``s.

        Every change after this call has returned is reported. Changes of attributes count as ``modified``; entries that a new directory
        already has are reported as ``created``. Raises ``QuotaError`` if the machine's limit of watches is reached. ``path`` is a directory
        or a file. ``user``: the user whose permissions apply (default: nothing is refused).
        """
        params = {"path": path_of(path), **given(recursive=recursive or None, user=user)}
        watch = Watch(self._sandbox._attached(), params)
        watch._start()
        return watch

    def stat(self, path: RemotePath, *, follow: bool = True, user: str | int | None = None) -> FileEntry:
        """The entry at a path; with ``follow``, the entry that a symbolic link points to.

        ``path`` is a file, directory or link.
        ``user``: the user whose permissions apply (default: nothing is refused).
        """
        return read_entry(take(self._ask("stat", path, follow=follow, user=user), "entry", dict))

    def exists(self, path: RemotePath, *, user: str | int | None = None) -> bool:
        """Whether ``path`` exists.

        ``user``: the user whose permissions apply (default: nothing is refused).
        """
        return take(self._ask("exists", path, user=user), "exists", bool, default=False) is True

    def mkdir(
        self, path: RemotePath, *, parents: bool = True, exist_ok: bool = True, mode: int | None = None, user: str | int | None = None
    ) -> None:
        """Create a directory.

        ``path`` is the directory, ``mode`` its permission bits; ``parents``: create missing parents too; ``exist_ok``: do not raise if it
        exists. ``user``: the user whose permissions apply (default: nothing is refused).
        """
        self._ask("mkdir", path, parents=parents, exist_ok=exist_ok, mode=mode, user=user)

    def move(self, path: RemotePath, to: RemotePath, *, overwrite: bool = False, user: str | int | None = None) -> None:
        """Rename ``path`` to exactly ``to``. Raises ``RemoteFileExistsError`` unless ``overwrite``.

        ``user``: the user whose permissions apply (default: nothing is refused).
        """
        self._ask("move", path, to=path_of(to), overwrite=overwrite, user=user)

    def copy(self, src: RemotePath, dst: RemotePath, *, user: str | int | None = None) -> TransferResult:
        """Copy a file or a whole tree inside the sandbox, as ``cp -a``; the data are not transferred to this machine.

        If ``dst`` is a directory, ``src`` is copied into it; otherwise the copy is named ``dst``, whose parent directory must exist.
        ``"src/."`` copies the content of a directory into ``dst``. Existing files are overwritten and directories are merged; links stay
        links; owners, modes and times are kept. The result counts entries and bytes. A copy that fails or is cancelled leaves what it has
        copied. ``user``: the user whose permissions apply (default: nothing is refused), who then owns the copies, unless it is root.
        """
        return read_transfer(self._ask("copy", src, to=path_of(dst), user=user))

    def remove(self, path: RemotePath, *, recursive: bool = False, missing_ok: bool = False, user: str | int | None = None) -> None:
        """Remove a file or an empty directory; with ``recursive`` a whole tree.

        ``path`` is a file or directory; ``missing_ok``: do not raise if it does not exist. ``user``: the user whose permissions apply
        (default: nothing is refused).
        """
        self._ask("remove", path, recursive=recursive, missing_ok=missing_ok, user=user)

    def chmod(self, path: RemotePath, mode: int, *, user: str | int | None = None) -> None:
        """Set the permission bits, such as ``0o755``.

        ``path`` is a file or directory, ``mode`` its permission bits, as ``0o755``.
        ``user``: the user whose permissions apply (default: nothing is refused).
        """
        self._ask("chmod", path, mode=mode, user=user)

    def _ask(self, operation: str, path: RemotePath, **params: Any) -> dict[str, Any]:
        with self._open("fs", path, op=operation, **params) as transfer:
            return transfer.closed()

    def _open(self, kind: str, path: RemotePath, **params: Any) -> Transfer:
        return Transfer(self._sandbox._attached(), kind, {"path": path_of(path), **given(**params)})

    # Between this machine and the sandbox ------------------------------------------------------------------------

    def upload(
        self,
        local: LocalPath,
        remote: RemotePath,
        *,
        exclude: Sequence[str] | str = (),
        user: str | int | None = None,
        progress: Moved | None = None,
    ) -> TransferResult:
        """Copy a local file to the file ``remote`` (into it if that is a directory), or the content of a local directory into ``remote``.

        Missing directories are created, and permission bits are kept (not over REST). A local failure raises the ``OSError`` of ``open``.
        ``local`` is the file or directory on this machine. ``exclude``: patterns of what of a directory is left out, with all below it:
        ``["*.pyc", ".git", "data/raw"]``; one with a slash is matched against the path below ``local``, any other against names. ``user``:
        the user whose permissions apply (default: nothing is refused). ``progress`` is called with how many bytes have been sent and how
        many there are in all, None for a directory; what it raises ends the transfer.
        """
        skip = _patterns(exclude)
        source = local_path(local)
        if run_blocking(source.is_dir):
            return self._upload_tree(source, remote, user, skip, progress)
        with finished(source.open, "rb") as file:
            mode = None if self._sandbox._fallback() else os.fstat(file.fileno()).st_mode & 0o777
            content: Any = file if progress is None else CountedFile(file, progress)
            try:
                return self.write(remote, content, mode=mode, user=user)
            except RemoteIsADirectoryError:
                content.seek(0)
                inside = os.path.join(os.fsencode(path_of(remote)), os.fsencode(source.name))
                return self.write(inside, content, mode=mode, user=user)

    def _upload_tree(
        self, source: Path, remote: RemotePath, user: str | int | None, exclude: Sequence[str], progress: Moved | None
    ) -> TransferResult:
        left_out: builtins.list[Path] = []
        pieces = counted(pack(source, left_out=left_out, exclude=exclude), progress)
        try:
            moved = self._upload_archive(pieces, remote, user)
        finally:
            with contextlib.suppress(ValueError):  # cancelled while a thread reads: the generator is closed when that thread ends
                pieces.close()  # type: ignore[attr-defined]
        return read_transfer(moved, left_out=len(left_out))

    def _upload_archive(self, pieces: Iterator[bytes], remote: RemotePath, user: str | int | None = None) -> dict[str, Any]:
        """Send a tar stream, which the agent unpacks into a directory; returns the agent's counts."""
        with self._open("upload", remote, user=user) as transfer:
            while data := finished(next, pieces, b""):
                transfer.write(data)
            transfer.write(b"", eof=True)
            return transfer.closed()

    def download(
        self,
        remote: RemotePath,
        local: LocalPath,
        *,
        exclude: Sequence[str] | str = (),
        user: str | int | None = None,
        progress: Moved | None = None,
    ) -> TransferResult:
        """Copy the file ``remote`` to the local file ``local``, or the directory ``remote`` into the directory ``local``.

        If ``local`` is a directory, a file is put into it; missing directories are created. A file appears complete or not at all. An
        archive from the sandbox is not trusted: links that lead out of ``local`` are left out. ``exclude`` is as for ``upload``, below
        ``remote``. ``user``: the user whose permissions apply (default: nothing is refused). ``progress`` is as for ``upload``.
        """
        skip = _patterns(exclude)
        target = local_path(local)
        there = self.stat(remote, user=user)
        if there.is_dir:
            return self._download_tree(remote, target, user, skip, progress)
        if run_blocking(target.is_dir):
            target /= PurePosixPath(os.fsdecode(path_of(remote))).name
        special = run_blocking(is_special, target)  # such as /dev/null: the bytes are written to it, and it is not replaced
        part = target if special else target.with_name(f".holdfast-{os.urandom(8).hex()}.part")
        seen = Transferred()
        try:
            with finished(create_part, part, target, there.mode & 0o777) as file:
                pending: list[bytes] = []
                flushed = 0
                for data in self._pieces(remote, 0, None, seen, user):
                    if seen.size > there.size + GROWTH_BYTES and seen.size > 2 * there.size:
                        raise breach(f"the agent sent far more than the {there.size} bytes that the file had")
                    pending.append(data)
                    if progress is not None:
                        progress(seen.size, there.size)
                    if seen.size - flushed >= PIECE_BYTES:
                        finished(file.writelines, pending)
                        pending, flushed = [], seen.size
                finished(file.writelines, pending)
            if not special:
                finished(os.replace, part, target)
        finally:
            if not special:
                with contextlib.suppress(FileNotFoundError):
                    part.unlink()
        return TransferResult(seen.size, 1, seen.sha256)

    def _download_tree(
        self, remote: RemotePath, target: Path, user: str | int | None, exclude: Sequence[str], progress: Moved | None
    ) -> TransferResult:
        import tempfile

        with tempfile.TemporaryFile() as spooled:
            with self._open("download", remote, user=user, exclude=[*exclude] or None) as transfer:
                left = MOST_BYTES
                while data := transfer.read():
                    left -= len(data)
                    if left < 0:
                        raise ArchiveError("archive_limit", f"the archive of {remote!s:.200} has over {MOST_BYTES} bytes")
                    finished(spooled.write, data)
                    if progress is not None:
                        progress(MOST_BYTES - left, None)
                result = transfer.closed()
            spooled.seek(0)
            entries, size, left_out = finished(unpack, spooled, target)
        skipped, changed = (take(result, name, int, default=0) for name in ("skipped", "changed"))
        return TransferResult(size, entries, skipped=skipped + left_out, changed=changed)
