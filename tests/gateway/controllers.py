"""Runs a controller for the duration of a ``with`` block."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from gateway.controller.loop import Controller
from tests.support.background import in_background


@contextlib.asynccontextmanager
async def at_work(controller: Controller) -> AsyncIterator[Controller]:
    """Run ``controller`` in a task of this event loop; the task has ended when the block ends."""
    async with in_background(controller.run(), "controller"):
        yield controller
