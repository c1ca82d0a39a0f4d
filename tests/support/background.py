"""Background tasks of a test.

Owns the end of the task: when the block that started it ends, the task has finished or was cancelled.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from typing import Any


@contextlib.asynccontextmanager
async def in_background(work: Coroutine[Any, Any, object], name: str) -> AsyncIterator[None]:
    """Run ``work`` in a task of this loop; it is cancelled at the end of the block, and an exception that it raised is raised there."""
    task = asyncio.create_task(work, name=name)
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
