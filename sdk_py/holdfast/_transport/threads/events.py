"""Waiting in the blocking API: events, a lock that survives a fork, and background threads.

Owns how a wait is cancelled from another thread (``Stop``), as Ctrl-C cancels one of the main thread. Owns no sockets. Imports no module of
sessions, which a program that only sends requests does not need. ``aio.events`` has the same names.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

Cancelled = KeyboardInterrupt
"""The exception that a local cancellation raises inside a wait."""

SIGNALS_S = 0.5
"""The main thread waits at most so long at a time. A signal does not interrupt a wait of Python that is just beginning, or if the system
has given the signal to another thread; its handler runs before the next wait."""
_JOIN_S = 2.0
_STOPS: dict[int, Stop] = {}


class Event:
    """An event to wait for. Setting it wakes every waiter."""

    __slots__ = ("_check", "_is_set", "_waiters")

    def __init__(self, check: Callable[[], None] | None = None) -> None:
        """``check`` raises if a wait would never end, because the thread that sets the event does not run."""
        self._check = check
        self._is_set = False
        self._waiters: list[Any] = []

    def set(self) -> None:
        self._is_set = True
        if self._waiters:
            for waiter in list(self._waiters):
                _free(waiter)

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the event is set. Returns False if ``timeout_s`` passed first.

        Ctrl-C raises ``KeyboardInterrupt`` here, but never within a step of the session.
        """
        if self._is_set:
            return True
        if self._check is not None:
            self._check()
        end = None if timeout_s is None else time.monotonic() + timeout_s
        thread = threading.get_ident()
        stop = _STOPS.get(thread) if _STOPS else None
        longest_s = SIGNALS_S if thread == threading.main_thread().ident else threading.TIMEOUT_MAX
        waiter = threading.Lock()
        waiter.acquire()
        while not self._is_set and (end is None or time.monotonic() < end):
            if stop is not None:
                stop.begin_wait(waiter)
            self._waiters.append(waiter)
            try:
                if not self._is_set:  # ``set`` may not have seen the waiter
                    waiter.acquire(timeout=longest_s if end is None else min(max(end - time.monotonic(), 0), longest_s))
            finally:
                self._waiters.remove(waiter)
                if stop is not None:
                    stop.end_wait()
        return self._is_set


class Stop:
    """Cancels the waits of one thread, which enters this context.

    Any other thread may ``set`` it: then the current wait of that thread, or its next one, raises ``KeyboardInterrupt``. It is raised once,
    so that the cleanup that follows, such as deleting a sandbox, may wait again. Only waits for an ``Event`` are interrupted.
    """

    def __init__(self) -> None:
        self._requested = False
        self._waiter: Any = None

    def __enter__(self) -> Stop:  # noqa: PYI034  no class derives from it
        _STOPS[threading.get_ident()] = self
        return self

    def __exit__(self, *_: object) -> None:
        del _STOPS[threading.get_ident()]

    def set(self) -> None:
        self._requested = True
        waiter = self._waiter
        if waiter is not None:
            _free(waiter)

    def begin_wait(self, waiter: Any) -> None:
        """The thread is about to wait until this lock is released."""
        self._waiter = waiter
        if self._requested:
            _free(waiter)

    def end_wait(self) -> None:
        """The wait has ended. Raises ``KeyboardInterrupt`` if it was cancelled."""
        self._waiter = None
        if self._requested:
            self._requested = False
            raise KeyboardInterrupt


def _free(waiter: Any) -> None:
    """Release the lock that a thread waits for. The event and a ``Stop`` may both do so."""
    try:
        waiter.release()
    except RuntimeError:
        pass


class Lock:
    """A lock that is free in a forked process, in which the thread that held it does not exist."""

    def __init__(self) -> None:
        self._locks: dict[int, threading.Lock] = {}

    @property
    def own(self) -> threading.Lock:
        """The lock of this process."""
        return self._locks.setdefault(os.getpid(), threading.Lock())


def run_blocking(step: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a blocking step in this thread."""
    return step(*args, **kwargs)


finished = run_blocking


def shielded(step: Callable[..., T], *args: Any, limit_s: float = 0.0) -> T:
    """Run ``step``. Ctrl-C during it is raised at once, as in any other call."""
    return step(*args)


class Background:
    """Background work, each in its own thread. The owner makes it end before it calls ``stop``."""

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []

    def start(self, step: Callable[..., Any], *args: Any, name: str) -> None:
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        thread = threading.Thread(target=_quietly, args=(step, args), name=name, daemon=True)
        thread.start()
        self._threads.append(thread)

    def stop(self) -> None:
        """Wait a bounded time for the end of the threads."""
        end = time.monotonic() + _JOIN_S
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(end - time.monotonic(), 0))


def _quietly(step: Callable[..., Any], args: tuple[Any, ...]) -> None:
    try:
        step(*args)
    except Exception:  # noqa: BLE001, S110  the work reports its own failures, as in the asynchronous API
        pass
