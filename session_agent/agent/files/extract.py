"""The channel kind ``upload``: extracts an untrusted tar stream without leaving its destination.

Owns where members go and what they may be. Leading slashes are removed, as by tar. An archive with ``..`` or with a path through a link
that leaves the destination is refused. Devices and FIFOs are skipped and counted. Set-user-id, set-group-id and sticky bits are removed
unless requested; owners in the archive are ignored. A file appears complete or not at all, and replaces an existing one. A failed
extraction is not undone: the error has the number of extracted entries.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from typing import Any

from holdfast_wire.errors import HoldfastError
from holdfast_wire.records import dataclass

from session_agent.agent.context import AgentContext
from session_agent.agent.request.params import boolean, integer
from session_agent.agent.request.paths import absolute, os_failure, path_param, shown, wire
from session_agent.agent.session.channels import Channel, Handler

from .file_user import acting
from .ownership import AGENT, Ownership
from .safe_path import Resolver, SafeRoot
from .tar_format import Member
from .tar_reader import TarLimits, TarReader
from .transfers import Incoming
from .write import make_parents, write_all

_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_MOST_DEFERRED = 65_536
_MOST_NAMED = 20


@dataclass(frozen=True, slots=True)
class ExtractOptions:
    """``owner``: of everything that is created; ``special_bits``: keep set-user-id, set-group-id and sticky bits."""

    owner: Ownership = AGENT
    special_bits: bool = False


def open_upload(context: AgentContext, channel: Channel) -> Handler:
    """``upload {path, user?, special_bits?, limit_entries?, limit_bytes?}`` + a tar: Opened{}, Closed{entries, bytes, skipped, …}."""
    params = channel.params
    path = absolute(context.workdir, path_param(params))
    bounds = TarLimits()
    limits = TarLimits(
        entries=integer(params, "limit_entries", bounds.entries, least=1),
        size_bytes=integer(params, "limit_bytes", bounds.size_bytes),
    )
    actor, owner = acting(context, params)
    return Incoming(channel, TarSink(path, ExtractOptions(owner, boolean(params, "special_bits", False)), limits), actor)


class TarSink:
    """Extracts into the directory ``path``, which is created if it does not exist."""

    def __init__(self, path: str, options: ExtractOptions, limits: TarLimits | None = None, resolver: Resolver | None = None) -> None:
        self._path = path
        self._options = options
        self._resolver = resolver
        self._root: SafeRoot | None = None
        self._member: Member | None = None
        self._name = ""  # of the current member
        self._file = -1
        self._temporary = ""
        self._done = 0
        self._skipped = 0
        self._skipped_names: list[str] = []
        self._deferred: dict[str, Member] = {}
        self._reader = TarReader(self, limits)

    # transfers.Sink -------------------------------------------------------------------------------------------------

    def open(self) -> dict[str, Any]:
        try:
            make_parents(os.path.normpath(self._path) if ".." not in self._path else self._path.rstrip("/"), self._options.owner)
            self._root = SafeRoot(self._path, self._resolver)
        except OSError as error:
            raise os_failure(error, self._path) from None
        return {}

    def feed(self, data: bytes) -> None:
        try:
            self._reader.feed(data)
        except OSError as error:
            raise self._failure(error) from None
        except HoldfastError as error:
            error.detail = error.detail | self._progress()
            raise

    def finish(self) -> dict[str, Any]:
        try:
            self._reader.finish()
        except HoldfastError as error:
            error.detail = error.detail | self._progress()
            raise
        for path in reversed(self._deferred):
            with contextlib.suppress(OSError):  # it was removed or replaced since
                self._set_metadata(path, self._deferred[path])
        fields: dict[str, Any] = {"entries": self._done, "bytes": self._reader.size_bytes, "skipped": self._skipped}
        if self._skipped_names:
            fields["skipped_names"] = [wire(name) for name in self._skipped_names]
        return fields

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        if self._root is not None:
            if self._temporary:
                with contextlib.suppress(OSError):
                    os.unlink(self._temporary, dir_fd=self._root.parent(self._name)[0])
                self._temporary = ""
            self._root.close()
            self._root = None

    # tar_reader.MemberSink ------------------------------------------------------------------------------------------

    def begin(self, member: Member) -> None:
        self._member = member
        self._name = name = os.fsdecode(member.name.lstrip(b"/"))
        if ".." in name.split("/") or b"\0" in member.name:
            raise HoldfastError("archive_invalid", f"the archive is refused: {shown(name)} would leave the destination")
        if member.kind == "other":
            self._skip()
        elif member.kind == "directory":
            self._make_directory(name, member)
        elif not name.strip("/."):
            raise HoldfastError("archive_invalid", "the archive is refused: a member has no name")
        elif member.kind == "file":
            parent, _ = self._parent(name)
            temporary = f".holdfast-{os.urandom(8).hex()}"
            self._file = os.open(temporary, _CREATE, 0o600, dir_fd=parent)
            self._temporary = temporary
        else:
            self._make_link(name, member)

    def body(self, data: memoryview) -> None:
        if self._file >= 0:
            write_all(self._file, data)

    def end(self) -> None:
        member = self._member
        if self._file >= 0 and member is not None:
            self._options.owner.give_new(self._file)
            os.fchmod(self._file, self._mode(member))
            os.utime(self._file, (member.mtime_s, member.mtime_s))
            os.close(self._file)
            self._file = -1
            parent, name = self._parent(self._name)
            os.rename(self._temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
            self._temporary = ""
        self._member = None
        self._done += 1

    # Inside -----------------------------------------------------------------------------------------------------

    def _parent(self, name: str) -> tuple[int, str]:
        assert self._root is not None
        return self._root.parent(name, self._made)

    def _made(self, directory: int) -> None:
        self._options.owner.give_new(directory)

    def _mode(self, member: Member) -> int:
        return member.mode & (0o7777 if self._options.special_bits else 0o777)

    def _make_directory(self, path: str, member: Member) -> None:
        assert self._root is not None
        parent, name = self._parent(path)
        if name:
            with contextlib.suppress(FileExistsError):  # the open below checks that it is a directory
                os.mkdir(name, 0o700 | self._mode(member) & 0o777, dir_fd=parent)
        descriptor = self._root.open(path.strip("/"), _DIRECTORY)
        try:
            self._made(descriptor)
        finally:
            os.close(descriptor)
        path = "/".join(part for part in path.split("/") if part not in ("", "."))
        if len(self._deferred) < _MOST_DEFERRED:  # set at the end: in a read-only directory no member could be created
            self._deferred.pop(path, None)
            self._deferred[path] = member
        else:
            self._set_metadata(path, member)

    def _set_metadata(self, path: str, member: Member) -> None:
        assert self._root is not None
        descriptor = self._root.open(path, _DIRECTORY)
        try:
            os.fchmod(descriptor, self._mode(member))
            os.utime(descriptor, (member.mtime_s, member.mtime_s))
        finally:
            os.close(descriptor)

    def _make_link(self, path: str, member: Member) -> None:
        assert self._root is not None
        temporary = f".holdfast-{os.urandom(8).hex()}"
        if member.kind == "symlink":
            target = os.fsdecode(member.link)
            if not target or "\0" in target:
                raise HoldfastError("archive_invalid", f"the archive is refused: {shown(path)} links to nothing")
            parent, name = self._parent(path)
            os.symlink(target, temporary, dir_fd=parent)
            self._temporary = temporary
            self._options.owner.give_new(temporary, directory=parent)
            os.utime(temporary, (member.mtime_s, member.mtime_s), dir_fd=parent, follow_symlinks=False)
        else:
            target = os.fsdecode(member.link.lstrip(b"/"))
            if ".." in target.split("/"):
                raise HoldfastError("archive_invalid", f"the archive is refused: {shown(path)} links out of the destination")
            source, source_name = self._root.parent(target)
            source = os.dup(source)  # the next call of ``parent`` closes it
            try:
                if not stat.S_ISREG(os.stat(source_name, dir_fd=source, follow_symlinks=False).st_mode):
                    raise HoldfastError("archive_invalid", f"the archive is refused: {shown(path)} is a hard link to a missing file")
                parent, name = self._parent(path)
                os.link(source_name, temporary, src_dir_fd=source, dst_dir_fd=parent, follow_symlinks=False)
            finally:
                os.close(source)
            self._temporary = temporary
        os.rename(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
        with contextlib.suppress(FileNotFoundError):  # rename leaves both names if they are links to the same file
            if member.kind == "hardlink":
                os.unlink(temporary, dir_fd=parent)
        self._temporary = ""

    def _skip(self) -> None:
        self._skipped += 1
        if len(self._skipped_names) < _MOST_NAMED:
            self._skipped_names.append(self._name)

    def _progress(self) -> dict[str, Any]:
        return {"entries": self._done, "entry": wire(self._name)}

    def _failure(self, error: OSError) -> HoldfastError:
        where = f"{self._path.rstrip('/')}/{self._name}"
        if error.errno in (errno.EXDEV, errno.ELOOP):
            return HoldfastError(
                "archive_invalid",
                f"the archive is refused: {shown(self._name)} would go through a link that leaves the destination",
                detail=self._progress(),
            )
        typed = os_failure(error, where)
        typed.message = f"{typed.message} (after {self._done} entries)"
        typed.detail = typed.detail | self._progress()
        return typed
