"""A client's frames: whole, in pieces of any size, and frames that our clients never send."""

from __future__ import annotations

import os
import random
from typing import cast

import pytest
from holdfast_wire.limits import MESSAGE_BYTES
from holdfast_wire.websocket_frames import BINARY, CLOSE, PING, MessageReader, control_breach, server_frame
from holdfast_wire.websocket_frames import apply_mask as own_apply_mask
from holdfast_wire.websocket_frames import client_frame as own_client_frame
from websockets.frames import Frame, Opcode
from websockets.protocol import Protocol, Side
from websockets.utils import apply_mask


def client_frame(payload: bytes, opcode: Opcode = Opcode.BINARY, *, mask: bool = True) -> bytes:
    return Frame(opcode, payload).serialize(mask=mask)


def reader() -> MessageReader:
    return MessageReader(apply_mask)


def test_messages_are_reassembled_from_pieces_of_any_size() -> None:
    seed = int(os.environ.get("HOLDFAST_FUZZ_SEED", "1"))
    print("seed", seed)
    rng = random.Random(seed)
    for _ in range(60):
        messages = [rng.randbytes(rng.choice((0, 1, 125, 126, 127, 4000, 65535, 65536, 70000))) for _ in range(rng.randrange(1, 8))]
        stream = b"".join(map(client_frame, messages))
        frames: list[tuple[int, bytes]] = []
        parser = reader()
        while stream:
            size = rng.choice((1, 2, 3, 5, 13, 1000, 100_000))
            frames += parser.feed(stream[:size])
            stream = stream[size:]
        assert frames == [(BINARY, message) for message in messages]
        assert not parser.breach


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65535, 65536])
def test_each_side_reads_what_the_other_writes(size: int) -> None:
    payload, mask = random.Random(size).randbytes(size), b"\x01\x82\x03\xf4"
    sent = own_client_frame(BINARY, payload, mask), server_frame(BINARY, payload)
    for frame, side in zip(sent, (Side.SERVER, Side.CLIENT), strict=True):
        library = Protocol(side)
        library.receive_data(frame)
        assert [cast(Frame, event).data for event in library.events_received()] == [payload]
    for frame, masked in zip(sent, (True, False), strict=True):
        parser = MessageReader(masked=masked)
        assert [one for byte in frame[:20] for one in parser.feed(bytes((byte,)))] + parser.feed(frame[20:]) == [(BINARY, payload)]
        other = MessageReader(masked=not masked)
        assert (other.feed(frame), other.breach) == ([], 1002)


def test_control_frames_keep_their_place_between_messages() -> None:
    ping, close = client_frame(b"there?", Opcode.PING), client_frame(b"\x03\xe8", Opcode.CLOSE)
    parser = reader()
    frames = [frame for byte in client_frame(b"one") + ping + client_frame(b"two") + close for frame in parser.feed(bytes((byte,)))]
    assert frames == [(BINARY, b"one"), (PING, b"there?"), (BINARY, b"two"), (CLOSE, b"\x03\xe8")]


@pytest.mark.parametrize(
    ("breach", "code"),
    [
        (client_frame(b"bare", mask=False), 1002),
        (bytes((BINARY, 0xFF)) + (MESSAGE_BYTES + 1).to_bytes(8, "big"), 1009),
        (bytes((BINARY, 0xFF)) + b"\xff" * 8, 1009),
    ],
    ids=["not masked", "too large", "largest length"],
)
def test_nothing_is_read_after_a_breach(breach: bytes, code: int) -> None:
    parser = reader()
    assert parser.feed(client_frame(b"one") + breach + b"\0" * 4) == [(BINARY, b"one")]
    assert parser.breach == code
    assert parser.feed(client_frame(b"two")) == []


def library_code(frame: bytes) -> int:
    """The close code of the ``websockets`` library for a frame that a client sends."""
    server = Protocol(Side.SERVER, max_size=MESSAGE_BYTES)
    server.receive_data(frame)
    return server.close_sent.code if server.close_sent is not None and server.close_rcvd is None else 0


@pytest.mark.parametrize("first", [0x80, 0x83, 0x88, 0x89, 0x8A, 0x8B, 0xC8, 0x99, 0x09, 0x08, 0x00])
@pytest.mark.parametrize(
    "payload", [b"", b"x", b"\x03\xe8", b"\x03\xe8text", b"\x03\xed", b"\x03\xe8\xff", b"\x0b\xb8", b"\x13\x88", b"y" * 125, b"z" * 126]
)
def test_control_frames_are_judged_as_the_library_does(first: int, payload: bytes) -> None:
    size = bytes((0x80 | len(payload),)) if len(payload) < 126 else b"\xfe" + len(payload).to_bytes(2, "big")
    ((kind, unmasked),) = reader().feed(bytes((first,)) + size + bytes(4) + payload)
    assert (kind, unmasked) == (first, payload)
    assert control_breach(first, payload) == library_code(bytes((first,)) + size + bytes(4) + payload)


@pytest.mark.parametrize("size", [0, 1, 3, 4, 5, 125, 70_000])
def test_masking_without_c(size: int) -> None:
    data, mask = random.Random(size).randbytes(size), b"\x01\xff\x00\x80"
    assert own_apply_mask(data, mask) == apply_mask(data, mask)
