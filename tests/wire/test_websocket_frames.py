"""A client's frames cut into messages: whole, in pieces of any size, and those that are for the library."""

from __future__ import annotations

import os
import random

import pytest
from holdfast_wire.limits import MESSAGE_BYTES
from holdfast_wire.websocket_frames import BINARY, CLOSE, PING, MessageReader
from websockets.frames import Frame, Opcode
from websockets.utils import apply_mask


def client_frame(payload: bytes, opcode: Opcode = Opcode.BINARY, *, mask: bool = True) -> bytes:
    return Frame(opcode, payload).serialize(mask=mask)


def reader() -> MessageReader:
    return MessageReader(apply_mask)


def test_messages_come_whole_however_their_bytes_were_cut() -> None:
    seed = int(os.environ.get("HOLDFAST_FUZZ_SEED", "1"))
    print("seed", seed)
    rng = random.Random(seed)
    for _ in range(60):
        messages = [rng.randbytes(rng.choice((0, 1, 125, 126, 127, 4000, 65535, 65536, 70000))) for _ in range(rng.randrange(1, 8))]
        stream = b"".join(map(client_frame, messages))
        frames: list[tuple[int, bytes]] = []
        cut = reader()
        while stream:
            size = rng.choice((1, 2, 3, 5, 13, 1000, 100_000))
            frames += cut.feed(stream[:size])
            stream = stream[size:]
        assert frames == [(BINARY, message) for message in messages]
        assert not cut.broken


def test_what_is_no_message_is_passed_on_as_it_came() -> None:
    ping, close = client_frame(b"there?", Opcode.PING), client_frame(b"\x03\xe8", Opcode.CLOSE)
    cut = reader()
    frames = [frame for byte in client_frame(b"one") + ping + client_frame(b"two") + close for frame in cut.feed(bytes((byte,)))]
    assert frames == [(BINARY, b"one"), (PING, ping), (BINARY, b"two"), (CLOSE, close)]


@pytest.mark.parametrize(
    "breach",
    [
        client_frame(b"bare", mask=False),
        bytes((BINARY, 0xFF)) + (MESSAGE_BYTES + 1).to_bytes(8, "big"),
        bytes((BINARY, 0xFF)) + b"\xff" * 8,
    ],
    ids=["not masked", "too large", "absurd"],
)
def test_all_from_a_breach_on_is_for_the_library(breach: bytes) -> None:
    cut = reader()
    frames = cut.feed(client_frame(b"one") + breach + b"\0" * 4)
    assert frames == [(BINARY, b"one"), (0, breach + b"\0" * 4)]
    assert cut.broken
    assert cut.feed(client_frame(b"two")) != [(BINARY, b"two")]
