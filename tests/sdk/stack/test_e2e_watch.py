"""``files.watch`` on the real stack and both APIs: events, their end, and lost connections."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from holdfast import (
    FileEvent,
    InvalidPathError,
    RemoteFileNotFoundError,
    RemotePermissionError,
    SessionLostError,
    WaitTimeoutError,
)

from tests.sdk.support.faces import cut_connection, inner
from tests.sdk.support.requirements import STACK

pytestmark = STACK


async def until(watch: Any, path: str) -> list[FileEvent]:
    """The events up to the one about ``path``."""
    found: list[FileEvent] = []
    while not found or found[-1].path != path:
        event = await watch.read(timeout=60)
        assert event is not None
        found.append(event)
    return found


async def test_changes_by_commands_and_by_the_files_api_are_reported(live: Any) -> None:
    await live.exec("mkdir -p /tmp/w/sub")
    async with await live.files.watch("/tmp/w", recursive=True) as watch:
        assert "/tmp/w" in repr(inner(watch))
        await live.exec("cd /tmp/w; echo x >sub/a; mv sub/a b; rm b; mkdir -p c/d")
        await live.files.write("/tmp/w/c/d/e", b"e")
        found = await until(watch, "/tmp/w/c/d")
        assert [(event.type, event.path) for event in found if event.type != "modified"] == [
            ("created", "/tmp/w/sub/a"), ("moved", "/tmp/w/sub/a"), ("deleted", "/tmp/w/b"),
            ("created", "/tmp/w/c"), ("created", "/tmp/w/c/d"),
        ]  # fmt: skip
        moved = next(event for event in found if event.type == "moved")
        assert moved == FileEvent("moved", "/tmp/w/sub/a", "/tmp/w/b")
        assert found[-1].is_dir
        await live.exec("mkdir /tmp/w/last")
        await until(watch, "/tmp/w/last")
        for timeout_s in (0.3, 0):
            with pytest.raises(WaitTimeoutError):
                await watch.read(timeout=timeout_s)
        await live.exec("rm -r /tmp/w")
        types = [event.type async for event in watch]
    assert types[-1] == "deleted"
    assert await watch.read() is None


async def test_a_watch_ends_with_its_block_and_wakes_its_readers(live: Any) -> None:
    async with await live.files.watch("/tmp") as watch:
        waiting = asyncio.create_task(watch.read())
        await live.exec("true")
        await watch.close()
        assert await asyncio.wait_for(waiting, 60) is None
    assert [event async for event in watch] == []
    assert "ended" in repr(inner(watch))


async def test_paths_that_cannot_be_watched_are_refused(live: Any) -> None:
    with pytest.raises(RemoteFileNotFoundError) as refused:
        await live.files.watch("/no/such")
    assert refused.value.filename == "/no/such"
    with pytest.raises(InvalidPathError):
        await live.files.watch("")
    await live.exec("mkdir -m 700 /tmp/closed")
    with pytest.raises(RemotePermissionError):
        await live.files.watch("/tmp/closed", user=1000)


async def test_a_lost_connection_loses_no_event(live: Any) -> None:
    """Changes during a disconnection are kept and reported when the session resumes."""
    await live.exec("mkdir /tmp/r")
    watch = await live.files.watch("/tmp/r")
    job = await live.start("for n in $(seq 1 400); do touch /tmp/r/$n; sleep 0.002; done", detached=True)
    for _ in range(3):
        await until(watch, f"/tmp/r/{_ * 50 + 10}")
        cut_connection(live)
    found = await until(watch, "/tmp/r/400")
    await job.wait()
    await live.exec("touch /tmp/r/end")
    found = await until(watch, "/tmp/r/end")
    assert "overflow" not in [event.type for event in found]
    await watch.close()


async def test_every_event_arrives_once_although_the_connection_is_cut(live: Any) -> None:
    await live.exec("mkdir /tmp/once")
    watch = await live.files.watch("/tmp/once")
    job = await live.start("for n in $(seq 1 300); do mkdir /tmp/once/$n; sleep 0.003; done; mkdir /tmp/once/end", detached=True)
    found = []
    for mark in (50, 120, 200):
        found += await until(watch, f"/tmp/once/{mark}")
        cut_connection(live)
    found += await until(watch, "/tmp/once/end")
    await job.wait()
    created = [event.path.rpartition("/")[2] for event in found if event.type == "created"]
    assert created == [*map(str, range(1, 301)), "end"]
    await watch.close()


async def test_a_read_raises_when_its_session_is_closed(live: Any) -> None:
    watch = await live.files.watch("/tmp")
    waiting = asyncio.create_task(watch.read())
    await live.exec("true")
    await live.close()
    with pytest.raises(SessionLostError):
        await asyncio.wait_for(waiting, 60)


async def test_unread_events_are_bounded_and_the_overflow_is_reported(live: Any) -> None:
    await live.exec("mkdir /tmp/storm")
    watch = await live.files.watch("/tmp/storm")
    made = "import os\nfor n in range(150000):\n  os.mkdir(f'/tmp/storm/{n % 50}'); os.rmdir(f'/tmp/storm/{n % 50}')"
    await live.exec(["python3", "-c", made])
    await live.exec("touch /tmp/storm/end")
    types = set()
    count = 0
    while "overflow" not in types:
        event = await watch.read(timeout=60)
        assert event is not None
        types.add(event.type)
        count += 1
    assert count < 100_000, "a third of the events that there were"
    await live.exec("touch /tmp/storm/after")
    await until(watch, "/tmp/storm/after")
    await watch.close()
