"""Serial workers, one for each sandbox (or group) that has something to do: a slow step delays one of them, not all.

Owns the order of the steps of one key, and the tasks. Knows neither sandboxes nor the store; the steps handle their own errors and limit
how many of them run at once. Called by ``loop``.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable

log = logging.getLogger("gateway.controller")

Step = Callable[[], Awaitable[None]]


class Workers:
    """``most``: how many steps may wait or run; further ones are refused, and the next pass of what starts them starts them again."""

    def __init__(self, most: int = 10_000) -> None:
        self._most = most
        self._count = 0
        self._steps: dict[str, deque[tuple[str, Step]]] = {}
        """By key, the steps of its worker in order; the first is running."""
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, key: str, name: str, step: Step) -> bool:
        """Run the step after those of the same key. False if it is refused; a named step of which one waits or runs is not added."""
        steps = self._steps.get(key)
        if steps is not None and name and any(name == other for other, _ in steps):
            return True
        if self._count >= self._most:
            log.warning("%d steps are waiting: %s of %s is not added", self._count, name or "an event", key)
            return False
        self._count += 1
        if steps is not None:
            steps.append((name, step))
            return True
        self._steps[key] = deque([(name, step)])
        task = asyncio.create_task(self._run(key), name=f"worker of {key}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return True

    async def aclose(self) -> None:
        """Cancel everything that waits or runs."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._steps.clear()  # a worker that was cancelled before it began removes nothing
        self._count = 0

    async def _run(self, key: str) -> None:
        steps = self._steps[key]
        try:
            while steps:
                try:
                    await steps[0][1]()
                except Exception:
                    log.exception("%s of %s failed", steps[0][0] or "an event", key)
                steps.popleft()
                self._count -= 1
        finally:
            self._steps.pop(key, None)
