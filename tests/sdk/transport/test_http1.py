"""HTTP/1.1 of both APIs: answers whole and one byte at a time, hostile answers, and connections on real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Protocol

import pytest
from holdfast._async.http import AsyncHttp
from holdfast._options import Options
from holdfast._sync.http import Http
from holdfast._transport.rest.answer import Answer, UnreachableError
from holdfast_wire.http1 import AnswerReader, HttpError, request_head
from hypothesis import given
from hypothesis import strategies as st

from tests.support.until import until

GOOD = [
    (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nA: 1\r\na: 2\r\n\r\nhello", 200, b"hello", True),
    (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nhel\r\n2\r\nlo\r\n0\r\nTrailer: x\r\n\r\n", 200, b"hello", True),
    (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n", 404, b"", True),
    (b"HTTP/1.1 204\r\n\r\n", 204, b"", True),
    (b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi", 200, b"hi", False),
    (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi", 200, b"hi", False),
    (b"HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\nContent-Length: 2\r\n\r\nhi", 200, b"hi", True),
]
WRONG = [
    b"SSH-2.0-x\r\n\r\n",
    b"HTTP/2 200\r\n\r\n",
    b"HTTP/1.1 2000 x\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
    b"HTTP/1.1 200 OK\r\n folded: x\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 1_0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n+5\r\nhello\r\n",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhelloXX\r\n",
    b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 20_000,
]


@pytest.mark.parametrize(("data", "status", "body", "reusable"), GOOD)
@pytest.mark.parametrize("size", [1, 3, 10_000])
def test_answers(data: bytes, status: int, body: bytes, reusable: bool, size: int) -> None:
    reader = AnswerReader()
    for at in range(0, len(data), size):
        assert not reader.done
        reader.feed(data[at : at + size])
    assert (reader.done, reader.status, reader.body, reader.reusable) == (True, status, body, reusable)
    if b"A: 1" in data:
        assert reader.headers["a"] == "1, 2"
    reader.feed(b"x")
    assert not reader.reusable, "bytes after the answer belong to no request"


def test_an_answer_that_ends_with_its_connection() -> None:
    reader = AnswerReader()
    reader.feed(b"HTTP/1.1 200 OK\r\n\r\nall of")
    reader.feed(b" it")
    assert not reader.done
    reader.feed(b"")
    assert (reader.done, reader.body, reader.reusable) == (True, b"all of it", False)


@pytest.mark.parametrize("data", WRONG)
def test_invalid_answers_are_refused(data: bytes) -> None:
    with pytest.raises(HttpError):
        AnswerReader().feed(data)


@pytest.mark.parametrize("cut", range(1, len(GOOD[1][0])))
def test_an_answer_that_is_cut_is_refused(cut: int) -> None:
    reader = AnswerReader()
    reader.feed(GOOD[1][0][:cut])
    with pytest.raises(HttpError):
        reader.feed(b"")


@given(st.binary(max_size=300), st.integers(1, 50))
def test_any_bytes_are_an_answer_or_refused(data: bytes, step: int) -> None:
    for begun in (b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"):
        reader = AnswerReader()
        whole = begun + data
        try:
            for at in range(0, len(whole), step):
                reader.feed(whole[at : at + step])
            if not reader.done:
                reader.feed(b"")
        except HttpError:
            continue
        assert reader.done


@pytest.mark.parametrize("value", ["a\r\nb: c", "é", "a\nb"])
def test_a_header_value_cannot_contain_a_line_break(value: str) -> None:
    with pytest.raises(ValueError, match="HTTP does not allow"):
        request_head("GET", "/", {"X": value})
    with pytest.raises(ValueError, match="HTTP does not allow"):
        request_head("GET", "/ HTTP/1.1", {})


class Server:
    """Accepts one connection for each list of answers, sends these to its requests in turn, then closes it."""

    def __init__(self, *connections: list[bytes]) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.requests: list[bytes] = []
        self.closed = 0
        """Connections that were closed."""
        self.answered = threading.Event()
        self._thread = threading.Thread(target=self._serve, args=(connections,), daemon=True)
        self._thread.start()

    def _serve(self, connections: tuple[list[bytes], ...]) -> None:
        for answers in connections:
            connection, _ = self._listener.accept()
            with connection, contextlib.suppress(ConnectionError):  # a client that gives up resets its connection
                for answer in answers:
                    request = connection.recv(65536)
                    while b" /early" not in request and b"chunked" in request and not request.endswith(b"0\r\n\r\n"):
                        if not (more := connection.recv(65536)):
                            raise ConnectionError("the client gave up in its request")
                        request += more
                    self.requests.append(request)
                    connection.sendall(answer)
                    self.answered.set()
                if b" /early" in self.requests[-1]:
                    connection.shutdown(socket.SHUT_WR)
                    while connection.recv(65536):  # closing a socket with unread bytes resets the connection, and the answer could be lost
                        pass
            self.closed += 1

    def until_closed(self, connections: int) -> None:
        until(lambda: self.closed >= connections, deadline_s=60, what=f"the end of {connections} connections")

    def close(self) -> None:
        self._thread.join(30)
        self._listener.close()


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    made: list[Server] = []

    def start(*connections: list[bytes]) -> Server:
        made.append(Server(*connections))
        return made[-1]

    yield start
    for server in made:
        server.close()


class Client(Protocol):
    """The blocking client, or the asynchronous one behind the same methods."""

    def send(self, method: str, path: str, *, timeout_s: float, headers: dict[str, str] | None = None, **more: Any) -> Answer: ...
    def close(self) -> None: ...


class AsyncInRunner:
    """The asynchronous client behind blocking methods: its own event loop runs while a request does."""

    def __init__(self, options: Options) -> None:
        self._runner = asyncio.Runner()
        self._http = AsyncHttp(options)

    def send(self, method: str, path: str, *, timeout_s: float, headers: dict[str, str] | None = None, **more: Any) -> Answer:
        if "content" in more and not isinstance(more["content"], bytes):
            more["content"] = _async_iterator(more["content"])
        return self._runner.run(self._http.send(method, path, timeout_s=timeout_s, headers=headers, **more))

    def close(self) -> None:
        self._runner.run(self._http.close())
        self._runner.close()


async def _async_iterator(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


@pytest.fixture(params=[Http, AsyncInRunner])
def client(request: pytest.FixtureRequest) -> Iterator[Callable[[str], Client]]:
    made: list[Client] = []

    def start(url: str) -> Client:
        made.append(request.param(Options(url, "key")))
        return made[-1]

    yield start
    for one in made:
        one.close()


def test_connections_are_reused_until_they_are_closed(serve: Callable[..., Server], client: Callable[[str], Client]) -> None:
    good = GOOD[0][0]
    server = serve([good, good], [good], [GOOD[4][0]], [good])
    http = client(server.url)
    for number in range(5):
        server.until_closed(number - 1)
        assert http.send("GET", "/x", timeout_s=60, params={"a": "b c", "yes": True}).status == 200
    assert len(server.requests) == 5
    assert server.requests[0].startswith(b"GET /x?a=b+c&yes=true HTTP/1.1\r\nHost: 127.0.0.1:")


def test_bodies(serve: Callable[..., Server], client: Callable[[str], Client]) -> None:
    server = serve([GOOD[0][0]] * 4)
    http = client(server.url)
    http.send("POST", "/a", timeout_s=60, json={"ü": 1})
    http.send("POST", "/b", timeout_s=60)
    http.send("POST", "/c", timeout_s=60, content=b"bytes", headers={"Idempotency-Key": "k"})
    http.send("POST", "/d", timeout_s=60, content=iter([b"one", b"", b"two"]))
    server.close()
    assert server.requests[0].endswith('Content-Length: 8\r\n\r\n{"ü":1}'.encode())
    assert b"Content-Length: 0\r\n" in server.requests[1]
    assert server.requests[2].endswith(b"Content-Length: 5\r\nIdempotency-Key: k\r\n\r\nbytes")
    assert b"Transfer-Encoding: chunked" in server.requests[3]
    assert server.requests[3].endswith(b"\r\n\r\n3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n")


@pytest.mark.parametrize(("answer", "reached"), [(b"", True), (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx", True), (b"\0", True)])
def test_a_request_without_a_whole_answer_may_have_reached_the_service(
    serve: Callable[..., Server], client: Callable[[str], Client], answer: bytes, reached: bool
) -> None:
    server = serve([answer])
    with pytest.raises(UnreachableError) as lost:
        client(server.url).send("POST", "/", timeout_s=60, json={})
    assert lost.value.reached is reached


def test_a_request_without_a_connection_did_not_reach_the_service(client: Callable[[str], Client]) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # bound but not listening, so that no parallel test can listen
        with pytest.raises(UnreachableError) as lost:
            client(f"http://127.0.0.1:{held.getsockname()[1]}").send("GET", "/", timeout_s=60)
    assert lost.value.reached is False


def test_an_error_in_reading_the_local_file_is_not_blamed_on_the_service(
    serve: Callable[..., Server], client: Callable[[str], Client]
) -> None:
    def pieces() -> Iterator[bytes]:
        yield b"first"
        raise PermissionError(13, "no", "file")

    server = serve([GOOD[0][0]])
    with pytest.raises(PermissionError):
        client(server.url).send("POST", "/", timeout_s=60, content=pieces())


def test_a_request_without_further_bytes_times_out(serve: Callable[..., Server], client: Callable[[str], Client]) -> None:
    server = serve([b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx", b""])
    http = client(server.url)
    with pytest.raises(UnreachableError, match="no answer within") as lost:
        http.send("GET", "/", timeout_s=0.2)
    assert lost.value.reached is True


def test_an_early_answer_ends_a_long_body(serve: Callable[..., Server], client: Callable[[str], Client]) -> None:
    """Its connection is not used again, because the server would take the rest of the body for a request."""

    def pieces() -> Iterator[bytes]:
        yield b"begun"
        server.answered.wait(30)
        for _ in range(1000):
            yield b"x" * 10_000

    server = serve([GOOD[0][0]], [GOOD[0][0]])
    http = client(server.url)
    assert http.send("POST", "/early", timeout_s=60, content=pieces()).body == b"hello"
    assert http.send("GET", "/", timeout_s=60).body == b"hello"
    assert len(server.requests) == 2


def test_a_cancelled_request_closes_its_connection(serve: Callable[..., Server]) -> None:
    async def main(url: str) -> Answer:
        http = AsyncHttp(Options(url, "key"))
        sending = asyncio.ensure_future(http.send("GET", "/slow", timeout_s=60))
        while not server.requests:
            await asyncio.sleep(0)
        sending.cancel()
        await asyncio.wait([sending])
        assert sending.cancelled()
        try:
            return await http.send("GET", "/next", timeout_s=60)
        finally:
            await http.close()

    server = serve([b"HTTP/1.1 200 OK\r\n", b""], [GOOD[0][0]])
    assert asyncio.run(main(server.url)).body == b"hello"
    assert server.requests[-1].startswith(b"GET /next ")
