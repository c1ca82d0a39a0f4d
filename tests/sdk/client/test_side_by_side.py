"""Copies between this machine and the sandbox: concurrent ones, a cancelled one, and content that arrived changed."""

from __future__ import annotations

import asyncio
import hashlib
import threading
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from holdfast import AsyncSandboxClient, ChecksumError
from holdfast_wire.frames import Closed, Open, Opened, Output

from tests.sdk.support.fake_agent import FakeAgent, HeldSession
from tests.support.until import until

CONTENT = b"x" * 1000


@pytest.mark.parametrize("wrong", [{"crc32": 7}, {"size": 999}])
async def test_a_file_that_differs_from_what_the_agent_counted_is_an_error(sandbox: Any, agent: FakeAgent, wrong: dict[str, int]) -> None:
    changed = dict(wrong)

    def transfer(held: HeldSession, opened: Open) -> None:
        for fact in (
            Opened(opened.channel, {}),
            Output(opened.channel, 1, CONTENT),
            Output(opened.channel, 1, b""),
            Closed(opened.channel, {"size": len(CONTENT), "crc32": zlib.crc32(CONTENT), "sha256": "0" * 64, **changed}),
        ):
            held.session.send(fact)

    agent.transfer = transfer
    with pytest.raises(ChecksumError, match="the checksum of the 1000 transferred bytes differs in the sandbox"):
        await sandbox.files.read("/a")
    changed.clear()
    assert await sandbox.files.read("/a") == CONTENT


async def test_two_downloads_to_one_file_both_succeed(sandbox: Any, agent: FakeAgent, tmp_path: Path) -> None:
    reading: list[tuple[HeldSession, int]] = []

    def transfer(held: HeldSession, opened: Open) -> None:
        number = opened.channel
        if opened.kind == "fs":
            entry = {"name": "a", "path": "/a", "type": "file", "size": len(CONTENT), "mode": 0o644, "mtime": 0.0}
            held.session.send(Closed(number, {"entry": entry}))
            return
        held.session.send(Opened(number, {}))
        held.session.send(Output(number, 1, CONTENT))
        reading.append((held, number))

    def end(held: HeldSession, number: int) -> None:
        held.session.send(Output(number, 1, b""))
        held.session.send(Closed(number, {"size": len(CONTENT), "sha256": hashlib.sha256(CONTENT).hexdigest()}))

    agent.transfer = transfer
    target = tmp_path / "target"
    copies = [asyncio.ensure_future(sandbox.files.download("/a", target)) for _ in range(2)]
    await asyncio.to_thread(until, lambda: len(reading) == 2, deadline_s=60, what="both downloads to read")
    for held, number in reading:
        await asyncio.to_thread(agent.call, partial(end, held, number))
    await asyncio.gather(*copies)
    assert target.read_bytes() == CONTENT
    assert [path.name for path in tmp_path.iterdir()] == ["target"]


async def test_an_upload_that_is_cancelled_while_the_disk_is_read_is_cancelled(
    agent: FakeAgent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading_disk, go_on = threading.Event(), threading.Event()

    def pack(source: Path, **_: object) -> Iterator[bytes]:
        reading_disk.set()
        assert go_on.wait(60)
        yield b"x"

    monkeypatch.setattr("holdfast._async.files.pack", pack)
    agent.transfer = lambda held, opened: held.session.send(Opened(opened.channel, {}))
    async with AsyncSandboxClient(agent.url, "key") as client:
        upload = asyncio.create_task(client.get_sandbox("sb").files.upload(tmp_path, "/to"))
        await asyncio.to_thread(reading_disk.wait, 60)
        upload.cancel()
        await asyncio.sleep(0)  # the upload receives the cancellation; it ends once the read has returned
        go_on.set()
        await asyncio.wait([upload])
        assert upload.cancelled()
