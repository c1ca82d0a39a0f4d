"""The node's watchers, and the events sent to them.

Owns the watchers' queues. Policy: a watcher that falls QUEUE events behind is closed and has to watch again, which
starts with a full list, so nothing is lost silently. Called by sandboxes.py (publish) and server.py (watch).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

QUEUE = 4096


class Events:
    """Fan-out of sandbox events."""

    def __init__(self, snapshot: Callable[[], list[dict[str, Any]]]) -> None:
        self.began_at = 0.0
        """When this node started (seconds since the epoch), after every sandbox of an earlier node had ended."""
        self._snapshot = snapshot
        self._watchers: dict[int, asyncio.Queue[dict[str, Any] | None]] = {}
        self._next = 0

    def publish(self, event: dict[str, Any]) -> None:
        for key, queue in list(self._watchers.items()):
            if queue.qsize() >= QUEUE:
                del self._watchers[key]
                queue.get_nowait()
                queue.put_nowait(None)
            else:
                queue.put_nowait(event)

    async def watch(self) -> AsyncGenerator[dict[str, Any], None]:
        """First the full list, then every change; ends when the node stops or the watcher is too slow."""
        queue: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue(QUEUE + 1)
        key = self._next
        self._next += 1
        self._watchers[key] = queue
        try:
            yield {"type": "sync", "began_at": self.began_at, "sandboxes": self._snapshot()}
            while (event := await queue.get()) is not None:
                yield event
        finally:
            self._watchers.pop(key, None)

    def close(self) -> None:
        for queue in self._watchers.values():
            queue.put_nowait(None)
        self._watchers.clear()
