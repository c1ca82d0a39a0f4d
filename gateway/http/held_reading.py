"""uvicorn's flow control for a connection whose received bytes may be held back before they are parsed.

Owns whether the transport is read. While bytes are held back it is not: more would have to be held back behind them. Called by
``bounded_protocol`` and, as its flow control, by uvicorn.
"""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.flow_control import FlowControl


class HeldReading(FlowControl):
    """Reading goes on when uvicorn wants it and nothing is held back."""

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__(transport)
        self._held = False
        self._wanted = True

    def pause_reading(self) -> None:
        self._wanted = False
        super().pause_reading()

    def resume_reading(self) -> None:
        self._wanted = True
        if not self._held:
            super().resume_reading()

    def hold(self) -> None:
        """Bytes are held back."""
        self._held = True
        super().pause_reading()

    def release(self) -> None:
        """Nothing is held back any more."""
        self._held = False
        if self._wanted:
            super().resume_reading()
