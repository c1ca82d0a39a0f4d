"""The room of the data folder, which all sandboxes share: who may still use how much of it.

Sparse disks promise more than the folder has. Owns the measuring (what is free, and what sandboxes have written but their files do not hold
yet), the share that each disk may still use, the refusal of creates when the room has run low, and, as the last resort, the choice of
sandboxes to end: a write that cannot be stored would read back as zeros. Infra decision 0074. Called by sandboxes.py and containers.py, on
the event loop only.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass

from holdfast_wire.errors import HoldfastError

from session_agent.node.kernel.disks import Disk

log = logging.getLogger(__name__)
_KEPT_BYTES = 1 << 30
_KEPT_SHARE = 20
"""Room that sandboxes cannot use: 1 GiB or a twentieth of the file system, if that is less. Creates need as much again."""
_SHARED_BY = 8
"""So many disks together cannot use more than there is, however fast they write between two measurements."""
_FAST_BYTES_S = 4 << 30
_SHORTEST_S, _LONGEST_S = 0.1, 2.0
_HINT = "delete sandboxes or images, or set HOLDFAST_DATA to a larger disk"


@dataclass(frozen=True, slots=True)
class Room:
    """Bytes: free in the data folder, promised to sandboxes (written there soon), kept free, and those that are left for sandboxes."""

    free: int
    promised: int
    kept: int

    @property
    def refuses(self) -> bool:
        """Whether creates are refused."""
        return self.left < self.kept

    @property
    def left(self) -> int:
        return self.free - self.promised - self.kept

    def to_map(self) -> dict[str, int]:
        return {"disk_free": self.free, "disk_promised": self.promised, "disk_left": max(0, self.left)}


def kept_bytes(total: int) -> int:
    """How much of a file system of *total* bytes sandboxes cannot use."""
    return min(_KEPT_BYTES, total // _KEPT_SHARE)


class DiskSpace:
    """The room of *directory*. *end* is called with a disk whose sandbox has to end."""

    def __init__(self, directory: str, end: Callable[[Disk], None]) -> None:
        self._directory = directory
        self._end = end
        self._disks: set[Disk] = set()
        self._left = 0
        """What was left at the last measurement."""
        self._scarce = False
        """Whether the disks together could use more than there is."""
        self._low = False
        self._changed = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None
        self._writing: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._watching = asyncio.get_running_loop().create_task(self._watch(), name="watch the room of the data folder")

    async def stop(self) -> None:
        for task in (self._watching, self._writing):
            if task is not None:
                task.cancel()
                await asyncio.wait([task])

    def add(self, disk: Disk) -> None:
        """Count a new disk, before its sandbox can write."""
        if disk.reserved:
            return
        self._disks.add(disk)
        if self._scarce or disk.size_bytes > self._share_of(self._left):
            self.share()
        self._changed.set()

    def forget(self, disk: Disk) -> None:
        """Must be called before the disk's descriptors are closed."""
        self._disks.discard(disk)

    def measure(self) -> Room:
        status = os.statvfs(self._directory)
        promised = 0
        for disk in self._disks:
            with contextlib.suppress(OSError):
                promised += disk.promised_bytes()
        return Room(status.f_bavail * status.f_frsize, promised, kept_bytes(status.f_blocks * status.f_frsize))

    def check(self, disk_bytes: int | None) -> None:
        """Raise ``no_capacity`` if there is no room for another sandbox, or for its reserved disk of that size."""
        if disk_bytes is None and not self._scarce and not self._low and self._disks:
            return  # measured a moment ago
        room = self.measure()
        if room.left < (disk_bytes or room.kept):
            message = f"the data folder has no room for another sandbox: {_mib(room.free)} are free"
            if disk_bytes:
                message = f"the data folder has no room for a disk of {_mib(disk_bytes)}: {_mib(max(0, room.left))} are left"
            raise HoldfastError("no_capacity", message, hint=_HINT)

    def share(self) -> Room:
        """Divide what is left between the disks, by limiting how much more each may use."""
        room = self.measure()
        share, self._left = self._share_of(room.left), room.left
        scarce = any(disk.size_bytes > share for disk in self._disks)
        if scarce or self._scarce:
            for disk in self._disks:
                with contextlib.suppress(OSError):
                    disk.allow(share)
        self._scarce = scarce
        low = room.refuses
        if low != self._low:
            log.warning("the data folder is %s: %s are free", "almost full" if low else "no longer full", _mib(room.free))
        self._low = low
        if room.left <= 0 and room.promised and (self._writing is None or self._writing.done()):
            self._writing = asyncio.get_running_loop().create_task(self._keep_promises(), name="write disks out")
        return room

    def _share_of(self, left: int) -> int:
        return max(0, left) // max(1, min(len(self._disks), _SHARED_BY))

    async def _watch(self) -> None:
        while True:
            pause_s = _LONGEST_S
            try:
                room = self.share()
                if self._scarce:
                    pause_s = min(_LONGEST_S, max(_SHORTEST_S, room.left / _FAST_BYTES_S))
            except OSError as error:
                log.error("the room of the data folder cannot be measured: %s", error)
            self._changed.clear()
            if not self._disks:  # nothing can grow: the next sandbox wakes this up
                await self._changed.wait()
            else:
                await asyncio.sleep(pause_s)

    async def _keep_promises(self) -> None:
        """Have what is promised written, and end sandboxes as long as more is promised than is free."""
        for root in [os.dup(disk.root) for disk in self._disks]:
            try:
                await asyncio.to_thread(_write_out, root)
            finally:
                os.close(root)
        while (room := self.measure()).promised > room.free and self._disks:
            disk = max(self._disks, key=_promised)
            log.error("ending a sandbox: the data folder has no room for what it has written")
            self.forget(disk)
            self._end(disk)


def _promised(disk: Disk) -> int:
    try:
        return disk.promised_bytes()
    except OSError:
        return 0


def _write_out(root: int) -> None:
    """Write the cached pages of the file system of *root*. Errors are ignored: what was not written stays promised."""
    ctypes.CDLL(None).syncfs(root)


def _mib(size: int) -> str:
    return f"{size >> 20} MiB"
