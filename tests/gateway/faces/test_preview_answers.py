"""The reader of programs' answers: what it accepts does not depend on how the bytes arrive, and it never keeps many of them."""

from __future__ import annotations

from itertools import pairwise

import pytest
from holdfast_wire.errors import HoldfastError
from hypothesis import given
from hypothesis import strategies as st

from gateway.faces.previews.answers import HEAD_BYTES, AnswerReader
from gateway.use_cases.ports import Port, parsed

ANSWERS = {
    b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello": (200, b"hello", True),
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2;x=y\r\nlo\r\n0\r\nX-T: 1\r\n\r\n": (200, b"hello", True),
    b"HTTP/1.1 103 Early Hints\r\nLink: <x>\r\n\r\nHTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 201 Made\r\nContent-Length: 0\r\n\r\n": (
        201,
        b"",
        True,
    ),
    b"HTTP/1.0 200 OK\r\n\r\nhello": (200, b"hello", False),
    b"HTTP/1.1 204 No Content\r\n\r\n": (204, b"", True),
    b"HTTP/1.1 304 Not Modified\r\nContent-Length: 7\r\n\r\n": (304, b"", True),
    b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok": (200, b"ok", False),
}


def read(data: bytes, cuts: list[int], method: str = "GET") -> tuple[AnswerReader, bytes]:
    reader, body, places = AnswerReader(method), b"", [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    for begin, end in pairwise(places):
        if not reader.complete and begin < end:
            body += reader.feed(data[begin:end])
    if not reader.complete:
        reader.end()
    return reader, body


@given(st.sampled_from(sorted(ANSWERS)), st.lists(st.integers(0, 10_000), max_size=8))
def test_an_answer_is_read_the_same_however_it_arrives(data: bytes, cuts: list[int]) -> None:
    reader, body = read(data, cuts)
    assert (reader.status, body, reader.reusable) == ANSWERS[data]


@given(st.binary(max_size=400), st.lists(st.integers(0, 400), max_size=4))
def test_any_bytes_are_an_answer_or_an_error(data: bytes, cuts: list[int]) -> None:
    try:
        reader, _ = read(data, cuts)
    except HoldfastError as error:
        code = error.code
    else:
        code = "port_unreachable" if reader.complete and 100 <= reader.status <= 599 else ""
    assert code == "port_unreachable"


@given(st.sampled_from(sorted(ANSWERS)), st.binary(min_size=1, max_size=50))
def test_a_connection_with_more_than_the_answer_is_not_used_again(data: bytes, more: bytes) -> None:
    reader = AnswerReader("GET")
    try:
        reader.feed(data + more)
    except HoldfastError:
        return
    assert not reader.reusable or more.strip(b"\r\n") == b""


def test_an_answer_to_head_has_no_body() -> None:
    reader, body = read(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", [], "HEAD")
    assert (reader.status, body, reader.reusable) == (200, b"", True)


@pytest.mark.parametrize(
    ("begin", "endless"),
    [
        (b"HTTP/1.1 200 OK\r\n", b"X-A: b\r\n"),
        (b"HTTP/1.1 200 OK\r\nX-A: ", b"a" * 100),
        (b"HTTP/1.1 200 ", b"a" * 100),
        (b"", b"HTTP/1.1 102 Processing\r\n\r\n"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;x=", b"a" * 100),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX-A: ", b"a" * 100),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", b"X-A: b\r\n"),
    ],
)
def test_what_never_ends_is_refused(begin: bytes, endless: bytes) -> None:
    reader = AnswerReader("GET")

    def feed() -> None:
        for piece in (begin, *[endless] * (2 * HEAD_BYTES // len(endless))):
            assert reader.feed(piece) == b""

    with pytest.raises(HoldfastError):
        feed()


def test_the_tables_of_listening_sockets() -> None:
    table = """  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 1 1 0 100 0 0 10 0
   1: 0100007F:1F91 0100007F:1F90 01 00000000:00000000 00:00000000 00000000     0        0 1 1 0 100 0 0 10 0
   2: 00000000000000000000000001000000:0050 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1
   3: 0000000000000000FFFF00000100000A:0051 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1
   4: zz:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 1 1 0 100 0 0 10 0
   5: 0100007F:1F9000 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 1 1 0 100 0 0 10 0
   6: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  -7        0 1 1 0 100 0 0 10 0
   7: 01:1F90 00000000:0000 0A"""
    assert parsed(table) == {Port(8080, "127.0.0.1", 1000), Port(80, "::1", 0), Port(81, "10.0.0.1", 0)}
    assert parsed("") == set()
