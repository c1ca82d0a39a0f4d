"""Waiting for something outside this process that sends no event: a file, a socket, the end of a process.

Owns the one polling loop of the suite, so that tests state what they wait for and by when, and never sleep for time.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable

_PAUSE_S = 0.02


def until(condition: Callable[[], object], *, deadline_s: float, what: str | Callable[[], str]) -> None:
    """Return once `condition()` is true. Fails the test, naming `what`, when it is not by the deadline."""
    end = time.monotonic() + deadline_s
    never = threading.Event()
    while not condition():
        if time.monotonic() >= end:
            raise AssertionError(f"waited {deadline_s:g} s for {what() if callable(what) else what}")
        never.wait(_PAUSE_S)


async def until_async(condition: Callable[[], object] | Callable[[], Awaitable[object]], *, deadline_s: float, what: str) -> None:
    """As `until`, without holding the event loop; the condition may be a coroutine function."""
    end = time.monotonic() + deadline_s
    never = asyncio.Event()
    while True:
        answer = condition()
        if isinstance(answer, Awaitable):
            answer = await answer
        if answer:
            return
        if time.monotonic() >= end:
            raise AssertionError(f"waited {deadline_s:g} s for {what}")
        try:
            await asyncio.wait_for(never.wait(), _PAUSE_S)
        except TimeoutError:
            continue
