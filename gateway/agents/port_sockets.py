"""One connection to a port inside a sandbox whose socket this process has: the bytes pass no process of the sandbox but the program.

Owns the transport, and how many bytes wait in each direction before the sender is held up. Where the socket leads is decided by the runtime
that made it. Made by ``port_connections``.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from typing import Final, cast

_UNREAD_BYTES: Final = 128 * 1024
"""Bytes of the program that wait here, above which it is not read."""
_LINGER_S: Final = 5.0
"""How long a program may take to read what was sent before its connection was closed."""


class SocketConnection(asyncio.Protocol):
    """See ``port_connections.PortConnection``."""

    def __init__(self, key: tuple[str, str, int, str], release: Callable[[], None]) -> None:
        self.key = key
        self.used_before = False
        self._release = release
        self._transport: asyncio.Transport | None = None
        self._unread: deque[bytes] = deque()
        self._unread_bytes = 0
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None
        self._writing_paused = False
        self._ended = False
        """Nothing more will come."""
        self._closed = False

    async def adopt(self, connected: socket.socket) -> None:
        """Begin to use a connected socket, which belongs to the transport from then on."""
        await asyncio.get_running_loop().create_connection(lambda: self, sock=connected)

    async def read(self) -> bytes:
        """The next bytes, empty after the last."""
        while not self._unread:
            if self._ended or self._closed:
                return b""
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        data = self._unread.popleft()
        before, self._unread_bytes = self._unread_bytes, self._unread_bytes - len(data)
        if before > _UNREAD_BYTES >= self._unread_bytes and self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()
        return data

    async def write(self, data: bytes) -> None:
        """Send bytes as the program reads them; without effect once the connection has ended."""
        if self._transport is None or self._transport.is_closing():
            return
        self._transport.write(data)
        while self._writing_paused:
            self._writer = asyncio.get_running_loop().create_future()
            try:
                await self._writer
            finally:
                self._writer = None

    @property
    def reusable(self) -> bool:
        return not (self._closed or self._ended or self._unread or self._transport is None or self._transport.is_closing())

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._release()
        _wake(self._reader)
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        transport.close()
        if transport.get_write_buffer_size():
            asyncio.get_running_loop().call_later(_LINGER_S, transport.abort)

    # What the transport reports -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are not subclasses

    def data_received(self, data: bytes) -> None:
        self._unread.append(data)
        before, self._unread_bytes = self._unread_bytes, self._unread_bytes + len(data)
        if before <= _UNREAD_BYTES < self._unread_bytes and self._transport is not None:
            self._transport.pause_reading()
        _wake(self._reader)

    def eof_received(self) -> None:
        self._end()

    def connection_lost(self, exc: Exception | None) -> None:
        self._writing_paused = False
        _wake(self._writer)
        self._end()

    def pause_writing(self) -> None:
        self._writing_paused = True

    def resume_writing(self) -> None:
        self._writing_paused = False
        _wake(self._writer)

    def _end(self) -> None:
        self._ended = True
        _wake(self._reader)


def _wake(waiting: asyncio.Future[None] | None) -> None:
    if waiting is not None and not waiting.done():
        waiting.set_result(None)
