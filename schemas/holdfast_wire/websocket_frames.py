"""WebSocket frames that a session may carry: unfragmented binary messages, and control frames (RFC 6455 §5).

``FrameHeaders`` follows where frames begin and end, for the gateway's relay: payloads are neither unmasked nor read, because a client's
masked frames are exactly what the agent's server expects, and vice versa. ``MessageReader`` cuts one side's bytes into frames, for the
agent and the SDK. Both check the size limit. Neither reads messages or the handshake; of the handshake only the calculation of the accepted
key is here.
"""

from __future__ import annotations

import binascii
import hashlib
import struct
from collections.abc import Callable
from typing import Final

from .errors import ProtocolError
from .limits import MESSAGE_BYTES

BINARY: Final = 0x82
CLOSE: Final = 0x88
PING: Final = 0x89
PONG: Final = 0x8A
"""First bytes of the frames a session may carry: FIN set, no extension bits."""

NOT_A_FRAME: Final = 1002
NOT_TEXT: Final = 1007
TOO_LARGE: Final = 1009
"""Close codes (RFC 6455 §7.4.1)."""

_CONTROL: Final = frozenset({CLOSE, PING, PONG})
_CONTROL_BYTES: Final = 125
_MASK: Final = 0x80


class FrameHeaders:
    """Follows one direction of a connection. ``masked`` is the side that sends: clients mask, servers do not."""

    __slots__ = ("_head", "_left", "_mask", "boundary", "close_seen", "mid_frame")

    def __init__(self, *, masked: bool) -> None:
        self._mask = _MASK if masked else 0
        self._left = 0
        self._head = b""
        self.mid_frame = False
        """Whether the bytes so far end inside a frame: nothing may be inserted there."""
        self.boundary = 0
        """The position in the last chunk at which its last frame began or ended; -1 if the whole chunk was inside one frame."""
        self.close_seen = False

    def feed(self, data: bytes, most: int = 1 << 29) -> int:
        """Follow the next bytes, up to the end of their ``most``-th frame; returns how many bytes that were. Raises ``ProtocolError`` for
        frames that a session may not carry.
        """
        size = len(data)
        position = self._left
        if position >= size:
            self._left = position - size
            self.mid_frame = self._left > 0
            self.boundary = -1 if self._left else size
            return size
        held = 0
        if self._head:
            held = len(self._head)
            data = self._head + data
            size += held
            self._head = b""
        start = position
        mask = self._mask
        shortest = 6 if mask else 2
        while position < size:
            start = position
            if size - position < 2:
                break
            if most <= 0:
                self._left = 0
                self.mid_frame = False
                self.boundary = position - held
                return position - held
            most -= 1
            first, second = data[position], data[position + 1]
            length = second & 0x7F
            extended = 0 if length < 126 else 2 if length == 126 else 8
            header = shortest + extended
            if (second & _MASK) != mask:
                raise ProtocolError("a frame is masked the wrong way")
            if first != BINARY:
                self._check_control(first, length)
            if size - position < header:
                break
            if extended:
                length = int.from_bytes(data[position + 2 : position + 2 + extended], "big")
                if length > MESSAGE_BYTES:
                    self._left = max(position + header + length - size, 0)  # the rest of the payload must not be parsed as frames
                    raise ProtocolError(f"a message of {length} bytes is over the limit of {MESSAGE_BYTES}", "request_too_large")
            position += header + length
        else:
            self._left = position - size
            self.mid_frame = position > size
            self.boundary = max((start if self.mid_frame else size) - held, -1)
            return size - held
        self._head = data[start:]
        self._left = 0
        self.mid_frame = True
        self.boundary = max(start - held, -1)
        return size - held

    def _check_control(self, first: int, length: int) -> None:
        if first not in _CONTROL:
            raise ProtocolError("every message must be one unfragmented binary frame")
        if length > _CONTROL_BYTES:
            raise ProtocolError("a control frame is over 125 bytes")
        if first == CLOSE:
            self.close_seen = True


