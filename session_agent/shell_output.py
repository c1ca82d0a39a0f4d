"""The output of a living shell's runs: which of it belongs to which run, and when a run's output is complete.

Owns two pipes. The shell holds read ends of them and opens them anew for writing in each run; when the run is reported, the agent closes
its own writer, and an end of file says that nobody else has one. Where a background child still does, that pipe is left to it and the
shell gets a fresh one. Called by ``shell_process``.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Callable

from .pipes import CHUNK_BYTES, discard, widen
from .spool import Spool


class _Stream:
    """One output pipe: our read end, and a writer of ours that keeps it from looking closed between runs."""

    __slots__ = ("held", "path", "paused", "reader", "wide", "writer")

    def __init__(self, reader: int, writer: int) -> None:
        self.reader = reader
        self.writer = writer
        self.path = f"/proc/self/fd/{reader}"
        self.held = False
        self.paused = False
        self.wide = False
        os.set_blocking(reader, False)


class RunOutput:
    """Streams 1 and 2 of whatever run is under way."""

    def __init__(self, loop: asyncio.AbstractEventLoop, out: tuple[int, int], err: tuple[int, int]) -> None:
        """``out`` and ``err`` are pipes, read end first."""
        self._loop = loop
        self._spool: Spool | None = None
        self._arrived: Callable[[], None] | None = None
        self._streams = {1: _Stream(*out), 2: _Stream(*err)}
        for number, stream in self._streams.items():
            loop.add_reader(stream.reader, self._readable, number)

    def direct(self, spool: Spool, arrived: Callable[[], None]) -> None:
        """What comes from now on goes to ``spool``."""
        self._spool, self._arrived = spool, arrived

    def collect(self, last: bytes = b"") -> None:
        """The run is over: take the rest of its output, and ``last`` after it. Before the next one, ``renew``."""
        spool = self._spool
        self._spool = self._arrived = None
        for number, stream in self._streams.items():
            os.close(stream.writer)
            stream.writer = -1
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
            if stream.paused:
                stream.paused = False
                self._loop.add_reader(stream.reader, self._readable, number)
        if last and spool is not None:
            spool.append(1, last)

    def renew(self, uid: int | None, gid: int | None) -> dict[int, str]:
        """Make the pipes ready for the next run; those that somebody still holds are left to whoever that is.

        In the same turn of the loop as ``collect``: in between they look closed. Answers the named pipes that the shell is to read, and
        the caller to remove then, instead of those it lost.
        """
        fifos: dict[int, str] = {}
        for number, stream in self._streams.items():
            if stream.held:
                stream.held = False
                fifo = self._replace(number, stream, uid, gid)
                if fifo is not None:
                    fifos[number] = fifo
                    continue
            stream.writer = os.open(stream.path, os.O_WRONLY | os.O_CLOEXEC)
        return fifos

    def close(self) -> None:
        """Let go of every descriptor; what still writes is read to nowhere."""
        for stream in self._streams.values():
            self._loop.remove_reader(stream.reader)
            if stream.writer >= 0:
                os.close(stream.writer)
            discard(stream.reader)

    def _replace(self, number: int, stream: _Stream, uid: int | None, gid: int | None) -> str | None:
        path = make_fifo(uid, gid)
        if path is None:
            return None  # nowhere to make one: late output of that child may show in a later run
        reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self._loop.remove_reader(stream.reader)
        discard(stream.reader)
        self._streams[number] = _Stream(reader, os.open(path, os.O_WRONLY | os.O_CLOEXEC))
        self._loop.add_reader(reader, self._readable, number)
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
            return  # between runs only a pipe that was just given up can speak
        if len(data) == CHUNK_BYTES and not stream.wide:
            stream.wide = True
            widen(stream.reader)
        spool.append(number, data)
        if spool.full:
            self._pause(stream, number, spool)
        if self._arrived is not None:
            self._arrived()

    def _pause(self, stream: _Stream, number: int, spool: Spool) -> None:
        stream.paused = True
        self._loop.remove_reader(stream.reader)
        before = spool.on_space

        def resume() -> None:
            if stream.paused:
                stream.paused = False
                self._loop.add_reader(stream.reader, self._readable, number)
            if before is not None:
                before()

        spool.on_space = resume


def make_fifo(uid: int | None, gid: int | None) -> str | None:
    """A named pipe with a name nobody guesses, for the moment until the shell has opened it."""
    for directory in ("/dev/shm", "/tmp", "/run", "/var/tmp"):
        path = f"{directory}/.holdfast-{secrets.token_hex(12)}"
        try:
            os.mkfifo(path, 0o600)
            if uid is not None:
                os.chown(path, uid, gid if gid is not None else -1)
        except OSError:
            continue
        return path
    return None
