"""The server accepts several connections in one turn of uvloop, and ends all of its listening descriptors."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest
import uvicorn
import uvloop

from gateway.http.server import ACCEPTED_PER_TURN, Server

CONNECTIONS = 40


class Accepting(asyncio.Protocol):
    """Counts connections."""

    accepted = 0

    def __init__(self, **_: Any) -> None:
        pass

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        Accepting.accepted += 1
        transport.close()


async def app(scope: Any, receive: Any, send: Any) -> None:
    """An application that is never called."""


async def turns_until_accepted() -> float:
    Accepting.accepted = 0
    server = Server(uvicorn.Config(app, host="127.0.0.1", port=0, http=Accepting, lifespan="off", log_config=None))
    server.config.load()
    server.lifespan = server.config.lifespan_class(server.config)
    await server.startup()
    address = server.servers[0].sockets[0].getsockname()
    clients = [socket.create_connection(address) for _ in range(CONNECTIONS)]  # the kernel completes them before they are accepted
    turns = 0
    while Accepting.accepted < CONNECTIONS and turns < 10_000:
        await asyncio.sleep(0)
        turns += 1
    for client in clients:
        client.close()
    await server.shutdown()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address)
    return turns


def test_several_connections_are_accepted_in_one_turn() -> None:
    turns = uvloop.run(turns_until_accepted())
    assert Accepting.accepted == CONNECTIONS
    assert turns <= CONNECTIONS / ACCEPTED_PER_TURN + 5
