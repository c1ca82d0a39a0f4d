"""Two libraries as clients of a session's WebSocket: ``websockets`` and ``wsproto``, both without their own I/O, behind one interface.

Owns the sockets and the translation of the libraries' events. Each checks everything that it receives by its own reading of RFC 6455, and
raises what it finds wrong. Used by tests that speak with a running gateway or agent.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import urlsplit

import wsproto
from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.uri import parse_uri
from wsproto.connection import ConnectionState
from wsproto.events import AcceptConnection, BytesMessage, CloseConnection, Ping, Pong, RejectConnection, Request


@dataclass(frozen=True)
class Event:
    """``kind`` is ``open``, ``message``, ``ping``, ``pong`` or ``close``; a message is whole. ``code``: of a close, 1005 without one."""

    kind: str
    data: bytes = b""
    code: int = 0


class Library(Protocol):
    """A client without I/O: methods return the bytes to send."""

    def connect(self, url: str, headers: dict[str, str]) -> bytes: ...
    def receive(self, data: bytes) -> tuple[list[Event], bytes]: ...
    def message(self, pieces: list[bytes], between: bytes = b"") -> bytes: ...
    def ping(self, data: bytes) -> bytes: ...
    def close(self, code: int, reason: str) -> bytes: ...


class Websockets:
    """The library ``websockets``; it answers pings and closes by itself."""

    def connect(self, url: str, headers: dict[str, str]) -> bytes:
        self._protocol = ClientProtocol(parse_uri(url), max_size=None)
        request = self._protocol.connect()
        request.headers.update(headers)
        self._protocol.send_request(request)
        return self._output()

    def receive(self, data: bytes) -> tuple[list[Event], bytes]:
        self._protocol.receive_data(data) if data else self._protocol.receive_eof()
        found: list[Event] = []
        for event in self._protocol.events_received():
            if isinstance(event, Response):
                assert event.status_code == 101, event
                found.append(Event("open"))
            elif isinstance(event, Frame) and event.opcode is Opcode.CLOSE:
                closed = self._protocol.close_rcvd
                assert closed is not None
                found.append(Event("close", closed.reason.encode(), int(closed.code)))
            elif isinstance(event, Frame):
                kind = {Opcode.PING: "ping", Opcode.PONG: "pong"}.get(event.opcode, "message")
                assert event.fin, "the service sends no fragments"
                found.append(Event(kind, bytes(event.data)))
        assert self._protocol.handshake_exc is None, self._protocol.handshake_exc
        assert self._protocol.parser_exc is None or not data, self._protocol.parser_exc
        return found, self._output()

    def message(self, pieces: list[bytes], between: bytes = b"") -> bytes:
        sent = b""
        for number, piece in enumerate(pieces):
            send = self._protocol.send_continuation if number else self._protocol.send_binary
            send(piece, fin=number == len(pieces) - 1)
            sent += self._output()
            if between and number < len(pieces) - 1:
                sent += self.ping(between)
        return sent

    def ping(self, data: bytes) -> bytes:
        self._protocol.send_ping(data)
        return self._output()

    def close(self, code: int, reason: str) -> bytes:
        self._protocol.send_close(None if code == 1005 else code, reason)
        return self._output()

    def _output(self) -> bytes:
        return b"".join(self._protocol.data_to_send())


class Wsproto:
    """The library ``wsproto``; pings and closes are answered here."""

    def connect(self, url: str, headers: dict[str, str]) -> bytes:
        parts = urlsplit(url)
        self._connection = wsproto.WSConnection(wsproto.ConnectionType.CLIENT)
        extra = [(name.encode(), value.encode()) for name, value in headers.items()]
        return self._connection.send(Request(host=parts.netloc, target=parts.path, extra_headers=extra))

    def receive(self, data: bytes) -> tuple[list[Event], bytes]:
        self._connection.receive_data(data or None)
        found, replies = [], b""
        for event in self._connection.events():
            if isinstance(event, AcceptConnection):
                found.append(Event("open"))
            elif isinstance(event, RejectConnection):
                raise AssertionError(event)
            elif isinstance(event, BytesMessage):
                if event.message_finished or event.frame_finished:
                    assert event.message_finished, "the service sends no fragments"
                self._parts = getattr(self, "_parts", b"") + bytes(event.data)
                if event.message_finished:
                    found.append(Event("message", self._parts))
                    self._parts = b""
            elif isinstance(event, Ping):
                found.append(Event("ping", bytes(event.payload)))
                replies += self._connection.send(event.response())
            elif isinstance(event, Pong):
                found.append(Event("pong", bytes(event.payload)))
            elif isinstance(event, CloseConnection) and event.code != 1006:
                found.append(Event("close", (event.reason or "").encode(), int(event.code)))
                if self._connection.state is ConnectionState.REMOTE_CLOSING:
                    replies += self._connection.send(event.response())
        return found, replies

    def message(self, pieces: list[bytes], between: bytes = b"") -> bytes:
        sent = b""
        for number, piece in enumerate(pieces):
            last = number == len(pieces) - 1
            sent += self._connection.send(BytesMessage(piece, message_finished=last))
            if between and not last:
                sent += self.ping(between)
        return sent

    def ping(self, data: bytes) -> bytes:
        return self._connection.send(Ping(data))

    def close(self, code: int, reason: str) -> bytes:
        return self._connection.send(CloseConnection(code=code, reason=reason or None))


LIBRARIES: tuple[type[Websockets | Wsproto], ...] = (Websockets, Wsproto)


class Client:
    """One connection of a library. ``next`` returns its events in order."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self._events: list[Event] = []

    async def open(self, url: str, headers: dict[str, str]) -> None:
        """Connect; returns once the service has accepted the upgrade."""
        parts = urlsplit(url)
        self._reader, self._writer = await asyncio.open_connection(parts.hostname, parts.port)
        await self.send(self.library.connect(url, headers))
        assert (await self.next()).kind == "open"

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def next(self) -> Event:
        """The next event. Raises ``ConnectionError`` at the end of the connection."""
        while not self._events:
            data = await self._reader.read(1 << 20)
            found, replies = self.library.receive(data)
            self._events += found
            if replies:
                await self.send(replies)
            if not data and not self._events:
                raise ConnectionError("the connection has ended")
        return self._events.pop(0)

    async def ended(self) -> None:
        """Wait until the service has closed the connection."""
        while await self._reader.read(1 << 20):
            pass

    async def abort(self) -> None:
        """End the connection without a Close."""
        self._writer.transport.abort()
        await asyncio.sleep(0)  # the transport closes in the loop's next turn
