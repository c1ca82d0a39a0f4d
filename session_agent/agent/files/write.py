"""The channel kind ``write``: writes one file atomically.

Owns the temporary file beside the target, the mode and owner of the result, resuming at an offset, and the checksum of the whole file. A
final symbolic link is followed, as by ``cp``. ``atomic=False`` writes into the existing file, for devices, /proc/sys, and files that
other processes have open. Used through ``transfers``.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from binascii import crc32
from typing import Any

from holdfast_wire.errors import HoldfastError
from holdfast_wire.limits import DATA_BYTES
from holdfast_wire.paths import shown

from session_agent.agent.context import AgentContext
from session_agent.agent.output.checksums import Sha256
from session_agent.agent.process.users import User
from session_agent.agent.request.params import boolean, integer, text
from session_agent.agent.request.paths import absolute, path_param
from session_agent.agent.session.channels import Channel, Handler

from .descriptors import CREATE, opened, temporary_name, write_all
from .file_user import Owner, acting, give, owner_of
from .transfers import Incoming, Info, Sink, noted
from .xattrs import replace, values_param

NEW_MODE = 0o644
"""Mode of a new file if the request has none."""

_IN_PLACE = os.O_RDWR | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_HEX = frozenset("0123456789abcdef")


def open_write(context: AgentContext, channel: Channel) -> Handler:
    """``write {path, mode?, offset?, size?, sha256?, crc32?, parents?, atomic?, append?, xattrs?, user?}``: Opened, Closed{size, …}."""
    path = absolute(context.workdir, path_param(channel.params))
    actor, owner = acting(context, channel.params)
    return Incoming(channel, noted(context, "write", path, _file(path, channel.params, actor, owner)), path, actor)


def make_parents(directory: str, owner: Owner) -> None:
    """``mkdir -p``; new directories get the owner. Raises ``OSError``."""
    missing: list[str] = []
    while directory not in ("", "/") and not os.path.isdir(directory):
        missing.append(directory)
        directory = os.path.dirname(directory)
    for path in reversed(missing):
        try:
            os.mkdir(path, 0o755)
        except FileExistsError:
            if os.path.isdir(path):  # another process was faster
                continue
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path) from None
        give(path, owner)


def _file(path: str, params: dict[str, Any], actor: User | None, owner: Owner) -> Sink:
    """Write ``path``. The content is visible only after the end of the input, unless it is written in place."""
    target = _Target(path, params, owner, actor.uid if actor is not None and actor.uid != 0 else None)
    try:
        target.open()
        while (data := (yield {})) is not None:
            target.write(data)
        return target.commit()
    finally:
        target.close()


class _Target:
    """The file that is written: a temporary one that will replace the target, or the target itself.

    ``offset`` keeps that many bytes of the existing file and replaces the rest. ``size``, ``sha256`` and ``crc32`` are checked for the
    whole resulting file; if a write in place at an offset has neither checksum, the kept bytes are not read and the result has none.
    ``append`` writes in place with O_APPEND, so that other writers lose nothing; ``offset`` is then ignored.
    """

    def __init__(self, path: str, params: dict[str, Any], owner: Owner, writer: int | None) -> None:
        """``writer`` is the uid whose permissions apply, if they are limited: a file that it may not write is not replaced, and one that
        belongs to another user, or is in a directory that it may not write, is written in place."""
        self._path = path
        self._owner = owner
        self._writer = writer
        self._mode = integer(params, "mode", None, most=0o7777)
        self._append = boolean(params, "append", False)
        self._offset = 0 if self._append else integer(params, "offset", 0)
        self._wanted_size = integer(params, "size", None)
        self._parents = boolean(params, "parents", True)
        self._atomic = boolean(params, "atomic", True) and not self._append
        sha256 = text(params, "sha256", None)
        self._wanted_sha256 = sha256.lower() if sha256 is not None else None
        if sha256 is not None and (len(sha256) != 64 or not _HEX.issuperset(sha256.lower())):
            raise HoldfastError("invalid_argument", "sha256 must be 64 hexadecimal digits")
        self._xattrs = values_param(params)
        self._wanted_crc32 = integer(params, "crc32", None, most=0xFFFFFFFF)
        self._is_checked = sha256 is not None or self._wanted_crc32 is not None
        if self._append and (self._is_checked or self._wanted_size is not None):
            raise HoldfastError("invalid_argument", "no size or checksum can be given with append: others may append at the same time")
        self._directory = -1
        self._name = ""
        self._temporary = ""
        self._file = -1
        self._size = 0
        self._sha256 = Sha256()
        self._crc32 = 0
        self._digested = True

    def write(self, data: bytes) -> None:
        """Append ``data``."""
        wanted = self._wanted_size
        if wanted is not None and self._size + len(data) > wanted:
            raise HoldfastError("checksum_mismatch", f"{shown(self._path)}: more than the announced {wanted} bytes arrived")
        write_all(self._file, data)
        self._count(data)

    def commit(self) -> Info:
        """Check the content and put it into place; returns the fields of ``Closed``."""
        digest = self._sha256.hexdigest()
        if self._wanted_size not in (None, self._size):
            raise HoldfastError("checksum_mismatch", f"{shown(self._path)}: {self._size} bytes arrived, {self._wanted_size} were announced")
        if self._wanted_sha256 not in (None, digest):
            raise HoldfastError("checksum_mismatch", f"{shown(self._path)}: the bytes hash to {digest}, not to {self._wanted_sha256}")
        if self._wanted_crc32 not in (None, self._crc32):
            expected = f"{self._crc32:08x}, not {self._wanted_crc32:08x}"
            raise HoldfastError("checksum_mismatch", f"{shown(self._path)}: the bytes have the CRC-32 {expected}")
        self._put_in_place()
        return {"size": self._size, "sha256": digest, "crc32": self._crc32} if self._digested else {"size": self._size}

    def close(self) -> None:
        """Remove the temporary file, and close the descriptors."""
        if self._temporary:
            with contextlib.suppress(OSError):
                os.unlink(self._temporary, dir_fd=self._directory)
        for descriptor in (self._file, self._directory):
            if descriptor >= 0:
                os.close(descriptor)

    def open(self) -> None:
        """Open or create the file."""
        target = os.path.realpath(self._path)
        if self._path.endswith("/"):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        directory, self._name = os.path.split(target)
        if not self._name:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if self._parents:
            make_parents(directory, self._owner)
        self._directory = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        state = self._existing()
        if state is None and self._offset:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        if state is not None and stat.S_ISDIR(state.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if state is not None and stat.S_ISLNK(state.st_mode):  # a loop: any other link was followed above
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        if self._atomic and not self._keeps_owner(state):
            if state is not None and not stat.S_ISREG(state.st_mode):
                how = "a command" if stat.S_ISFIFO(state.st_mode) or stat.S_ISSOCK(state.st_mode) else "atomic=False"
                raise HoldfastError("not_a_file", f"{shown(self._path)} is a special file", hint=f"write to it with {how}")
            try:
                self._open_temporary(state)
            except PermissionError:
                if state is None or self._writer is None:
                    raise
                self._open_in_place(state)
            except FileNotFoundError:
                if state is None:
                    raise
                message = f"{shown(self._path)} cannot be replaced: its file system does not allow new files"  # as those of /proc
                raise HoldfastError("not_a_file", message, hint="write to it with atomic=False") from None
        else:
            self._open_in_place(state)

    def _keeps_owner(self, state: os.stat_result | None) -> bool:
        """Whether the existing file belongs to another user than the writer and is written in place. Raises if it may not be written."""
        if self._writer is None or state is None or not stat.S_ISREG(state.st_mode):
            return False
        os.close(os.open(self._name, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._directory))
        return state.st_uid != self._writer

    def _existing(self) -> os.stat_result | None:
        try:
            return os.stat(self._name, dir_fd=self._directory, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def _open_temporary(self, state: os.stat_result | None) -> None:
        name = temporary_name()
        self._file = os.open(name, CREATE, 0o600, dir_fd=self._directory)
        self._temporary = name
        if state is None or not self._offset:
            return
        with opened(self._name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, directory=self._directory) as kept:
            self._keep(kept, self._file)

    def _open_in_place(self, state: os.stat_result | None) -> None:
        if state is not None and (stat.S_ISFIFO(state.st_mode) or stat.S_ISSOCK(state.st_mode)):
            raise HoldfastError("not_a_file", f"{shown(self._path)} is a FIFO or a socket", hint="write to it with a command")
        if self._offset:
            self._file = os.open(self._name, _IN_PLACE | os.O_NOFOLLOW, dir_fd=self._directory)
            if self._is_checked:
                self._keep(self._file, -1)
            else:
                self._size = os.fstat(self._file).st_size
                self._check_offset(self._size >= self._offset)
                self._size = os.lseek(self._file, self._offset, os.SEEK_SET)
                self._digested = False
            os.ftruncate(self._file, self._offset)
            return
        flags = (_IN_PLACE & ~os.O_RDWR) | os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW
        if self._append:
            flags |= os.O_APPEND
        elif state is None or stat.S_ISREG(state.st_mode):
            flags |= os.O_TRUNC
        self._file = os.open(self._name, flags, NEW_MODE, dir_fd=self._directory)
        if self._append:
            self._size = os.fstat(self._file).st_size
            self._digested = False
        if state is None:
            give(self._file, self._owner)

    def _keep(self, source: int, target: int) -> None:
        """Hash the first ``offset`` bytes, and copy them if there is a target."""
        left = self._offset
        while left:
            data = os.read(source, min(DATA_BYTES, left))
            self._check_offset(bool(data))
            if target >= 0:
                write_all(target, data)
            self._count(data)
            left -= len(data)

    def _count(self, data: bytes) -> None:
        self._sha256.update(data)
        self._crc32 = crc32(data, self._crc32)
        self._size += len(data)

    def _check_offset(self, is_within: bool) -> None:
        if not is_within:
            message = f"{shown(self._path)} has {self._size} bytes: it cannot be resumed at {self._offset}"
            raise HoldfastError("invalid_argument", message)

    def _put_in_place(self) -> None:
        mode = self._mode
        if self._xattrs is not None:
            replace(self._file, *self._xattrs)
        if not self._temporary:
            if mode is not None:
                os.fchmod(self._file, mode)
            return
        state = self._existing()
        give(self._file, owner_of(state, self._owner))
        if mode is None:  # set-user-id and set-group-id bits are removed: they were set for the old content
            mode = state.st_mode & 0o1777 if state is not None else NEW_MODE
        os.fchmod(self._file, mode)
        try:
            os.rename(self._temporary, self._name, src_dir_fd=self._directory, dst_dir_fd=self._directory)
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            self._copy_to_target()  # /etc/hosts and /etc/resolv.conf are mounts in most containers
        else:
            self._temporary = ""

    def _copy_to_target(self) -> None:
        """Copy the complete temporary file into a target that cannot be replaced."""
        with (
            opened(self._temporary, os.O_RDONLY, directory=self._directory) as source,
            opened(self._name, os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW, directory=self._directory) as target,
        ):
            while data := os.read(source, DATA_BYTES):
                write_all(target, data)
