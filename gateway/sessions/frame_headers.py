"""WebSocket frame headers: where messages begin and end, without their content.

Owns the check that a byte stream is a sequence of unfragmented binary messages and control frames within the size limit, and the encoding
of single frames. Payloads are neither unmasked nor read: a relay forwards them unchanged, because a client's masked frames are exactly
what the agent's server expects, and vice versa. Called by ``sessions.relay``.
"""

from __future__ import annotations

import struct
from typing import Final

from holdfast_wire.errors import ProtocolError
from holdfast_wire.limits import MESSAGE_BYTES

BINARY: Final = 0x82
CLOSE: Final = 0x88
PING: Final = 0x89
PONG: Final = 0x8A
"""First bytes of the frames a session may carry: FIN set, no extension bits."""

_CONTROL: Final = frozenset({CLOSE, PING, PONG})
_CONTROL_BYTES: Final = 125
_MASK: Final = 0x80


class FrameHeaders:
    """Follows one direction of a connection. ``masked`` says which side sends: clients mask, servers do not."""

    __slots__ = ("_head", "_left", "_mask", "boundary", "close_seen", "mid_frame")

    def __init__(self, *, masked: bool) -> None:
        self._mask = _MASK if masked else 0
        self._left = 0
        self._head = b""
        self.mid_frame = False
        """Whether the bytes so far end inside a frame: nothing may be inserted there."""
        self.boundary = 0
        """Where in the last chunk its last frame began or ended, -1 when the whole chunk was inside one frame."""
        self.close_seen = False

    def feed(self, data: bytes) -> None:
        """Follow the next bytes. Raises ``ProtocolError`` for anything a session may not carry."""
        size = len(data)
        position = self._left
        if position >= size:
            self._left = position - size
            self.mid_frame = self._left > 0
            self.boundary = -1 if self._left else size
            return
        held = 0
        if self._head:
            held = len(self._head)
            data = self._head + data
            size += held
            self._head = b""
        start = position
        mask = self._mask
        while position < size:
            start = position
            if size - position < 2:
                break
            first, second = data[position], data[position + 1]
            length = second & 0x7F
            header = 6 if mask else 2
            if length == 126:
                header += 2
            elif length == 127:
                header += 8
            if (second & _MASK) != mask:
                raise ProtocolError("a frame is masked the wrong way")
            if first != BINARY:
                self._check_control(first, length)
            if size - position < header:
                break
            if length == 126:
                length = int.from_bytes(data[position + 2 : position + 4], "big")
            elif length == 127:
                length = int.from_bytes(data[position + 2 : position + 10], "big")
                if length > MESSAGE_BYTES:
                    self._left = max(position + header + length - size, 0)  # the rest of the payload must not be parsed as frames
                    raise ProtocolError(f"a message of {length} bytes is over the limit of {MESSAGE_BYTES}", "request_too_large")
            position += header + length
        else:
            self._left = position - size
            self.mid_frame = position > size
            self.boundary = max((start if self.mid_frame else size) - held, -1)
            return
        self._head = data[start:]
        self._left = 0
        self.mid_frame = True
        self.boundary = max(start - held, -1)

    def _check_control(self, first: int, length: int) -> None:
        if first not in _CONTROL:
            raise ProtocolError("every message is one unfragmented binary frame")
        if length > _CONTROL_BYTES:
            raise ProtocolError("a control frame is over 125 bytes")
        if first == CLOSE:
            self.close_seen = True


def server_frame(first: int, payload: bytes) -> bytes:
    """One unmasked frame."""
    size = len(payload)
    if size < 126:
        return bytes((first, size)) + payload
    if size < 65536:
        return struct.pack("!BBH", first, 126, size) + payload
    return struct.pack("!BBQ", first, 127, size) + payload


def close_frame(code: int, reason: str) -> bytes:
    """An unmasked Close; the reason is cut to what a control frame holds."""
    return server_frame(CLOSE, struct.pack("!H", code) + reason.encode()[: _CONTROL_BYTES - 2])
