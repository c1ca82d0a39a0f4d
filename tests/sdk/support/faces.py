"""Both APIs of the SDK behind one interface: tests are written once, with ``await``, and run on each.

``AsyncFace`` is the asynchronous SDK as it is. ``SyncFace`` wraps the synchronous objects: each call runs in a thread, so that several may
wait at once, and what a method returns is wrapped in turn. Whether a method is awaited is read from its asynchronous twin.
"""

from __future__ import annotations

import asyncio
import inspect
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import holdfast
from holdfast import AsyncSandboxClient, SandboxClient

_THREADS = ThreadPoolExecutor(64, thread_name_prefix="sync-face")
_END = object()


async def _in_thread(step: Any, *args: Any, **kwargs: Any) -> Any:
    loop = asyncio.get_running_loop()
    return adapt(await loop.run_in_executor(_THREADS, lambda: step(*args, **kwargs)))


def adapt(value: Any) -> Any:
    """``value``, wrapped when it is an object of the synchronous SDK."""
    twin = getattr(holdfast, f"Async{type(value).__name__}", None) if type(value).__module__ == "holdfast" else None
    return value if twin is None else Adapted(value, twin)


class Adapted:
    """A synchronous object that is used with ``await``."""

    def __init__(self, inner: Any, twin: type) -> None:
        self.inner = inner
        self._twin = twin

    def __getattr__(self, name: str) -> Any:
        twin = inspect.getattr_static(self._twin, name, None)
        value = getattr(self.inner, name)
        if inspect.iscoroutinefunction(twin):
            return lambda *args, **kwargs: _in_thread(value, *args, **kwargs)
        if inspect.isasyncgenfunction(inspect.unwrap(twin) if callable(twin) else twin):
            return lambda *args, **kwargs: _iterate(value(*args, **kwargs))
        if inspect.isfunction(twin):
            return lambda *args, **kwargs: adapt(value(*args, **kwargs))
        return adapt(value)

    def __aiter__(self) -> Any:
        return _iterate(iter(self.inner))

    async def __aenter__(self) -> Any:
        return await _in_thread(self.inner.__enter__)

    async def __aexit__(self, *args: object) -> None:
        await _in_thread(self.inner.__exit__, *args)


async def _iterate(iterator: Any) -> Any:
    while (value := await _in_thread(next, iterator, _END)) is not _END:
        yield value


def inner(thing: Any) -> Any:
    """The object of the blocking API that ``thing`` wraps; an object of the asynchronous API itself."""
    return getattr(thing, "inner", thing)


def cut_connection(live: Any) -> None:
    """Break the connection of a sandbox's session as a failing network would."""
    driver = inner(live)._driver
    if isinstance(live, holdfast.AsyncSandbox):
        if driver._wire is not None:
            driver._wire.abort()
        return
    with driver._lock:
        if driver._socket is not None:
            driver._socket.shutdown(socket.SHUT_RDWR)


class AsyncFace:
    """The asynchronous SDK."""

    name = "async"

    def client(self, *args: Any, **kwargs: Any) -> Any:
        return AsyncSandboxClient(*args, **kwargs)


class SyncFace:
    """The synchronous SDK, made awaitable."""

    name = "sync"

    def client(self, *args: Any, **kwargs: Any) -> Any:
        return adapt(SandboxClient(*args, **kwargs))
