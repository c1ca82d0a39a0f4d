"""What is left in a pipe when a command ended is taken, and no more than that."""

from __future__ import annotations

import asyncio
import os

import pytest

from session_agent.agent.output.pipes import PipeReader, PipeWriter
from session_agent.agent.output.spool import Budget, Spool

_PIPE_BYTES = 64 * 1024


async def test_a_background_flood_does_not_make_the_end_of_a_command_endless(monkeypatch: pytest.MonkeyPatch) -> None:
    spool = Spool(Budget())
    reader, writer = os.pipe()
    append = Spool.append

    def refilled(self: Spool, stream: int, data: bytes) -> None:
        append(self, stream, data)
        assert spool.size < 64 * _PIPE_BYTES, "the reading has no end"
        os.write(writer, data)

    monkeypatch.setattr(Spool, "append", refilled)
    source = PipeReader(reader, 1, spool, arrived=lambda: None, ended=lambda: None)
    os.write(writer, bytes(_PIPE_BYTES))
    assert not source.drain()
    assert source.open
    source.close()
    os.close(writer)


async def test_keys_that_nobody_reads_wait_as_few_pieces_and_each_client_gets_its_own_back() -> None:
    reader, writer = os.pipe()
    sink = PipeWriter(writer)
    back = [0, 0]

    def first(size: int) -> None:
        back[0] += size

    def second(size: int) -> None:
        back[1] += size

    sink.feed(bytes(1 << 20), False, first)
    for _ in range(50_000):
        sink.feed(b"a", False, first)
    for _ in range(50_000):
        sink.feed(b"b", False, second)
    sink.feed(b"", True, second)
    assert len(sink._waiting) < 20
    os.set_blocking(reader, False)
    read = bytearray()
    async with asyncio.timeout(60):
        while sink.open:
            try:
                read += os.read(reader, 1 << 20)
            except BlockingIOError:
                await asyncio.sleep(0)
        while piece := os.read(reader, 1 << 20):
            read += piece
    os.close(reader)
    assert read == bytes(1 << 20) + b"a" * 50_000 + b"b" * 50_000
    assert back == [(1 << 20) + 50_000, 50_000]
