"""The pipes of a living shell's runs by themselves: how much is taken with a run's end, and what happens without descriptors to spare."""

from __future__ import annotations

import asyncio
import os
import resource
from pathlib import Path
from typing import cast

import pytest

from session_agent.agent.output.spool import Spool
from session_agent.agent.shell import output as shell_output
from session_agent.agent.shell.output import RunOutput
from tests.support.until import until_async

_PIPE_BYTES = 64 * 1024


async def _closed(output: RunOutput) -> None:
    open_before = len(os.listdir("/proc/self/fd"))
    output.close()
    await until_async(lambda: len(os.listdir("/proc/self/fd")) <= open_before - 2, deadline_s=10, what="its pipes to be read to their end")


class _Flood:
    """A spool beside a background child that writes as fast as its output is read."""

    def __init__(self, writer: int) -> None:
        self._writer = writer
        self.size_bytes = 0

    def append(self, stream: int, data: bytes) -> None:
        assert self.size_bytes < 64 * _PIPE_BYTES, "the reading has no end"
        self.size_bytes += len(data)
        os.write(self._writer, data)


async def test_a_background_flood_does_not_make_the_end_of_a_run_endless() -> None:
    output = RunOutput(asyncio.get_running_loop(), out := os.pipe(), os.pipe())
    writer = os.dup(out[1])
    flood = _Flood(writer)
    try:
        os.write(writer, bytes(_PIPE_BYTES))
        output.direct(cast("Spool", flood), lambda: None)
        output.collect()
        assert _PIPE_BYTES <= flood.size_bytes <= 3 * _PIPE_BYTES
        fifos = output.renew(None, None)
        assert list(fifos) == [1]
        os.unlink(fifos[1])
    finally:
        os.close(writer)
        await _closed(output)


async def test_without_descriptors_to_spare_a_held_pipe_stays_and_no_file_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = RunOutput(asyncio.get_running_loop(), out := os.pipe(), os.pipe())
    holder = os.dup(out[1])
    place = tmp_path / "pipe"

    def make_fifo(uid: int | None, gid: int | None) -> str:
        os.mkfifo(place)
        return str(place)

    monkeypatch.setattr(shell_output, "make_fifo", make_fifo)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        output.collect()
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            assert output.renew(None, None) == {}
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert not place.exists()
        output.collect()
        assert output.renew(None, None) == {1: str(place)}, "the next end is the next try"
    finally:
        os.close(holder)
        await _closed(output)
