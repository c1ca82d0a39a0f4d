"""Waiting for a descriptor on the event loop, without a transport. Used if another process answers with a few bytes."""

from __future__ import annotations

import asyncio


async def until_readable(fd: int, timeout_s: float | None = None) -> None:
    """Wait until the descriptor is readable. Raises TimeoutError."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(fd, readable.set)
    try:
        async with asyncio.timeout(timeout_s):
            await readable.wait()
    finally:
        loop.remove_reader(fd)
