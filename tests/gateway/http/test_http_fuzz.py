"""Any bytes, cut anywhere: answers that are HTTP, at most one for each request, the end of the connection, and service for others."""

from __future__ import annotations

import asyncio
import contextlib
import re

import uvicorn
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from gateway.http.bounded_protocol import BoundedHttpProtocol
from gateway.http.request_fields import read_body

_HEADS = [
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
    b"GET / HTTP/1.1\r\n\r\n",
    b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello",
    b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"5\r\nhello\r\n", b"0\r\n\r\n", b"zz\r\n", b"0\r\nX: y\r\n\r\n", b"\r\n", b"\x16\x03\x01", b"\x82\x80abcd",
    b"CONNECT a:1 HTTP/1.1\r\nHost: x\r\n\r\n",
]  # fmt: skip
_ANSWER = re.compile(rb"HTTP/1\.1 (\d{3}) [^\r\n]*\r\n((?:[^\r\n]+\r\n)*)\r\n")


async def _app(scope: Scope, receive: Receive, send: Send) -> None:
    with contextlib.suppress(Exception):
        await read_body(Request(scope, receive), 1000)
    await Response(b"ok")(scope, receive, send)


def _statuses(data: bytes) -> list[int]:
    """The statuses of a stream of answers; fails if it is not one."""
    found = []
    while data:
        match = _ANSWER.match(data)
        assert match is not None, data[:200]
        size = re.search(rb"content-length: (\d+)", match[2])
        data = data[match.end() + (int(size[1]) if size else 0) :]
        found.append(int(match[1]))
    return found


async def _exchange(pieces: list[bytes]) -> None:
    loop = asyncio.get_running_loop()
    config = uvicorn.Config(_app, log_config=None, lifespan="off")
    config.load()
    state = ServerState()
    server = await loop.create_server(lambda: BoundedHttpProtocol(config, state, {}), "127.0.0.1", 0)
    address = server.sockets[0].getsockname()
    async with asyncio.timeout(60):
        reader, writer = await asyncio.open_connection(*address)
        answers = b""
        with contextlib.suppress(ConnectionError):
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
            writer.write_eof()
            answers = await reader.read()
        statuses = _statuses(answers)
        assert len([status for status in statuses if status >= 200]) <= b"".join(pieces).count(b"HTTP/1.") + len(pieces)
        assert not [status for status in statuses[:-1] if status >= 400], "after a refusal nothing follows"
        other_reader, other = await asyncio.open_connection(*address)
        other.write(_HEADS[0])
        assert (await other_reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200 ")
        other.write_eof()
        await other_reader.read()
        for one in (writer, other):
            one.close()
            with contextlib.suppress(ConnectionError):
                await one.wait_closed()
    server.close()
    await server.wait_closed()


@settings(deadline=None)
@given(
    parts=st.lists(st.one_of(st.sampled_from(_HEADS), st.binary(max_size=40)), max_size=12),
    repeat=st.integers(min_value=1, max_value=60),
    cuts=st.lists(st.integers(min_value=1, max_value=3000), max_size=6),
)
def test_any_bytes_get_http_or_the_end(parts: list[bytes], repeat: int, cuts: list[int]) -> None:
    data = b"".join(parts) * repeat
    pieces = []
    for cut in cuts:
        pieces.append(data[:cut])
        data = data[cut:]
    asyncio.run(_exchange([*(piece for piece in pieces if piece), *([data] if data else [])]))
