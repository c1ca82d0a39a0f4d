"""A relay with nothing in it: the least that client, gateway and agent on these libraries can cost.

Owns three roles that do no more than move bytes: an agent that hands lines to bash and streams zeros, a relay that
copies messages, a client. No sessions, no acknowledgements, no isolation, no errors. Started as
`python -m tests.bench.prototype agent|relay SOCKET …`; `Prototype` starts both.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgpack
from websockets.asyncio.client import ClientConnection, unix_connect
from websockets.asyncio.server import ServerConnection, unix_serve

from tests.support.until import until

_MESSAGE_BYTES = 256 * 1024
_START_DEADLINE_S = 10.0


async def _agent(connection: ServerConnection) -> None:
    bash = await asyncio.create_subprocess_exec("bash", "--norc", "--noprofile", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert bash.stdin is not None
    assert bash.stdout is not None
    async for message in connection:
        kind, value = msgpack.unpackb(message)
        if kind == "zeros":
            zeros = bytes(_MESSAGE_BYTES - 16)
            for _ in range(value // len(zeros)):
                await connection.send(msgpack.packb(["zeros", zeros]))
            await connection.send(msgpack.packb(["end", b""]))
        else:
            bash.stdin.write(value)
            await connection.send(msgpack.packb(["out", await bash.stdout.readline()]))
    bash.kill()
    await bash.wait()


async def _relay(connection: ServerConnection, agent: str) -> None:
    async with unix_connect(agent, "ws://agent/", compression=None, max_size=None) as other:

        async def copy(source: ServerConnection | ClientConnection, target: ServerConnection | ClientConnection) -> None:
            async for message in source:
                await target.send(message)
            await target.close()

        async with asyncio.TaskGroup() as group:
            group.create_task(copy(connection, other))
            group.create_task(copy(other, connection))


async def _serve(role: str, socket: str, agent: str) -> None:
    handler = _agent if role == "agent" else lambda connection: _relay(connection, agent)
    async with unix_serve(handler, socket, compression=None, max_size=None, ping_interval=None) as server:
        await server.serve_forever()


class Prototype:
    """Agent and relay as processes of their own; `client()` connects through both."""

    def __init__(self, folder: Path) -> None:
        self.relay_socket = str(folder / "relay.sock")
        agent_socket = str(folder / "agent.sock")
        command = [sys.executable, "-m", "tests.bench.prototype"]
        self._processes = [
            subprocess.Popen([*command, "agent", agent_socket], stderr=subprocess.DEVNULL),
            subprocess.Popen([*command, "relay", self.relay_socket, agent_socket], stderr=subprocess.DEVNULL),
        ]
        ends = (agent_socket, self.relay_socket)
        until(lambda: all(map(os.path.exists, ends)), deadline_s=_START_DEADLINE_S, what="the prototype to start")

    def close(self) -> None:
        for process in self._processes:
            with process:
                process.kill()


@contextlib.contextmanager
def running() -> Iterator[Prototype]:
    """A prototype for the length of a block."""
    with tempfile.TemporaryDirectory(prefix="hf-proto-") as folder:
        prototype = Prototype(Path(folder))
        try:
            yield prototype
        finally:
            prototype.close()


class Client:
    """One connection through the relay."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection

    async def true(self) -> None:
        await self._connection.send(msgpack.packb(["run", b"true; echo $?\n"]))
        await self._connection.recv()

    async def zeros(self, size: int) -> int:
        """Bytes received of a stream of about `size`."""
        await self._connection.send(msgpack.packb(["zeros", size]))
        received = 0
        while True:
            kind, data = msgpack.unpackb(await self._connection.recv())
            if kind == "end":
                return received
            received += len(data)


@contextlib.asynccontextmanager
async def client(relay_socket: str) -> AsyncIterator[Client]:
    async with unix_connect(relay_socket, "ws://relay/", compression=None, max_size=None, ping_interval=None) as connection:
        yield Client(connection)


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1], sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else ""))
