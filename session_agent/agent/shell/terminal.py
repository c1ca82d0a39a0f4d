"""The pseudo-terminal of a living shell: its runs read and write it; control lines and reports still use pipes.

Owns both ends of the terminal, which output belongs to which run, and the modes and unread keys after a run. When a run is reported its
output is complete, because the kernel delivers all bytes written to a terminal before the report. Used by ``process`` in place of
``RunOutput``.
"""

from __future__ import annotations

import os
import termios
from collections.abc import Callable

from holdfast_wire.frames import STDOUT

from session_agent.agent.commands.window import MOST_BUFFERED_BYTES, open_pty, set_size
from session_agent.agent.output.pipes import PipeReader
from session_agent.agent.output.spool import Spool


class ShellTerminal:
    """Stream 1 and the keyboard of the current run. Output between two runs is discarded."""

    def __init__(self, size: tuple[int, int]) -> None:
        self._master, self._slave = open_pty(*size)
        modes = termios.tcgetattr(self._slave)
        modes[6][termios.VSUSP] = b"\0"  # no Ctrl-Z: there is no job control to continue a stopped program
        termios.tcsetattr(self._slave, termios.TCSANOW, modes)
        self._modes = modes
        try:
            self._keyboard = os.dup(self._master)
        except OSError:
            os.close(self._master)
            os.close(self._slave)
            raise
        self._reader = PipeReader(self._master, STDOUT)
        self._reader.watch()

    @property
    def last_error(self) -> bytes:
        """The bytes that were read last."""
        return self._reader.last.replace(b"\r\n", b"\n")

    def take_keyboard(self) -> int:
        """A descriptor for keys, which the caller has to close. Once."""
        keyboard, self._keyboard = self._keyboard, -1
        return keyboard

    @property
    def inherited(self) -> tuple[int, int]:
        """The descriptors that the shell inherits."""
        return self._slave, self._slave

    def resize(self, rows: int, columns: int) -> None:
        """Set the size; the kernel sends SIGWINCH to the foreground processes."""
        if self._reader.open:
            set_size(self._master, rows, columns)

    def is_taken(self, pid: int) -> bool:
        """Whether another process than the shell ``pid`` is still in the foreground: then the shell's runs would get no keys."""
        try:
            return os.tcgetpgrp(self._master) not in (0, pid)
        except OSError:
            return False

    def discard(self) -> None:
        """Discard what was written since the last run. Call it before the next one begins."""
        self._reader.drain(MOST_BUFFERED_BYTES)

    def direct(self, spool: Spool, arrived: Callable[[], None], *, one_stream: bool = False) -> None:
        """A run begins: output that is read from now on goes to ``spool``; a terminal is one stream in any case."""
        self._reader.direct(spool, arrived)
        self._reader.last = b""

    def watch(self) -> None:
        """Nothing to do: a terminal is always read as output arrives."""

    def collect(self) -> list[tuple[int, int]]:
        """The run has ended: read what is there of its output. Returns no pipes: all processes write to one terminal."""
        self._reader.drain(MOST_BUFFERED_BYTES)
        return []

    def finish(self, last: bytes = b"") -> None:
        """After ``collect``: append ``last``, and discard what is written until the next run."""
        if last and self._reader.spool is not None:
            self._reader.spool.append(STDOUT, last)
        self._reader.direct(None)

    def settle(self, *, keep_modes: bool) -> None:
        """A run has ended: keep its terminal modes, or restore those before it, and discard keys that it has not read."""
        if not self._reader.open:
            return
        try:
            if keep_modes:
                self._modes = termios.tcgetattr(self._slave)
            else:
                termios.tcsetattr(self._slave, termios.TCSANOW, self._modes)
            termios.tcflush(self._slave, termios.TCIFLUSH)
        except termios.error:
            pass  # the terminal was hung up; the next process gets a new one

    def renew(self, uid: int | None, gid: int | None) -> dict[int, str]:
        """Nothing to do: all runs use the same terminal."""
        return {}

    def close(self) -> None:
        """Close the terminal: the kernel sends SIGHUP to its processes."""
        self._reader.close()
        os.close(self._slave)
        if self._keyboard >= 0:
            os.close(self._keyboard)
