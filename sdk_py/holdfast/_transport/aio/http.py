"""The HTTP client of the asynchronous API: one request, one answer.

Owns the connections: each carries one request at a time, and idle ones are kept for a while. No library: the usual one takes milliseconds
of CPU time for a request beside a thousand others (decision 0064).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from holdfast._options import Options
from holdfast._transport.rest.answer import KEEPALIVE, KEPT, KEPT_S, Answer, is_readable, unreachable
from holdfast._transport.rest.http1 import LAST_CHUNK, AnswerError, AnswerReader, chunk
from holdfast._transport.rest.request import LocalFailureError, Service, body_of, reason

if TYPE_CHECKING:
    from ssl import SSLContext


class Http:
    """Requests to one service, with its key."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._service = Service(options)
        self._client: list[_Connection] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._context: SSLContext | None = None

    @property
    def connected(self) -> bool:
        """Whether there is a pool to give back."""
        return self._client is not None

    async def send(self, method: str, path: str, *, timeout_s: float, headers: dict[str, str] | None = None, **more: Any) -> Answer:
        """One exchange; ``more`` is ``json``, ``params`` or ``content``. Raises ``ServiceUnavailableError`` without an answer."""
        content, about = body_of(method, more)
        head = self._service.head(method, path, headers, about, more.get("params"))
        reached = False
        try:
            connection = self._idle() or await self._connected()
            reached = True
            try:
                reader = await connection.exchange(head, content, timeout_s)
            except BaseException:
                connection.abort()
                raise
        except LocalFailureError as local:
            raise local.why from None
        except TimeoutError:
            why = f"no answer within {timeout_s:g} s" if reached else f"no connection within {self._options.connect_timeout_s:g} s"
            raise unreachable(self._options.url, why, reached=reached) from None
        except (OSError, AnswerError, UnicodeError) as failure:
            raise unreachable(self._options.url, reason(failure), reached=reached) from None
        self._keep(connection)
        return Answer(reader.status, reader.headers, reader.body)

    async def close(self) -> None:
        """Give the connections back."""
        kept, self._client = self._client, None
        if kept is not None and self._loop is asyncio.get_running_loop():
            for connection in kept:
                connection.abort()
            await asyncio.sleep(0)  # transports close on the loop's next turn

    # Connections ------------------------------------------------------------------------------------------------

    async def _connected(self) -> _Connection:
        service, loop = self._service, asyncio.get_running_loop()
        if service.tls and self._context is None:
            import ssl

            self._context = ssl.create_default_context()
        connection = _Connection(loop)
        try:
            async with asyncio.timeout(self._options.connect_timeout_s):
                await loop.create_connection(lambda: connection, service.host, service.port, ssl=self._context)
        except BaseException:
            connection.abort()
            raise
        return connection

    def _idle(self) -> _Connection | None:
        """A connection that was kept and that the service has not closed; None where there is none."""
        loop = asyncio.get_running_loop()
        if self._client is None or self._loop is not loop:
            self._client, self._loop = [], loop  # connections of another loop are of no use here
        while self._client:
            connection = self._client.pop()
            if connection.usable(loop.time() - KEPT_S):
                return connection
            connection.abort()
        return None

    def _keep(self, connection: _Connection) -> None:
        kept = self._client
        if connection.reusable and kept is not None and self._loop is connection.loop and len(kept) < KEPT:
            connection.since = connection.loop.time()
            kept.append(connection)
        else:
            connection.abort()


class _Connection(asyncio.Protocol):
    """One connection to the service. Every wait for it is for its next sign of life, which pushes the deadline back."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.since = 0.0
        """Since when it has been idle."""
        self._transport: asyncio.Transport | None = None
        self._reader = AnswerReader()
        self._sent = False
        self._over = False
        """The answer is whole, or does not come any more."""
        self._failure: Exception | None = None
        self._paused = False
        self._heard_at = 0.0
        self._changed: asyncio.Future[None] | None = None

    async def exchange(self, head: bytes, content: bytes | AsyncIterator[bytes], timeout_s: float) -> AnswerReader:
        """Send a request and wait for its answer. Raises ``TimeoutError`` after ``timeout_s`` of silence, OSError, ``AnswerError``."""
        transport = self._transport
        assert transport is not None
        if self._reader.done:
            self._reader, self._over = AnswerReader(), False
        reader = self._reader
        self._sent, self._heard_at = False, self.loop.time()
        if isinstance(content, bytes):
            transport.write(head + content)
        else:
            transport.write(head)
            await self._send(transport, content, timeout_s)
        self._sent = not self._over
        while not reader.done:
            if self._over:
                raise self._failure or AnswerError("the connection ended without an answer")
            await self._change(timeout_s)
        return reader

    async def _send(self, transport: asyncio.Transport, content: AsyncIterator[bytes], timeout_s: float) -> None:
        """A body of unknown length, until an answer comes that did not wait for its end."""
        pieces = aiter(content)
        while not self._over:
            try:
                piece = await anext(pieces, None)
            except OSError as why:
                raise LocalFailureError(why) from None
            self._heard_at = self.loop.time()
            if piece is None:
                transport.write(LAST_CHUNK)
                return
            for _ in range(2):
                await asyncio.sleep(0)  # an answer that is there is read first: a write that fails would drop it
            if piece and not self._over:
                transport.write(chunk(piece))
            while self._paused and not self._over:
                await self._change(timeout_s)

    async def _change(self, timeout_s: float) -> None:
        """Until something has come, or may be sent again."""
        self._changed = self.loop.create_future()
        timer = self.loop.call_at(self._heard_at + timeout_s, _fail, self._changed)
        try:
            await self._changed
        finally:
            timer.cancel()
            self._changed = None

    @property
    def reusable(self) -> bool:
        """Whether it may carry another request."""
        return self._sent and self._reader.reusable and self._failure is None

    def usable(self, since: float) -> bool:
        """Whether it has been idle no longer than since then, and the service has not ended it."""
        transport = self._transport
        if transport is None or transport.is_closing() or self.since < since or not self.reusable:
            return False
        return not is_readable(transport.get_extra_info("socket").fileno())

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # asyncio.Protocol -------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        connection = transport.get_extra_info("socket")
        for option in KEEPALIVE:
            connection.setsockopt(*option)

    def data_received(self, data: bytes) -> None:
        self._take(data)

    def eof_received(self) -> bool:
        self._take(b"")
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._over = True
        self._failure = self._failure or exc
        self._wake()

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._wake()

    def _take(self, data: bytes) -> None:
        try:
            self._reader.feed(data)
        except AnswerError as failure:
            self._failure = failure
        self._over |= self._reader.done or self._failure is not None or not data
        self._wake()

    def _wake(self) -> None:
        self._heard_at = self.loop.time()
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)


def _fail(changed: asyncio.Future[None]) -> None:
    if not changed.done():
        changed.set_exception(TimeoutError())
