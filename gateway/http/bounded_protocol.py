"""uvicorn's HTTP protocol with limits: the time and size of a request's head, and the time a client may take to read an answer.

Owns these limits, the answer to anything that is not HTTP, which is a problem document like every other refusal, and the hand-over of a
connection: a request to upgrade to WebSocket is a request like any other, whose endpoint may take the transport. A relay through ASGI
messages would parse, queue and frame every message again. Bodies are limited where they are read (``request_fields``). Chosen in
``__main__`` as uvicorn's ``http`` class; knows no route and no key.
"""

from __future__ import annotations

import asyncio
import functools
import sys
from collections.abc import Callable
from typing import Final

import httptools
import orjson
from holdfast_wire.errors import HoldfastError
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from .responses import MEDIA_TYPE, problem

CONNECTED: Final = "holdfast.connected"
"""In the scope of a request: a function that returns whether its client is still connected."""
ANSWER: Final = "holdfast.answer"
"""In the scope of a request: a function that sends a whole response, ``BoundedHttpProtocol.answer``."""
TAKE_OVER: Final = "holdfast.take_over"
"""In the scope of a request to upgrade to WebSocket: ``BoundedHttpProtocol.take_over``."""
HEAD_BYTES: Final = 64 * 1024
"""Bytes that may come without completing a head or a part of a body: heads, trailers, chunk extensions."""
HEAD_FIELDS: Final = 256
"""Most fields of a head and its trailers together."""
HEAD_S: Final = 20.0
"""How long a new connection may take to send a request, and a begun head to be complete."""
STALL_S: Final = 30.0
"""A client that reads nothing of an answer for this long is cut off: the buffered answer is memory shared by all."""
_LINGER_S: Final = 2.0
"""How long a refused connection is still read; the bytes are discarded."""
_FIELDS_TOO_LARGE: Final = 431


