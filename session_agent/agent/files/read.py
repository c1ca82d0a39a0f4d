"""The channel kind ``read``: one file as a stream, with a checksum.

Owns what can be read and how much of it: a regular file up to the size it had when it was opened, so that reading a growing log ends; a
file of size 0 to its end, because files in /proc report 0; devices and FIFOs only with a ``length``, and only bytes that are available at
once. Used through ``transfers``.
"""

from __future__ import annotations

import os
import stat
from binascii import crc32

from holdfast_wire.errors import HoldfastError
from holdfast_wire.limits import DATA_BYTES

from session_agent.agent.context import AgentContext
from session_agent.agent.output.checksums import Sha256
from session_agent.agent.request.params import integer
from session_agent.agent.request.paths import absolute, path_param, shown
from session_agent.agent.session.channels import Channel, Handler

from .descriptors import opened
from .file_user import acting
from .transfers import Outgoing, Source

_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY
_PRETENDED_BYTES = 2**40  # a file without blocks that reports a larger size is a view of memory, such as /proc/kcore


def open_read(context: AgentContext, channel: Channel) -> Handler:
    """``read {path, offset?, length?, user?}``: Opened{size, mode, mtime}, the bytes, Closed{size, sha256, crc32} of what was sent."""
    params = channel.params
    path = absolute(context.workdir, path_param(params))
    source = _file(path, integer(params, "offset", 0), integer(params, "length", None))
    return Outgoing(channel, source, path, context, acting(context, params)[0])


def _file(path: str, offset: int, length: int | None) -> Source:
    """``length`` bytes of ``path`` from ``offset``; to the end where ``length`` is None."""
    _admit(path, os.stat(path), length)  # before opening, because opening a device can have side effects
    with opened(path, _FLAGS) as file:
        state = os.fstat(file)
        _admit(path, state, length)
        if offset:
            os.lseek(file, offset, os.SEEK_SET)
        left, end = length, 0  # ``end``: the size that the file must keep for the announced bytes to exist
        if stat.S_ISREG(state.st_mode) and state.st_size:
            rest = max(0, state.st_size - offset)
            left = rest if length is None else min(length, rest)
            end = offset + left
        yield {"size": state.st_size, "mode": stat.S_IMODE(state.st_mode), "mtime": state.st_mtime}
        digest, checksum, sent = Sha256(), 0, 0
        while left is None or left > 0:
            try:
                data = os.read(file, DATA_BYTES if left is None else min(DATA_BYTES, left))
            except BlockingIOError:  # a FIFO or a kernel log that has nothing now
                break
            if not data:
                if os.fstat(file).st_size < end:  # files in /sys end before the size that they report, but keep reporting it
                    raise HoldfastError("io_error", f"{shown(path)} was truncated while it was being read", hint="read it again")
                break
            digest.update(data)
            checksum = crc32(data, checksum)
            sent += len(data)
            if left is not None:
                left -= len(data)
            yield data
        return {"size": sent, "sha256": digest.hexdigest(), "crc32": checksum}


def _admit(path: str, state: os.stat_result, length: int | None) -> None:
    if stat.S_ISDIR(state.st_mode):
        raise HoldfastError("is_a_directory", f"{shown(path)}: Is a directory", hint="download it as an archive")
    endless = state.st_size > _PRETENDED_BYTES and not state.st_blocks
    if (not stat.S_ISREG(state.st_mode) or endless) and length is None:
        what = "a special file, which may never end" if not endless else "a window into the kernel"
        raise HoldfastError("not_a_file", f"{shown(path)} is {what}", hint="give a length to read from it anyway")
