"""Asking a shell again and again for a report, until it has arrived or the shell is given up.

Owns what is sent and how often. An interrupt goes to the shell and to the processes of the run, and is repeated until the shell reports
or a time limit passes. A ping requests a report, and is repeated because a late interrupt can make the shell discard its input. Nothing is
sent to a shell that opens new pipes or loads its state. ``shell`` cancels each ``Retry`` and decides what follows.
"""

from __future__ import annotations

import asyncio
import itertools
import signal
from collections.abc import Callable, Iterator

from session_agent.agent.process.process_tree import signal_all

from .process import ShellProcess

_FIRST_S = 0.005
_SLOWEST_S = 0.05
_PING_AGAIN_S = 0.05
_IDLE_PINGS = 8
"""Unanswered pings after which a shell that waits for a control line is given up: it no longer understands them."""
_BUSY_PINGS = 24
"""The same for a shell that is busy or is not scheduled: about 15 seconds."""
_OPEN_CHECK_S = 1.0
_MAX_OPEN_CHECKS = 10
"""Checks before a shell that does not open its new pipes is given up, if the kernel does not show whether it is idle."""
_LOAD_CHECK_S = 0.1
_LOAD_CHECKS = 100
"""Checks before a new process that has not loaded the state is killed."""


class Retry:
    """Calls ``again`` after each of ``pauses`` until ``cancel``, and ``give_up`` after the last one.

    Timers are counted, not time: while the agent is not scheduled it reads no reports. ``pauses`` may end early because the shell is idle;
    the reports are read after that, since one of them may explain why.
    """

    __slots__ = ("_again", "_give_up", "_loop", "_pauses", "_process", "_timer")

    def __init__(
        self, process: ShellProcess, pauses: Iterator[float], give_up: Callable[[], None], again: Callable[[], None] | None = None
    ) -> None:
        self._process = process
        self._pauses = pauses
        self._give_up = give_up
        self._again = again
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(next(pauses), self._fire)

    def cancel(self) -> None:
        """Stop asking: the report has arrived, or is not needed any more."""
        self._timer.cancel()

    def _fire(self) -> None:
        pause_s = next(self._pauses, None)
        self._process.read_reports()
        if self._process.status is not None or self._timer.cancelled():
            return
        if pause_s is None:
            self._give_up()
            return
        if self._again is not None:
            self._again()
        self._timer = self._loop.call_later(pause_s, self._fire)


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
    process.interrupt()
    process.signal(signal.SIGCONT)


def interrupt_until_report(process: ShellProcess, number: int, children: Callable[[], list[int]], patience_s: float) -> Retry:
    """Interrupt run ``number`` again and again until the shell reports it; kill the shell if that has not come after ``patience_s``."""

    def again() -> None:
        interrupt(process, children)
        process.request_report(number)

    def give_up() -> None:
        # if only the processes that ignore SIGINT were killed, the shell would run the rest of its script
        process.kill()
        signal_all(children(), signal.SIGKILL)

    interrupt(process, children)
    return Retry(process, _interrupt_pauses(patience_s), give_up, again)


def _interrupt_pauses(patience_s: float) -> Iterator[float]:
    yield _FIRST_S
    for count in itertools.count(1):
        if patience_s <= 0:
            return
        pause_s = min(_FIRST_S * count, _SLOWEST_S)
        patience_s -= pause_s
        yield pause_s


def ping(process: ShellProcess, give_up: Callable[[], None]) -> Retry:
    """Request a report from the shell until it arrives; call ``give_up`` if it never does."""
    number = process.ping()
    return Retry(process, _ping_pauses(process), give_up, lambda: process.request_report(number))


def _ping_pauses(process: ShellProcess) -> Iterator[float]:
    yield _PING_AGAIN_S
    for count in range(1, _BUSY_PINGS + 1):
        if count > _IDLE_PINGS and process.idle():
            return
        yield _PING_AGAIN_S * count


def limit_opening(process: ShellProcess, give_up: Callable[[], None]) -> Retry:
    """Call ``give_up`` if the shell is stuck and does not open its new pipes."""
    return Retry(process, _opening_pauses(process), give_up)


def _opening_pauses(process: ShellProcess) -> Iterator[float]:
    yield _OPEN_CHECK_S
    for _ in range(_MAX_OPEN_CHECKS):
        if process.idle():
            return
        yield _OPEN_CHECK_S


def limit_loading(process: ShellProcess) -> Retry:
    """Kill ``process`` if its report that it has loaded the state does not arrive in time."""
    return Retry(process, itertools.repeat(_LOAD_CHECK_S, _LOAD_CHECKS), process.kill)
