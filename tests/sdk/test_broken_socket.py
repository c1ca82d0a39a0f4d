"""A socket that broke is given nothing more: asyncio complains of each write, on the caller's standard error."""

from __future__ import annotations

import asyncio
from typing import Any

from holdfast._transport.aio.driver import _Wire
from holdfast._transport.session.websocket import WebSocket


class Broken(asyncio.Transport):
    """What asyncio makes of a transport whose socket failed, until its loop comes round."""

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


async def test_what_waits_stays_with_the_session() -> None:
    driver: Any = None
    engine: Any = Engine()
    wire = _Wire(driver, WebSocket("ws://localhost/", {}))
    wire._transport = Broken()
    wire.flush(engine)
    assert engine.waiting == [b"message"]
