"""The output of a living shell's runs: which of it belongs to which run, and when a run's output is complete.

Owns two pipes. The shell holds read ends of them and opens them anew for writing in each run; when the run is reported, an end of file
shows that no other process has a writer. Where a background child still does, that pipe is left to it and the shell gets a fresh one.
Most runs end at once and are read only then; while a longer one is watched, a writer of the agent's own keeps the pipe from looking
closed before the run has opened it. Called by ``process``.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import sys
import termios
from collections.abc import Callable

from holdfast_wire.frames import STDERR

from session_agent.agent.output.pipes import CHUNK_BYTES, discard, widen
from session_agent.agent.output.spool import Spool

_AGAIN_S = 0.1


class _Stream:
    """One output pipe: our read end, and the writer of ours, below 0 where there is none."""

    __slots__ = ("held", "paused", "reader", "watched", "wide", "writer")

    def __init__(self, reader: int, writer: int = -1) -> None:
        self.reader = reader
        self.writer = writer
        self.held = False
        self.watched = False
        self.paused = False
        self.wide = False
        os.set_blocking(reader, False)

    def close_writer(self) -> None:
        if self.writer >= 0:
            os.close(self.writer)
            self.writer = -1


class RunOutput:
    """Streams 1 and 2 of whatever run is under way."""

    def __init__(self, loop: asyncio.AbstractEventLoop, out: tuple[int, int], err: tuple[int, int]) -> None:
        """``out`` and ``err`` are pipes, read end first."""
        self._loop = loop
        self._spool: Spool | None = None
        self._arrived: Callable[[], None] | None = None
        self._streams = {1: _Stream(out[0], out[1]), 2: _Stream(err[0], err[1])}
        self.last_error = b""
        """What was read last of the run's stream 2."""

    @property
    def readers(self) -> tuple[int, int]:
        """What a shell holds of either pipe."""
        return self._streams[1].reader, self._streams[2].reader

    def direct(self, spool: Spool, arrived: Callable[[], None]) -> None:
        """What the run writes goes to ``spool``: when it is over, or as it comes once it is watched."""
        self._spool, self._arrived, self.last_error = spool, arrived, b""

    def watch(self) -> None:
        """The run goes on for a while: take its output as it comes, and notify."""
        if self._spool is None:
            return
        for number, stream in self._streams.items():
            if not stream.watched:
                if stream.writer < 0:
                    try:
                        stream.writer = os.open(f"/proc/self/fd/{stream.reader}", os.O_WRONLY | os.O_CLOEXEC)
                    except OSError:  # no free descriptor at the moment
                        self._loop.call_later(_AGAIN_S, self.watch)
                        return
                stream.watched = True
                self._loop.add_reader(stream.reader, self._readable, number)

    def collect(self, last: bytes = b"") -> None:
        """The run is over: take the rest of its output, and ``last`` after it. Before the next one, ``renew``."""
        spool = self._spool
        self._spool = self._arrived = None
        for number, stream in self._streams.items():
            if stream.watched:
                self._leave(stream)
            if stream.writer >= 0:
                stream.close_writer()
            taken_bytes, there_bytes = 0, CHUNK_BYTES
            while True:
                try:
                    data = os.read(stream.reader, CHUNK_BYTES)
                except BlockingIOError:
                    stream.held = True
                    break
                if not data:
                    break
                if spool is not None:
                    spool.append(number, data)
                if number == STDERR:
                    self.last_error = data
                taken_bytes += len(data)
                if taken_bytes > there_bytes:  # a background child writes as fast as this reads
                    stream.held = True
                    break
                if taken_bytes == CHUNK_BYTES:  # what is read in smaller pieces was all there was
                    there_bytes += waiting_bytes(stream.reader)
        if last and spool is not None:
            spool.append(1, last)

    def renew(self, uid: int | None, gid: int | None) -> dict[int, str]:
        """Make the pipes ready for the next run; those that a background child still holds are left to it.

        Answers the named pipes that the shell is to read, and the caller to remove then, instead of those it lost.
        """
        fifos: dict[int, str] = {}
        for number, stream in self._streams.items():
            if stream.held:
                stream.held = False
                fifo = self._replace(number, stream, uid, gid)
                if fifo is not None:
                    fifos[number] = fifo
        return fifos

    def close(self) -> None:
        """Let go of every descriptor; what still writes is read to nowhere."""
        for stream in self._streams.values():
            self._leave(stream)
            stream.close_writer()
            discard(stream.reader)

    def _leave(self, stream: _Stream) -> None:
        if stream.watched and not stream.paused:
            self._loop.remove_reader(stream.reader)
        stream.watched = stream.paused = False

    def _replace(self, number: int, stream: _Stream, uid: int | None, gid: int | None) -> str | None:
        path = make_fifo(uid, gid)
        if path is None:
            return None  # nowhere to make one: late output of that child may show in a later run
        reader = -1
        try:
            reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            writer = os.open(path, os.O_WRONLY | os.O_CLOEXEC)  # the shell's opening of it would wait for one
        except OSError:  # no free descriptor at the moment: the next run's end is the next try
            if reader >= 0:
                os.close(reader)
            os.unlink(path)
            return None
        discard(stream.reader)
        self._streams[number] = _Stream(reader, writer)
        return path

    def _readable(self, number: int) -> None:
        stream = self._streams[number]
        try:
            data = os.read(stream.reader, CHUNK_BYTES)
        except BlockingIOError:
            return
        if not data:
            return
        spool = self._spool
        if spool is None:
            return
        if len(data) == CHUNK_BYTES and not stream.wide:
            stream.wide = True
            widen(stream.reader)
        spool.append(number, data)
        if number == STDERR:
            self.last_error = data
        if spool.full:
            self._pause(stream, number, spool)
        if self._arrived is not None:
            self._arrived()

    def _pause(self, stream: _Stream, number: int, spool: Spool) -> None:
        stream.paused = True
        self._loop.remove_reader(stream.reader)

        def resume() -> None:
            if stream.paused:
                stream.paused = False
                self._loop.add_reader(stream.reader, self._readable, number)

        spool.pause(resume)


def waiting_bytes(pipe: int) -> int:
    """What is in a pipe, asked at either end."""
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


def make_fifo(uid: int | None, gid: int | None) -> str | None:
    """A named pipe with a random name, for the moment until the shell has opened it."""
    for directory in ("/dev/shm", "/tmp", "/run", "/var/tmp"):
        path = f"{directory}/.holdfast-{os.urandom(12).hex()}"
        try:
            os.mkfifo(path, 0o600)
            if uid is not None:
                os.chown(path, uid, gid if gid is not None else -1)
        except OSError:
            continue
        return path
    return None
