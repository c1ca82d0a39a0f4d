"""uvicorn's HTTP protocol with limits: the time and size of a request's head, how much is parsed in one turn of the event loop, and the
time a client may take to read an answer.

Owns these limits, the answer to anything that is not HTTP (RFC 9112), which is a problem document like every other refusal, one write for
a response that comes whole, and the hand-over of a connection: a request to upgrade to WebSocket is a request like any other, whose
endpoint may take the transport. A relay through ASGI messages would parse, queue and frame every message again. Bodies are limited where
they are read (``request_fields``), connections in ``connections``. Chosen in ``__main__`` as uvicorn's ``http`` class; knows no route and
no key.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, Self
from urllib.parse import unquote

import httptools
import orjson
from holdfast_wire.errors import HoldfastError
from uvicorn.protocols.http.httptools_impl import HEADER_RE, HEADER_VALUE_RE, STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from gateway.turns import STEPS, turns

from .connections import ConnectionLimits
from .held_reading import HeldReading
from .request_heads import FIELDS_TOO_LARGE, HEAD_FIELDS, checked_head
from .responses import MEDIA_TYPE, problem

CONNECTED: Final = "holdfast.connected"
"""In the scope of a request: a function that returns whether its client is still connected."""
AUTHENTICATED: Final = "holdfast.authenticated"
"""In the scope of a request: a function to call when the request has a valid key, ``BoundedHttpProtocol.authenticated``."""
TAKE_OVER: Final = "holdfast.take_over"
"""In the scope of a request to upgrade to WebSocket: ``BoundedHttpProtocol.take_over``."""
CONNECTION: Final = "holdfast.connection"
"""In the scope of a request: its ``BoundedHttpProtocol``, for ``abort``, ``at_shutdown`` and ``at_disconnect``."""
HEAD_BYTES: Final = 64 * 1024
"""Bytes that may come without completing a head or a part of a body: heads, trailers, chunk extensions."""
HEAD_S: Final = 20.0
"""How long a new connection may take to send a request, and a begun head to be complete."""
STALL_S: Final = 30.0
"""A client that reads less than ``_STALL_BYTES`` of an answer in this time is cut off: the buffered answer is memory shared by all."""
_STALL_BYTES: Final = 32 * 1024
_LINGER_S: Final = 2.0
"""How long a refused connection is still read; the bytes are discarded."""
_PIECE_BYTES: Final = 1024
"""Bytes that are parsed without a look at what they caused: one head, or parts of a body and what follows it."""
_PIECE_STEPS: Final = 4
_HEAD_STEPS: Final = 128
"""With the answer; a part of a body is one step."""


class BoundedHttpProtocol(HttpToolsProtocol):
    """See the module."""

    head_s = HEAD_S
    stall_s = STALL_S
    limits = ConnectionLimits()
    """Of connections without a valid key; none unless the class comes from ``with_limits``."""
    flow: HeldReading
    _with_key = False
    """A request had a valid key."""
    _group = ""
    """Among connections without a valid key: those of one group wait for each other."""
    _address = ""
    """What the connection counts for in ``limits``; empty once a request had a valid key."""
    _stall_timer: asyncio.TimerHandle | None = None
    _head_timer: asyncio.TimerHandle | None = None
    _pending_bytes = 0
    """Bytes received since a head or a part of a body was last complete."""
    _held = b""
    """Received bytes that are not parsed yet; while there are any, nothing is read."""
    _turn_queued = False
    _steps = 0
    """What was parsed in this turn; see ``turns.STEPS``."""
    _head_begun = False
    """A head has begun and is not complete."""
    _in_message = False
    """The head of a request is complete, and its body is not."""
    _body_left = 0
    """Bytes of the body, where ``Content-Length`` states them."""
    _ignores_upgrade = False
    _stopped = False
    """The parser has met an upgrade; what follows is not HTTP."""
    _fault: tuple[int, HoldfastError] | None = None
    """What is wrong with a head, for ``send_400_response``."""
    _refused = False
    _lingers = False
    """The last answer was sent."""
    _refusal: tuple[int, HoldfastError] | None = None
    """The answer to malformed bytes that waits for the answers to the requests before them."""
    _on_shutdown: Callable[[], None] | None = None
    _on_disconnect: Callable[[], None] | None = None

    @classmethod
    def with_limits(cls, limits: ConnectionLimits) -> type[Self]:
        """This class for one server, which counts its connections in ``limits``."""
        return type(cls.__name__, (cls,), {"limits": limits})

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = HeldReading(transport)
        self._address = self.limits.address_of(self.client[0] if self.client else None)
        self._group = self._address or repr(self.client)
        if self.limits.enter(self, self._address):
            self._start_head_timer()
        else:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.limits.leave(self, self._address)
        self._stop_head_timer()
        self._stop_stall_timer()
        self._unset_keepalive_if_required()
        self._held = b""
        super().connection_lost(exc)
        if self._on_disconnect is not None:
            self._on_disconnect()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._start_stall_timer(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        self._stop_stall_timer()
        super().resume_writing()

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        if self._with_key or (not self._held and turns().has_room()):
            self._parse(self._held + data)
        else:
            self._held += data
            self.flow.hold()
            self._continue_soon()

    def send_400_response(self, msg: str) -> None:
        if self._fault is not None:
            self._refuse(*self._fault)
        elif self.headers is not None and len(self.headers) > HEAD_FIELDS:
            self._refuse(FIELDS_TOO_LARGE, HoldfastError("request_too_large", f"the request has over {HEAD_FIELDS} header fields"))
        else:
            hint = "percent-encode paths; see RFC 9112"
            self._refuse(400, HoldfastError("protocol_error", "the bytes received are not an HTTP/1.1 request", hint=hint))

    def shutdown(self) -> None:
        if self._on_shutdown is not None:
            self._on_shutdown()
        else:
            super().shutdown()

    def at_shutdown(self, end: Callable[[], None]) -> None:
        """Call ``end`` when the server stops, during the request that is being served: its answer would not end by itself."""
        self._on_shutdown = end

    def at_disconnect(self, end: Callable[[], None] | None) -> None:
        """Call ``end`` (or nothing) if the client leaves before the served request is answered: for one that does not ``receive``."""
        self._on_disconnect = end

    def abort(self) -> None:
        """Reset the connection: the only way to show that an answer which has begun is incomplete."""
        self.transport.abort()

    def evict(self) -> bool:
        """Close the connection, unless a request is being served. True if it was closed."""
        if self._serves:
            return False
        self.transport.abort()
        return True

    def authenticated(self) -> None:
        """The request had a valid key: the connection counts no longer in ``limits``, and is served before those without one."""
        self._with_key = True
        if self._address:
            self.limits.leave(self, self._address)
            self._address = ""

    def take_over(
        self, head: bytes, successor: asyncio.Protocol, on_shutdown: Callable[[], None]
    ) -> tuple[asyncio.Transport, bytes] | None:
        """Answer the request with ``head`` and give the transport to ``successor``, with the bytes that followed the request, which the
        caller passes on at once. None when the client has disconnected.

        ``on_shutdown`` is called instead of the usual close when the server stops. ``successor`` reports the end of the connection here.
        """
        if self.cycle.disconnected or self.transport.is_closing():
            return None
        self.cycle.response_started = self.cycle.response_complete = True
        self._on_shutdown, self._on_disconnect = on_shutdown, None
        self.transport.write(head)
        self.transport.set_protocol(successor)
        early, self._held = self._held, b""
        self.flow.release()
        self.flow.resume_reading()
        return self.transport, early

    async def answer(self, cycle: RequestResponseCycle, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        """Send a whole response, unless the client has disconnected: in one write, where uvicorn's ``send`` takes two.

        Each write is a packet: a system call here, a forwarded packet at every proxy in between, and a wake-up of the client.
        """
        if self.flow.write_paused:
            await self.flow.drain()  # for answers to pipelined requests before this one
        if cycle.disconnected:
            return
        lines = [STATUS_LINE[status]]
        if HEADER_RE.search(b"".join([name for name, _ in headers])) or HEADER_VALUE_RE.search(b"".join([value for _, value in headers])):
            raise RuntimeError("a field of the response's head contains a control character")
        for name, value in headers:
            lines += (name, b": ", value, b"\r\n")
        if (b"connection", b"close") in headers:
            cycle.keep_alive = False
        elif not cycle.keep_alive:
            lines.append(b"connection: close\r\n")
        cycle.response_started = cycle.response_complete = True
        head = b"".join((*lines, b"\r\n"))
        self.transport.writelines((head, body) if body and cycle.scope["method"] != "HEAD" else (head,))
        cycle.message_event.set()
        if not cycle.keep_alive:
            self._end()
        cycle.on_response()

    def on_response_complete(self) -> None:
        self._on_shutdown = self._on_disconnect = None
        if self._refusal is not None and not self.pipeline:
            self.server_state.total_requests += 1
            self._send_refusal(*self._refusal)
            return
        if self._lingers:
            return
        if self.pipeline and not self.transport.is_closing():
            self.server_state.total_requests += 1
            self._in_turn(self._start_next)
            return
        super().on_response_complete()
        if self._held:
            self._continue_soon()

    def _start_next(self) -> None:
        """Serve the next of several pipelined requests: in turn, so that many of them delay no client that sends one after the other."""
        if self.pipeline and not self.transport.is_closing():
            if not self._with_key:
                turns().spend(_HEAD_STEPS)
            cycle, app = self.pipeline.pop()
            self.flow.resume_reading()
            self._start_asgi_task(cycle, app)
            if self._held and not self.pipeline:
                self._continue_soon()

    # The parser's callbacks -----------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._unset_keepalive_if_required()
        super().on_message_begin()
        self._head_begun = True

    def on_headers_complete(self) -> None:
        self._fault, self._body_left = checked_head(self.parser.get_http_version(), self.headers)
        if self._fault is not None:
            raise ValueError  # the parser turns it into a call of send_400_response
        self._pending_bytes = 0
        self._head_begun = False
        self._stop_head_timer()
        if self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT" and not self._is_websocket():
            self._ignores_upgrade = True  # the parser stops here, and ``_feed`` parses the head again
            return
        self._steps += _HEAD_STEPS + len(self.headers)
        self._in_message = True
        before = self.cycle
        super().on_headers_complete()
        cycle = self.cycle
        if cycle is not before:  # it is not an upgrade; its task has not begun
            cycle.send = JoinedSend(self, cycle)  # type: ignore[method-assign]
            self.scope[AUTHENTICATED] = self.authenticated  # type: ignore[typeddict-unknown-key]
            self.scope[CONNECTED] = lambda: not cycle.disconnected  # type: ignore[typeddict-unknown-key]
            self.scope[CONNECTION] = self  # type: ignore[typeddict-unknown-key]
            if self.parser.should_upgrade():
                cycle.keep_alive = False  # the parser reads no request after this one
                self.flow.pause_reading()
                if self._is_websocket():
                    self.scope[TAKE_OVER] = self.take_over  # type: ignore[typeddict-unknown-key]

    def on_body(self, body: bytes) -> None:
        self._pending_bytes = 0
        self._steps += 1
        self._body_left -= len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._pending_bytes = 0
        if not self._ignores_upgrade:
            self._in_message = False
            super().on_message_complete()

    # Parsing --------------------------------------------------------------------------------------------------------

    def _parse(self, data: bytes) -> None:
        """Parse, until the rest has to wait: for the answers to the requests before it, for an upgrade, or for the other connections."""
        self._held, self._steps = b"", 0
        try:
            self._parse_pieces(data)
        finally:
            if not self._with_key:
                turns().spend(self._steps)

    def _parse_pieces(self, data: bytes) -> None:
        position, size = 0, len(data)
        while position < size:
            follows = not self._in_message and self._serves
            if follows or self._stopped or self._steps > STEPS:
                self._held = data[position:]
                self.flow.hold()
                if not follows and not self._stopped:
                    self._continue_soon()
                return
            self._steps += _PIECE_STEPS
            position += self._feed(data[position : self._piece_end(data, position)])
            if self._refused or self.transport.is_closing():
                return
            if self._head_begun:
                self._start_head_timer()  # not for a head that comes whole, as nearly all do
            if self._leaves_http():
                self._upgrade_by_messages(followed=position < size)
                return
        self.flow.release()

    def _piece_end(self, data: bytes, position: int) -> int:
        """Where the next piece ends: with a head, so that the next one is not parsed before the answer, or with a body."""
        if self._in_message:
            return position + (self._body_left if self._body_left > 0 else _PIECE_BYTES)
        end = data.find(b"\r\n\r\n", position, position + _PIECE_BYTES)
        return end + 4 if end >= 0 else position + _PIECE_BYTES

    def _feed(self, piece: bytes) -> int:
        """Parse a piece; returns how many bytes of it were parsed."""
        self._pending_bytes += len(piece)
        try:
            self.parser.feed_data(piece)
        except httptools.HttpParserError:
            self.send_400_response("")
            return len(piece)
        except httptools.HttpParserUpgrade as upgrade:
            if self._ignores_upgrade:
                self._feed_without_upgrade()
            else:
                self._stopped = True
            parsed: int = upgrade.args[0]
            return parsed
        if self._pending_bytes > HEAD_BYTES:
            self._refuse(FIELDS_TOO_LARGE, HoldfastError("request_too_large", f"the head of the request is over {HEAD_BYTES} bytes"))
        elif self.headers is not None and len(self.headers) > HEAD_FIELDS:
            self._refuse(FIELDS_TOO_LARGE, HoldfastError("request_too_large", f"the request has over {HEAD_FIELDS} header fields"))
        return len(piece)

    def _feed_without_upgrade(self) -> None:
        """Parse a head with an unknown ``Upgrade`` again, without that field: the parser would read no body and no further request.

        HTTP/2 clients send it with their first request to an unknown server.
        """
        self._ignores_upgrade = False
        head = [b"%s %s HTTP/%s\r\n" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())]
        head += [b"%s: %s\r\n" % field for field in self.headers if field[0] != b"upgrade"]
        self.parser = httptools.HttpRequestParser(self)
        self._feed(b"".join((*head, b"\r\n")))

    def _continue_soon(self) -> None:
        if not self._turn_queued:
            self._turn_queued = True
            self._in_turn(self._continue)

    def _in_turn(self, work: Callable[[], None]) -> None:
        if self._with_key:
            turns().add(work)
        else:
            turns().add_without_key(self._group, work)

    def _continue(self) -> None:
        self._turn_queued = False
        if self._held and not self._refused and not self.transport.is_closing():
            self._parse(self._held)

    # Upgrades -------------------------------------------------------------------------------------------------------

    def _should_upgrade(self) -> bool:
        return self._is_by_messages() and super()._should_upgrade()

    def _is_by_messages(self) -> bool:
        """Whether uvicorn's protocol serves the request's WebSocket message by message, which the application decides."""
        serves_messages = getattr(self.app, "serves_messages", None)
        if serves_messages is None:
            return False
        path = unquote(httptools.parse_url(self.url).path.decode("ascii"))
        return bool(serves_messages({**self.scope, "path": path}))

    def _leaves_http(self) -> bool:
        """Whether the parser has met an upgrade that is served message by message."""
        return self._stopped and self._should_upgrade()

    def _is_websocket(self) -> bool:
        return self._get_upgrade() == b"websocket"

    def _upgrade_by_messages(self, *, followed: bool) -> None:
        """Leave the connection to uvicorn's WebSocket protocol, which takes no bytes that were read already, if ``followed`` by some."""
        self._in_message = False
        if followed or self._serves:
            hint = "wait for the answer to the upgrade before you send more, and send it on a connection of its own"
            self._refuse(400, HoldfastError("protocol_error", "an upgrade was sent together with other requests or messages", hint=hint))
            return
        self.limits.leave(self, self._address)
        self.handle_websocket_upgrade()

    # Ends -----------------------------------------------------------------------------------------------------------

    @property
    def _serves(self) -> bool:
        """Whether the answer to the latest request is still to come."""
        return self.cycle is not None and not self.cycle.response_complete

    def _start_head_timer(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self.head_s, self._refuse_late_head)

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _refuse_late_head(self) -> None:
        self._head_timer = None
        if self._serves:
            self._start_head_timer()  # nothing may have been read since: the head's time begins with the answer before it
        elif self._pending_bytes:
            message = f"the head of the request took over {self.head_s:g} s"
            self._refuse(408, HoldfastError("wait_timeout", message, hint="send the whole head at once"))
        else:
            self.transport.close()  # no request came, so no answer is sent

    def _start_stall_timer(self, waiting_bytes: int) -> None:
        self._stop_stall_timer()
        self._stall_timer = self.loop.call_later(self.stall_s, self._check_progress, waiting_bytes)

    def _check_progress(self, before_bytes: int) -> None:
        waiting_bytes = self.transport.get_write_buffer_size()
        if waiting_bytes > before_bytes - _STALL_BYTES:
            self.transport.abort()
        else:
            self._start_stall_timer(waiting_bytes)

    def _stop_stall_timer(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    def _refuse(self, status: int, error: HoldfastError) -> None:
        """Parse nothing more, answer, and close. The answers to earlier requests come first; a request that was answered gets no other."""
        if self._refused:
            return
        self._refused = True
        self._steps += _HEAD_STEPS
        self._held = b""
        self.flow.hold()
        self._stop_head_timer()
        cycle = self.cycle
        if not self._in_message or cycle is None:
            if self._serves:
                self._refusal = status, error
            else:
                self._send_refusal(status, error)
        elif self.pipeline:
            self.pipeline.popleft()  # the request itself, behind others
            self._refusal = status, error
        elif not cycle.response_started:
            cycle.disconnected = True  # its endpoint is to give up, and its answer is not sent
            cycle.message_event.set()
            self._send_refusal(status, error)
        elif cycle.response_complete:
            self._linger()
        else:
            cycle.keep_alive = False

    def _send_refusal(self, status: int, error: HoldfastError) -> None:
        if self.transport.is_closing():
            return
        body = orjson.dumps(problem(error, status))
        head = f"content-type: {MEDIA_TYPE}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
        self.transport.write(STATUS_LINE[status] + head.encode() + body)
        self._linger()

    def _end(self) -> None:
        """Close, after the last answer."""
        if self._in_message or self.flow.read_paused:
            self._linger()
        else:
            self.transport.close()

    def _linger(self) -> None:
        """Close after a moment, in which bytes are read and discarded: unread, they would cause a reset, and the client might never see the
        answer."""
        self._refused = self._lingers = True
        self._held = b""
        self._stop_head_timer()
        self.transport.write_eof()
        self.flow.release()
        self.flow.resume_reading()
        self._head_timer = self.loop.call_later(_LINGER_S, self.transport.close)


class JoinedSend:
    """ASGI's ``send`` of one request. The head of a response whose length is known waits for the body: a body that comes whole joins it."""

    def __init__(self, protocol: BoundedHttpProtocol, cycle: RequestResponseCycle) -> None:
        self._protocol = protocol
        self._cycle = cycle
        self._head: Any = None
        self._length: int | None = None

    async def __call__(self, message: Any) -> None:
        cycle, head = self._cycle, self._head
        if head is None and message["type"] == "http.response.start":
            self._length = _length(message["headers"])
            if self._length is not None:
                self._head = message
                return
        self._head = None
        if head is not None:
            body = message.get("body", b"")
            if not message.get("more_body") and (cycle.scope["method"] == "HEAD" or len(body) == self._length):
                await self._protocol.answer(cycle, head["status"], head["headers"], body)
                return
            await RequestResponseCycle.send(cycle, head)  # a streamed response, or a wrong length, which uvicorn reports
        await RequestResponseCycle.send(cycle, message)


def _length(headers: list[tuple[bytes, bytes]]) -> int | None:
    for name, value in headers:
        if name == b"content-length":
            return int(value)
    return None
