"""Waiting in the asynchronous API: an event, a lock for each event loop, and background tasks.

Owns no sockets. Imports no module of sessions, which a program that only sends requests does not need. ``threads.events`` has the same
names.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

P = ParamSpec("P")
T = TypeVar("T")

Cancelled = asyncio.CancelledError
"""The exception that a local cancellation raises inside a wait."""


class Event:
    """An event to wait for. Setting it wakes every waiter."""

    __slots__ = ("_is_set", "_waiters")

    def __init__(self) -> None:
        self._is_set = False
        self._waiters: list[asyncio.Future[bool]] = []

    def set(self) -> None:
        self._is_set = True
        if self._waiters:
            for waiter in self._waiters:
                if not waiter.done():
                    waiter.set_result(False)
            self._waiters.clear()

    def clear(self) -> None:
        self._is_set = False

    async def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the event is set. Returns False if ``timeout_s`` passed first."""
        if self._is_set:
            return True
        loop = asyncio.get_running_loop()
        end = None if timeout_s is None else loop.time() + max(timeout_s, 0)
        late = False
        while not (self._is_set or late):  # another waiter may have cleared it since
            waiter: asyncio.Future[bool] = loop.create_future()
            self._waiters.append(waiter)
            timer = None if end is None else loop.call_at(end, _time_out, waiter)
            try:
                late = await waiter
            finally:
                if timer is not None:
                    timer.cancel()
                if waiter in self._waiters:
                    self._waiters.remove(waiter)
        return self._is_set


class Lock:
    """A lock for each event loop. A lock that was held when its event loop ended does not block the next event loop."""

    def __init__(self) -> None:
        self._locks: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()

    @property
    def own(self) -> asyncio.Lock:
        """The lock of this event loop."""
        return self._locks.setdefault(asyncio.get_running_loop(), asyncio.Lock())


def _time_out(waiter: asyncio.Future[bool]) -> None:
    if not waiter.done():
        waiter.set_result(True)


async def run_blocking(step: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a blocking step, such as disk access, in a thread."""
    return await asyncio.to_thread(step, *args, **kwargs)


class Background:
    """Background tasks, which end together with their owner."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, step: Callable[..., Coroutine[Any, Any, Any]], *args: Any, name: str) -> None:
        task = asyncio.get_running_loop().create_task(step(*args), name=name)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # the task reports its own failures; this only marks the exception as retrieved

    async def stop(self) -> None:
        """Cancel the running tasks and wait for their end."""
        loop, me = asyncio.get_running_loop(), asyncio.current_task()
        tasks = [task for task in self._tasks if task is not me and task.get_loop() is loop]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
