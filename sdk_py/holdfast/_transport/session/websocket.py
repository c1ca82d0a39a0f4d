"""One WebSocket connection without I/O: converts received bytes to messages, and messages to bytes.

Owns the handshake, the fragments of a message, and the reading of refusals and closes. ``service`` writes the request of the handshake,
``http1`` reads its answer, ``websocket_frames`` reads and writes frames. Called by both APIs.
"""

from __future__ import annotations

import binascii
import os
from collections.abc import Iterable, Mapping

from holdfast_wire.fast_dataclass import dataclass
from holdfast_wire.http1 import AnswerReader, HttpError
from holdfast_wire.limits import MESSAGE_BYTES
from holdfast_wire.websocket_frames import (
    BINARY,
    CLOSE,
    PING,
    PONG,
    TOO_LARGE,
    MessageReader,
    accept_key,
    apply_mask,
    client_frame,
    control_breach,
)

from holdfast._transport.service import Service

ABNORMAL = 1006
BAD_DATA = 1003
REFUSAL_BYTES = 64 * 1024
_NO_CODE = 1005
_BEGUN, _CONTINUED, _COMPLETED = 0x02, 0x00, 0x80
"""First bytes of the fragments of a binary message."""
_TEXT = frozenset({0x01, 0x81})
_SMALL_BYTES = 1024
"""Up to this size, masking with Python integers is as fast as the library's C code, which has to be loaded first."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """The service answered the handshake with something other than 101. ``status`` 0: it was not HTTP, or not WebSocket."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class CloseInfo:
    """Why the connection ended: the close code (1006 when there was none) and the peer's reason."""

    code: int
    reason: str = ""


