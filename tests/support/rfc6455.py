"""The sections of RFC 6455 that apply to a session's frames, as cases: bytes of one side, and what the other side has to make of them.

Owns the table and two peers that judge the same bytes: ``websockets`` and ``wsproto``. The tests of the relay, the agent and the SDK run
each case on their own reader. A session is stricter than the RFC in one point (PROTOCOL §2.1): only unfragmented binary messages.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Literal

from websockets.protocol import OPEN, Protocol
from websockets.protocol import Side as LibrarySide
from wsproto.connection import Connection, ConnectionState, ConnectionType
from wsproto.events import CloseConnection

Side = Literal["client", "server"]
MASK = b"\x01\x82\x03\xf4"


def frame(first: int, payload: bytes, side: Side, *, masked: bool | None = None, form: int = 0) -> bytes:
    """A frame as ``side`` sends it; ``form`` 126 or 127 selects a longer form of the length than needed."""
    mask = side == "client" if masked is None else masked
    size, bit = len(payload), 0x80 if mask else 0
    form = form or (127 if size > 65535 else 126 if size > 125 else 0)
    head = bytes((first, bit | (form or size)))
    head += {0: b"", 126: struct.pack("!H", size & 0xFFFF), 127: struct.pack("!Q", size)}[form]
    if not mask:
        return head + payload
    return head + MASK + bytes(byte ^ MASK[place % 4] for place, byte in enumerate(payload))


@dataclass(frozen=True)
class Case:
    """``frames``: (first byte, payload) of each. ``code``: the close code that the RFC asks for, 0 for a valid sequence.

    ``session``: the close code of a session where that differs. ``payload_only``: the fault is in a payload, which the relay does not read.
    """

    section: str
    name: str
    frames: tuple[tuple[int, bytes], ...]
    code: int = 0
    session: int | None = None
    payload_only: bool = False
    mask: bool = True
    """Whether the frames are masked as the RFC asks for."""
    form: int = 0
    lenient: tuple[str, ...] = ()
    """Peers that accept what the RFC forbids."""

    def data(self, side: Side) -> bytes:
        masked = (side == "client") is self.mask
        return b"".join(frame(first, payload, side, masked=masked, form=self.form) for first, payload in self.frames)

    @property
    def expected(self) -> int:
        """The close code of a session."""
        return self.code if self.session is None else self.session


def close(code: int, reason: bytes = b"") -> tuple[int, bytes]:
    return 0x88, struct.pack("!H", code) + reason


CASES = [
    Case("5.1", "masked the wrong way", ((0x82, b"hello"),), 1002, mask=False),
    *(Case("5.2", f"a payload of {size} bytes", ((0x82, b"x" * size),)) for size in (0, 1, 125, 126, 127, 65535, 65536)),
    *(Case("5.2", f"reserved bit {bit:#x}", ((0x82 | bit, b"hello"),), 1002) for bit in (0x40, 0x20, 0x10, 0x70)),
    *(Case("5.2", f"reserved opcode {opcode:#x}", ((0x80 | opcode, b""),), 1002) for opcode in (3, 4, 5, 6, 7, 0xB, 0xC, 0xD, 0xE, 0xF)),
    Case("5.3", "every byte value under a mask", ((0x82, bytes(range(256))),)),
    Case("5.4", "a continuation of nothing", ((0x80, b"more"),), 1002),
    Case("5.4", "a new message inside another", ((0x02, b"one"), (0x82, b"two")), 1002),
    Case("5.4", "a fragmented message", ((0x02, b"one"), (0x80, b"two")), session=1002),
    Case("5.4", "a ping between messages", ((0x82, b"one"), (0x89, b"there?"), (0x82, b"two"))),
    *(Case("5.5", f"control frame {first:#x} of 126 bytes", ((first, b"\x03\xe8" + b"x" * 124),), 1002) for first in (0x88, 0x89, 0x8A)),
    *(Case("5.5", f"control frame {first:#x} in fragments", ((first, b""),), 1002) for first in (0x08, 0x09, 0x0A)),
    *(Case("5.5", f"control frame {first:#x} of 125 bytes", ((first, b"x" * 125),)) for first in (0x89, 0x8A)),
    Case("5.5.1", "a Close without a code", ((0x88, b""),)),
    Case("5.5.1", "a Close of one byte", ((0x88, b"\x03"),), 1002, payload_only=True),
    Case("5.5.1", "a Close with a reason", (close(1000, "fürs erste".encode()),)),
    Case("5.5.1", "a Close whose reason is not UTF-8", (close(1000, b"\xff\xfe"),), 1007, payload_only=True),
    Case("5.5.2", "an empty Ping", ((0x89, b""),)),
    Case("5.5.3", "a Pong that nobody asked for", ((0x8A, b"unasked"),)),
    Case("5.6", "a text message", ((0x81, b"hello"),), session=1002),
    *(Case("7.4.1", f"Close code {code}", (close(code),)) for code in (1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011)),
    *(Case("7.4.1", f"Close code {code}", (close(code),), 1002, payload_only=True) for code in (1004, 1005, 1006, 1015)),
    *(Case("7.4.2", f"Close code {code}", (close(code),)) for code in (3000, 3999, 4000, 4400, 4999)),
    *(Case("7.4.2", f"Close code {code}", (close(code),), 1002, payload_only=True) for code in (0, 999, 1016, 2999, 5000, 65535)),
]


def name_of(case: Case) -> str:
    return f"{case.section} {case.name}"


def websockets_verdict(case: Case, side: Side) -> int:
    """The close code with which ``websockets`` refuses the frames of ``side``; 0 if it accepts them."""
    peer = Protocol(LibrarySide.SERVER if side == "client" else LibrarySide.CLIENT, state=OPEN, max_size=None)
    peer.receive_data(case.data(side))
    return 0 if peer.parser_exc is None or peer.close_rcvd is not None else peer.close_sent.code if peer.close_sent is not None else -1


def wsproto_verdict(case: Case, side: Side) -> int:
    """The same of ``wsproto``."""
    peer = Connection(ConnectionType.SERVER if side == "client" else ConnectionType.CLIENT)
    peer.receive_data(case.data(side))
    ends = [event.code for event in peer.events() if isinstance(event, CloseConnection)]
    return ends[-1] if ends and peer.state is ConnectionState.OPEN else 0  # it reports a breach as if the other side had closed
