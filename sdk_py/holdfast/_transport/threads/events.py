"""What threads of the blocking API wait on: an event of a driver, an event and a lock that belong to none, and work in threads of its own.

Owns no sockets. A driver's event is set and cleared by the driver's thread, and waited for by any other. ``aio.events`` has the same
names. Imports nothing of a session: a program that only sends requests does without one.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any, ParamSpec, Protocol, TypeVar

from holdfast._transport.threads.stops import current, free, sleep

P = ParamSpec("P")
T = TypeVar("T")

Cancelled = KeyboardInterrupt
"""What a local cancellation raises inside a wait."""

_JOIN_S = 2.0

__all__ = ["Background", "Cancelled", "Event", "Lock", "SessionEvent", "run_blocking", "sleep"]


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
        """The lock of this process."""
        return self._locks.setdefault(os.getpid(), threading.Lock())


Event = threading.Event
"""An event that belongs to no driver."""


def run_blocking(step: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a blocking step here."""
    return step(*args, **kwargs)


class Background:
    """Work that goes on beside the caller's, each in a thread; its owner makes it end before ``stop``."""

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []

    def start(self, step: Callable[..., Any], *args: Any, name: str) -> None:
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        thread = threading.Thread(target=_quietly, args=(step, args), name=name, daemon=True)
        thread.start()
        self._threads.append(thread)

    def stop(self) -> None:
        """Wait a bounded time for what runs to end."""
        end = time.monotonic() + _JOIN_S
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(end - time.monotonic(), 0))


def _quietly(step: Callable[..., Any], args: tuple[Any, ...]) -> None:
    try:
        step(*args)
    except Exception:  # noqa: BLE001, S110  the work reports its own failures, as in the asynchronous API
        pass
