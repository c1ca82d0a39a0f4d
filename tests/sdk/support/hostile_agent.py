"""The hostile agent as the service that a client connects to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from tests.sdk.support.fake_agent import FakeAgent
from tests.support.hostile_agent import Peer, Script, converse, silence


class HostileAgent(FakeAgent):
    """``greets`` answers the Hello, ``script`` every later message."""

    def __init__(self) -> None:
        super().__init__()
        self.greets: Callable[[Peer], Awaitable[None]] = lambda peer: peer.welcome()
        self.script: Script = silence

    async def _converse(self, connection: Any) -> None:
        self.attaches += 1
        await converse(connection, self.greets, lambda: self.script)
