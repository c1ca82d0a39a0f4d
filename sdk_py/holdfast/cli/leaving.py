"""What ends a command line that waits: SIGTERM and SIGHUP, which must not leave what runs in the sandbox behind, and Ctrl-C.

Owns the handlers while ``exec`` and ``shell`` wait, and the thread that does what a handler must not.
"""

from __future__ import annotations

import contextlib
import itertools
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import NoReturn


class ToldToEnd(KeyboardInterrupt):
    """A signal other than SIGINT told us to end; ``number`` says which. What waits for a command cancels it, as it does for Ctrl-C."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


def _tell(number: int, _frame: FrameType | None) -> NoReturn:
    raise ToldToEnd(number)


@contextlib.contextmanager
def told_by_signals() -> Iterator[None]:
    """Have SIGTERM and SIGHUP raise ``ToldToEnd`` here, unless somebody had them ignored, as nohup does."""
    before = {}
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            before[number] = signal.signal(number, _tell)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def followed(number: signal.Signals, action: Callable[[], None], at_once: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Each signal is followed by ``action`` on a thread of its own: a handler, as ``at_once`` is, must not take the session's lock."""
    came, over = threading.Event(), threading.Event()

    def follow() -> None:
        while True:
            came.wait()
            came.clear()
            if over.is_set():
                return
            action()

    def note(_number: int, _frame: FrameType | None) -> None:
        at_once()
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
def first_interrupt(action: Callable[[], None]) -> Iterator[None]:
    """The first SIGINT is ``action``; the second is ours."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        yield
        return
    interrupts = itertools.count()

    def only_once() -> None:
        if next(interrupts):
            raise KeyboardInterrupt

    with followed(signal.SIGINT, action, only_once):
        yield
