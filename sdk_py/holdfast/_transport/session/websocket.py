"""One WebSocket connection without I/O: bytes in, messages out, and the reverse.

Owns the handshake, framing, and what a refusal or a close means. What every session does is done here: a handshake that is accepted, whole
binary frames, pings, and our own close. Refusals, fragments, breaches and the peer's close are left to the
``websockets`` library, which is imported then: that takes a third of the time in which a command line starts. Called by both APIs.
"""

from __future__ import annotations

import binascii
import hashlib
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from types import NoneType
from typing import TYPE_CHECKING

from holdfast_wire.limits import MESSAGE_BYTES
from holdfast_wire.records import dataclass

from holdfast._urls import address_of, quoted

if TYPE_CHECKING:
    from websockets.client import ClientProtocol
    from websockets.frames import Frame
    from websockets.http11 import Response

ABNORMAL = 1006
BAD_DATA = 1003
REFUSAL_BYTES = 64 * 1024
_ACCEPT_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_SMALL_BYTES = 1024
"""Up to here masking by integers is as good as the library's C code, which has to be loaded first."""


def apply_mask(data: bytes, mask: bytes) -> bytes:
    """``data`` masked (RFC 6455 §5.3)."""
    size = len(data)
    if size > _SMALL_BYTES:
        return _fast_mask()(data, mask)
    repeated = mask * (size // 4 + 1)
    return (int.from_bytes(data, sys.byteorder) ^ int.from_bytes(repeated[:size], sys.byteorder)).to_bytes(size, sys.byteorder)


def _fast_mask() -> Callable[[bytes, bytes], bytes]:
    try:
        from websockets.speedups import apply_mask
    except ImportError:  # the wheel for this machine has no C extension
        from websockets.utils import apply_mask
    return apply_mask


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
    """Feed it what the socket gives, write what it returns. ``messages`` of other types than binary end it with 1003."""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        self._url = url
        self._key = binascii.b2a_base64(os.urandom(16), newline=False).decode()
        self._library: ClientProtocol | None = None
        self._headers = dict(headers)
        self._goodbye = b""
        self._buffer = bytearray()
        self._needed = 0
        self._shaken = False
        self._in_fragments = False
        self._fragments: list[bytes] = []
        self._pong: bytes | None = None
        self.has_reply = False
        """Whether ``reply`` may have something to send."""
        self.open = False
        self.headers: Mapping[str, str] = {}
        self.refusal: Refusal | None = None
        self.closed: CloseInfo | None = None

    @property
    def over(self) -> bool:
        """Whether nothing more will come: refused or closed."""
        return self.refusal is not None or self.closed is not None

    def greeting(self) -> bytes:
        """The handshake request."""
        host, resource = _place(self._url)
        headers = {
            "Host": host,
            "Upgrade": "websocket",
            "Connection": "Upgrade",
            "Sec-WebSocket-Key": self._key,
            "Sec-WebSocket-Version": "13",
            **self._headers,
        }
        lines = [f"GET {resource} HTTP/1.1", *[f"{name}: {value}" for name, value in headers.items()], "", ""]
        return "\r\n".join(lines).encode()

    @property
    def _protocol(self) -> ClientProtocol:
        """The library, in the state that the connection is in."""
        self.has_reply = True
        if self._library is None:
            from websockets.client import ClientProtocol
            from websockets.protocol import CONNECTING, OPEN
            from websockets.uri import parse_uri

            state = OPEN if self.open else CONNECTING
            self._library = ClientProtocol(parse_uri(self._url), max_size=MESSAGE_BYTES, state=state)
            self._library.key = self._key
        return self._library

    def feed(self, data: bytes) -> list[bytes]:
        """Whole messages in ``data`` and what came before it. Look at ``open``, ``refusal`` and ``closed`` afterwards."""
        messages: list[bytes] = []
        if not self.open:
            rest = self._shake(data)
            if not rest:
                return messages
            data = rest
        if self._buffer:
            self._buffer += data
            if len(self._buffer) < self._needed:
                return messages
            data = bytes(self._buffer)
            self._buffer.clear()
        position, end = 0, len(data)
        self._needed = 0
        while end - position >= 2 and self.closed is None:
            first, size = data[position], data[position + 1]
            start = position + 2
            masked = size >= 128
            if size == 126 or size == 127:
                start += 2 if size == 126 else 8
                if start > end:
                    self._needed = start - position
                    break
                size = int.from_bytes(data[position + 2 : start], "big")
            if masked or size > MESSAGE_BYTES:
                self._feed_library(data[position:end], messages)  # a breach: the library names it and closes
                return messages
            stop = start + size
            if stop > end:
                self._needed = stop - position  # until then bytes are only collected: no copy for each piece of a large frame
                break
            if first == 0x82 and not self._in_fragments:
                messages.append(data[start:stop])
            elif first == 0x89 and size < 126:
                self.has_reply = True
                self._pong = data[start:stop]  # only the last is answered, so that unread pongs do not accumulate
            else:
                self._feed_library(data[position:stop], messages)
            position = stop
        if position < end and self.closed is None:
            self._buffer += memoryview(data)[position:]
        return messages

    def feed_eof(self) -> None:
        """The socket has ended."""
        if self._library is not None:
            if self._library.reader.eof:
                return
            self._library.receive_eof()
            self._read_events([])
        if not self.over:
            if self.open:
                self.closed = CloseInfo(ABNORMAL)
            else:
                self.refusal = Refusal(0, {}, b"")

    def pack(self, messages: Iterable[bytes]) -> bytes:
        """``messages`` as masked binary frames (RFC 6455 §5.3)."""
        parts: list[bytes] = []
        for message in messages:
            size = len(message)
            mask = os.urandom(4)
            if size < 126:
                parts.append(bytes((0x82, 0x80 | size)) + mask)
            elif size < 65536:
                parts.append(b"\x82\xfe" + size.to_bytes(2, "big") + mask)
            else:
                parts.append(b"\x82\xff" + size.to_bytes(8, "big") + mask)
            parts.append(apply_mask(message, mask))
        return b"".join(parts)

    def reply(self) -> bytes:
        """What the protocol itself has to send (a pong, the echo of a close)."""
        self.has_reply = False
        library = self._library
        reply = b"".join(library.data_to_send()) if library is not None and library.writes else b""
        reply += self._goodbye
        self._goodbye = b""
        pong, self._pong = self._pong, None
        if pong is not None and self.closed is None:
            mask = os.urandom(4)
            reply = bytes((0x8A, 0x80 | len(pong))) + mask + apply_mask(pong, mask) + reply
        return reply

    def close(self, code: int, reason: str = "") -> bytes:
        """The closing frame; nothing is received afterwards."""
        if self._library is not None:
            from websockets.protocol import OPEN

            if self._library.state is OPEN:
                self._library.send_close(code, reason[:100])
        elif self.open and self.closed is None:
            body = code.to_bytes(2, "big") + reason[:100].encode()[:123]
            mask = os.urandom(4)
            self._goodbye = bytes((0x88, 0x80 | len(body))) + mask + apply_mask(body, mask)
        self.closed = self.closed or CloseInfo(code, reason)
        return self.reply()

    # Inside -----------------------------------------------------------------------------------------------------

    def _shake(self, data: bytes) -> bytes:
        """Feed the handshake; returns the bytes after its headers once they are complete and good."""
        self._buffer += data
        end = self._buffer.find(b"\r\n\r\n")
        if self._shaken or end < 0:
            data, rest = bytes(self._buffer), b""
        else:
            data, rest = bytes(self._buffer[: end + 4]), bytes(self._buffer[end + 4 :])
            self._shaken = True
        if end < 0 and not self._shaken and len(data) <= REFUSAL_BYTES:
            return b""
        self._buffer.clear()
        if self._library is None and self._shaken and (headers := accepted(data, self._key)) is not None:
            self.open, self.headers = True, headers
            return rest
        self._feed_library(data, [])
        if rest and not self.open and self.refusal is None:
            self._feed_library(rest, [])
        return rest if self.open else b""

    def _feed_library(self, data: bytes, messages: list[bytes]) -> None:
        """A refusal, or a frame that is not one whole binary message: control, fragments, or an error that the library reports."""
        self._protocol.receive_data(data)
        self._read_events(messages)

    def _read_events(self, messages: list[bytes]) -> None:
        from websockets.exceptions import InvalidStatus
        from websockets.frames import Frame
        from websockets.http11 import Response

        for event in self._protocol.events_received():
            if isinstance(event, Response):
                self._read_response(event)
            elif isinstance(event, Frame):
                self._read_frame(event, messages)
        protocol = self._protocol
        if self.refusal is None and not isinstance(protocol.handshake_exc, (InvalidStatus, NoneType)):
            self.refusal = Refusal(0, {}, b"")
        if self.open and self.closed is None and protocol.parser_exc is not None:
            sent = protocol.close_sent
            self.closed = CloseInfo(sent.code, "the connection broke the WebSocket protocol") if sent else CloseInfo(ABNORMAL)

    def _read_response(self, response: Response) -> None:
        headers = {name.lower(): value for name, value in response.headers.raw_items()}
        if response.status_code == 101 and self._protocol.handshake_exc is None:
            self.open = True
            self.headers = headers
        else:
            status = response.status_code if response.status_code != 101 else 0
            self.refusal = Refusal(status, headers, bytes(response.body)[:REFUSAL_BYTES])

    def _read_frame(self, frame: Frame, messages: list[bytes]) -> None:
        from websockets.frames import Opcode

        if frame.opcode is Opcode.BINARY or frame.opcode is Opcode.CONT:
            self._fragments.append(bytes(frame.data))
            self._in_fragments = not frame.fin
            if frame.fin:
                messages.append(b"".join(self._fragments))
                self._fragments.clear()
        elif frame.opcode is Opcode.TEXT:
            self.close(BAD_DATA, "binary messages only")
        elif self._protocol.close_rcvd is not None and self.closed is None:
            self.closed = CloseInfo(self._protocol.close_rcvd.code, self._protocol.close_rcvd.reason)


def _place(url: str) -> tuple[str, str]:
    """``Host`` and the resource of a ``ws`` or ``wss`` URL."""
    address = address_of(f"http{url.removeprefix('ws')}")
    name = address.host if address.host.isascii() else address.host.encode("idna").decode()
    host = f"[{name}]" if ":" in name else name
    if address.port != (443 if address.tls else 80):
        host = f"{host}:{address.port}"
    return host, "/".join([quoted(part, ":@!$&'()*+,;=~%-._") for part in (address.path or "/").split("/")])


def accepted(head: bytes, key: str) -> dict[str, str] | None:
    """The headers of an answer that accepts the handshake; None for any other, and for one that is unusual in any way."""
    lines = head[:-4].split(b"\r\n")
    if not lines[0].startswith(b"HTTP/1.1 101 ") or len(head) > REFUSAL_BYTES:
        return None
    headers: dict[str, str] = {}
    for line in lines[1:]:
        name, colon, value = line.decode("ascii", "replace").partition(":")
        name = name.lower()
        if not colon or not name.replace("-", "").isalnum() or name in headers or not value.replace("\t", " ").isprintable():
            return None
        headers[name] = value.strip(" \t")
    digest = binascii.b2a_base64(hashlib.sha1(key.encode() + _ACCEPT_GUID, usedforsecurity=False).digest(), newline=False).decode()
    good = headers.get("upgrade", "").lower() == "websocket" and headers.get("connection", "").lower() == "upgrade"
    if not good or headers.get("sec-websocket-accept") != digest:
        return None
    if "sec-websocket-extensions" in headers or "sec-websocket-protocol" in headers:
        return None
    return headers
