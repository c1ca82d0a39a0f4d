"""The output pipes of a living shell: which bytes belong to which run, and when a run's output is complete.

Owns two pipes. The shell holds their read ends and opens them for writing in each run. When a run has ended, end of file shows that no
other process writes to a pipe; if a background process still does, it keeps that pipe and the shell gets a new one. Most runs are read
only when they end. While a longer run is watched, the agent holds a write end itself, so that the pipe does not show end of file before
the run has opened it. Called by ``process``.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

from holdfast_wire.frames import STDERR, STDOUT

from session_agent.agent.output.pipes import PipeReader, discard
from session_agent.agent.output.spool import Spool

_AGAIN_S = 0.1


class _Stream(PipeReader):
    """One output pipe: the agent's read end, and its write end or -1. ``held``: a background process has a write end."""

    __slots__ = ("held", "writer")

    def __init__(self, number: int, reader: int, writer: int) -> None:
        super().__init__(reader, number)
        self.writer = writer
        self.held = False

    def watch(self) -> None:
        """Read the run's output as it arrives. Raises ``OSError``."""
        if self.writer < 0:
            self.writer = os.open(f"/proc/self/fd/{self.descriptor}", os.O_WRONLY | os.O_CLOEXEC)
        super().watch()

    def collect(self) -> None:
        """The run has ended: read what is there of its output."""
        if self.writer >= 0:  # else it was not watched
            self.unwatch()
            self.close_writer()
        self.held = not self.drain()

    def close_writer(self) -> None:
        if self.writer >= 0:
            os.close(self.writer)
            self.writer = -1


class RunOutput:
    """Streams 1 and 2 of the current run."""

    def __init__(self, loop: asyncio.AbstractEventLoop, out: tuple[int, int], err: tuple[int, int]) -> None:
        """``out`` and ``err``: read end and write end of a pipe."""
        self._loop = loop
        self._streams = {STDOUT: _Stream(STDOUT, *out), STDERR: _Stream(STDERR, *err)}
        self._one_stream = False

    @property
    def inherited(self) -> tuple[int, int]:
        """The descriptors that the shell inherits."""
        return self._streams[STDOUT].descriptor, self._streams[STDERR].descriptor

    @property
    def last_error(self) -> bytes:
        """The last bytes that were read of the run's standard error."""
        return self._streams[STDOUT if self._one_stream else STDERR].last

    def direct(self, spool: Spool, arrived: Callable[[], None], *, one_stream: bool = False) -> None:
        """A run begins: its output goes to ``spool``, when it ends, or as it arrives once it is watched.

        ``one_stream``: it writes its standard error to its standard output.
        """
        self._one_stream = one_stream
        for stream in self._streams.values():
            stream.direct(spool, arrived)
            stream.last = b""

    def watch(self) -> None:
        """Read the run's output as it arrives from now on, and call ``arrived``."""
        if self._streams[STDOUT].spool is not None:
            try:
                for stream in self._streams.values():
                    stream.watch()
            except OSError:  # no free descriptor at the moment
                self._loop.call_later(_AGAIN_S, self.watch)

    def collect(self) -> list[tuple[int, int]]:
        """The run has ended: read what is there of its output. Returns the pipes to which another process may still write."""
        for stream in self._streams.values():
            stream.collect()
        return [stream.pipe for stream in self._streams.values() if stream.held]

    def finish(self, last: bytes = b"") -> None:
        """After ``collect``: append ``last``, and discard what is written later. Call ``renew`` before the next run."""
        spool = self._streams[STDOUT].spool
        if last and spool is not None:
            spool.append(STDOUT, last)
        for stream in self._streams.values():
            stream.direct(None)

    def renew(self, uid: int | None, gid: int | None) -> dict[int, str]:
        """Prepare the pipes for the next run. A pipe that a background process still holds is replaced.

        Returns the paths of named pipes, by stream, that the shell has to open in place of the replaced ones; the caller then removes them.
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
        """Close the descriptors. Output of processes that still write is read and discarded."""
        for stream in self._streams.values():
            stream.close_writer()
            discard(stream.release())

    def _replace(self, number: int, stream: _Stream, uid: int | None, gid: int | None) -> str | None:
        path = make_fifo(uid, gid)
        if path is None:
            return None  # no place for a named pipe: late output of that process may appear in a later run
        reader = -1
        try:
            reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            # Without a writer the shell's open would block. Not by its name, which another process may have given to another pipe.
            writer = os.open(f"/proc/self/fd/{reader}", os.O_WRONLY | os.O_CLOEXEC)
        except OSError:  # no free descriptor at the moment: the next try is at the end of the next run
            if reader >= 0:
                os.close(reader)
            remove_fifo(path)
            return None
        discard(stream.release())
        self._streams[number] = _Stream(number, reader, writer)
        return path


def make_fifo(uid: int | None, gid: int | None) -> str | None:
    """Create a named pipe with a random name, which exists until the shell has opened it. None if no directory is writable."""
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


def remove_fifo(path: str) -> None:
    """Remove the name of a named pipe; another process may have done that."""
    try:
        os.unlink(path)
    except OSError:
        pass
