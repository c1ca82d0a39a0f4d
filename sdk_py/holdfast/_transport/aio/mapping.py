"""Running one coroutine function on many items with limited concurrency.

Owns the tasks: when one fails and its exception is not kept, the others are cancelled. ``threads.mapping`` has the same name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from holdfast._arguments import bad
from holdfast._progress import Progress
from holdfast._transport.aio.events import shielded

T = TypeVar("T")
R = TypeVar("R")
Step = Callable[[T], Awaitable[R]]
_HINT = "SandboxClient.map calls it in threads"


async def mapped(function: Step[T, R], items: list[T], concurrency: int, progress: Progress, *, keep: bool) -> list[R | Exception]:
    """The results in the order of the items; with ``keep`` an exception is returned in the place of its result."""
    results: dict[int, R | Exception] = {}
    waiting = iter(enumerate(items))

    async def work() -> None:
        for number, item in waiting:
            wrong = None
            try:
                begun = function(item)
                if hasattr(begun, "__await__"):
                    outcome: R | Exception = await begun
                else:
                    wrong = bad(f"AsyncSandboxClient.map takes a coroutine function, not {function!r:.80}", _HINT)
            except Exception as failure:
                if not keep:
                    raise
                outcome = failure
            if wrong is not None:
                raise wrong
            results[number] = outcome
            progress.step(outcome)

    tasks = [asyncio.create_task(work(), name=f"holdfast-map-{number}") for number in range(min(concurrency, len(items)))]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        if not all(task.done() for task in tasks):
            await shielded(_ended, tasks)
    return [results[number] for number in range(len(items))]


async def _ended(tasks: list[asyncio.Task[None]]) -> None:
    await asyncio.wait(tasks)
