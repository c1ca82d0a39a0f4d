"""Cancelling the calls of another thread: what Ctrl-C is for the main thread, for the threads of a map.

Owns which threads can be cancelled and the one request for it. A wait for a session (``threads.Link.wait``) and a pause between requests
raise ``KeyboardInterrupt`` then, once, so that what follows, such as deleting a sandbox, may wait again. Code that waits elsewhere is not
interrupted.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast._transport.threads_gates import Shield

_STOPS: dict[int, Stop] = {}


class Stop:
    """Around the work of one thread, which enters it; any thread may ``set`` it."""

    def __init__(self) -> None:
        self._asked = threading.Event()
        self._shield: Shield | None = None

    def __enter__(self) -> Stop:  # noqa: PYI034  nobody derives from it
        _STOPS[threading.get_ident()] = self
        return self

    def __exit__(self, *_: object) -> None:
        del _STOPS[threading.get_ident()]

    def set(self) -> None:
        """End the wait that the thread is in, or its next one."""
        self._asked.set()
        shield = self._shield
        if shield is not None:
            shield.interrupt(KeyboardInterrupt())

    def begin_wait(self, shield: Shield) -> None:
        """The thread is about to wait behind this shield."""
        self._shield = shield
        if self._asked.is_set():
            shield.noted = KeyboardInterrupt()

    def end_wait(self, shield: Shield) -> None:
        """The wait is over; what interrupted it is raised now, and not again."""
        self._shield = None
        if shield.noted is not None:
            self._asked.clear()

    def sleep(self, seconds: float) -> None:
        """A pause that ``set`` ends."""
        if self._asked.wait(seconds):
            self._asked.clear()
            raise KeyboardInterrupt


def current() -> Stop | None:
    """The stop of the thread that asks."""
    return _STOPS.get(threading.get_ident()) if _STOPS else None


def sleep(seconds: float) -> None:
    """``time.sleep``, in a thread of a map until it is cancelled."""
    stop = current()
    if stop is None:
        time.sleep(seconds)
    else:
        stop.sleep(seconds)
