"""The reader of a pipe takes what is in it when a command ends, and no more; the writer joins input that waits."""

from __future__ import annotations

import asyncio
import os

import pytest

from session_agent.agent.output.pipes import PipeReader, PipeWriter
from session_agent.agent.output.spool import Budget, Spool

_PIPE_BYTES = 64 * 1024


async def test_a_background_process_that_writes_on_does_not_delay_the_end_of_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    spool = Spool(Budget())
    reader, writer = os.pipe()
    append = Spool.append

    def refilled(self: Spool, stream: int, data: bytes) -> None:
        append(self, stream, data)
        assert spool.size < 64 * _PIPE_BYTES, "the reading does not end"
        os.write(writer, data)

    monkeypatch.setattr(Spool, "append", refilled)
    source = PipeReader(reader, 1, spool, arrived=lambda: None, ended=lambda: None)
    os.write(writer, bytes(_PIPE_BYTES))
    assert not source.drain()
    assert source.open
    source.close()
    os.close(writer)


async def test_unread_input_waits_as_few_pieces_and_each_client_gets_its_own_credit() -> None:
    reader, writer = os.pipe()
    sink = PipeWriter(writer)
    credited = [0, 0]

    def credit_first(size: int) -> None:
        credited[0] += size

    def credit_second(size: int) -> None:
        credited[1] += size

    sink.feed(bytes(1 << 20), False, credit_first)
    for _ in range(50_000):
        sink.feed(b"a", False, credit_first)
    for _ in range(50_000):
        sink.feed(b"b", False, credit_second)
    sink.feed(b"", True, credit_second)
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
    assert credited == [(1 << 20) + 50_000, 50_000]