class BoundedHttpProtocol(HttpToolsProtocol):
    """See the module."""

    head_s = HEAD_S
    stall_s = STALL_S
    _stall_timer: asyncio.TimerHandle | None = None
    _head_timer: asyncio.TimerHandle | None = None
    _pending_bytes = 0
    """Bytes received since a head or a part of a body was last complete."""
    _data = b""
    """The bytes that were received last."""
    _ignores_upgrade = False
    _refused = False
    _on_shutdown: Callable[[], None] | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_head_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_head_timer()
        self._stop_stall_timer()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._start_stall_timer(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        self._stop_stall_timer()
        super().resume_writing()

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        self._pending_bytes += len(data)
        self._data = data
        super().data_received(data)
        if self._refused or self.transport.is_closing():
            return
        if self.flow.read_paused and self.scope is not None and TAKE_OVER in self.scope and not data.endswith(b"\n"):
            self.transport.abort()  # bytes behind the head, before the upgrade was accepted, would be lost
            return
        if self._pending_bytes > HEAD_BYTES:
            self._refuse(_FIELDS_TOO_LARGE, HoldfastError("request_too_large", f"the head of the request is over {HEAD_BYTES} bytes"))
        elif self.headers is not None and len(self.headers) > HEAD_FIELDS:
            self._refuse(_FIELDS_TOO_LARGE, HoldfastError("request_too_large", f"the request has over {HEAD_FIELDS} header fields"))

    def send_400_response(self, msg: str) -> None:
        if self.headers is not None and len(self.headers) > HEAD_FIELDS:
            self._refuse(_FIELDS_TOO_LARGE, HoldfastError("request_too_large", f"the request has over {HEAD_FIELDS} header fields"))
        else:
            hint = "percent-encode paths; see RFC 9112"
            self._refuse(400, HoldfastError("protocol_error", "the bytes received are not an HTTP/1.1 request", hint=hint))

    def shutdown(self) -> None:
        if self._on_shutdown is not None:
            self._on_shutdown()
        else:
            super().shutdown()

    def take_over(self, head: bytes, successor: asyncio.Protocol, on_shutdown: Callable[[], None]) -> asyncio.Transport | None:
        """Answer the request with ``head`` and give the transport to ``successor``; None when the client has disconnected.

        ``on_shutdown`` is called instead of the usual close when the server stops. ``successor`` reports the end of the connection here.
        """
        if self.cycle.disconnected or self.transport.is_closing():
            return None
        self.cycle.response_started = self.cycle.response_complete = True
        self._on_shutdown = on_shutdown
        self.transport.write(head)
        self.transport.set_protocol(successor)
        self.flow.resume_reading()
        return self.transport

    async def answer(self, cycle: RequestResponseCycle, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        """Send a whole response, unless the client has disconnected: in one write, where uvicorn's ``send`` takes two.

        Each write is a packet: a system call here, a forwarded packet at every proxy in between, and a wake-up of the client.
        """
        if self.flow.write_paused:
            await self.flow.drain()  # for answers to pipelined requests before this one
        if cycle.disconnected:
            return
        cycle.response_started = cycle.response_complete = True
        lines = [STATUS_LINE[status]]
        for name, value in headers:
            lines += (name, b": ", value, b"\r\n")
        if (b"connection", b"close") in headers:
            cycle.keep_alive = False
        elif not cycle.keep_alive:
            lines.append(b"connection: close\r\n")
        head = b"".join((*lines, b"\r\n"))
        self.transport.writelines((head, body) if body and cycle.scope["method"] != "HEAD" else (head,))
        cycle.message_event.set()
        if not cycle.keep_alive:
            self.transport.close()
        cycle.on_response()

    # The parser's callbacks -----------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._start_head_timer()

    def on_headers_complete(self) -> None:
        if len(self.headers) > HEAD_FIELDS:
            raise ValueError("too many header fields")  # the parser turns it into a call of send_400_response
        self._pending_bytes = 0
        self._stop_head_timer()
        if self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT" and not self._is_websocket():
            self._ignores_upgrade = True  # the parser stops here, and ``_unsupported_upgrade_warning`` follows
            return
        before = self.cycle
        super().on_headers_complete()
        cycle = self.cycle
        if cycle is not before:  # it is not an upgrade; its task has not begun
            self.scope[ANSWER] = functools.partial(self.answer, cycle)  # type: ignore[typeddict-unknown-key]
            self.scope[CONNECTED] = lambda: not cycle.disconnected  # type: ignore[typeddict-unknown-key]
            if self.parser.should_upgrade():
                cycle.keep_alive = False  # the parser reads no request after this one
                self.flow.pause_reading()
                if self._is_websocket():
                    self.scope[TAKE_OVER] = self.take_over  # type: ignore[typeddict-unknown-key]

    def on_body(self, body: bytes) -> None:
        self._pending_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._pending_bytes = 0
        if not self._ignores_upgrade:
            super().on_message_complete()

    # ----------------------------------------------------------------------------------------------------------------

    def _should_upgrade(self) -> bool:
        return self._is_by_messages() and super()._should_upgrade()

    def _is_by_messages(self) -> bool:
        """Whether uvicorn's protocol serves the request's WebSocket message by message; False for every request, unless a subclass decides
        otherwise."""
        return False

    def _is_websocket(self) -> bool:
        return self._get_upgrade() == b"websocket"

    def _unsupported_upgrade_warning(self) -> None:
        """Parse a request with an unknown ``Upgrade`` again, without that field: the parser would read no body and no further request.

        HTTP/2 clients send it with their first request to an unknown server.
        """
        stopped = sys.exception()
        if not self._ignores_upgrade or not isinstance(stopped, httptools.HttpParserUpgrade):
            return
        self._ignores_upgrade = False
        head = [b"%s %s HTTP/%s\r\n" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())]
        head += [b"%s: %s\r\n" % field for field in self.headers if field[0] != b"upgrade"]
        rest = self._data[stopped.args[0] :]
        self.parser = httptools.HttpRequestParser(self)
        self.data_received(b"".join((*head, b"\r\n", rest)))

    def _start_head_timer(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self.head_s, self._refuse_late_head)

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _refuse_late_head(self) -> None:
        self._head_timer = None
        if self._pending_bytes:
            message = f"the head of the request took over {self.head_s:g} s"
            self._refuse(408, HoldfastError("wait_timeout", message, hint="send the whole head at once"))
        else:
            self.transport.close()  # no request came, so no answer is sent

    def _start_stall_timer(self, waiting_bytes: int) -> None:
        self._stop_stall_timer()
        self._stall_timer = self.loop.call_later(self.stall_s, self._check_progress, waiting_bytes)

    def _check_progress(self, before_bytes: int) -> None:
        waiting_bytes = self.transport.get_write_buffer_size()
        if waiting_bytes >= before_bytes:
            self.transport.abort()
        else:
            self._start_stall_timer(waiting_bytes)

    def _stop_stall_timer(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    def _refuse(self, status: int, error: HoldfastError) -> None:
        """Answer, unless another answer is being sent, and close."""
        self._refused = True
        self._stop_head_timer()
        if self.cycle is None or self.cycle.response_complete:
            body = orjson.dumps(problem(error, status))
            head = f"content-type: {MEDIA_TYPE}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
            self.transport.write(STATUS_LINE[status] + head.encode() + body)
            self.transport.write_eof()
        # Closed at once, bytes still in flight would cause a reset, and the client might never see the answer.
        self._head_timer = self.loop.call_later(_LINGER_S, self.transport.close)
