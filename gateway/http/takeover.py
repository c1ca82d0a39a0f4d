"""uvicorn's WebSocket protocol with one addition: after ``accept`` the application may take over the transport.

Owns the ASGI extension ``holdfast.takeover``. A relay through ASGI messages would parse, queue and frame every message again; with the
transport taken over, a chunk costs one function call. Chosen in ``__main__`` as uvicorn's ``ws`` class.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from uvicorn._types import ASGISendEvent
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame
from websockets.http11 import Request

EXTENSION = "holdfast.takeover"
_UNREAD_BYTES = 64 * 1024
"""Bytes buffered for a client that does not read, beyond which its pings are not answered."""
_FRAGMENTS = 1024
"""Most fragments of one message, on the route that accepts fragments (the terminal)."""


class TakeoverProtocol(WebSocketsSansIOProtocol):
    """See the module."""

    on_shutdown: Callable[[], None] | None = None

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        if getattr(self, "scope", None) is not None:
            extensions: dict[str, Any] = self.scope["extensions"]
            extensions[EXTENSION] = self

    def handle_ping(self) -> None:
        """A client that pings and does not read the pongs must not fill the gateway's memory."""
        if self.transport.get_write_buffer_size() > _UNREAD_BYTES:
            self.transport.abort()
        else:
            super().handle_ping()

    def handle_cont(self, event: Frame) -> None:
        """Empty fragments do not count towards the size limit, so their number is limited."""
        if len(self.frames) >= _FRAGMENTS:
            self.transport.abort()
        else:
            super().handle_cont(event)

    async def send(self, message: ASGISendEvent) -> None:
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and not message.get("more_body", False):
            self.handshake_complete = True  # a refusal completes the handshake too

    def take_over(self, successor: asyncio.Protocol, on_shutdown: Callable[[], None]) -> asyncio.Transport | None:
        """Give the transport to ``successor``, right after the accept was sent; None when the client has disconnected.

        ``on_shutdown`` is called instead of the usual close when the server stops.
        """
        if self.disconnected or self.transport.is_closing():
            return None
        self.on_shutdown = on_shutdown
        self.transport.set_protocol(successor)
        return self.transport

    def shutdown(self) -> None:
        if self.on_shutdown is not None:
            self.on_shutdown()
        else:
            super().shutdown()
