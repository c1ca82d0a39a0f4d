"""Interrupting a run without killing its shell, and pinging a shell.

Owns what is sent and how often. An interrupt goes to the shell and to the processes of the run, and is repeated until the shell reports
or a time limit passes. A ping requests a report, and is repeated because a late interrupt can make the shell discard its input.
``shell`` cancels either and decides what follows.
"""

from __future__ import annotations

import itertools
import signal
from collections.abc import Callable, Iterator

from session_agent.agent.process.process_tree import signal_all

from .process import ShellProcess
from .timers import Retry

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
