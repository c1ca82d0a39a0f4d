"""Heads of requests and answers: what is written is read again, h11 reads it the same way, and any other bytes are refused.

Bodies and connections: ``tests/sdk/transport/test_http1.py``.
"""

from __future__ import annotations

import string
from typing import Any

import h11
import pytest
from holdfast_wire.http1 import AnswerReader, HttpError, answer, chunk, read_answer_head, read_request_head, request_head
from hypothesis import given
from hypothesis import strategies as st

TOKENS = st.text(string.ascii_letters + string.digits + "!#$%&'*+-.^_`|~", min_size=1, max_size=12)
VALUES = st.text(string.ascii_letters + string.digits + ' ,;="/()', max_size=20).map(str.strip)
TARGETS = st.text(string.ascii_letters + string.digits + "/?&=%._~", min_size=1, max_size=30).map("/".__add__)
HEADERS = st.dictionaries(TOKENS.map(str.lower), VALUES, max_size=6).map(
    lambda found: {
        name: value for name, value in found.items() if name not in ("host", "content-length", "transfer-encoding", "connection")
    }
)


@given(TOKENS, TARGETS, HEADERS)
def test_a_request_that_is_written_is_read_by_us_and_by_h11(method: str, target: str, headers: dict[str, str]) -> None:
    data = request_head(method, target, {**headers, "Host": "h"})
    head = read_request_head(data.removesuffix(b"\r\n\r\n"))
    assert (head.method, head.target, head.headers) == (method, target, {**headers, "host": "h"})
    other = h11.Connection(h11.SERVER)
    other.receive_data(data)
    event: Any = other.next_event()
    assert (event.method.decode(), event.target.decode()) == (method, target)
    assert {name.decode(): value.decode() for name, value in event.headers} == head.headers


@given(st.sampled_from([200, 204, 304, 403, 404, 500]), HEADERS, st.one_of(st.none(), st.binary(max_size=300)), st.integers(1, 40))
def test_an_answer_that_is_written_is_read_by_us_and_by_h11(status: int, headers: dict[str, str], body: bytes | None, step: int) -> None:
    if status in (204, 304):
        body = None
    data = answer(status, headers, body) + (b"" if body is not None or status in (204, 304) else b"rest")
    reader = AnswerReader()
    other = h11.Connection(h11.CLIENT)
    other.send(h11.Request(method="GET", target="/", headers=[("Host", "h")]))
    other.send(h11.EndOfMessage())
    for at in range(0, len(data), step):
        reader.feed(data[at : at + step])
        other.receive_data(data[at : at + step])
    if not reader.done:
        reader.feed(b"")
        other.receive_data(b"")
    event: Any = other.next_event()
    assert (event.status_code, {name.decode(): value.decode() for name, value in event.headers}) == (reader.status, reader.headers)
    received = b""
    while isinstance(event := other.next_event(), h11.Data):
        received += event.data
    assert isinstance(event, h11.EndOfMessage)
    assert received == reader.body
    assert reader.reusable is (status in (204, 304)), "an answer with a body closes, and so does one without a length"


@given(st.lists(st.binary(min_size=1, max_size=50), max_size=5), st.integers(1, 40))
def test_chunks_that_are_written_are_read(pieces: list[bytes], step: int) -> None:
    data = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"".join(map(chunk, pieces)) + b"0\r\n\r\n"
    reader = AnswerReader()
    for at in range(0, len(data), step):
        reader.feed(data[at : at + step])
    assert (reader.done, reader.reusable, reader.body) == (True, True, b"".join(pieces))


@given(st.binary(max_size=200), st.sampled_from([b"", b"GET / HTTP/1.1\r\n", b"HTTP/1.1 200 OK\r\n", b"GET "]))
def test_any_bytes_are_a_head_or_refused(data: bytes, begun: bytes) -> None:
    for read in (read_request_head, read_answer_head):
        try:
            head = read(begun + data)
        except HttpError:
            continue
        for name, value in head.headers.items():
            assert name == name.lower()
            assert name.isascii()
            assert not set(name) & set(" \t:\r\n\0")
            assert not set(value) & set("\r\n\0")


@given(HEADERS, VALUES.filter(len), st.sampled_from(["\n", "\r", "\0", "\r\n ", "\r\nX"]), st.data())
def test_a_line_end_inside_a_value_is_refused(headers: dict[str, str], value: str, end: str, data: st.DataObject) -> None:
    """Two readers of one message must not find different fields in it."""
    at = data.draw(st.integers(0, len(value)))
    line = f"x: {value[:at]}{end}{value[at:]}"
    lines = ["GET / HTTP/1.1", *[f"{name}: {value}" for name, value in headers.items()], line]
    with pytest.raises(HttpError):
        read_request_head("\r\n".join(lines).encode())


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"GET / HTTP/2",
        b"GET /",
        b"GET  / HTTP/1.1",
        b"G\tT / HTTP/1.1",
        b"GET /\xff HTTP/1.1",
        b"GET / HTTP/1.1\r\nA : b",
        b"GET / HTTP/1.1\r\n: b",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: a",
        b"GET / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2",
        b"GET / HTTP/1.1\nHost: a",
    ],
)
def test_heads_that_are_refused(head: bytes) -> None:
    with pytest.raises(HttpError):
        read_request_head(head)


def test_the_length_of_a_body() -> None:
    def length(lines: bytes) -> int | None:
        return read_request_head(b"POST / HTTP/1.1\r\n" + lines).content_length()

    assert length(b"A: b") is None
    assert length(b"Content-Length: 12") == 12
    assert length(b"Content-Length: 12\r\nContent-Length: 12") == 12
    assert length(b"Content-Length: 12\r\nTransfer-Encoding: chunked") is None, "two statements of the length: the caller refuses it"
    for wrong in (b"", b"-1", b"+1", b"1_0", b"1, 1", b"0x1", b"9" * 19, "\u0661".encode()):
        with pytest.raises(HttpError):
            length(b"Content-Length: " + wrong)


def test_repeated_fields_are_joined() -> None:
    assert read_answer_head(b"HTTP/1.1 200 Well done\r\nVia: a\r\nvia: b\r\nX:").headers == {"via": "a, b", "x": ""}


def test_a_good_answer_to_connect_has_no_body() -> None:
    reader = AnswerReader(tunnels=True)
    reader.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nbytes")
    assert (reader.done, reader.body, reader.rest) == (True, b"", b"bytes")
