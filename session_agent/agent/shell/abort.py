"""Interrupting a run without killing its shell, and pinging a shell.

Owns what is sent and how often. An interrupt goes to the shell and to the processes of the run, and is repeated until the shell reports
or a time limit passes. A ping requests a report, and is repeated because a late interrupt can make the shell discard its input.
``shell`` decides what follows.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable

from session_agent.agent.process.process_tree import signal_all

from .process import ShellProcess

_FIRST_S = 0.005
_SLOWEST_S = 0.05
_PING_AGAIN_S = 0.05
_IDLE_PINGS = 8
"""Unanswered pings after which a shell that waits for a control line is given up: it no longer understands them."""
_BUSY_PINGS = 24
"""The same for a shell that is busy or is not scheduled: about 15 seconds."""


def interrupt(process: ShellProcess, children: Callable[[], list[int]]) -> None:
    """Send SIGINT to the shell and to the processes of its run at the same moment, as Ctrl-C does.

    All are stopped first. Otherwise in ``sleep 60 | cat`` the death of ``sleep`` would let ``cat`` exit normally, and the shell, which
    aborts a script only if a child dies of SIGINT, would continue with the next command. The children are listed after the shell has
    stopped, so that none is missed.
    """
    process.signal(signal.SIGSTOP)
    stopped = children()
    for number in (signal.SIGSTOP, signal.SIGINT, signal.SIGCONT):
        signal_all(stopped, number)
    process.signal(signal.SIGINT)
    process.signal(signal.SIGCONT)


class InterruptRetry:
    """Interrupts run ``number`` again and again until ``cancel``; kills the shell if that has not come after ``patience_s``."""

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
        """Stop interrupting: the shell has reported, or has ended."""
        self._timer.cancel()

    def _again(self, count: int) -> None:
        process = self._process
        process.read_reports()
        if process.status is not None or self._timer.cancelled():
            return
        if self._patience_s <= 0:
            # if only the processes that ignore SIGINT were killed, the shell would run the rest of its script
            process.kill()
            signal_all(self._children(), signal.SIGKILL)
            return
        interrupt(process, self._children)
        process.request_report(self._number)
        pause_s = min(_FIRST_S * count, _SLOWEST_S)
        self._patience_s -= pause_s  # timers are counted, not time: while the agent is not scheduled it reads no reports
        self._timer = self._loop.call_later(pause_s, self._again, count + 1)


class ShellPing:
    """Requests a report from the shell until ``cancel``; calls ``give_up`` if it is never answered."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, process: ShellProcess, then: Callable[[], None], give_up: Callable[[], None]
    ) -> None:
        self.number = process.ping()
        self.then = then
        self._loop = loop
        self._process = process
        self._give_up = give_up
        self._timer = loop.call_later(_PING_AGAIN_S, self._again, 1)

    def cancel(self) -> None:
        """Stop pinging: the report has arrived, or is not needed any more."""
        self._timer.cancel()

    def _again(self, count: int) -> None:
        is_idle = count > _IDLE_PINGS and self._process.idle()
        self._process.read_reports()
        if self._process.status is not None or self._timer.cancelled():
            return
        if count > (_IDLE_PINGS if is_idle else _BUSY_PINGS):
            self._give_up()
            return
        self._process.request_report(self.number)
        self._timer = self._loop.call_later(_PING_AGAIN_S * count, self._again, count + 1)
