"""What is left in a pipe when a command ended is taken, and no more than that."""

from __future__ import annotations

import os

import pytest

from session_agent.pipes import Source
from session_agent.spool import Budget, Spool

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
    source = Source(reader, 1, spool, arrived=lambda: None, ended=lambda: None)
    os.write(writer, bytes(_PIPE_BYTES))
    assert not source.drain()
    assert source.open
    source.close()
    os.close(writer)
