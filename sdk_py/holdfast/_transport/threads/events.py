"""What threads of the blocking API wait on: an event of a driver, and an event and a lock that belong to none.

Owns no sockets and no threads. A driver's event is set and cleared by the driver's thread, and waited for by any other.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Any, Protocol

from holdfast._transport.threads.stops import current, free


class EventOwner(Protocol):
    """What sets events: a driver."""

    def check_here(self) -> None:
        """Raise where a wait would never end."""


class SessionEvent:
    """An event of a driver. Setting it wakes every waiter."""

    __slots__ = ("_is_set", "_owner", "_waiters")

    def __init__(self, owner: EventOwner) -> None:
        self._owner = owner
        self._is_set = False
        self._waiters: list[Any] = []

    def set(self) -> None:
        self._is_set = True
        while self._waiters:
            free(self._waiters.pop())

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout_s: float | None = None) -> bool:
        """Until the event is set; False when ``timeout_s`` passed first.

        Ctrl-C raises ``KeyboardInterrupt`` here at once, but never within a step of the session.
        """
        if self._is_set:
            return True
        self._owner.check_here()
        end = None if timeout_s is None else time.monotonic() + timeout_s
        stop = current()
        waiter = threading.Lock()
        waiter.acquire()
        while not self._is_set and (end is None or time.monotonic() < end):
            if stop is not None:
                stop.begin_wait(waiter)
            self._waiters.append(waiter)
            try:
                if not self._is_set:  # ``set`` may not have seen the waiter
                    waiter.acquire(timeout=-1 if end is None else max(end - time.monotonic(), 0))
            finally:
                try:
                    self._waiters.remove(waiter)
                except ValueError:  # ``set`` took it
                    pass
                if stop is not None:
                    stop.end_wait()
        return self._is_set


class Lock:
    """A lock that a fork finds free: the thread that held it does not exist there."""

    def __init__(self) -> None:
        self._locks: dict[int, threading.Lock] = {}

    @property
    def own(self) -> threading.Lock:
        """This process's."""
        return self._locks.setdefault(os.getpid(), threading.Lock())


class Event:
    """An event that belongs to no driver."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def set(self) -> None:
        self._event.set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Until the event is set; False when ``timeout_s`` passed first."""
        return self._event.wait(timeout_s)
