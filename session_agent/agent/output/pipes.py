"""Moving bytes between pipes and the agent without ever blocking its loop.

Owns three small pumps: ``PipeReader`` fills a spool from a pipe and stops reading while the spool is full, ``PipeWriter`` feeds a
process's input
from bounded pieces, ``discard`` drains a pipe that has no reader left, so that what still writes there neither blocks nor dies.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections import deque
from collections.abc import Callable

from .spool import Spool

CHUNK_BYTES = 64 * 1024
_WIDE_PIPE_BYTES = 256 * 1024
MERGE_BYTES = 16 * 1024
_HELD_BYTES = 1024 * 1024
"""As much as any pipe or terminal holds."""
_DISCARD_PAUSE_S = 0.01
"""How long a pipe that gave a whole chunk is left alone: some 6 MB/s are read of a process whose output goes nowhere."""


class PipeReader:
    """Reads one stream of a process into its spool: as it comes once it is watched, else when it is drained."""

    def __init__(self, descriptor: int, stream: int, spool: Spool, *, arrived: Callable[[], None], ended: Callable[[], None]) -> None:
        self.descriptor = descriptor
        self.open = True
        self._stream = stream
        self._spool = spool
        self._arrived = arrived
        self._ended = ended
        self._wide = False
        self._watched = False
        self._loop = asyncio.get_running_loop()
        os.set_blocking(descriptor, False)

    def watch(self) -> None:
        """Read what comes from now on."""
        if self.open and not self._watched:
            self._watched = True
            self._loop.add_reader(self.descriptor, self._readable)

    def _readable(self) -> None:
        try:
            data = os.read(self.descriptor, CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError:  # a terminal whose last process is gone
            data = b""
        if not data:
            self.close()
            self._ended()
            return
        if len(data) == CHUNK_BYTES and not self._wide:
            self._wide = True
            widen(self.descriptor)
        self._spool.append(self._stream, data)
        if self._spool.full:
            self._loop.remove_reader(self.descriptor)
            self._spool.pause(self._resume)
        self._arrived()

    def _resume(self) -> None:
        if self.open:
            self._loop.add_reader(self.descriptor, self._readable)

    def drain(self) -> bool:
        """Take what is in the pipe now, even when the spool is full. True at its end, False while it may have writers."""
        most_bytes = self._spool.size + _HELD_BYTES
        while self.open:
            if self._spool.size > most_bytes:
                return False  # a writer is as fast as this reader
            try:
                data = os.read(self.descriptor, CHUNK_BYTES)
            except BlockingIOError:
                return False
            except OSError:
                data = b""
            if not data:
                self.close()
                return True
            self._spool.append(self._stream, data)
        return True

    def close(self) -> None:
        """Stop reading; a process that still writes gets SIGPIPE."""
        if self.open:
            self.open = False
            if self._watched:
                self._loop.remove_reader(self.descriptor)
            os.close(self.descriptor)

    def release(self) -> int:
        """Stop reading and hand the descriptor back to the caller."""
        self.open = False
        if self._watched:
            self._loop.remove_reader(self.descriptor)
        return self.descriptor


class PipeWriter:
    """A process's standard input. Holds at most what the credit of its clients allows, and gives each its own back."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._waiting: deque[tuple[bytes, Callable[[int], None]]] = deque()
        self._eof = False
        self._writing = False
        self.open = True
        self._loop = asyncio.get_running_loop()
        os.set_blocking(descriptor, False)

    def feed(self, data: bytes, eof: bool, consumed: Callable[[int], None]) -> None:
        """Queue bytes, and with ``eof`` the end of the input after them. ``consumed`` is called with how many of them were used."""
        if not self.open or self._eof:
            consumed(len(data))
            return
        self._eof = eof
        waiting = self._waiting
        if waiting and waiting[-1][1] == consumed and len(waiting[-1][0]) + len(data) <= MERGE_BYTES:
            waiting[-1] = waiting[-1][0] + data, consumed  # a million unread keys take their bytes, and not a million pieces
        elif data:
            waiting.append((data, consumed))
        if not self._writing:
            self._pump()

    def _pump(self) -> None:
        while self._waiting:
            data, consumed = self._waiting[0]
            try:
                written = os.write(self._descriptor, data)
            except BlockingIOError:
                if not self._writing:
                    self._writing = True
                    self._loop.add_writer(self._descriptor, self._pump)
                return
            except OSError:  # the reader is gone
                self.close()
                return
            if written == len(data):
                self._waiting.popleft()
            else:
                self._waiting[0] = data[written:], consumed
            consumed(written)
        if self._writing:
            self._writing = False
            self._loop.remove_writer(self._descriptor)
        if self._eof:
            self.close()

    def close(self) -> None:
        """Close it; bytes that were not taken count as used."""
        if not self.open:
            return
        self.open = False
        if self._writing:
            self._writing = False
            self._loop.remove_writer(self._descriptor)
        os.close(self._descriptor)
        left = list(self._waiting)
        self._waiting.clear()
        for data, consumed in left:
            consumed(len(data))


def discard(descriptor: int) -> None:
    """Read and forget until the other side closes; a flood of it at a pace that leaves the loop to others."""
    loop = asyncio.get_running_loop()
    widen(descriptor)

    def readable() -> None:
        try:
            data = os.read(descriptor, CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            loop.remove_reader(descriptor)
            os.close(descriptor)
        elif len(data) == CHUNK_BYTES:
            loop.remove_reader(descriptor)
            loop.call_later(_DISCARD_PAUSE_S, loop.add_reader, descriptor, readable)

    os.set_blocking(descriptor, False)
    loop.add_reader(descriptor, readable)


def widen(descriptor: int) -> None:
    """Give a busy pipe more room; a refusal (the user's share is used up) is fine."""
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, _WIDE_PIPE_BYTES)
    except OSError:
        pass