class MessageReader:
    """Splits the bytes of one side into complete frames and unmasks them. The caller checks which frames are legal."""

    __slots__ = ("_buffer", "_mask", "_needed", "_unmask", "breach")

    def __init__(self, unmask: Callable[[bytes, bytes], bytes] | None = None, *, masked: bool = True) -> None:
        """``unmask`` takes a payload and its mask. ``masked``: the side is a client."""
        self._unmask = unmask or apply_mask
        self._mask = _MASK if masked else 0
        self._buffer = bytearray()
        self._needed = 0
        self.breach = 0
        """The close code if the bytes cannot be read; then no frame follows."""

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """The frames that are complete now, as pairs of first byte and payload."""
        if self._buffer:
            self._buffer += data
            if len(self._buffer) < self._needed:
                return []  # until then bytes are only collected: no copy for each piece of a large frame
            data = bytes(self._buffer)
            self._buffer.clear()
        frames: list[tuple[int, bytes]] = []
        position, end, self._needed = 0, len(data), 2
        mask, mask_bytes = self._mask, 4 if self._mask else 0
        while end - position >= 2 and not self.breach:
            first, size = data[position], data[position + 1]
            if size & _MASK != mask:
                self.breach = NOT_A_FRAME
                break
            size &= 0x7F
            start = position + 2 + mask_bytes
            if size >= 126:
                start += 2 if size == 126 else 8
                if start > end:
                    self._needed = start - position
                    break
                size = int.from_bytes(data[position + 2 : start - mask_bytes], "big")
                if size > MESSAGE_BYTES:
                    self.breach = TOO_LARGE
                    break
            stop = start + size
            if stop > end:
                self._needed = stop - position
                break
            payload = data[start:stop]
            frames.append((first, self._unmask(payload, data[start - 4 : start]) if mask else payload))
            position = stop
        if position < end and not self.breach:
            self._buffer += memoryview(data)[position:]
        return frames


def accept_key(key: str) -> str:
    """The answer to a ``Sec-WebSocket-Key`` (RFC 6455 §4.2.2)."""
    digest = hashlib.sha1(f"{key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11".encode(), usedforsecurity=False).digest()
    return binascii.b2a_base64(digest, newline=False).decode()


def apply_mask(data: bytes | bytearray | memoryview, mask: bytes | bytearray) -> bytes:
    """``data`` XOR the four bytes of ``mask``, repeated, in plain Python."""
    size = len(data)
    key = (mask * (size // 4 + 1))[:size]
    return (int.from_bytes(data, "little") ^ int.from_bytes(key, "little")).to_bytes(size, "little")


def control_breach(first: int, payload: bytes) -> int:
    """The close code for a client's frame that is not binary; 0 for a valid Ping, Pong or Close."""
    if first not in _CONTROL or len(payload) > _CONTROL_BYTES:
        return NOT_A_FRAME
    if first != CLOSE or not payload:
        return 0
    code = int.from_bytes(payload[:2], "big")
    if len(payload) == 1 or not (1000 <= code <= 1003 or 1007 <= code <= 1014 or 3000 <= code <= 4999):
        return NOT_A_FRAME
    try:
        payload[2:].decode()
    except UnicodeDecodeError:
        return NOT_TEXT
    return 0


def server_frame(first: int, payload: bytes) -> bytes:
    """One unmasked frame."""
    return _head(first, len(payload), 0) + payload


def server_messages(messages: list[bytes]) -> bytes:
    """Unmasked binary frames, one for each message."""
    parts: list[bytes] = []
    for message in messages:
        size = len(message)
        parts.append(bytes((BINARY, size)) if size < 126 else _head(BINARY, size, 0))
        parts.append(message)
    return b"".join(parts)


def client_frame(first: int, payload: bytes, mask: bytes, unmask: Callable[[bytes, bytes], bytes] | None = None) -> bytes:
    """One frame masked with the four bytes of ``mask``."""
    return _head(first, len(payload), _MASK) + mask + (unmask or apply_mask)(payload, mask)


def _head(first: int, size: int, mask: int) -> bytes:
    if size < 126:
        return bytes((first, mask | size))
    if size < 65536:
        return struct.pack("!BBH", first, mask | 126, size)
    return struct.pack("!BBQ", first, mask | 127, size)


def close_frame(code: int, reason: str) -> bytes:
    """An unmasked Close; the reason is cut to what a control frame holds."""
    return server_frame(CLOSE, struct.pack("!H", code) + reason.encode()[: _CONTROL_BYTES - 2])
