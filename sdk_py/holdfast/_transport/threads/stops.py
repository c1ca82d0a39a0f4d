"""Cancelling the calls of another thread: what Ctrl-C is for the main thread, for the threads of a map.

Owns which threads can be cancelled and the one request for it. A wait for a session (``threads.events``) and a pause between requests raise
``KeyboardInterrupt`` then, once, so that what follows, such as deleting a sandbox, may wait again. Code that waits elsewhere is not
interrupted.
"""

from __future__ import annotations

import threading
import time
from typing import Any

_STOPS: dict[int, Stop] = {}


class Stop:
    """Around the work of one thread, which enters it; any thread may ``set`` it."""

    def __init__(self) -> None:
        self._requested = threading.Event()
        self._waiter: Any = None

    def __enter__(self) -> Stop:  # noqa: PYI034  no class derives from it
        _STOPS[threading.get_ident()] = self
        return self

    def __exit__(self, *_: object) -> None:
        del _STOPS[threading.get_ident()]

    def set(self) -> None:
        """End the wait that the thread is in, or its next one."""
        self._requested.set()
        waiter = self._waiter
        if waiter is not None:
            free(waiter)

    def begin_wait(self, waiter: Any) -> None:
        """The thread is about to wait until this lock is released."""
        self._waiter = waiter
        if self._requested.is_set():
            free(waiter)

    def end_wait(self) -> None:
        """The wait is over. Raises ``KeyboardInterrupt`` when it was to be cancelled, once."""
        self._waiter = None
        if self._requested.is_set():
            self._requested.clear()
            raise KeyboardInterrupt

    def sleep(self, seconds: float) -> None:
        """A pause that ``set`` ends."""
        if self._requested.wait(seconds):
            self._requested.clear()
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


def free(waiter: Any) -> None:
    """Release the lock that a thread waits for. The event and a ``Stop`` may both do so."""
    try:
        waiter.release()
    except RuntimeError:
        pass
