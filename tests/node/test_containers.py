"""Cancelling the creation of a container: what a thread is still creating is removed after the thread has created it."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from session_agent.node.containers import _to_its_end


async def test_a_cancelled_step_has_ended_before_its_caller_continues(tmp_path: Path) -> None:
    begun, go = threading.Event(), threading.Event()
    made = tmp_path / "folder"

    def step() -> None:
        begun.set()
        go.wait(60)
        made.mkdir()

    async def create() -> None:
        try:
            await _to_its_end(step)
        except asyncio.CancelledError:
            made.rmdir()
            raise

    task = asyncio.create_task(create())
    assert await asyncio.to_thread(begun.wait, 60)
    task.cancel()
    asyncio.get_running_loop().call_later(0.05, go.set)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not made.exists()
