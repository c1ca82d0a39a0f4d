"""A WebSocket to a program in a sandbox, once the program has accepted it: bytes in both directions, in flat memory.

Owns the client's transport until the end of the connection. Frames are not decoded: they concern the client and the program. Called by
``proxy``.
"""

from __future__ import annotations

import asyncio
from typing import Final

from gateway.agents.port_connections import PortConnection
from gateway.sessions.attach import TakeOver

_UNSENT_BYTES: Final = 128 * 1024
"""Bytes of the client that wait for the program, above which the client is not read."""
_STALL_S: Final = 30.0
"""How long a client may take to read what waits for it."""


class Upgraded(asyncio.Protocol):
    """One connection. The client's protocol after ``take_over``."""

    def __init__(self, connection: PortConnection) -> None:
        self._connection = connection
        self._client: asyncio.Transport | None = None
        self._origin: asyncio.BaseProtocol | None = None
        self._unsent: list[bytes] = []
        self._unsent_bytes = 0
        self._changed = asyncio.Event()
        """Set when bytes of the client wait, and when it has left."""
        self._writable = asyncio.Event()
        self._writable.set()
        self._left = False

    async def run(self, take_over: TakeOver, head: bytes, rest: bytes) -> None:
        """Accept the client with ``head``, then relay until one side has ended. ``rest`` came from the program after its answer."""
        self._origin = take_over.__self__  # type: ignore[attr-defined]
        taken = take_over(head, self, self._shut_down)
        if taken is None:
            return
        self._client, early = taken
        if early:
            self.data_received(early)
        down = asyncio.create_task(self._down(self._client, rest), name="preview to client")
        up = asyncio.create_task(self._up(), name="preview to program")
        try:
            await asyncio.wait((down, up), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (down, up):
                task.cancel()
            await asyncio.gather(down, up, return_exceptions=True)
            self._client.close()  # what was written to it is still sent

    async def _down(self, client: asyncio.Transport, rest: bytes) -> None:
        data = rest or await self._connection.read()
        while data and not self._left:
            client.write(data)
            try:
                async with asyncio.timeout(_STALL_S):
                    await self._writable.wait()
            except TimeoutError:
                client.abort()
                return
            data = await self._connection.read()

    async def _up(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            unsent, self._unsent, self._unsent_bytes = self._unsent, [], 0
            if unsent:
                await self._connection.write(b"".join(unsent))
            if self._left:
                return
            if self._client is not None and not self._client.is_closing() and self._unsent_bytes < _UNSENT_BYTES:
                self._client.resume_reading()

    # The client's transport -----------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        self._unsent.append(data)
        self._unsent_bytes += len(data)
        self._changed.set()
        if self._unsent_bytes >= _UNSENT_BYTES and self._client is not None:
            self._client.pause_reading()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._left = True
        self._changed.set()
        self._writable.set()
        if self._origin is not None:
            self._origin.connection_lost(exc)

    def _shut_down(self) -> None:
        if self._client is not None:
            self._client.abort()
