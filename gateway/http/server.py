"""uvicorn's server, which accepts several connections in one turn of the event loop.

uvloop accepts one connection per turn and listening descriptor, so behind a hundred clients that connect at once a further one waits for a
hundred turns. Here each listening socket has several descriptors, all of the same queue, and the loop accepts one connection through each.
Owns these descriptors; ``connections`` limits how many stay open. Called by ``gateway.__main__``.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Final

import uvicorn

ACCEPTED_PER_TURN: Final = 4
"""An accepted connection costs about 0.1 ms. With eight, those that are open wait longer, and new ones hardly less."""


class Server(uvicorn.Server):
    """See the module."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen. Exits the process as uvicorn does if the address cannot be used."""
        await super().startup(sockets)
        loop, first = asyncio.get_running_loop(), list(self.servers)
        for descriptor in (listener.dup() for server in first for listener in server.sockets for _ in range(ACCEPTED_PER_TURN - 1)):
            self.servers.append(await loop.create_server(self._protocol, sock=descriptor, backlog=self.config.backlog))

    def _protocol(self) -> asyncio.Protocol:
        make = self.config.http_protocol_class
        return make(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)  # type: ignore[call-arg]
