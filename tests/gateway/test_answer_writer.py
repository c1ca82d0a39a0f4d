"""The writes of an answer: its head and the beginning of its body are one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import cast

from gateway.http.answer_writer import AnswerWriter
from tests.gateway.harness import Served

HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n"


class Transport:
    """Keeps what is written, one entry a write."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.closed_after: int | None = None

    def write(self, data: bytes) -> None:
        self.writes.append(data)

    def writelines(self, pieces: Iterable[bytes]) -> None:
        self.writes.append(b"".join(pieces))

    def close(self) -> None:
        self.closed_after = len(self.writes)

    def is_closing(self) -> bool:
        return self.closed_after is not None


def _writer() -> tuple[Transport, AnswerWriter]:
    transport = Transport()
    return transport, AnswerWriter(cast(asyncio.Transport, transport), asyncio.get_running_loop())


async def test_head_and_body_are_one_write() -> None:
    transport, writer = _writer()
    writer.write(HEAD)
    writer.write(b"a")
    writer.write(b"b")
    await asyncio.sleep(0)
    assert transport.writes == [HEAD + b"a", b"b"]


async def test_a_head_does_not_wait_for_a_body_that_comes_later() -> None:
    transport, writer = _writer()
    writer.write(HEAD)
    await asyncio.sleep(0)
    assert transport.writes == [HEAD]
    writer.write(b"ab")
    assert transport.writes == [HEAD, b"ab"]


async def test_100_continue_leaves_at_once() -> None:
    transport, writer = _writer()
    writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    assert transport.writes == [b"HTTP/1.1 100 Continue\r\n\r\n"]
    writer.write(HEAD)
    writer.write(b"ab")
    assert transport.writes[1:] == [HEAD + b"ab"]


async def test_a_close_comes_after_the_head() -> None:
    transport, writer = _writer()
    writer.write(HEAD)
    writer.close()
    await asyncio.sleep(0)
    assert (transport.writes, transport.closed_after, writer.is_closing()) == ([HEAD], 1, True)


async def test_the_server_answers_in_one_write(served: Served) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(served.url.rpartition(":")[2]))
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" * 2)
    async with asyncio.timeout(60):
        for _ in range(2):  # pipelined ones too
            head = await reader.readuntil(b"\r\n\r\n")
            size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            assert await reader.readexactly(size) == b'{"status":"healthy"}'
    writer.transport.abort()
