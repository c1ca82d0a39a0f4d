"""A controller at work for the length of a block."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from gateway.controller.loop import Controller
from tests.support.background import in_background


@contextlib.asynccontextmanager
async def at_work(controller: Controller) -> AsyncIterator[Controller]:
    """It runs in a task of this loop, and has ended when the block has."""
    async with in_background(controller.run(), "controller"):
        yield controller
