"""Malformed, oversized and slow HTTP: each request gets a problem document and its connection ends, in bounded time and memory."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

import pytest
from holdfast_wire.websocket_frames import BINARY, client_frame, server_frame

from gateway.http.bounded_protocol import HEAD_BYTES, BoundedHttpProtocol
from gateway.http.request_heads import HEAD_FIELDS
from tests.gateway.harness import ADA, DEADLINE_S, ScriptedAgent, Served, echo

_WS = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"


def _port(served: Served) -> int:
    return int(served.url.rpartition(":")[2])


async def _response(served: Served, *pieces: bytes) -> tuple[int, dict[str, str], Any]:
    """Status, headers and document of the answer to raw bytes, once the connection has ended."""
    reader, writer = await asyncio.open_connection("127.0.0.1", _port(served))
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        async with asyncio.timeout(DEADLINE_S):
            answer = await reader.read()
    finally:
        writer.transport.abort()
    head, _, body = answer.decode().partition("\r\n\r\n")
    first, *lines = head.split("\r\n")
    return (
        int(first.split()[1]),
        {name.lower(): text.strip() for name, _, text in (line.partition(":") for line in lines)},
        json.loads(body),
    )


@pytest.mark.parametrize(
    "request_",
    [
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"GET /caf\xe9 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST /sandboxes HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: x\r\nX: a\r\n b\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: x\r\nX : a\r\n\r\n",
    ],
    ids=["tls", "path", "two lengths", "folded", "space"],
)
async def test_a_malformed_request_gets_a_problem_document(served: Served, request_: bytes) -> None:
    status, headers, body = await _response(served, request_)
    assert (status, body["status"], body["code"], headers["content-type"]) == (400, 400, "protocol_error", "application/problem+json")
    assert body["hint"]


@pytest.mark.parametrize(
    "pieces",
    [
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\nX: ", b"a" * 2 * HEAD_BYTES),
        (b"GET /", b"a" * 2 * HEAD_BYTES),
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\n", b"".join(b"X-%d: 1\r\n" % n for n in range(HEAD_FIELDS + 1))),
    ],
    ids=["field", "path", "fields"],
)
async def test_an_endless_head_is_refused(served: Served, pieces: tuple[bytes, ...]) -> None:
    status, _, body = await _response(served, *pieces)
    assert (status, body["code"]) == (431, "request_too_large")


async def test_endless_trailers_are_refused(served: Served) -> None:
    head = b"POST /healthz HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: "
    reader, writer = await asyncio.open_connection("127.0.0.1", _port(served))
    writer.write(head + b"a" * 8 * HEAD_BYTES)
    async with asyncio.timeout(DEADLINE_S):
        assert b"HTTP/1.1 431 " in await reader.read()  # after the response to the request itself, or instead of it
    writer.transport.abort()


async def test_a_slow_head_and_a_silent_connection_are_cut_off(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BoundedHttpProtocol, "head_s", 0.5)
    status, _, body = await _response(served, b"GET /healthz HTTP/1.1\r\nHo")
    assert (status, body["code"]) == (408, "wait_timeout")
    reader, writer = await asyncio.open_connection("127.0.0.1", _port(served))
    async with asyncio.timeout(DEADLINE_S):
        assert await reader.read() == b""
    writer.transport.abort()


async def test_a_stalled_body_times_out(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.http.request_fields._BODY_PAUSE_S", 0.05)
    head = f"POST /sandboxes HTTP/1.1\r\nHost: x\r\nX-API-Key: {ADA}\r\nContent-Length: 20\r\nConnection: close\r\n\r\n{{"
    status, _, body = await _response(served, head.encode())
    assert (status, body["code"]) == (408, "wait_timeout")


async def test_a_long_body_does_not_count_as_a_long_head(served: Served) -> None:
    async with served.client() as client:
        answer = await client.post("/sandboxes", content=b'{"image": "host", "x": "' + b"a" * 900_000 + b'"}')
    assert answer.status_code == 200


async def test_a_websocket_to_an_unknown_path_is_not_found(served: Served) -> None:
    status, _, body = await _response(served, f"GET /nowhere HTTP/1.1\r\nHost: x\r\n{_WS}\r\n".encode())
    assert (status, body["code"]) == (404, "not_found")


async def test_the_refusal_of_a_method_lists_every_allowed_one(served: Served) -> None:
    async with served.client() as client:
        assert (await client.put("/sandboxes")).headers["Allow"] == "GET, HEAD, POST"
        assert (await client.post("/sandboxes/x")).headers["Allow"] == "DELETE, GET, HEAD, PATCH"


async def test_no_response_repeats_the_host_header(served: Served) -> None:
    async with served.client() as client:
        answer = await client.get("/sandboxes/", headers={"Host": "evil.example"})
    assert (answer.status_code, answer.headers.get("Location")) == (404, None)


@pytest.mark.parametrize("path", ["/sandboxes", "/sandboxes/x/exec"])
async def test_a_deeply_nested_body_is_refused_as_invalid_json(served: Served, path: str) -> None:
    await served.place("x", "unix:///nowhere")
    deep = '{"image": "host", "command": "true", "x": ' + "[" * 500 + "]" * 500 + "}"
    async with served.client() as client:
        answer = await client.post(path, content=deep.encode())
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_json")


async def test_a_cursor_of_thousands_of_digits_is_refused(served: Served) -> None:
    async with served.client() as client:
        answer = await client.get("/sandboxes", params={"cursor": "9" * 5000 + ":a"})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_argument")


@pytest.mark.parametrize("line", ["Sec-WebSocket-Version: 12\r\n", "Sec-WebSocket-Key: short\r\n"])
async def test_a_wrong_opening_handshake_is_refused(served: Served, line: str) -> None:
    await served.place("sb-1", "unix:///nowhere")
    name = line.partition(":")[0]
    head = "".join(f"{one}\r\n" for one in _WS.split("\r\n") if one and not one.startswith(name)) + line
    request = f"GET /sandboxes/sb-1/session HTTP/1.1\r\nHost: x\r\nX-API-Key: {ADA}\r\n{head}\r\n"
    status, headers, body = await _response(served, request.encode())
    assert (status, body["code"], headers["connection"]) == (400, "protocol_error", "close")


async def test_frames_behind_an_upgrade_are_delivered_once_it_was_accepted(served: Served) -> None:
    async with ScriptedAgent(echo) as agent:
        await served.place("sb-1", agent.endpoint)
        request = f"GET /sandboxes/sb-1/session HTTP/1.1\r\nHost: x\r\nX-API-Key: {ADA}\r\n{_WS}\r\n".encode()
        frame = client_frame(BINARY, b"early", b"abcd")
        for pieces in ((request + frame * 2,), (request + frame[:3], frame[3:] + frame)):
            reader, writer = await asyncio.open_connection("127.0.0.1", _port(served))
            for piece in pieces:
                writer.write(piece)
                await asyncio.sleep(0)
            async with asyncio.timeout(DEADLINE_S):
                assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
                assert await reader.readexactly(14) == server_frame(BINARY, b"early") * 2
            writer.transport.abort()


async def test_a_refused_upgrade_is_answered_although_frames_follow_it(served: Served) -> None:
    request = f"GET /sandboxes/sb-1/session HTTP/1.1\r\nHost: x\r\n{_WS}\r\n".encode()
    for rest in (b"\x82\x80abcd", b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", bytes(1_000_000)):
        status, headers, body = await _response(served, request + rest)
        assert (status, body["code"], headers["connection"]) == (401, "key_missing", "close")


async def test_frames_behind_the_upgrade_of_a_terminal_are_refused(served: Served) -> None:
    request = f"GET /sandboxes/sb-1/exec/pty HTTP/1.1\r\nHost: x\r\nX-API-Key: {ADA}\r\n{_WS}\r\n".encode()
    status, _, body = await _response(served, request + b"\x82\x80abcd")
    assert (status, body["code"]) == (400, "protocol_error")


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        ("GET /healthz HTTP/1.1\r\n", (400, "protocol_error")),
        ("GET /healthz HTTP/1.1\r\nHost: x\r\nHost: x\r\n", (400, "protocol_error")),
        ("GET /healthz HTTP/1.0\r\nHost: x\r\nHost: y\r\n", (400, "protocol_error")),
        ("GET /healthz HTTP/1.1\r\nHost: x y\r\n", (400, "protocol_error")),
        ("GET /healthz HTTP/1.1\r\nHost: user@x\r\n", (400, "protocol_error")),
        ("GET /healthz HTTP/2.0\r\nHost: x\r\n", (505, "protocol_error")),
        ("GET /healthz\r\n", (505, "protocol_error")),
        ("POST /sandboxes HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n", (501, "unsupported")),
        ("POST /sandboxes HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", (400, "protocol_error")),
        ("POST /sandboxes HTTP/1.0\r\nTransfer-Encoding: chunked\r\n", (400, "protocol_error")),
    ],
)
async def test_a_head_that_http_does_not_allow_is_refused(served: Served, head: str, expected: tuple[int, str]) -> None:
    """RFC 9112 §2.3, §3.2, §6.1: the parser accepts all of these."""
    for upgrade in ("", "Connection: Upgrade\r\nUpgrade: h2c\r\n") if "HTTP/1.1" in head else ("",):
        status, headers, body = await _response(served, f"{head}{upgrade}\r\n".encode())
        assert (status, body["code"], headers["connection"]) == (*expected, "close")


@pytest.mark.parametrize("host", ["x", "[::1]:8765", "", "a-b.example:80"])
async def test_a_host_may_be_anything_that_an_address_allows(served: Served, host: str) -> None:
    status, _, _ = await _response(served, f"GET /healthz HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
    assert status == 200


_CHUNKED = f"POST /sandboxes HTTP/1.1\r\nHost: x\r\nX-API-Key: {ADA}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()


@pytest.mark.parametrize("body", [b"zz\r\n", b"2\r\n{}abc\r\n", b"2\r\n{", b"-1\r\n", b"fffffffffffffffff\r\n", b"1\n"])
@pytest.mark.parametrize("split", [False, True])
async def test_a_malformed_chunk_is_answered(served: Served, body: bytes, split: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.http.request_fields._BODY_PAUSE_S", 1.0)
    pieces = (_CHUNKED, body) if split else (_CHUNKED + body,)
    expected = (408, "wait_timeout") if body == b"2\r\n{" else (400, "protocol_error")
    if expected[0] == 408:
        pieces = (pieces[0].replace(b"X-API", b"Connection: close\r\nX-API"), *pieces[1:])
    status, headers, answer = await _response(served, *pieces)
    assert (status, answer["code"], headers["connection"]) == (*expected, "close")


@pytest.mark.parametrize("bad", [b"\x16\x03\x01", b"GET / HTTP/1.1\r\n\r\n", _CHUNKED + b"zz\r\n"], ids=["tls", "no host", "chunk"])
async def test_requests_before_malformed_bytes_are_answered_first(served: Served, bad: bytes) -> None:
    good = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    for count in (1, 3, 100):
        reader, writer = await asyncio.open_connection("127.0.0.1", _port(served))
        writer.write(good * count + bad)
        async with asyncio.timeout(DEADLINE_S):
            assert [(await _answer(reader))[0] for _ in range(count)] == [200] * count
            assert (await _answer(reader))[0] == 400
            assert await reader.read() == b""
        writer.transport.abort()


async def test_a_request_that_was_answered_gets_no_other_answer_for_its_malformed_body(served: Served) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", _port(served))
    writer.write(b"POST /sandboxes HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
    async with asyncio.timeout(DEADLINE_S):
        assert (await _answer(reader))[0] == 401
        writer.write(b"zz\r\n")
        assert await reader.read() == b""
    writer.transport.abort()


@pytest.mark.parametrize("drip", [b"\r\n", b"x"], ids=["empty lines", "body"])
async def test_a_drip_after_an_answer_does_not_hold_the_connection(served: Served, drip: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    made = BoundedHttpProtocol.connection_made

    def connection_made(self: BoundedHttpProtocol, transport: asyncio.Transport) -> None:
        made(self, transport)
        self.timeout_keep_alive = 0.5  # type: ignore[assignment]

    monkeypatch.setattr(BoundedHttpProtocol, "connection_made", connection_made)
    reader, writer = await asyncio.open_connection("127.0.0.1", _port(served))
    size = f"Content-Length: {10**9}\r\n" if drip == b"x" else ""
    writer.write(f"POST /sandboxes HTTP/1.1\r\nHost: x\r\n{size}\r\n".encode())
    async with asyncio.timeout(DEADLINE_S):
        assert (await _answer(reader))[0] == 401
        with contextlib.suppress(ConnectionError):
            while not reader.at_eof():
                writer.write(drip)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(reader.read(1), 0.1)
    writer.transport.abort()


async def test_pipelined_requests_wait_unparsed_and_delay_nobody(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Heads with an unknown ``Upgrade`` were parsed by recursion, each with a copy of all that followed it; others waited for seconds."""
    longest = 0
    parse = BoundedHttpProtocol._parse

    def watched(self: BoundedHttpProtocol, data: bytes) -> None:
        nonlocal longest
        parse(self, data)
        longest = max(longest, len(self.pipeline))

    monkeypatch.setattr(BoundedHttpProtocol, "_parse", watched)
    plain = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    for head in (plain, b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"):
        reader, writer = await asyncio.open_connection("127.0.0.1", _port(served))
        other_reader, other = await asyncio.open_connection("127.0.0.1", _port(served))
        count = 4000
        writer.write(head * count)
        answered = 0
        async with asyncio.timeout(DEADLINE_S):
            await _answer(reader)
            other.write(plain)
            others = asyncio.create_task(_answer(other_reader))
            while not others.done():
                await _answer(reader)
                answered += 1
            assert answered < count / 2, "the other client waits for most of the pipeline"
            for _ in range(count - answered - 1):
                assert (await _answer(reader))[0] == 200
        for one in (writer, other):
            one.transport.abort()
    assert 0 < longest <= 64


async def test_tiny_chunks_are_parsed_in_several_turns(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    parts: list[int] = []
    parse = BoundedHttpProtocol._parse

    def watched(self: BoundedHttpProtocol, data: bytes) -> None:
        parse(self, data)
        parts.append(self._steps)

    monkeypatch.setattr(BoundedHttpProtocol, "_parse", watched)
    body = b'{"image": 7, "x": "' + b"a" * 60_000 + b'"}'
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
    status, _, answer = await _response(served, _CHUNKED.replace(b"X-API", b"Connection: close\r\nX-API") + chunks)
    assert (status, answer["code"]) == (422, "invalid_argument")
    assert max(parts) < 1024


async def test_an_unknown_upgrade_is_ignored(served: Served) -> None:
    """HTTP/2 clients send one with their first request. The gateway reads the body of this request, and the request after it."""
    fields = f"Host: x\r\nX-API-Key: {ADA}\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAoAAA\r\n"
    body = b'{"image": 7}'
    post = f"POST /sandboxes HTTP/1.1\r\n{fields}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
    get = f"GET /healthz HTTP/1.1\r\n{fields}\r\n".encode()
    for pieces in ((post + get + get,), (post[:-5], post[-5:] + get[:30], get[30:], get)):
        reader, writer = await asyncio.open_connection("127.0.0.1", _port(served))
        for piece in pieces:
            writer.write(piece)
            await asyncio.sleep(0)
        async with asyncio.timeout(DEADLINE_S):
            answers = [await _answer(reader) for _ in range(3)]
        writer.transport.abort()
        assert answers[0][0] == 422
        assert answers[0][1]["detail"].startswith("image must be")
        assert answers[1:] == [(200, {"status": "healthy"})] * 2


async def _answer(reader: asyncio.StreamReader) -> tuple[int, Any]:
    head = await reader.readuntil(b"\r\n\r\n")
    size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    return int(head.split()[1]), json.loads(await reader.readexactly(size))


class RecordingTransport:
    """A transport that notes each write: a client cannot tell one write of two pieces from two writes in succession."""

    def __init__(self, transport: asyncio.Transport, writes: list[bytes]) -> None:
        self._transport = transport
        self._writes = writes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        self._writes.append(data)
        self._transport.write(data)

    def writelines(self, pieces: tuple[bytes, ...]) -> None:
        self._writes.append(b"".join(pieces))
        self._transport.writelines(pieces)


async def test_the_server_answers_in_one_write(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    writes: list[bytes] = []
    made = BoundedHttpProtocol.connection_made
    monkeypatch.setattr(
        BoundedHttpProtocol,
        "connection_made",
        lambda self, transport: made(self, RecordingTransport(transport, writes)),  # type: ignore[arg-type]
    )
    reader, writer = await asyncio.open_connection("127.0.0.1", _port(served))
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" * 2)
    async with asyncio.timeout(60):
        for _ in range(2):  # pipelined ones too
            assert await _answer(reader) == (200, {"status": "healthy"})
    writer.transport.abort()
    assert len(writes) == 2
    assert all(write.startswith(b"HTTP/1.1 200 ") and write.endswith(b"}") for write in writes)
