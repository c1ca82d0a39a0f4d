"""Signals that end a command line: SIGTERM and SIGHUP, which also end the command in the sandbox, and Ctrl-C.

Owns the handlers while ``exec`` and ``shell`` wait, and the thread that does what a handler must not: wait for the session.
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
    """A signal other than SIGINT that ends this process; ``number`` is its number. What waits for a command cancels it, as for Ctrl-C."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


def _raise(number: int, _frame: FrameType | None) -> None:
    raise_between_steps(ExitSignal(number))


@contextlib.contextmanager
def _handled(handler: Callable[[int, FrameType | None], None], *numbers: signal.Signals) -> Iterator[None]:
    """``handler`` for those of these signals that were not ignored before."""
    before = {number: signal.signal(number, handler) for number in numbers if signal.getsignal(number) is not signal.SIG_IGN}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)


@contextlib.contextmanager
def _follower() -> Iterator[SimpleQueue[Callable[[], None] | None]]:
    """A thread that takes the steps that are put into the queue, until the end."""
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
    """Have SIGTERM and SIGHUP raise ``ExitSignal`` here, unless they were ignored before, as nohup has them."""
    return _handled(_raise, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def run_on(number: signal.Signals, action: Callable[[], None]) -> Iterator[None]:
    """Run ``action`` in a thread after each signal of this number. When the block is left, none runs and none begins any more."""
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
            left = True  # before the wait: what is queued behind a running action must not begin in between
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
                raise received[0]
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
