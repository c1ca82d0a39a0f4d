"""Ending a run without losing the shell it runs in, and pinging a shell that may have missed a command.

Owns what is sent, and how often: an interrupt to the shell and to what the run started, again and again until a time limit;
a question that is asked again, since a late interrupt may have thrown it away. What follows from it is decided by ``shell``.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable

from session_agent.agent.process.process_tree import signal_all

from .process import ShellProcess

_FIRST_S = 0.005
_SLOWEST_S = 0.05
_ASK_AGAIN_S = 0.05
_ASK_TIMES = 8
_ASK_A_BUSY_SHELL = 24
"""A shell that does something else, or gets no processor, has a quarter of a minute; one that waits for us has lost the question."""


def interrupt(process: ShellProcess, children: Callable[[], list[int]]) -> None:
    """A Ctrl-C to all at once. The shell goes on with the next command when a child ends in any other way than by it.

    So all of them are stopped while it is sent: otherwise ``cat`` in ``sleep 60 | cat`` would end well because ``sleep`` was first to
    die. Its children are listed when the shell has stopped: one that it starts in between would be missed, and waited for.
    """
    process.signal(signal.SIGSTOP)
    stopped = children()
    for number in (signal.SIGSTOP, signal.SIGINT, signal.SIGCONT):
        signal_all(stopped, number)
    process.signal(signal.SIGINT)
    process.signal(signal.SIGCONT)


class InterruptRetry:
    """Interrupts run ``number`` until it is cancelled; a shell that does not come back in ``patience_s`` is killed."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, process: ShellProcess, number: int, children: Callable[[], list[int]], patience_s: float
    ) -> None:
        self._loop = loop
        self._process = process
        self._number = number
        self._children = children
        self._patience_s = patience_s
        interrupt(process, children)
        self._timer = loop.call_later(_FIRST_S, self._again, 1)

    def cancel(self) -> None:
        """Enough."""
        self._timer.cancel()

    def _again(self, count: int) -> None:
        process = self._process
        process.read_reports()
        if process.status is not None or self._timer.cancelled():
            return
        if self._patience_s <= 0:
            # killing only what ignores the interrupt would let the shell run the rest of the list
            process.kill()
            signal_all(self._children(), signal.SIGKILL)
            return
        interrupt(process, self._children)
        process.ask_again(self._number)
        pause_s = min(_FIRST_S * count, _SLOWEST_S)
        self._patience_s -= pause_s  # of the loop's own time: while the agent is held up the shell's reports are not read
        self._timer = self._loop.call_later(pause_s, self._again, count + 1)


class ShellPing:
    """Asks the shell for a report until it answers; ``give_up`` is called when it never does."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, process: ShellProcess, then: Callable[[], None], give_up: Callable[[], None]
    ) -> None:
        self.number = process.ask()
        self.then = then
        self._loop = loop
        self._process = process
        self._give_up = give_up
        self._timer = loop.call_later(_ASK_AGAIN_S, self._again, 1)

    def cancel(self) -> None:
        """The answer is there, or no longer wanted."""
        self._timer.cancel()

    def _again(self, count: int) -> None:
        is_idle = count > _ASK_TIMES and self._process.idle()
        self._process.read_reports()
        if self._process.status is not None or self._timer.cancelled():
            return
        if count > (_ASK_TIMES if is_idle else _ASK_A_BUSY_SHELL):
            self._give_up()
            return
        self._process.ask_again(self.number)
        self._timer = self._loop.call_later(_ASK_AGAIN_S * count, self._again, count + 1)
