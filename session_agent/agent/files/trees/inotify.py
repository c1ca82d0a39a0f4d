"""The kernel's inotify, by the functions of the C library.

Owns one inotify descriptor and parsing the events that are read from it; ``watch`` decides what is watched and what events mean. The
kernel queues a limited number of events (``fs.inotify.max_queued_events``), and then reports that some were lost. Facts from inotify(7).
"""

from __future__ import annotations

import errno
import os
import select
import struct
from typing import Any, NamedTuple

from holdfast_wire.errors import HoldfastError

MODIFY, ATTRIB, MOVED_FROM, MOVED_TO, CREATE, DELETE = 0x2, 0x4, 0x40, 0x80, 0x100, 0x200
DELETE_SELF, MOVE_SELF, UNMOUNT, OVERFLOW, IGNORED, IS_DIRECTORY = 0x400, 0x800, 0x2000, 0x4000, 0x8000, 0x4000_0000
_ONLY_DIRECTORIES, _DO_NOT_FOLLOW, _NOT_UNLINKED = 0x0100_0000, 0x0200_0000, 0x0400_0000
_MASK = MODIFY | ATTRIB | MOVED_FROM | MOVED_TO | CREATE | DELETE | DELETE_SELF | MOVE_SELF | _ONLY_DIRECTORIES | _NOT_UNLINKED
_HEAD = struct.Struct("=iIII")
_READ_BYTES = 64 * 1024


class Event(NamedTuple):
    """One event: the watch, the kinds of change, and the name in the directory. Both events of a move have the same ``cookie``."""

    watch: int
    mask: int
    cookie: int
    name: str


class Inotify:
    """An inotify instance. Raises ``session_limit`` if the kernel's limit is reached, ``unsupported`` if there is no inotify."""

    def __init__(self) -> None:
        import ctypes  # most sandboxes watch nothing

        self._library: Any = ctypes.CDLL(None, use_errno=True)
        self._errno = ctypes.get_errno
        try:
            self.descriptor = self._checked(self._library.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                hint = "end watches that are no longer needed, or raise fs.inotify.max_user_instances of the machine"
                raise HoldfastError("session_limit", "this user has no file watches left on this machine", hint=hint) from None
            if error.errno in (errno.ENOSYS, errno.EPERM):
                raise HoldfastError("unsupported", f"this kernel does not watch files: {error.strerror}") from None
            raise

    def add(self, path: str, *, follow: bool = False) -> int:
        """Watch a directory; returns the number of the watch. Raises ``OSError``, with ENOSPC if the kernel's limit is reached."""
        mask = _MASK if follow else _MASK | _DO_NOT_FOLLOW
        return self._checked(self._library.inotify_add_watch(self.descriptor, os.fsencode(path), mask), path)

    def remove(self, watch: int) -> None:
        """Remove a watch, unless the kernel has removed it already."""
        try:
            self._checked(self._library.inotify_rm_watch(self.descriptor, watch))
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise

    def read(self, patience_s: float = 0.0) -> list[Event]:
        """The queued events, at most 64 KiB; waits up to ``patience_s`` if there are none."""
        if patience_s:
            poll = select.poll()
            poll.register(self.descriptor, select.POLLIN)
            poll.poll(patience_s * 1000)
        try:
            data = os.read(self.descriptor, _READ_BYTES)
        except BlockingIOError:
            return []
        return parse(data)

    def close(self) -> None:
        """Close the instance with all its watches."""
        os.close(self.descriptor)

    def _checked(self, answer: int, path: str | None = None) -> int:
        if answer < 0:
            number = self._errno()
            raise OSError(number, os.strerror(number), path)
        return answer


def parse(data: bytes) -> list[Event]:
    """The events in bytes read from the descriptor."""
    found = []
    at = 0
    while at + _HEAD.size <= len(data):
        watch, mask, cookie, size = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        found.append(Event(watch, mask, cookie, os.fsdecode(data[at : at + size].rstrip(b"\0"))))
        at += size
    return found
