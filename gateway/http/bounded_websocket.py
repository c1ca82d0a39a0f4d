"""uvicorn's WebSocket protocol with limits on pings and fragments, for the routes that are served message by message.

Owns these limits. Which requests these are is in the tables of the faces; sessions are relayed without it (``bounded_protocol``). Chosen in
``__main__`` as uvicorn's ``ws`` class.
"""

from __future__ import annotations

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame

_UNREAD_BYTES = 64 * 1024
"""Bytes buffered for a client that does not read, beyond which its pings are not answered."""
_FRAGMENTS = 1024
"""Most fragments of one message."""


class BoundedWebSocketProtocol(WebSocketsSansIOProtocol):
    """See the module."""

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
