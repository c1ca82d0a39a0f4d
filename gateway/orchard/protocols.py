"""uvicorn's protocols with the terminal's WebSocket: the one route that is served message by message.

Owns which requests these are, and the limits on pings and fragments. Sessions are relayed without it (``http.bounded_protocol``).
"""

from __future__ import annotations

import re
from typing import Final

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame

from gateway.http.bounded_protocol import BoundedHttpProtocol

_TERMINAL: Final = re.compile(rb"/sandboxes/[^/?%]+/exec/pty(\?.*)?")
_UNREAD_BYTES = 64 * 1024
"""Bytes buffered for a client that does not read, beyond which its pings are not answered."""
_FRAGMENTS = 1024
"""Most fragments of one message."""


class TerminalHttpProtocol(BoundedHttpProtocol):
    """Leaves the terminal's requests to ``BoundedWebSocketProtocol``."""

    def _is_by_messages(self) -> bool:
        return _TERMINAL.fullmatch(self.url) is not None


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
