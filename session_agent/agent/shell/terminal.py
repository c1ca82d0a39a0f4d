"""The pseudo-terminal of a living shell: its runs read and write it; control lines and reports still use pipes.

Owns both ends of the terminal, which output belongs to which run, and the modes and unread keys after a run. When a run is reported its
output is complete, because the kernel delivers all bytes written to a terminal before the report. Used by ``process`` in place of
``RunOutput``.
"""

from __future__ import annotations

import asyncio
import os
import termios
from collections.abc import Callable

from holdfast_wire.frames import STDOUT

from session_agent.agent.commands.window import open_pty, set_size
from session_agent.agent.output.pipes import CHUNK_BYTES, PipeWriter
from session_agent.agent.output.spool import Spool

_HELD_BYTES = 256 * 1024
"""More than a terminal buffers: if more is read at the end of a run, a background process is writing it."""


class ShellTerminal:
    """Stream 1 and the keyboard of the current run. Output between two runs is discarded."""

    def __init__(self, loop: asyncio.AbstractEventLoop, size: tuple[int, int]) -> None:
        self._loop = loop
        self._spool: Spool | None = None
        self._arrived: Callable[[], None] | None = None
        self._reading = False
        self.last_error = b""
        """The bytes that were read last."""
        self._master, self.slave = open_pty(*size)
        modes = termios.tcgetattr(self.slave)
        modes[6][termios.VSUSP] = b"\0"  # no Ctrl-Z: there is no job control to continue a stopped program
        termios.tcsetattr(self.slave, termios.TCSANOW, modes)
        self._modes = modes
        os.set_blocking(self._master, False)
        try:
            self._keys = PipeWriter(os.dup(self._master))
        except OSError:
            os.close(self._master)
            os.close(self.slave)
            raise
        self._read_on()

    def resize(self, rows: int, columns: int) -> None:
        """Set the size; the kernel sends SIGWINCH to the foreground processes."""
        set_size(self._master, rows, columns)

    def type(self, data: bytes, consumed: Callable[[int], None]) -> None:
        """Keys for the current or the next run."""
        self._keys.feed(data, False, consumed)

    def is_taken(self, pid: int) -> bool:
        """Whether another process than the shell ``pid`` is still in the foreground: then the shell's runs would get no keys."""
        try:
            return os.tcgetpgrp(self._master) not in (0, pid)
        except OSError:
            return False

    def direct(self, spool: Spool, arrived: Callable[[], None]) -> None:
        """A run begins: output from now on goes to ``spool``."""
        self._drain(None)
        self._spool, self._arrived, self.last_error = spool, arrived, b""
        self._read_on()

    def watch(self) -> None:
        """Nothing to do: a terminal is always read as output arrives."""

    def collect(self, last: bytes = b"") -> None:
        """The run has ended: append the rest of its output, and then ``last``."""
        spool = self._spool
        self._spool = self._arrived = None
        self._drain(spool)
        if last and spool is not None:
            spool.append(STDOUT, last)
        self._read_on()

    def settle(self, *, keep_modes: bool) -> None:
        """A run has ended: keep its terminal modes, or restore those before it, and discard keys that it has not read."""
        try:
            if keep_modes:
                self._modes = termios.tcgetattr(self.slave)
            else:
                termios.tcsetattr(self.slave, termios.TCSANOW, self._modes)
            termios.tcflush(self.slave, termios.TCIFLUSH)
        except termios.error:
            pass  # the terminal was hung up; the next process gets a new one

    def renew(self, uid: int | None, gid: int | None) -> dict[int, str]:
        """Nothing to do: all runs use the same terminal."""
        return {}

    def close(self) -> None:
        """Close the terminal: the kernel sends SIGHUP to its processes."""
        self._pause()
        self._keys.close()
        os.close(self._master)
        os.close(self.slave)

    def _drain(self, spool: Spool | None) -> None:
        taken_bytes = 0
        while taken_bytes <= _HELD_BYTES:
            data = self._read()
            if not data:
                return
            taken_bytes += len(data)
            if spool is not None:
                spool.append(STDOUT, data)

    def _read(self) -> bytes:
        try:
            data = os.read(self._master, CHUNK_BYTES)
        except OSError:  # no foreground process, or the terminal is closed
            return b""
        self.last_error = data.replace(b"\r\n", b"\n")
        return data

    def _readable(self) -> None:
        data = self._read()
        spool = self._spool
        if not data or spool is None:
            return
        spool.append(STDOUT, data)
        if spool.full:
            self._pause()
            spool.pause(self._resume)
        if self._arrived is not None:
            self._arrived()

    def _resume(self) -> None:
        if self._spool is not None:
            self._read_on()

    def _read_on(self) -> None:
        if not self._reading:
            self._reading = True
            self._loop.add_reader(self._master, self._readable)

    def _pause(self) -> None:
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._master)
