"""One connection of the asynchronous API for HTTP requests to the service. ``threads.http`` has the same names.

Owns the socket and the sending of a request; ``http1`` reads the answer. ``_async.http`` owns idle connections.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import cast

from holdfast._transport.http1 import LAST_CHUNK, AnswerError, AnswerReader, chunk
from holdfast._transport.rest.answer import KEEPALIVE, is_readable
from holdfast._transport.rest.request import LocalFailureError, Service


def home() -> object:
    """Where connections can be used: this event loop."""
    return asyncio.get_running_loop()


async def connect(service: Service, timeout_s: float) -> Connection:
    """A new connection. Raises ``TimeoutError``, OSError, ``UnicodeError``."""
    loop = asyncio.get_running_loop()
    connection = Connection(loop)
    try:
        async with asyncio.timeout(timeout_s):
            await loop.create_connection(lambda: connection, service.address.host, service.address.port, ssl=service.tls_context)
    except BaseException:
        connection.abort()
        raise
    return connection


async def abort_all(connections: list[Connection]) -> None:
    """Close them."""
    for connection in connections:
        connection.abort()
    if connections:
        await asyncio.sleep(0)  # transports close on the loop's next turn


class Connection(asyncio.Protocol):
    """One connection to the service. Every wait for it is for its next sign of life, which pushes the deadline back."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.idle_since = 0.0
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

    @property
    def usable(self) -> bool:
        """Whether the service has not ended it."""
        transport = self._transport
        if transport is None or transport.is_closing() or not self.reusable:
            return False
        return not is_readable(transport.get_extra_info("socket").fileno())

    def abort(self) -> None:
        """Close it; nothing where its event loop is not the running one."""
        if self._transport is not None and asyncio._get_running_loop() is self.loop:
            self._transport.abort()

    # asyncio.Protocol -------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast(asyncio.Transport, transport)  # uvloop's are not subclasses
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
