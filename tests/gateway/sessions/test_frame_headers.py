"""Tracking of frame headers: a valid stream is parsed alike however it is split, anything else is refused."""

from __future__ import annotations

import itertools
import struct

import pytest
from holdfast_wire.errors import ProtocolError
from holdfast_wire.limits import MESSAGE_BYTES
from holdfast_wire.websocket_frames import BINARY, CLOSE, PING, PONG, FrameHeaders, close_frame, server_frame
from hypothesis import given, settings
from hypothesis import strategies as st


def masked(frame: bytes) -> bytes:
    """The same frame as a client sends it, with a mask of zeros."""
    size = frame[1]
    start = 2 + {126: 2, 127: 8}.get(size, 0)
    return bytes((frame[0], size | 0x80)) + frame[2:start] + bytes(4) + frame[start:]


FRAMES = st.lists(
    st.one_of(
        st.sampled_from([0, 1, 125, 126, 127, 300, 65535, 65536]).map(lambda size: server_frame(BINARY, bytes(size))),
        st.sampled_from([PING, PONG]).map(lambda kind: server_frame(kind, b"x" * 5)),
    ),
    max_size=6,
)


@settings(deadline=None)
@given(frames=FRAMES, cuts=st.lists(st.integers(0, 200_000), max_size=12), client=st.booleans())
def test_any_split_of_a_stream_is_parsed_alike(frames: list[bytes], cuts: list[int], client: bool) -> None:
    frames = [masked(frame) if client else frame for frame in frames]
    stream = b"".join(frames)
    starts = {0}
    for frame in frames:
        starts.add(max(starts) + len(frame))
    points = sorted({0, len(stream), *(cut % (len(stream) + 1) for cut in cuts)})
    headers = FrameHeaders(masked=client)
    for begin, end in itertools.pairwise(points):
        headers.feed(stream[begin:end])
        assert headers.mid_frame == (end not in starts)
        if headers.boundary >= 0:
            assert begin + headers.boundary in starts
        if end in starts:
            assert headers.boundary == end - begin
    assert not headers.close_seen


def test_one_byte_at_a_time() -> None:
    stream = server_frame(BINARY, bytes(300)) + close_frame(1000, "done")
    headers = FrameHeaders(masked=False)
    for byte in stream:
        headers.feed(bytes((byte,)))
    assert headers.close_seen
    assert not headers.mid_frame


@settings(deadline=None)
@given(data=st.binary(max_size=2000), client=st.booleans())
def test_any_bytes_are_parsed_or_refused_alike(data: bytes, client: bool) -> None:
    whole, split = FrameHeaders(masked=client), FrameHeaders(masked=client)
    outcomes = []
    for headers, pieces in ((whole, [data]), (split, [data[i : i + 1] for i in range(len(data))])):
        try:
            for piece in pieces:
                headers.feed(piece)
            outcomes.append("followed")
        except ProtocolError:
            outcomes.append("refused")
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        (server_frame(0x81, b"text"), "protocol_error"),
        (server_frame(0x02, b"first fragment"), "protocol_error"),
        (server_frame(0x80, b"continuation"), "protocol_error"),
        (server_frame(0xC2, b"reserved bit"), "protocol_error"),
        (masked(server_frame(BINARY, b"x")), "protocol_error"),
        (struct.pack("!BBQ", BINARY, 127, MESSAGE_BYTES + 1), "request_too_large"),
        (struct.pack("!BBH", PING, 126, 126), "protocol_error"),
        (struct.pack("!BBH", CLOSE, 126, 200), "protocol_error"),
    ],
)
def test_frames_that_a_session_does_not_allow_are_refused(frame: bytes, code: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        FrameHeaders(masked=False).feed(frame)
    assert caught.value.code == code


def test_the_payload_of_a_message_that_is_too_large_is_not_parsed() -> None:
    """After the gateway has sent a Close, it reads the client's data until the client's own Close (``relay``)."""
    headers = FrameHeaders(masked=True)
    size = MESSAGE_BYTES + 1
    close = masked(close_frame(1000, ""))
    with pytest.raises(ProtocolError):
        headers.feed(bytes((BINARY, 0xFF)) + size.to_bytes(8, "big") + bytes(4) + bytes(10))
    headers.feed(close * 10)
    assert not headers.close_seen
    headers.feed(bytes(size - 10 - 10 * len(close)))
    assert not headers.close_seen
    headers.feed(close)
    assert headers.close_seen


@settings(deadline=None)
@given(
    sizes=st.lists(st.sampled_from([0, 1, 5, 125, 126, 300, 65536]), max_size=30),
    most=st.integers(min_value=1, max_value=40),
    cut=st.integers(min_value=1, max_value=70_000),
    client=st.booleans(),
)
def test_a_limited_number_of_frames_ends_between_two_frames(sizes: list[int], most: int, cut: int, client: bool) -> None:
    frames = [server_frame(BINARY, bytes(size)) for size in sizes]
    stream = b"".join(masked(frame) if client else frame for frame in frames)
    headers, calls = FrameHeaders(masked=client), 0
    for start in range(0, len(stream), cut):
        piece = stream[start : start + cut]
        while piece:
            followed = headers.feed(piece, most)
            assert followed > 0
            assert followed == len(piece) or (not headers.mid_frame and headers.boundary == followed)
            piece = piece[followed:]
            calls += 1
    assert not headers.mid_frame
    assert calls >= len(sizes) / (most + 1)
