"""The output pipes of a living shell's runs alone: how much is read at a run's end, and what happens when descriptors run out."""

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
from tests.support.own_process import in_own_process
from tests.support.until import until_async

_PIPE_BYTES = 64 * 1024


async def _close(output: RunOutput) -> None:
    open_before = len(os.listdir("/proc/self/fd"))
    output.close()
    await until_async(lambda: len(os.listdir("/proc/self/fd")) <= open_before - 2, deadline_s=60, what="its pipes to be read to their end")


class _Flood:
    """A spool beside a background child that writes as fast as its output is read."""

    def __init__(self, writer: int) -> None:
        self._writer = writer
        self.size_bytes = 0

    def append(self, stream: int, data: bytes) -> None:
        assert self.size_bytes < 64 * _PIPE_BYTES, "the reading does not end"
        self.size_bytes += len(data)
        os.write(self._writer, data)


@in_own_process
async def test_a_background_process_that_writes_on_does_not_delay_the_end_of_a_run() -> None:
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
        await _close(output)


@in_own_process
async def test_when_descriptors_run_out_a_held_pipe_stays_and_no_file_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = RunOutput(asyncio.get_running_loop(), out := os.pipe(), os.pipe())
    holder = os.dup(out[1])
    fifo = tmp_path / "pipe"

    def make_fifo(uid: int | None, gid: int | None) -> str:
        os.mkfifo(fifo)
        return str(fifo)

    monkeypatch.setattr(shell_output, "make_fifo", make_fifo)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        output.collect()
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            assert output.renew(None, None) == {}
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert not fifo.exists()
        output.collect()
        assert output.renew(None, None) == {1: str(fifo)}, "the end of the next run tries again"
    finally:
        os.close(holder)
        await _close(output)


async def test_a_pipe_that_another_process_removes_or_replaces_does_not_stop_the_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = RunOutput(asyncio.get_running_loop(), out := os.pipe(), os.pipe())
    holder = os.dup(out[1])
    fifo = tmp_path / "pipe"
    really_open = os.open

    def replace_once_open(path: str, flags: int) -> int:
        descriptor = really_open(path, flags)
        if path == str(fifo):
            fifo.unlink()
            os.mkfifo(fifo)
        return descriptor

    monkeypatch.setattr(shell_output, "make_fifo", lambda uid, gid: str(fifo))
    try:
        output.collect()
        assert output.renew(None, None) == {}, "it was removed"
        output.collect()
        os.mkfifo(fifo)
        monkeypatch.setattr(os, "open", replace_once_open)
        assert output.renew(None, None) == {1: str(fifo)}
    finally:
        monkeypatch.undo()
        os.close(holder)
        await _close(output)