class WebSocket:
    """Feed it the received bytes, and write the bytes that it returns. A message of another type than binary ends it with 1003."""

    def __init__(self, service: Service, path: str, headers: Mapping[str, str]) -> None:
        """``path`` and ``headers`` are of the handshake request."""
        self._service = service
        self._path = path
        self._key = binascii.b2a_base64(os.urandom(16), newline=False).decode()
        self._headers = dict(headers)
        self._answer = AnswerReader(upgrades=True)
        self._frames = MessageReader(masked=False)
        self._fragments: bytearray | None = None
        """The fragments of the current message."""
        self._goodbye = b""
        self._pong: bytes | None = None
        self.has_reply = False
        """Whether ``reply`` may return bytes."""
        self.open = False
        self.headers: Mapping[str, str] = {}
        self.refusal: Refusal | None = None
        self.closed: CloseInfo | None = None

    @property
    def over(self) -> bool:
        """Whether the connection was refused or closed, so that no message will follow."""
        return self.refusal is not None or self.closed is not None

    def add_header(self, name: str, value: str) -> None:
        """Add a header to the handshake request."""
        self._headers[name] = value

    def greeting(self) -> bytes:
        """The handshake request."""
        upgrade = {
            "Upgrade": "websocket",
            "Connection": "Upgrade",
            "Sec-WebSocket-Key": self._key,
            "Sec-WebSocket-Version": "13",
        }
        return self._service.head("GET", self._path, {**upgrade, **self._headers})

    def feed(self, data: bytes) -> list[bytes]:
        """Add received bytes; returns the messages that are complete now. Check ``open``, ``refusal`` and ``closed`` afterwards."""
        messages: list[bytes] = []
        if not self.open:
            data = self._shake(data)
        if not self.open or self.over:
            return messages
        for first, payload in self._frames.feed(data):
            if first == BINARY and self._fragments is None:
                messages.append(payload)
                continue
            self._take_other(first, payload, messages)
            if self.closed is not None:
                return messages
        if self._frames.breach:
            self._end(self._frames.breach, "the connection broke the WebSocket protocol")
        return messages

    def feed_eof(self) -> None:
        """The socket has reached its end."""
        if not self.open:
            self._shake(b"")
        if not self.over:
            self.closed = CloseInfo(ABNORMAL)

    def pack(self, messages: Iterable[bytes]) -> bytes:
        """``messages`` as masked binary frames (RFC 6455 §5.3)."""
        return b"".join([client_frame(BINARY, message, os.urandom(4), _mask) for message in messages])

    def reply(self) -> bytes:
        """The bytes that the protocol itself has to send: a pong, a close, or the answer to one."""
        self.has_reply = False
        reply, pong = self._goodbye, self._pong
        self._goodbye, self._pong = b"", None
        return reply if pong is None or self.closed is not None else _frame(PONG, pong)

    def close(self, code: int, reason: str = "") -> bytes:
        """The Close frame; received bytes are ignored afterwards."""
        self._end(code, reason)
        return self.reply()

    # Inside ---------------------------------------------------------------------------------------------------------

    def _shake(self, data: bytes) -> bytes:
        """Read the answer to the handshake; no bytes mean the end of the connection. Returns the bytes after the answer."""
        answer = self._answer
        if self.over:
            return b""
        try:
            answer.feed(data)
        except HttpError:
            self.refusal = Refusal(0, {}, b"")
            return b""
        if answer.status == 101 and answer.done and _accepts(answer.headers, self._key):
            self.open, self.headers = True, answer.headers
            return answer.rest
        if answer.status == 101 and answer.done:
            self.refusal = Refusal(0, {}, b"")
        elif answer.done or len(answer.body) > REFUSAL_BYTES:
            self.refusal = Refusal(answer.status, answer.headers, answer.body[:REFUSAL_BYTES])
        return b""

    def _take_other(self, first: int, payload: bytes, messages: list[bytes]) -> None:
        """Handle a control frame, a fragment, or a violation of the protocol."""
        if first == PING and not control_breach(first, payload):
            self.has_reply = True
            self._pong = payload  # only the last ping is answered, so that unread pongs do not accumulate
        elif first in (_BEGUN, _CONTINUED, _COMPLETED) and (first == _BEGUN) == (self._fragments is None):
            if self._fragments is None:
                self._fragments = bytearray()
            self._fragments += payload
            if len(self._fragments) > MESSAGE_BYTES:
                self._end(TOO_LARGE, "the message is too large")
            elif first == _COMPLETED:
                messages.append(bytes(self._fragments))
                self._fragments = None
        elif first in _TEXT:
            self._end(BAD_DATA, "binary messages only")
        elif breach := control_breach(first, payload):
            self._end(breach, "the connection broke the WebSocket protocol")
        elif first == CLOSE:
            self._end(int.from_bytes(payload[:2], "big") or _NO_CODE, payload[2:].decode(), payload)

    def _end(self, code: int, reason: str, body: bytes | None = None) -> None:
        """Close with this reason; ``body`` is the content of the Close frame if it answers a received one."""
        if self.open and self.closed is None:
            self._goodbye = _frame(CLOSE, code.to_bytes(2, "big") + reason[:100].encode()[:123] if body is None else body)
            self.has_reply = True
        self.closed = self.closed or CloseInfo(code, reason)


def _frame(first: int, payload: bytes) -> bytes:
    return client_frame(first, payload, os.urandom(4), _mask)


def _mask(data: bytes, mask: bytes) -> bytes:
    """``data`` masked (RFC 6455 §5.3), by the library's C code if ``data`` is long enough."""
    if len(data) > _SMALL_BYTES:
        try:
            from websockets.speedups import apply_mask as fast_mask

            return fast_mask(data, mask)
        except ImportError:  # the wheel for this machine has no C extension
            pass
    return apply_mask(data, mask)


def _accepts(headers: Mapping[str, str], key: str) -> bool:
    """Whether an answer accepts the handshake (RFC 6455 §4.1), and no extension or subprotocol."""
    options = [option.strip().lower() for option in headers.get("connection", "").split(",")]
    return (
        headers.get("upgrade", "").lower() == "websocket"
        and "upgrade" in options
        and headers.get("sec-websocket-accept") == accept_key(key)
        and "sec-websocket-extensions" not in headers
        and "sec-websocket-protocol" not in headers
    )
