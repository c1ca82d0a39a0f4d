"""Connections to ports by a socket of the runtime's: their bounds, back-pressure and ends, with real programs at the other end."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
import pytest_asyncio
from holdfast_wire.errors import HoldfastError

from gateway.agents import port_connections, port_sockets
from gateway.agents.kept_connections import KeptConnections
from gateway.agents.port_connections import PortConnection, PortConnections
from gateway.model.records import Record, SandboxSpec
from tests.support.until import until_async

DEADLINE_S = 60.0


def record(name: str = "sb-1") -> Record:
    return Record(SandboxSpec(name, "ada", "0" * 16, "host"), "ready", 0.0, "unix:///nowhere")


class Program:
    """A server with one connection at a time, as a test drives it."""

    def __init__(self) -> None:
        self.accepted: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
        self.port = 0
        self.writers: list[asyncio.StreamWriter] = []

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        self.accepted.put_nowait((reader, writer))

    async def start(self) -> asyncio.Server:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        return server

    async def connect(self, sandbox_id: str, incarnation: str, port: int) -> socket.socket:
        made = socket.socket()
        made.setblocking(False)
        await asyncio.get_running_loop().sock_connect(made, ("127.0.0.1", port))
        return made

    async def accept(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        async with asyncio.timeout(DEADLINE_S):
            return await self.accepted.get()


@pytest_asyncio.fixture
async def program() -> AsyncIterator[Program]:
    made = Program()
    server = await made.start()
    yield made
    server.close()
    for writer in made.writers:
        writer.transport.abort()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


@pytest_asyncio.fixture
async def ports(program: Program) -> AsyncIterator[PortConnections]:
    made = PortConnections(cast(KeptConnections, None), program.connect)
    yield made
    made.close()


async def opened(ports: PortConnections, program: Program, name: str = "sb-1") -> PortConnection:
    connection = await ports.open_socket(record(name), program.port)
    assert connection is not None
    return connection


async def test_bytes_pass_both_ways_and_the_end_is_empty(ports: PortConnections, program: Program) -> None:
    connection = await opened(ports, program)
    reader, writer = await program.accept()
    await connection.write(b"to the program")
    assert await reader.read(100) == b"to the program"
    writer.write(b"from it")
    assert await connection.read() == b"from it"
    usable = [connection.reusable]
    writer.close()
    assert await connection.read() == b""
    assert [*usable, connection.reusable] == [True, False]
    await connection.write(b"has no effect")
    connection.close()


async def test_an_idle_one_is_used_again_unless_something_came_or_it_ended(ports: PortConnections, program: Program) -> None:
    connection = await opened(ports, program)
    _, writer = await program.accept()
    ports.give_back(connection)
    assert ports.kept(record("sb-2"), program.port) is None, "another sandbox's"
    assert ports.kept(record(), program.port) is connection
    assert connection.used_before
    writer.write(b"an answer to no request")
    await until_async(_of(lambda: not connection.reusable), deadline_s=DEADLINE_S, what="the bytes to arrive")
    ports.give_back(connection)
    assert ports.kept(record(), program.port) is None

    other = await opened(ports, program)
    _, writer = await program.accept()
    ports.give_back(other)
    writer.close()
    await until_async(_of(lambda: not other.reusable), deadline_s=DEADLINE_S, what="the end to arrive")
    assert ports.kept(record(), program.port) is None


async def test_a_program_that_writes_more_than_is_read_waits(ports: PortConnections, program: Program) -> None:
    connection = await opened(ports, program)
    _, writer = await program.accept()
    total = 32 << 20
    writing = asyncio.create_task(_write(writer, total))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await asyncio.shield(writing)
    waiting = cast(Any, connection)._unread_bytes
    assert port_sockets._UNREAD_BYTES < waiting < 4 * port_sockets._UNREAD_BYTES
    count = 0
    while count < total:
        count += len(await connection.read())
    await writing
    connection.close()


async def test_a_program_that_reads_nothing_holds_up_the_writer_and_not_the_end(
    ports: PortConnections, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(port_sockets, "_LINGER_S", 0.05)
    connection = await opened(ports, program)
    reader, _ = await program.accept()
    reader._transport.pause_reading()  # type: ignore[attr-defined]

    async def write() -> None:
        for _ in range(1000):
            await connection.write(b"x" * 65536)

    writing = asyncio.create_task(write())
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await asyncio.shield(writing)
    connection.close()
    async with asyncio.timeout(DEADLINE_S):
        await writing


async def test_closing_wakes_the_reader(ports: PortConnections, program: Program) -> None:
    connection = await opened(ports, program)
    reading = asyncio.create_task(connection.read())
    await asyncio.sleep(0)
    connection.close()
    async with asyncio.timeout(DEADLINE_S):
        assert await reading == b""


async def test_a_reset_is_an_end(ports: PortConnections, program: Program) -> None:
    connection = await opened(ports, program)
    _, writer = await program.accept()
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
    async with asyncio.timeout(DEADLINE_S):
        assert await connection.read() == b""
    connection.close()


async def test_there_are_at_most_so_many_and_the_rest_are_tunnels(
    ports: PortConnections, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(port_connections, "_MOST_SOCKETS_OF_SANDBOX", 2)
    monkeypatch.setattr(port_connections, "_MOST_SOCKETS", 3)
    one, two = await opened(ports, program), await opened(ports, program)
    assert await ports.open_socket(record(), program.port) is None
    three = await opened(ports, program, "sb-2")
    assert await ports.open_socket(record("sb-3"), program.port) is None, "of all sandboxes"
    one.close()
    one.close()
    again = await opened(ports, program, "sb-3")
    for each in (two, three, again):
        each.close()


async def test_a_port_that_the_runtime_cannot_reach_is_left_to_a_tunnel(program: Program) -> None:
    async def refuse(sandbox_id: str, incarnation: str, port: int) -> socket.socket:
        raise HoldfastError("port_unreachable", "nothing listens")

    async def broken(sandbox_id: str, incarnation: str, port: int) -> socket.socket:
        raise ConnectionResetError

    for connect in (None, refuse, broken):
        ports = PortConnections(cast(KeptConnections, None), connect)
        for _ in range(port_connections._MOST_SOCKETS_OF_SANDBOX + 1):
            assert await ports.open_socket(record(), program.port) is None
        assert not ports._sockets


async def _write(writer: asyncio.StreamWriter, total: int) -> None:
    for _ in range(total // 65536):
        writer.write(b"x" * 65536)
        await writer.drain()


def _of(condition: Any) -> Any:
    async def check() -> bool:
        return bool(condition())

    return check
