"""Reading and writing pipes without blocking the event loop.

``PipeReader`` reads a pipe into a spool and stops while the spool is full, so the writing process blocks (backpressure). ``PipeWriter``
writes a process's standard input; its queue is bounded by the credit of clients. ``discard`` reads and drops what is written to a pipe
that has no other reader, so that the writing process neither blocks nor gets SIGPIPE.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import sys
import termios
from collections import deque
from collections.abc import Callable

from .spool import Spool

CHUNK_BYTES = 64 * 1024
_WIDE_PIPE_BYTES = 256 * 1024
_MERGE_BYTES = 16 * 1024
LAST_BYTES = 1024
_DISCARD_PAUSE_S = 0.01
"""Pause after a full chunk was discarded: limits the reading of discarded output to about 6 MB/s."""


class PipeReader:
    """Reads one stream of a process into its spool: as it arrives once ``watch`` was called, else all at once by ``drain``.

    Without a spool it discards what it reads. At end of file a watched pipe is closed and ``ended`` called; without it reading stops.
    """

    __slots__ = ("_arrived", "_ended", "_loop", "_paused", "_stream", "_watched", "_wide", "descriptor", "last", "open", "spool")

    def __init__(
        self,
        descriptor: int,
        stream: int,
        spool: Spool | None = None,
        *,
        arrived: Callable[[], None] | None = None,
        ended: Callable[[], None] | None = None,
    ) -> None:
        self.descriptor = descriptor
        self.open = True
        self.spool = spool
        self.last = b""
        """The end of what was read last."""
        self._stream = stream
        self._arrived = arrived
        self._ended = ended
        self._wide = False
        self._watched = False
        self._paused = False
        self._loop = asyncio.get_running_loop()
        os.set_blocking(descriptor, False)

    def direct(self, spool: Spool | None, arrived: Callable[[], None] | None = None) -> None:
        """Read into ``spool`` from now on, or discard."""
        self.spool, self._arrived = spool, arrived
        if self._paused:
            self._resume()

    def watch(self) -> None:
        """Read output as it arrives from now on."""
        if self.open and not self._watched:
            self._watched = True
            self._loop.add_reader(self.descriptor, self._readable)

    def unwatch(self) -> None:
        """Read only by ``drain`` from now on."""
        if self._watched and not self._paused:
            self._loop.remove_reader(self.descriptor)
        self._watched = self._paused = False

    def _read(self) -> bytes | None:
        """The next bytes, empty at end of file; None if there are none now."""
        try:
            data = os.read(self.descriptor, CHUNK_BYTES)
        except BlockingIOError:
            return None
        except OSError:  # a terminal that no process has open any more
            return b""
        if data:
            self.last = data[-LAST_BYTES:]
        return data

    def _readable(self) -> None:
        data, spool = self._read(), self.spool
        if data is None:
            return
        if not data:
            if self._ended is None:
                self.unwatch()
            else:
                self.close()
                self._ended()
            return
        if len(data) == CHUNK_BYTES and not self._wide:
            self._wide = True
            widen(self.descriptor)
        if spool is None:
            return
        spool.append(self._stream, data)
        if spool.full:
            self._paused = True
            self._loop.remove_reader(self.descriptor)
            spool.pause(self._resume)
        if self._arrived is not None:
            self._arrived()

    def _resume(self) -> None:
        if self._paused:
            self._paused = False
            self._loop.add_reader(self.descriptor, self._readable)

    def drain(self, there_bytes: int = CHUNK_BYTES) -> bool:
        """Read what is in the pipe now, even if the spool is full. True at end of file, False while other processes may write.

        ``there_bytes``: how much it may hold; beyond the default, the kernel states it.
        """
        taken_bytes = 0
        while self.open:
            data = self._read()
            if data is None:
                return False
            if not data:
                return True
            if self.spool is not None:
                self.spool.append(self._stream, data)
            taken_bytes += len(data)
            if taken_bytes > there_bytes:
                return False  # a process writes as fast as this reads
            if taken_bytes == there_bytes == CHUNK_BYTES:  # a shorter first read has emptied the pipe
                there_bytes += waiting_bytes(self.descriptor)
        return True

    @property
    def pipe(self) -> tuple[int, int]:
        """Device and inode of the pipe."""
        found = os.fstat(self.descriptor)
        return found.st_dev, found.st_ino

    def close(self) -> None:
        """Stop reading and close the pipe; a process that still writes gets SIGPIPE."""
        if self.open:
            os.close(self.release())

    def release(self) -> int:
        """Stop reading and return the descriptor, which the caller has to close."""
        self.open = False
        self.unwatch()
        return self.descriptor


class PipeWriter:
    """Writes a process's standard input. The queue is bounded by the credit of its clients, which each ``consumed`` gives back.

    Without a descriptor the input waits until ``start``.
    """

    def __init__(self, descriptor: int = -1) -> None:
        self._descriptor = -1
        self._waiting: deque[tuple[bytes, Callable[[int], None]]] = deque()
        self._eof = False
        self._writing = False
        self.open = True
        self._loop = asyncio.get_running_loop()
        if descriptor >= 0:
            self.start(descriptor)

    def start(self, descriptor: int) -> None:
        """Write what waits and what follows to ``descriptor``, which is closed at the end."""
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._pump()

    @property
    def started(self) -> bool:
        """Whether it was given a descriptor."""
        return self._descriptor >= 0

    def feed(self, data: bytes, eof: bool, consumed: Callable[[int], None]) -> None:
        """Queue bytes, and with ``eof`` the end of the input. ``consumed`` is called with the number of bytes that were written."""
        if not self.open or self._eof:
            consumed(len(data))
            return
        self._eof = eof
        waiting = self._waiting
        if waiting and waiting[-1][1] == consumed and len(waiting[-1][0]) + len(data) <= _MERGE_BYTES:
            waiting[-1] = waiting[-1][0] + data, consumed  # merged, so that a million single bytes are not a million queue entries
        elif data:
            waiting.append((data, consumed))
        if self.started and not self._writing:
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
            except OSError:  # the process has closed its input
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
        """Close the pipe; bytes that were not written count as consumed."""
        if not self.open:
            return
        self.open = False
        if self._writing:
            self._writing = False
            self._loop.remove_writer(self._descriptor)
        if self.started:
            os.close(self._descriptor)
        left = list(self._waiting)
        self._waiting.clear()
        for data, consumed in left:
            consumed(len(data))


def discard(descriptor: int) -> None:
    """Read and drop until end of file, at a limited rate."""
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


def waiting_bytes(pipe: int) -> int:
    """The number of unread bytes in a pipe; either end will do."""
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


def widen(descriptor: int) -> None:
    """Enlarge the buffer of a busy pipe, unless the user's limit for pipe buffers is reached."""
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, _WIDE_PIPE_BYTES)
    except OSError:
        pass
