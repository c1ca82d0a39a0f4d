"""Signals that end this program: SIGTERM and SIGHUP, which also end the command in the sandbox, and Ctrl-C.

Owns the handlers while ``exec`` and ``shell`` wait, and a thread that uses the session, because a signal handler must not wait for it.
"""

from __future__ import annotations

import contextlib
import itertools
import signal
import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from types import FrameType

from holdfast import HoldfastError
from holdfast._transport.threads.signals import raise_between_steps


class ExitSignal(KeyboardInterrupt):
    """A signal other than SIGINT that ends this process; ``number`` is its number.

    A wait for a command cancels the command, as for Ctrl-C.
    """

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


def _raise(number: int, _frame: FrameType | None) -> None:
    raise_between_steps(ExitSignal(number))


@contextlib.contextmanager
def _handled(handler: Callable[[int, FrameType | None], None], *numbers: signal.Signals) -> Iterator[None]:
    """Install ``handler`` for those of these signals that were not ignored before."""
    before = {number: signal.signal(number, handler) for number in numbers if signal.getsignal(number) is not signal.SIG_IGN}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)


@contextlib.contextmanager
def _follower() -> Iterator[SimpleQueue[Callable[[], None] | None]]:
    """A thread that runs the functions that are put into the queue, until the end of the block."""
    steps: SimpleQueue[Callable[[], None] | None] = SimpleQueue()

    def follow() -> None:
        while (step := steps.get()) is not None:
            with contextlib.suppress(HoldfastError):
                step()

    threading.Thread(target=follow, daemon=True).start()
    try:
        yield steps
    finally:
        steps.put(None)


def raised_on_exit_signals() -> contextlib.AbstractContextManager[None]:
    """Let SIGTERM and SIGHUP raise ``ExitSignal``, unless they were ignored before, for example by nohup."""
    return _handled(_raise, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def run_on(number: signal.Signals, action: Callable[[], None]) -> Iterator[None]:
    """Run ``action`` in a thread after each signal of this number. At the end of the block no action is running, and none will start."""
    running, left = threading.Lock(), False

    def unless_left() -> None:
        with running:
            if not left:
                action()

    with _follower() as steps:

        def on_signal(_number: int, _frame: FrameType | None) -> None:
            if steps.empty():
                steps.put(unless_left)

        try:
            with _handled(on_signal, number):
                yield
        finally:
            left = True  # before the wait: an action that is queued behind a running one must not start in between
            with running:
                pass


@contextlib.contextmanager
def passed_to_command(interrupt: Callable[[], None], close: Callable[[], None]) -> Iterator[list[KeyboardInterrupt]]:
    """Inside the block, which waits for a command, signals act on that command.

    The first Ctrl-C interrupts it (``interrupt``). A second Ctrl-C, SIGTERM or SIGHUP ends it (``close``) and is raised at the end of the
    block; a further signal is raised at once. The block gets a list that holds the signal that ended the command, if there was one.
    """
    interrupts, received = itertools.count(), list[KeyboardInterrupt]()
    with _follower() as steps:

        def on_signal(number: int, _frame: FrameType | None) -> None:
            if received:
                raise_between_steps(received[0])
                return
            if number == signal.SIGINT and not next(interrupts):
                steps.put(interrupt)
                return
            received.append(KeyboardInterrupt() if number == signal.SIGINT else ExitSignal(number))
            steps.put(close)

        with _handled(on_signal, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            try:
                yield received
            except Exception:
                if not received:
                    raise
    if received:
        raise received[0]
