"""Work that goes on beside a test.

Owns that it has ended, one way or the other, when the block it belongs to has.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from typing import Any


@contextlib.asynccontextmanager
async def in_background(work: Coroutine[Any, Any, object], name: str) -> AsyncIterator[None]:
    """Run ``work`` in a task of this loop; cancelled at the end of the block, where what it failed with is raised."""
    task = asyncio.create_task(work, name=name)
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
