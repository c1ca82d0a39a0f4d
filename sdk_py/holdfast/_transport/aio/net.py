"""Local listening sockets of the asynchronous API, for tunnels. ``threads.net`` has the same names."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from holdfast._errors import InvalidArgumentError
from holdfast._results import Address
from holdfast._transport.aio.events import Background

PIECE_BYTES = 128 * 1024


class Stream:
    """One accepted connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def read(self) -> bytes:
        """The next bytes, b"" at the end."""
        return await self._reader.read(PIECE_BYTES)

    async def write(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def write_eof(self) -> None:
        if self._writer.can_write_eof():
            self._writer.write_eof()

    async def close(self) -> None:
        self._writer.close()


class Listener:
    """Accepts connections and serves each beside the others."""

    def __init__(self, serve: Callable[[Stream], Awaitable[None]], background: Background) -> None:
        self._serve = serve
        self._background = background
        self._server: asyncio.Server | None = None
        self._streams: set[Stream] = set()
        self._closed = False
        self.address = Address("", 0)

    async def start(self, host: str, port: int) -> None:
        """Listen. Raises ``InvalidArgumentError`` when that is not possible, for example because the port is in use."""
        try:
            self._server = await asyncio.start_server(self._accept, host, port)
        except (OSError, OverflowError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise InvalidArgumentError("invalid_argument", f"cannot listen on {host}:{port}: {why}", hint="choose another port") from None
        self.address = Address(*self._server.sockets[0].getsockname()[:2])

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._closed:
            writer.close()  # it was on its way when ``close`` came
            return
        self._background.start(self._one, Stream(reader, writer), name="holdfast-tunnel")

    async def _one(self, stream: Stream) -> None:
        self._streams.add(stream)
        try:
            await self._serve(stream)
        finally:
            self._streams.discard(stream)

    async def close(self) -> None:
        self._closed = True
        if self._server is not None:
            self._server.close()
        for stream in list(self._streams):
            await stream.close()
