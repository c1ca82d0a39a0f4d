"""What threads of the blocking API wait on: a gate of a link, and a flag and a lock that belong to none.

Owns no sockets and no threads. A gate is set and cleared by the link's thread, and waited for by any other.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Any, Protocol

from holdfast._transport.threads_stops import current, free


class GateOwner(Protocol):
    """What sets gates: a link."""

    def check_here(self) -> None:
        """Raise where a wait would never end."""


class Gate:
    """An event of a link. Setting it wakes every waiter."""

    __slots__ = ("_open", "_owner", "_waiters")

    def __init__(self, owner: GateOwner) -> None:
        self._owner = owner
        self._open = False
        self._waiters: list[Any] = []

    def set(self) -> None:
        self._open = True
        while self._waiters:
            free(self._waiters.pop())

    def clear(self) -> None:
        self._open = False

    def wait(self, timeout_s: float | None = None) -> bool:
        """Until the gate is open; False when ``timeout_s`` passed first.

        Ctrl-C raises ``KeyboardInterrupt`` here. It cannot interrupt a step of the session, which runs in the link's thread.
        """
        if self._open:
            return True
        self._owner.check_here()
        end = None if timeout_s is None else time.monotonic() + timeout_s
        stop = current()
        waiter = threading.Lock()
        waiter.acquire()
        while not self._open and (end is None or time.monotonic() < end):
            if stop is not None:
                stop.begin_wait(waiter)
            self._waiters.append(waiter)
            try:
                if not self._open:  # ``set`` may not have seen the waiter
                    waiter.acquire(timeout=-1 if end is None else max(end - time.monotonic(), 0))
            finally:
                try:
                    self._waiters.remove(waiter)
                except ValueError:  # ``set`` took it
                    pass
                if stop is not None:
                    stop.end_wait()
        return self._open


class Lock:
    """A lock that a fork finds free: the thread that held it does not exist there."""

    def __init__(self) -> None:
        self._locks: dict[int, threading.Lock] = {}

    @property
    def own(self) -> threading.Lock:
        """This process's."""
        return self._locks.setdefault(os.getpid(), threading.Lock())


class Flag:
    """An event that belongs to no link."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def set(self) -> None:
        self._event.set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Until the flag is set; False when ``timeout_s`` passed first."""
        return self._event.wait(timeout_s)
