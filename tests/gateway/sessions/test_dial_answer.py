"""The answer of an agent to a dial or an adoption, as a hostile agent may send it."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import Mock

import pytest

from gateway.agents.dial import _AnswerReader


def reader() -> Any:
    made = _AnswerReader(asyncio.get_running_loop().create_future())
    made.connection_made(Mock(spec=asyncio.Transport))
    return made


async def test_an_answer_is_the_same_however_it_is_divided() -> None:
    answer = b"HTTP/1.1 409 Conflict\r\nContent-Length: 4\r\nX-A: b\r\n\r\nbody"
    for size in (1, 2, 3, 7, len(answer)):
        receiving = reader()
        for start in range(0, len(answer), size):
            receiving.data_received(answer[start : start + size])
        assert receiving.answer.result() == (409, {"content-length": "4", "x-a": "b"}, b"body")


async def test_an_upgrade_has_no_body_whatever_it_declares() -> None:
    receiving = reader()
    receiving.data_received(
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nContent-Length: 60000\r\n\r\nearly"
    )
    assert receiving.answer.result()[2] == b"early"


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 20000, "answer is too long"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 90000\r\n\r\n" + b"x" * 85000, "answer is too long"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n", "the agent's answer is not HTTP"),
        (b"SSH-2.0\r\n\r\n", "the agent's answer is not HTTP"),
    ],
)
async def test_what_is_too_long_or_no_answer_is_refused(sent: bytes, why: str) -> None:
    receiving = reader()
    receiving.data_received(sent)
    with pytest.raises(OSError, match=why):
        receiving.answer.result()
