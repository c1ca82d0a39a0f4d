"""A minimal relay: the lowest cost of client, gateway and agents on these libraries.

Owns three roles that only move bytes: agents that pass lines to bash and stream zeros, a relay that copies
messages, a client. No sessions, acknowledgements, isolation or errors. As in Holdfast, each agent is a process
forked from one that has imported all modules: fifty sandboxes are fifty agents. Started as
`python -m tests.bench.prototype agents|relay FOLDER COUNT`; `Prototype` starts both.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
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


async def _relay(connection: ServerConnection, folder: Path) -> None:
    assert connection.request is not None
    agent = _agent_socket(folder, int(connection.request.path.strip("/")))
    async with unix_connect(agent, "ws://agent/", compression=None, max_size=None) as other:

        async def copy(source: ServerConnection | ClientConnection, target: ServerConnection | ClientConnection) -> None:
            async for message in source:
                await target.send(message)
            await target.close()

        async with asyncio.TaskGroup() as group:
            group.create_task(copy(connection, other))
            group.create_task(copy(other, connection))


def _agent_socket(folder: Path, number: int) -> str:
    return str(folder / f"agent-{number}.sock")


def _relay_socket(folder: Path) -> str:
    return str(folder / "relay.sock")


async def _serve(handler: Callable[[ServerConnection], Awaitable[None]], socket: str) -> None:
    async with unix_serve(handler, socket, compression=None, max_size=None, ping_interval=None) as server:
        await server.serve_forever()


def _agents(folder: Path, count: int) -> None:
    """One agent in this process and one in each of `count - 1` children, which end with the process group."""
    number = next((number for number in range(1, count) if os.fork() == 0), 0)
    asyncio.run(_serve(_agent, _agent_socket(folder, number)))


class Prototype:
    """Agents and a relay as separate processes; `client()` connects through both."""

    def __init__(self, folder: Path, agents: int) -> None:
        self.folder = folder
        command = [sys.executable, "-m", "tests.bench.prototype"]
        self._processes = [
            subprocess.Popen([*command, role, str(folder), str(agents)], stderr=subprocess.DEVNULL, start_new_session=True)
            for role in ("agents", "relay")
        ]
        ends = [_relay_socket(folder), *(_agent_socket(folder, number) for number in range(agents))]
        self.agents_pid, self.relay_pid = (process.pid for process in self._processes)
        until(lambda: all(map(os.path.exists, ends)), deadline_s=_START_DEADLINE_S, what="the prototype to start")

    def close(self) -> None:
        for process in self._processes:
            with process:
                os.killpg(process.pid, signal.SIGKILL)


@contextlib.contextmanager
def running(agents: int = 1) -> Iterator[Prototype]:
    """A prototype for the length of a block."""
    with tempfile.TemporaryDirectory(prefix="hf-proto-") as folder:
        prototype = Prototype(Path(folder), agents)
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
async def client(folder: Path, agent: int = 0) -> AsyncIterator[Client]:
    """Connect to the agent of this number, through the relay."""
    url = f"ws://relay/{agent}"
    async with unix_connect(_relay_socket(folder), url, compression=None, max_size=None, ping_interval=None) as connection:
        yield Client(connection)


if __name__ == "__main__":
    where, number = Path(sys.argv[2]), int(sys.argv[3])
    if sys.argv[1] == "agents":
        _agents(where, number)
    else:
        asyncio.run(_serve(lambda connection: _relay(connection, where), _relay_socket(where)))
