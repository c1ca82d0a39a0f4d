"""A TCP proxy as a separate process, such as a service mesh or a load balancer places between two services.

Owns the forwarding of bytes and its back-pressure; changes and delays nothing. Started by ``pods``: it prints the port that it listens on,
on 127.0.0.1, and ends when its standard input ends.
"""

from __future__ import annotations

import asyncio
import sys
from typing import cast

import uvloop


class Side(asyncio.Protocol):
    """One of the two connections. ``peer`` is the other; bytes wait until it is established."""

    def __init__(self, peer: Side | None = None) -> None:
        self.transport: asyncio.Transport | None = None
        self.peer = peer
        self.early: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        if self.peer is not None and self.peer.transport is not None:
            self.peer.peer = self
            self.transport.writelines(self.peer.early)
            if self.peer.transport.is_closing():
                self.transport.close()

    def data_received(self, data: bytes) -> None:
        if self.peer is None:
            self.early.append(data)
        elif self.peer.transport is not None:
            self.peer.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.peer is not None and self.peer.transport is not None:
            self.peer.transport.close()

    def pause_writing(self) -> None:
        if self.peer is not None and self.peer.transport is not None:
            self.peer.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.peer is not None and self.peer.transport is not None:
            self.peer.transport.resume_reading()


class Near(Side):
    """The connection that was accepted."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__()
        self._target = (host, port)
        self._dialling: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._dialling = asyncio.get_running_loop().create_task(self._dial())

    async def _dial(self) -> None:
        try:
            await asyncio.get_running_loop().create_connection(lambda: Side(self), *self._target)
        except OSError:
            assert self.transport is not None
            self.transport.abort()


async def main(host: str, port: int) -> None:
    server = await asyncio.get_running_loop().create_server(lambda: Near(host, port), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    server.close()


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], int(sys.argv[2])))
