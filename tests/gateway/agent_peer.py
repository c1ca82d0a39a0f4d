"""An agent whose side of a session a test scripts, and requests to the gateway that it answers.

Owns the session of the scripted agent; ``harness.ScriptedAgent`` owns the socket and the proof of identity.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from holdfast_wire.codec import decode, encode, encode_item
from holdfast_wire.frames import Hello, Open, Welcome
from holdfast_wire.websocket_frames import BINARY, server_frame

from tests.gateway.checked import Checked
from tests.gateway.harness import Connection, ScriptedAgent, Served

RESULT: dict[str, Any] = {
    "exit_code": 0,
    "signal": None,
    "timed_out": False,
    "cause": None,
    "duration_s": 0.1,
    "streams": {},
    "truncated": False,
}


class AgentPeer:
    """The agent's side of one call; ``handshake`` handles the greeting and the Open."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.offset = 0
        self.opened: Open | None = None

    async def handshake(self) -> None:
        hello, _ = decode(await self.connection.message())
        assert isinstance(hello, Hello)
        await self.send_raw(encode(Welcome(hello.version, "e1", 1, False, {}, {})))
        opened, _ = decode(await self.connection.message())
        assert isinstance(opened, Open)
        self.opened = opened

    async def send_raw(self, message: bytes) -> None:
        await self.connection.send(server_frame(BINARY, message))

    async def send(self, *items: Any) -> None:
        for item in items:
            await self.send_raw(encode_item(item, self.offset))
            self.offset += item.length

    async def receive(self) -> Any:
        return decode(await self.connection.message())[0]


def scripted(script: Callable[[AgentPeer], Awaitable[None]]) -> Callable[[Connection], Awaitable[None]]:
    async def behave(connection: Connection) -> None:
        peer = AgentPeer(connection)
        await peer.handshake()
        await script(peer)
        while True:  # ignore further messages until the client closes the connection
            await connection.message()

    return behave


async def ask(served: Served, behave: Callable[[Connection], Awaitable[None]], method: str, path: str, **more: Any) -> Any:
    async with ScriptedAgent(behave) as agent, served.client() as client:
        await served.place("sb-1", agent.endpoint)
        async with asyncio.timeout(60):
            return await Checked(client)(method, f"/sandboxes/sb-1{path}", **more)


async def execute(served: Served, script: Callable[[AgentPeer], Awaitable[None]], **body: Any) -> Any:
    return await ask(served, scripted(script), "POST", "/exec", json={"command": "true", "wait": True, **body})
