"""The channel kind ``read``: one file as a stream, with a checksum.

Owns what can be read and how much of it: a regular file up to the size it had when it was opened, so that reading a growing log ends; a
file of size 0 to its end, because files in /proc report 0; devices and FIFOs only with a ``length``, and only bytes that are available at
once. Used through ``transfers``.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from typing import Any

from holdfast_wire.errors import HoldfastError
from holdfast_wire.limits import DATA_BYTES

from session_agent.agent.context import AgentContext
from session_agent.agent.output.checksums import Sha256
from session_agent.agent.request.params import integer
from session_agent.agent.request.paths import absolute, os_failure, path_param, shown
from session_agent.agent.session.channels import Channel, Handler

from .file_user import acting
from .transfers import Outgoing

_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_PRETENDED_BYTES = 2**40  # a file without blocks that reports a larger size is a view of memory, such as /proc/kcore


def open_read(context: AgentContext, channel: Channel) -> Handler:
    """``read {path, offset?, length?, user?}``: Opened{size, mode, mtime}, the bytes, Closed{size, sha256} of what was sent."""
    params = channel.params
    path = absolute(context.workdir, path_param(params))
    source = FileSource(path, integer(params, "offset", 0), integer(params, "length", None))
    return Outgoing(channel, source, context.read_ahead, acting(context, params)[0])


class FileSource:
    """``length`` bytes of ``path`` from ``offset``; to the end where ``length`` is None."""

    def __init__(self, path: str, offset: int = 0, length: int | None = None) -> None:
        self._path = path
        self._offset = offset
        self._left = length
        self._file = -1
        self._sent = 0
        self._end: int | None = None  # the size that the file must keep for the announced bytes to exist
        self._sha256 = Sha256()

    def open(self) -> dict[str, Any]:
        try:
            self._admit(os.stat(self._path))  # before opening, because opening a device can have side effects
            self._file = os.open(self._path, _FLAGS)
            state = os.fstat(self._file)
            self._admit(state)
            if self._offset:
                os.lseek(self._file, self._offset, os.SEEK_SET)
        except OSError as error:
            raise os_failure(error, self._path) from None
        if stat.S_ISREG(state.st_mode) and state.st_size:
            rest = max(0, state.st_size - self._offset)
            self._left = rest if self._left is None else min(self._left, rest)
            self._end = self._offset + self._left
        return {"size": state.st_size, "mode": stat.S_IMODE(state.st_mode), "mtime": state.st_mtime}

    def chunks(self) -> Iterator[bytes]:
        while self._left is None or self._left > 0:
            try:
                data = os.read(self._file, DATA_BYTES if self._left is None else min(DATA_BYTES, self._left))
            except BlockingIOError:  # a FIFO or a kernel log that has nothing now
                return
            except OSError as error:
                raise os_failure(error, self._path) from None
            if not data:
                self._check_end()
                return
            self._sha256.update(data)
            self._sent += len(data)
            if self._left is not None:
                self._left -= len(data)
            yield data

    def _check_end(self) -> None:
        """Raise if the file was truncated. Files in /sys end before the size that they report, but keep reporting it."""
        if self._end is not None and os.fstat(self._file).st_size < self._end:
            raise HoldfastError("io_error", f"{shown(self._path)} was truncated while it was being read", hint="read it again")

    def result(self) -> dict[str, Any]:
        return {"size": self._sent, "sha256": self._sha256.hexdigest()}

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _admit(self, state: os.stat_result) -> None:
        if stat.S_ISDIR(state.st_mode):
            raise HoldfastError("is_a_directory", f"{shown(self._path)}: Is a directory", hint="download it as an archive")
        endless = state.st_size > _PRETENDED_BYTES and not state.st_blocks
        if (not stat.S_ISREG(state.st_mode) or endless) and self._left is None:
            what = "a special file, which may never end" if not endless else "a window into the kernel"
            raise HoldfastError("not_a_file", f"{shown(self._path)} is {what}", hint="give a length to read from it anyway")
