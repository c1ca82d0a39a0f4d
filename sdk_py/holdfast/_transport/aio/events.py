"""Waiting in the asynchronous API: an event, a lock for each event loop, and background tasks.

Owns no sockets. Imports no module of sessions, which a program that only sends requests does not need. ``threads.events`` has the same
names.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import sys
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ParamSpec, TypeVar, cast
from weakref import WeakKeyDictionary

P = ParamSpec("P")
T = TypeVar("T")

CLEANUP_S = 20.0
"""How long a cancelled call may take to remove what it has begun."""
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


async def shielded(step: Callable[..., Coroutine[Any, Any, T]], *args: Any, limit_s: float = CLEANUP_S) -> T:
    """Run ``step`` to its end, although the caller is cancelled meanwhile; then raise the cancellation.

    Once cancelled, the step has at most ``limit_s`` seconds. It runs in a task of its own, because a cancelled scope of anyio cancels every
    wait in it again and again. A step may run a second time from its start: when the event loop ends, that task is cancelled too.
    """
    loop = asyncio.get_running_loop()
    task = loop.create_task(step(*args), name="holdfast-cleanup")
    again, cancelled, due = True, None, None
    with _uncancelled():
        while True:
            try:
                await asyncio.wait([task], timeout=None if due is None else max(due - loop.time(), 0.0))
            except asyncio.CancelledError as why:
                cancelled, due = why, due or loop.time() + limit_s
            if task.cancelled() and again:
                again, task = False, loop.create_task(step(*args), name="holdfast-cleanup")
            elif task.done():
                break
            elif due is not None and loop.time() >= due:
                task.cancel()
                again = False
                await asyncio.wait([task], timeout=1.0)
                break
    if cancelled is not None:
        if task.done() and not task.cancelled():
            task.exception()  # marks it as retrieved
        raise cancelled
    return task.result()


def _uncancelled() -> AbstractContextManager[object]:
    """A scope that anyio does not cancel from outside, if the program uses anyio: ``shielded`` would wake up in every step of the loop."""
    anyio = sys.modules.get("anyio")
    return nullcontext() if anyio is None else cast(AbstractContextManager[object], anyio.CancelScope(shield=True))


async def finished(step: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """As ``run_blocking``, but a cancellation is raised only when the step has ended, which would otherwise go on and create files. A file
    that it opened is closed then."""
    run = functools.partial(contextvars.copy_context().run, step, *args, **kwargs)
    future: asyncio.Future[T] = asyncio.get_running_loop().run_in_executor(None, run)
    cancelled = None
    with _uncancelled():
        while not future.done():
            try:
                await asyncio.wait([future])
            except asyncio.CancelledError as why:
                cancelled = why
    if cancelled is None:
        return future.result()
    if future.exception() is None and hasattr(opened := future.result(), "close"):
        opened.close()
    raise cancelled


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
