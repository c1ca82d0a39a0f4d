"""A controller at work for the length of a block."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from gateway.controller.loop import Controller


@contextlib.asynccontextmanager
async def at_work(controller: Controller) -> AsyncIterator[Controller]:
    """It runs in a task of this loop, and has ended when the block has."""
    task = asyncio.create_task(controller.run(), name="controller")
    try:
        yield controller
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
