"""Nothing is written to a broken socket: asyncio logs a warning on the caller's standard error for each such write."""

from __future__ import annotations

import asyncio
from typing import Any

from holdfast._options import Options
from holdfast._transport.aio.driver import _Wire
from holdfast._transport.service import Service
from holdfast._transport.session.websocket import WebSocket


class Broken(asyncio.Transport):
    """The state of an asyncio transport between the failure of its socket and the next turn of the loop."""

    def is_closing(self) -> bool:
        return True

    def write(self, data: object) -> None:
        raise AssertionError("it was written to")


class Engine:
    def __init__(self) -> None:
        self.waiting = [b"message"]

    def outgoing(self) -> list[bytes]:
        messages, self.waiting = self.waiting, []
        return messages


async def test_pending_messages_stay_with_the_session() -> None:
    driver: Any = None
    engine: Any = Engine()
    wire = _Wire(driver, WebSocket(Service(Options("http://localhost", "k")), "/", {}))
    wire._transport = Broken()
    wire.flush(engine)
    assert engine.waiting == [b"message"]
