"""The channel kind ``upload``: extracts an untrusted tar stream without leaving its destination.

Owns where members go and what they may be. Leading slashes are removed, as by tar. An archive with ``..`` or with a path through a link
that leaves the destination is refused. Devices and FIFOs are skipped and counted. Set-user-id, set-group-id and sticky bits are removed
unless requested; owners in the archive are ignored. A file appears complete or not at all, and replaces an existing one. A failed
extraction is not undone: the error has the number of extracted entries. Used through ``transfers``.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Generator, Iterator

from holdfast_wire.errors import HoldfastError

from session_agent.agent.context import AgentContext
from session_agent.agent.files.descriptors import CREATE, opened, temporary_name, write_all
from session_agent.agent.files.file_user import Owner, acting, give
from session_agent.agent.files.safe_path import SafeRoot
from session_agent.agent.files.transfers import Incoming, Info, Sink
from session_agent.agent.files.write import make_parents
from session_agent.agent.request.params import boolean, integer
from session_agent.agent.request.paths import absolute, os_failure, path_param, shown, wire
from session_agent.agent.session.channels import Channel, Handler

from .tar import Member, Names, TarLimits, TarReader

_MOST_DEFERRED = 65_536


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
    return Incoming(channel, extract(path, limits, owner=owner, special_bits=boolean(params, "special_bits", False)), path, actor)


def extract(path: str, limits: TarLimits, *, owner: Owner = None, special_bits: bool = False) -> Sink:
    """Extract into the directory ``path``, which is created if it does not exist.

    ``owner``: of everything that is created; ``special_bits``: keep set-user-id, set-group-id and sticky bits.
    """
    make_parents(os.path.normpath(path) if ".." not in path else path.rstrip("/"), owner)
    with contextlib.closing(SafeRoot(path)) as root:
        extraction = _Extraction(root, limits, owner, 0o7777 if special_bits else 0o777)
        try:
            return (yield from extraction.run())
        except OSError as error:
            raise extraction.failure(error, path) from None
        except HoldfastError as error:
            error.detail = error.detail | extraction.progress()
            raise


class _Extraction:
    """The state of one extraction."""

    def __init__(self, root: SafeRoot, limits: TarLimits, owner: Owner, mode_bits: int) -> None:
        self._root = root
        self._reader = TarReader(limits)
        self._owner = owner
        self._mode_bits = mode_bits
        self._name = ""  # of the current member
        self._done = 0
        self._skipped = Names()
        self._deferred: dict[str, Member] = {}

    def run(self) -> Sink:
        """Extract all members."""
        while (member := (yield from self._reader.member())) is not None:
            yield from self._member(member)
            self._done += 1
        for path in reversed(self._deferred):
            with contextlib.suppress(OSError), self._directory(path) as directory:  # it may have been removed or replaced since
                self._set_metadata(directory, self._deferred[path])
        return {"entries": self._done, "bytes": self._reader.size_bytes, **self._skipped.fields("skipped")}

    def progress(self) -> Info:
        """How far it came, for the details of an error."""
        return {"entries": self._done, "entry": wire(self._name)}

    def failure(self, error: OSError, path: str) -> HoldfastError:
        """The typed error of the current member."""
        if error.errno in (errno.EXDEV, errno.ELOOP):
            message = f"the archive is refused: {shown(self._name)} would go through a link that leaves the destination"
            return HoldfastError("archive_invalid", message, detail=self.progress())
        typed = os_failure(error, f"{path.rstrip('/')}/{self._name}")
        typed.message = f"{typed.message} (after {self._done} entries)"
        typed.detail = typed.detail | self.progress()
        return typed

    def _member(self, member: Member) -> Generator[Info, bytes | None, None]:
        self._name = name = os.fsdecode(member.name.lstrip(b"/"))
        if ".." in name.split("/") or b"\0" in member.name:
            raise HoldfastError("archive_invalid", f"the archive is refused: {shown(name)} would leave the destination")
        if member.kind == "other":
            self._skipped.add(name)
        elif member.kind == "directory":
            self._make_directory(name, member)
        elif not name.strip("/."):
            raise HoldfastError("archive_invalid", "the archive is refused: a member has no name")
        elif member.kind == "file":
            yield from self._write_file(name, member)
        elif member.kind == "symlink":
            self._make_symbolic_link(name, member)
        else:
            self._make_hard_link(name, member)

    def _parent(self, name: str) -> tuple[int, str]:
        return self._root.parent(name, self._made)

    def _made(self, directory: int) -> None:
        give(directory, self._owner)

    @contextlib.contextmanager
    def _replacing(self, parent: int, name: str) -> Iterator[str]:
        """A temporary name beside ``name``, which it replaces at the end."""
        temporary = temporary_name()
        try:
            yield temporary
            os.rename(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
        finally:
            with contextlib.suppress(OSError):  # it is still there after a failure, and if both names are links to the same file
                os.unlink(temporary, dir_fd=parent)

    # Kinds of members -----------------------------------------------------------------------------------------------

    def _write_file(self, path: str, member: Member) -> Generator[Info, bytes | None, None]:
        parent, name = self._parent(path)
        with self._replacing(parent, name) as temporary, opened(temporary, CREATE, directory=parent) as file:
            while data := (yield from self._reader.content()):
                write_all(file, data)
            self._made(file)
            self._set_metadata(file, member)

    def _make_directory(self, path: str, member: Member) -> None:
        path = "/".join(part for part in path.split("/") if part not in ("", "."))
        parent, name = self._parent(path)
        if name:
            with contextlib.suppress(FileExistsError):  # the open below checks that it is a directory
                os.mkdir(name, 0o700 | member.mode & 0o777, dir_fd=parent)
        with self._directory(path) as directory:
            self._made(directory)
        if len(self._deferred) < _MOST_DEFERRED:  # set at the end: in a read-only directory no member could be created
            self._deferred.pop(path, None)
            self._deferred[path] = member
        else:
            with self._directory(path) as directory:
                self._set_metadata(directory, member)

    def _directory(self, path: str) -> contextlib.AbstractContextManager[int]:
        return opened(".", os.O_RDONLY | os.O_DIRECTORY, directory=self._root.directory(path))

    def _set_metadata(self, descriptor: int, member: Member) -> None:
        os.fchmod(descriptor, member.mode & self._mode_bits)
        os.utime(descriptor, (member.mtime_s, member.mtime_s))

    def _make_symbolic_link(self, path: str, member: Member) -> None:
        target = os.fsdecode(member.link)
        if not target or "\0" in target:
            raise HoldfastError("archive_invalid", f"the archive is refused: {shown(path)} links to nothing")
        parent, name = self._parent(path)
        with self._replacing(parent, name) as temporary:
            os.symlink(target, temporary, dir_fd=parent)
            give(temporary, self._owner, directory=parent)
            os.utime(temporary, (member.mtime_s, member.mtime_s), dir_fd=parent, follow_symlinks=False)

    def _make_hard_link(self, path: str, member: Member) -> None:
        target = os.fsdecode(member.link.lstrip(b"/"))
        if ".." in target.split("/"):
            raise HoldfastError("archive_invalid", f"the archive is refused: {shown(path)} links out of the destination")
        source, source_name = self._root.parent(target)
        source = os.dup(source)  # the next call of ``parent`` closes it
        try:
            if not stat.S_ISREG(os.stat(source_name, dir_fd=source, follow_symlinks=False).st_mode):
                raise HoldfastError("archive_invalid", f"the archive is refused: {shown(path)} is a hard link to a missing file")
            parent, name = self._parent(path)
            with self._replacing(parent, name) as temporary:
                os.link(source_name, temporary, src_dir_fd=source, dst_dir_fd=parent, follow_symlinks=False)
        finally:
            os.close(source)
