"""Images of tasks, pulled ahead of the rollouts that need them.

Owns the order and the number of pulls in advance. Holdfast does the pulling. If an image cannot be pulled, the creation of its sandboxes
reports the reason.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable

Pull = Callable[[str], Awaitable[bool]]
"""Fetch an image; False where it cannot be pulled."""

PULLS = 4
PULLED_AHEAD = 8


class Images:
    """Pulls each image once, in the order in which tasks need them: at most ``ahead`` that nothing uses yet, ``pulls`` at once.

    ``pull`` None: images are left to the creation of sandboxes.
    """

    def __init__(self, pull: Pull | None, *, ahead: int = PULLED_AHEAD, pulls: int = PULLS) -> None:
        self.failed: list[str] = []
        self._pull, self._ahead = pull, ahead
        self._room = asyncio.Semaphore(pulls)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._used: set[str] = set()
        self._waiting: deque[str] = deque()

    def expect(self, images: Iterable[str]) -> None:
        """The images that will be needed, in order. Begins to pull."""
        if self._pull is not None:
            self._waiting.extend(dict.fromkeys(images))
            self._go_ahead(self._pull)

    async def ready(self, image: str) -> None:
        """Wait until the image was pulled, or could not be."""
        if self._pull is None:
            return
        self._used.add(image)
        if image not in self._tasks:
            self._begin(self._pull, image)
        self._go_ahead(self._pull)
        await asyncio.shield(self._tasks[image])

    async def close(self) -> None:
        """End the pulls that nothing waits for."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def _go_ahead(self, pull: Pull) -> None:
        while self._waiting and len(self._tasks.keys() - self._used) < self._ahead:
            image = self._waiting.popleft()
            if image not in self._tasks:
                self._begin(pull, image)

    def _begin(self, pull: Pull, image: str) -> None:
        self._tasks[image] = asyncio.create_task(self._fetch(pull, image), name=f"pull-{image}")

    async def _fetch(self, pull: Pull, image: str) -> None:
        async with self._room:
            if not await pull(image):
                self.failed.append(image)
