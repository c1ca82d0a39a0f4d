"""Cancelling the creation of a container, whose thread creates it to its end and then removes it, and ending one that does not end."""

from __future__ import annotations

import asyncio
import os
import subprocess
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from session_agent.node import containers
from session_agent.node.containers import ContainerFactory, _to_its_end


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


async def test_a_process_that_does_not_end_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A delete ends it and then releases what it has, and each of these would wait; the kernel reports no end here, as in state D."""
    monkeypatch.setattr(containers, "_DEATH_S", 0.01)
    waits: list[int] = []

    class NeverGone(asyncio.Event):
        async def wait(self) -> Any:
            waits.append(1)
            return await super().wait()

    with subprocess.Popen(["sleep", "600"]) as process:
        pidfd = os.pidfd_open(process.pid)
        try:
            log = SimpleNamespace(name="box", close=lambda: None)
            container: Any = SimpleNamespace(
                pid=process.pid, pidfd=pidfd, gone=NeverGone(), agent_log=log, survives=False, close_channels=lambda: None
            )
            for _ in range(2):
                await ContainerFactory.end(object.__new__(ContainerFactory), container)
        finally:
            os.close(pidfd)
    assert (len(waits), container.survives) == (1, True)
