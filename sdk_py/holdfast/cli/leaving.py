"""What ends a command line that waits: SIGTERM and SIGHUP, which must not leave what runs in the sandbox behind, and Ctrl-C.

Owns the handlers while ``exec`` and ``shell`` wait, and the thread that does what a handler must not.
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


class ToldToEnd(KeyboardInterrupt):
    """A signal other than SIGINT told us to end; ``number`` says which. What waits for a command cancels it, as it does for Ctrl-C."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


def _raise(number: int, _frame: FrameType | None) -> None:
    raise ToldToEnd(number)


@contextlib.contextmanager
def told_by_signals() -> Iterator[None]:
    """Have SIGTERM and SIGHUP raise ``ToldToEnd`` here, unless somebody had them ignored, as nohup does."""
    before = {}
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            before[number] = signal.signal(number, _raise)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def followed(number: signal.Signals, action: Callable[[], None]) -> Iterator[None]:
    """Each signal is followed by ``action`` on a thread of its own: a handler must not take the session's lock."""
    came, over = threading.Event(), threading.Event()

    def follow() -> None:
        while True:
            came.wait()
            came.clear()
            if over.is_set():
                return
            action()

    def note(_number: int, _frame: FrameType | None) -> None:
        came.set()

    threading.Thread(target=follow, daemon=True).start()
    before = signal.signal(number, note)
    try:
        yield
    finally:
        signal.signal(number, before)
        over.set()
        came.set()


@contextlib.contextmanager
def attended(interrupt: Callable[[], None], close: Callable[[], None]) -> Iterator[None]:
    """While a command is waited for no signal is raised, since that could tear a step of its session.

    The first Ctrl-C is the command's (``interrupt``). The second, SIGTERM or SIGHUP end it (``close``) and are raised when the wait is
    over; one that comes after that is raised at once.
    """
    steps: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
    interrupts, told = itertools.count(), list[KeyboardInterrupt]()

    def follow() -> None:
        while (step := steps.get()) is not None:
            with contextlib.suppress(HoldfastError):
                step()

    def note(number: int, _frame: FrameType | None) -> None:
        if told:
            raise told[0]
        if number == signal.SIGINT and not next(interrupts):
            steps.put(interrupt)
            return
        told.append(KeyboardInterrupt() if number == signal.SIGINT else ToldToEnd(number))
        steps.put(close)

    threading.Thread(target=follow, daemon=True).start()
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, note) for number in numbers if signal.getsignal(number) is not signal.SIG_IGN}
    try:
        yield
    except Exception:
        if not told:
            raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        steps.put(None)
    if told:
        raise told[0]
