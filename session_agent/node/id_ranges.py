"""The ranges of user ids that the nodes of one machine give to their sandboxes.

Owns which ranges are free. Ranges are taken in blocks, each locked in a file that all nodes of the machine open, so that no two nodes give
the same ids to sandboxes at the same time: the kernel counts some resources by id. Nodes that share no file system in memory, such as in
two containers, need different values of HOLDFAST_SUBID_BASE. Called by containers.py.
"""

from __future__ import annotations

import fcntl
import logging
import os
import stat

from holdfast_wire.errors import HoldfastError

from session_agent.node.kernel.namespaces import HIGH_IDS, LOW_IDS
from session_agent.node.settings import NodeSettings

log = logging.getLogger(__name__)
_BLOCK = 250
"""Ranges that are locked together."""
_NAME = "holdfast.ids"


class IdRanges:
    """Numbers of ranges; *shared* is the folder of the file that the nodes of this machine lock, None to lock none."""

    def __init__(self, settings: NodeSettings, shared: str | None) -> None:
        self._settings = settings
        self._blocks = list(range(0, settings.id_slots, _BLOCK))
        self._free: list[int] = []
        self._fd = -1 if shared is None else _open(f"{shared}/{_NAME}")

    def take(self) -> int:
        """A number that no sandbox of this machine uses. Raises ``no_capacity``."""
        while not self._free:
            first = next((first for first in self._blocks if self._lock(first)), None)
            if first is None:
                raise HoldfastError("no_capacity", "every id range of this machine is in use")
            self._blocks.remove(first)
            self._free = list(range(min(first + _BLOCK, self._settings.id_slots) - 1, first - 1, -1))
        return self._free.pop()

    def release(self, number: int) -> None:
        self._free.append(number)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _lock(self, first: int) -> bool:
        """Lock the ids of the block: the byte at N stands for the ids from N * 65536 on. Locks end with this process."""
        if self._fd < 0:
            return True
        settings = self._settings
        try:
            for base, size in ((settings.id_base, LOW_IDS), (settings.high_base, HIGH_IDS)):
                units = size // LOW_IDS
                fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, _BLOCK * units, base // LOW_IDS + first * units)
        except OSError:
            return False
        return True


def _open(path: str) -> int:
    """The open file; -1 where it cannot be used: then this node assumes that there is no other one."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        log.warning("%s cannot be opened (%s): the ids of sandboxes may be those of another node of this machine", path, error.strerror)
        return -1
    status = os.fstat(fd)
    if status.st_uid != os.geteuid() or not stat.S_ISREG(status.st_mode):
        log.warning("%s belongs to another user: the ids of sandboxes may be those of another node of this machine", path)
        os.close(fd)
        return -1
    return fd
