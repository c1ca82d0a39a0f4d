"""Frames to bytes and back: golden vectors, every field's type, and hostile bytes (PROTOCOL §2)."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import msgpack
import pytest
from holdfast_wire.codec import decode, decode_params, encode, encode_item
from holdfast_wire.errors import ProtocolError
from holdfast_wire.frames import (
    Accepted,
    Ack,
    Close,
    Closed,
    Credit,
    Exited,
    Failed,
    Frame,
    Gap,
    GoAway,
    Hello,
    Item,
    Open,
    Opened,
    Output,
    Ping,
    Pong,
    Resize,
    Run,
    Signal,
    Started,
    Welcome,
    Write,
)
from holdfast_wire.limits import DATA_BYTES, MESSAGE_BYTES
from hypothesis import given
from hypothesis import strategies as st

from tests.support.own_process import in_own_process

PARAMS = Path(__file__).parents[2] / "schemas" / "vectors" / "params.json"
VECTORS = Path(__file__).parents[2] / "schemas" / "vectors" / "frames.json"

EXAMPLES: list[tuple[Frame, int]] = [
    (Open(1, "command", {"id": "c1", "argv": ["true"], "timeout_s": 2.5}), 0),
    (Run(2, "c2", {"script": "echo hi"}), 1),
    (Run(2, "c3", {"script": "true", "trace": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}), 2),
    (Write(3, b"\x00\xff", False), 1),
    (Write(3, b"", True), 3),
    (Resize(4, 24, 80), 1),
    (Signal(5, "INT"), 1),
    (Close(6, True), 2),
    (Opened(7, {"name": "main", "pid": 12}), 0),
    (Started(8, "c1", {"pid": 7}), 0),
    (Output(9, 1, b"hello\n"), 1),
    (Output(9, 2, b""), 7),
    (Gap(10, 1, 4096), 9),
    (Exited(11, "c1", {"exit_code": 0, "signal": None, "streams": {1: [6, 0, "ab"], 2: [0, 0, "cd"]}}), 8),
    (Exited(11, "c2", {"exit_code": 3, "shell": {"cwd": "/usr", "restarted": True, "restored": True, "lost": ["function f"]}}), 9),
    (Exited(11, "c3", {"exit_code": 0, "trace": {"received_at": 1.5, "started_at": 1.75, "ended_at": 2.0}}), 10),
    (Closed(12, {"size": 3}), 4),
    (Failed(13, {"code": "file_not_found", "message": "no such file"}), 0),
    (Accepted(2**31, 14, {"peer": ["127.0.0.1", 50000]}), 0),
    (Hello(1, "s" * 32, b"k" * 16, "", 0, 1, {}, 1, False, 0), 0),
    (Hello(1, "s" * 32, b"k" * 16, "epoch", 3, 4, {1: 5, 70000: 2**40, 2**31 + 2: 9}, 70001, True, 2**31 + 3), 0),
    (Welcome(1, "epoch", 4, True, {1: 9}, {"protocol": 1}), 0),
    (Ack(1, 2**33), 0),
    (Credit(1, 1 << 20), 0),
    (Ping(1), 0),
    (Pong(1), 0),
    (GoAway(30.0, 5.0, "draining"), 0),
]


def _encode(frame: Frame, offset: int) -> bytes:
    return encode_item(frame, offset) if isinstance(frame, Item) else encode(frame)


def test_golden_parameters_that_follow_their_open() -> None:
    example = json.loads(PARAMS.read_text())
    opened, *writes = (decode(bytes.fromhex(message)) for message in example["messages"])
    packed = bytes.fromhex(example["packed"])
    assert opened == (Open(1, "command", {"packed": len(packed)}), 0)
    offset, data = 1, b""
    for frame, at in writes:
        assert isinstance(frame, Write)
        assert (at, frame.eof) == (offset, False)
        offset, data = offset + frame.length, data + frame.data
    assert data == packed
    assert decode_params(packed) == example["params"]


def test_golden_vectors() -> None:
    """Both ends of every release must use the bytes in this file; a change here is a new protocol version."""
    made = [{"frame": repr(f), "offset": o, "hex": _encode(f, o).hex()} for f, o in EXAMPLES]
    assert json.loads(VECTORS.read_text()) == made


@pytest.mark.parametrize(("frame", "offset"), EXAMPLES, ids=lambda v: type(v).__name__ if not isinstance(v, int) else str(v))
def test_round_trip(frame: Frame, offset: int) -> None:
    assert decode(_encode(frame, offset)) == (frame, offset)


def test_every_frame_has_a_vector() -> None:
    from holdfast_wire import codec

    known = {cls for cls, _ in (*codec._ITEMS.values(), *codec._BOOKKEEPING.values())}
    assert {type(frame) for frame, _ in EXAMPLES} == known


def test_printing_a_frame_never_prints_its_payload() -> None:
    for frame in (Write(1, b"topsecret"), Output(1, 1, b"topsecret"), Run(1, "c", {"script": "topsecret"})):
        assert "topsecret" not in repr(frame)
    assert "secret-16-bytes!" not in repr(Hello(1, "s" * 16, b"secret-16-bytes!", "", 0, 1, {}, 1))


@pytest.mark.parametrize(
    "body",
    [
        [],
        {},
        7,
        [99],
        ["1", 1, 0],
        [1, 1, 0, "command"],
        [1, 0, 0, "command", {}],
        [1, -1, 0, "command", {}],
        [1, 2**40, 0, "command", {}],
        [1, 1, -1, "command", {}],
        [1, 1, 2**60, "command", {}],
        [1, True, 0, "command", {}],
        [3, 1, 0, "text", False],
        [3, 1, 0, b"x", 1],
        [3, 1, 0, b"x" * (DATA_BYTES + 1), False],
        [4, 1, 0, -5, 80],
        [18, 1, 0, 1.0, b"x"],
        [20, 1, 0, "c", [1]],
        [34, 1],
        [38, float("nan"), 1.0, "x"],
        [38, float("inf"), 1.0, "x"],
        [1, 1, 0, "k", {"a": [[[[[[[[[1]]]]]]]]]}],
        [1, 1, 0, "k", {"a": [1] * 20000}],
    ],
)
def test_malformed_frames_are_protocol_errors(body: Any) -> None:
    with pytest.raises(ProtocolError):
        decode(msgpack.packb(body))


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\xc1",
        b"\x93\x01",
        msgpack.packb([36, 1]) + b"\x00",
        b"\x92\x24" + msgpack.packb(msgpack.ExtType(1, b"x")),
        b"\x95\x01\x01\x00\xa1\xff\x80",
        b"\x91" * 5000 + b"\x01",
        b"\x00" * (MESSAGE_BYTES + 1),
        b"\x95\x01\x01\x00\xa1a\x81\x90\x01",  # a list as a key cannot be hashed
    ],
)
def test_malformed_bytes_are_protocol_errors(message: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode(message)


@in_own_process
def test_empty_maps_cannot_blow_up_memory() -> None:
    """256 KiB of one-byte maps would take 16 MiB and more: the limit on containers stops the decoder early."""
    rows = [b"\xdc\x3f\xff" + b"\x80" * 0x3FFF] * 15
    bomb = b"\x95\x01\x01\x00\xa1k\x81\xa1a" + b"\x9f" + b"".join(rows)
    assert len(bomb) < MESSAGE_BYTES
    tracemalloc.start()
    with pytest.raises(ProtocolError):
        decode(bomb)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2 << 20


@given(st.binary(max_size=400))
def test_any_bytes_give_a_frame_or_a_protocol_error(message: bytes) -> None:
    try:
        frame, offset = decode(message)
    except ProtocolError:
        return
    assert decode(_encode(frame, offset)) == (frame, offset)


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.binary(max_size=20) | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5) | st.integers(0, 99), inner, max_size=4),
    max_leaves=12,
)


@given(st.integers(0, 40), st.lists(_VALUES, max_size=10))
def test_any_fields_give_a_frame_or_a_protocol_error(kind: int, fields: list[Any]) -> None:
    try:
        decode(msgpack.packb([kind, *fields]))
    except ProtocolError:
        pass


@pytest.mark.parametrize(("frame", "offset"), EXAMPLES, ids=lambda v: type(v).__name__ if not isinstance(v, int) else str(v))
def test_every_prefix_and_every_flipped_byte(frame: Frame, offset: int) -> None:
    whole = _encode(frame, offset)
    for i in range(len(whole)):
        with pytest.raises(ProtocolError):
            decode(whole[:i])
        for flip in (0x01, 0x80, 0xFF):
            try:
                decode(whole[:i] + bytes([whole[i] ^ flip]) + whole[i + 1 :])
            except ProtocolError:
                continue


def test_an_item_too_large_for_a_message_is_refused_before_it_is_sent() -> None:
    with pytest.raises(ProtocolError, match="over the limit"):
        encode_item(Run(1, "c", {"script": "x" * MESSAGE_BYTES}), 0)
