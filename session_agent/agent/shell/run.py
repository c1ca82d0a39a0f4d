"""One command in a living shell, and its standard input.

Owns the run's times and the pipe it reads from: a named pipe for the moment until the shell has opened it, a plain one with a real end
of file afterwards. When it starts and how it ends is decided by ``shell``.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from session_agent.agent.output.pipes import MERGE_BYTES, PipeWriter
from session_agent.agent.output.records import Record
from session_agent.agent.process.process_tree import TreeKill

from .abort import InterruptRetry
from .output import make_fifo
from .timers import NEVER


class Run:
    """One command in a shell."""

    number = 0
    tag = 0
    began = 0.0
    starts_at = NEVER
    """When it is to be reported that the run started: most runs have ended by then."""
    ends_at = NEVER
    """When its time is up."""
    fifo = ""
    hold = -1
    sink: PipeWriter | None = None
    interrupt_retry: InterruptRetry | None = None
    abort = ""
    before: frozenset[int] = frozenset()
    killing: TreeKill | None = None
    watched = 0
    exit_code = 0
    signal_name: str | None = None

    def __init__(self, record: Record, script: bytes, timeout_s: float | None, pipe_stdin: bool) -> None:
        self.record = record
        self.script = script
        self.timeout_s = timeout_s
        self.pipe_stdin = pipe_stdin
        if pipe_stdin:
            self.early: list[tuple[bytes, bool, Callable[[int], None]]] = []

    def expect_input(self, uid: int | None, gid: int | None) -> bool:
        """Make the pipe that the run reads, and hold it open: else the shell's opening of it would wait for a writer. False: it cannot."""
        path = make_fifo(uid, gid)
        if path is None:
            return False
        try:
            self.hold = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:  # no free descriptor at the moment
            os.unlink(path)
            return False
        self.fifo = path
        return True

    def input_opened(self) -> None:
        """The shell has it open: give it what came early, and from now on its end is an end of file."""
        if not self.fifo or self.sink is not None:
            return
        try:
            descriptor = os.open(self.fifo, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return  # its reader is gone already
        self.sink = PipeWriter(descriptor)
        self._let_go()
        early, self.early = self.early, []
        for data, eof, consumed in early:
            self.sink.feed(data, eof, consumed)

    def feed(self, data: bytes, eof: bool, consumed: Callable[[int], None]) -> None:
        """Bytes for its standard input; those it cannot take are given back."""
        if not self.pipe_stdin or (self.number and not self.fifo):
            consumed(len(data))
        elif self.sink is None:
            if self.early and self.early[-1][1:] == (False, consumed) and len(self.early[-1][0]) + len(data) <= MERGE_BYTES:
                data = self.early.pop()[0] + data
            self.early.append((data, eof, consumed))  # bounded by the channel's credit
        else:
            self.sink.feed(data, eof, consumed)

    def close(self) -> None:
        """It is over: no more reports, interrupts or input."""
        if self.interrupt_retry is not None:
            self.interrupt_retry.cancel()
        if not self.pipe_stdin:
            return
        if self.sink is not None:
            self.sink.close()
        self._let_go()
        for data, _, consumed in self.early:
            consumed(len(data))
        self.early.clear()

    def _let_go(self) -> None:
        if self.hold >= 0:
            os.close(self.hold)
            self.hold = -1
            try:
                os.unlink(self.fifo)
            except OSError:
                pass
