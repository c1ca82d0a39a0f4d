"""Whole conversations by RFC 6455 through a running gateway, with ``websockets`` and ``wsproto`` as clients: each library checks the bytes.

Scripted agents answer in every way that the RFC allows; one conversation runs through the whole chain to a real agent. Single frames and
single breaches: ``tests/wire/test_rfc6455.py``.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from holdfast_wire.frames import Exited, Opened, Output, Signal, Started, Write
from holdfast_wire.limits import DATA_BYTES, MESSAGE_BYTES
from holdfast_wire.session.client_session import ClientSession
from holdfast_wire.session.events import Attached
from holdfast_wire.websocket_frames import BINARY, CLOSE, PING, PONG, server_frame

from tests.gateway.harness import ADA, Connection, ScriptedAgent, Served
from tests.support.requires import requires
from tests.support.until import until_async
from tests.support.websocket_peers import LIBRARIES, Client, Event

pytestmark = [requires("redis"), pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library.__name__.lower())]

VALID_CODES = (1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 1012, 1013, 3000, 3999, 4000, 4400, 4411, 4999)
LONGEST_REASON = "é" * 61 + "x"
"""123 bytes in UTF-8."""


@pytest.fixture
async def clients() -> AsyncIterator[list[Client]]:
    """Those in this list are closed at the end."""
    opened: list[Client] = []
    yield opened
    for client in opened:
        await client.abort()


@pytest.fixture
def connect(served: Served, library: Any, clients: list[Client]) -> Callable[[], Awaitable[Client]]:
    """Opens a session's WebSocket at the gateway."""

    async def start() -> Client:
        client = Client(library())
        clients.append(client)
        await client.open(f"ws{served.url.removeprefix('http')}/sandboxes/sb-1/session", {"X-API-Key": ADA})
        return client

    return start


async def talk(connection: Connection) -> None:
    """Echo messages, answer pings, send a ping before every second message, and answer a Close with its code."""
    count = 0
    while True:
        first, payload = await connection.frame()
        if first == PING:
            await connection.send(server_frame(PONG, payload))
        elif first == BINARY:
            count += 1
            if count % 2 == 0:
                await connection.send(server_frame(PING, b"are you there?"))
            await connection.send(server_frame(BINARY, payload))
        elif first == CLOSE:
            await connection.send(server_frame(CLOSE, payload))
            return


async def test_pings_between_messages_of_every_size_are_answered_in_order(served: Served, connect: Callable[[], Awaitable[Client]]) -> None:
    sizes = (0, 1, 125, 126, 127, 65535, 65536, MESSAGE_BYTES - 1, MESSAGE_BYTES)
    pongs: list[bytes] = []

    async def counted(connection: Connection) -> None:
        receive = connection.frame

        async def frame() -> tuple[int, bytes]:
            first, payload = await receive()
            if first == PONG:
                pongs.append(payload)
            return first, payload

        connection.frame = frame  # type: ignore[method-assign]
        await talk(connection)

    async with ScriptedAgent(counted) as agent, asyncio.timeout(60):
        await served.place("sb-1", agent.endpoint)
        client = await connect()
        messages = [os.urandom(size) for size in sizes]

        async def send() -> None:
            for number, message in enumerate(messages):
                await client.send(client.library.message([message]) + client.library.ping(b"%d" % number))

        sending = asyncio.create_task(send())
        found: list[Event] = []
        while sum(event.kind != "ping" for event in found) < 2 * len(messages):
            found.append(await client.next())
        await sending
        assert [event.data for event in found if event.kind == "message"] == messages
        assert [event.data for event in found if event.kind == "pong"] == [b"%d" % number for number in range(len(messages))]
        order = [event.kind for event in found if event.kind != "ping"]
        assert order == ["message", "pong"] * len(messages)
        await client.send(client.library.close(1000, "done"))
        assert await client.next() == Event("close", b"done", 1000)
        await client.ended()
    assert pongs == [b"are you there?"] * (len(messages) // 2), "the library answers the agent's pings, which pass the relay"


@pytest.mark.parametrize("reason", ["", LONGEST_REASON])
async def test_every_close_code_passes_from_client_to_agent_and_back(
    served: Served, connect: Callable[[], Awaitable[Client]], reason: str
) -> None:
    seen: list[bytes] = []

    async def listen(connection: Connection) -> None:
        first, payload = await connection.frame()
        assert first == CLOSE
        seen.append(payload)
        await connection.send(server_frame(CLOSE, payload))

    async with ScriptedAgent(listen) as agent, asyncio.timeout(60):
        await served.place("sb-1", agent.endpoint)
        for code in VALID_CODES:
            client = await connect()
            await client.send(client.library.close(code, reason))
            assert await client.next() == Event("close", reason.encode(), code)
            await client.ended()
    assert seen == [struct.pack("!H", code) + reason.encode() for code in VALID_CODES]


@pytest.mark.parametrize("reason", ["", LONGEST_REASON])
async def test_every_close_code_passes_from_agent_to_client_and_back(
    served: Served, connect: Callable[[], Awaitable[Client]], reason: str
) -> None:
    codes = iter(VALID_CODES)
    answers: list[bytes] = []

    async def close(connection: Connection) -> None:
        payload = struct.pack("!H", next(codes)) + reason.encode()
        await connection.send(server_frame(BINARY, b"the last message") + server_frame(CLOSE, payload))
        first, answer = await connection.frame()
        assert first == CLOSE
        answers.append(answer[:2])

    async with ScriptedAgent(close) as agent, asyncio.timeout(60):
        await served.place("sb-1", agent.endpoint)
        for number, code in enumerate(VALID_CODES):
            client = await connect()
            assert await client.next() == Event("message", b"the last message")
            assert await client.next() == Event("close", reason.encode(), code)
            await client.ended()
            await until_async(lambda number=number: len(answers) > number, deadline_s=60, what="the client's answer at the agent")
    assert answers == [struct.pack("!H", code) for code in VALID_CODES]


async def test_a_close_without_a_code_passes(served: Served, connect: Callable[[], Awaitable[Client]]) -> None:
    async def close(connection: Connection) -> None:
        await connection.message()
        await connection.send(server_frame(CLOSE, b""))

    async with ScriptedAgent(close) as agent, asyncio.timeout(60):
        await served.place("sb-1", agent.endpoint)
        client = await connect()
        await client.send(client.library.message([b"go"]))
        assert await client.next() == Event("close", b"", 1005)
        await client.ended()


@pytest.mark.parametrize("between", [b"", b"a ping"])
async def test_a_fragmented_message_is_refused_with_its_reason(
    served: Served, connect: Callable[[], Awaitable[Client]], between: bytes
) -> None:
    """The RFC allows fragments, and a session forbids them (PROTOCOL §2.1). What came before passes."""
    async with ScriptedAgent(talk) as agent, asyncio.timeout(60):
        await served.place("sb-1", agent.endpoint)
        client = await connect()
        await client.send(client.library.message([b"whole"]))
        assert await client.next() == Event("message", b"whole")
        await client.send(client.library.message([b"one", b"two", b"three"], between))
        closed = await client.next()
        assert (closed.kind, closed.code) == ("close", 4400)
        assert closed.data.startswith(b"protocol_error: ")
        await client.ended()


async def test_a_message_over_the_limit_is_refused_with_its_reason(served: Served, connect: Callable[[], Awaitable[Client]]) -> None:
    async with ScriptedAgent(talk) as agent, asyncio.timeout(60):
        await served.place("sb-1", agent.endpoint)
        client = await connect()
        await client.send(client.library.message([b"x" * (MESSAGE_BYTES + 1)]))
        closed = await client.next()
        assert (closed.kind, closed.data.partition(b":")[0]) == ("close", b"request_too_large")
        await client.ended()


@requires("namespaces")
async def test_a_session_of_each_library_with_a_real_agent(stack: Any, library: Any, clients: list[Client]) -> None:
    """A command reads and writes 2 MB in pieces of the largest size, between pings; the session moves to the other library and ends."""
    from holdfast import AsyncSandboxClient

    data = os.urandom(2_000_000)
    other = LIBRARIES[1 - LIBRARIES.index(library)]
    async with AsyncSandboxClient(stack.url, stack.key) as service, await service.create_sandbox("host") as sandbox, asyncio.timeout(60):
        session = ClientSession(os.urandom(16).hex(), os.urandom(32))
        url = f"ws{stack.url.removeprefix('http')}/sandboxes/{sandbox.id}/session"

        async def attach(one: Any) -> Client:
            client = Client(one())
            clients.append(client)
            await client.open(url, {"X-API-Key": stack.key})
            session.connect(time.monotonic())
            return client

        async def step(client: Client) -> list[Any]:
            """Send what the session has to send, each message after a ping, and receive one message."""
            for message in session.outgoing():
                await client.send(client.library.ping(b"") + client.library.message([message]))
            due = session.deadline()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if due is None else max(due - time.monotonic(), 0.0)):
                    event = await client.next()
                    if event.kind == "message":
                        session.receive(event.data, time.monotonic())
            session.tick(time.monotonic())
            return session.events()

        client = await attach(library)
        while not any(isinstance(event, Attached) for event in await step(client)):
            pass
        number = session.open("command", {"id": "c-1", "argv": ["cat"], "stdin": "pipe"})
        sent, received, started = 0, bytearray(), False
        while len(received) < len(data):
            if started and (room := min(session.room(number), DATA_BYTES)) and sent < len(data):
                session.send(Write(number, data[sent : sent + room], False))
                sent += len(data[sent : sent + room])
            for event in await step(client):
                started |= isinstance(event, Started | Opened)
                if isinstance(event, Output):
                    received += event.data
                    session.consume(number, len(event.data))
        assert bytes(received) == data

        await client.abort()
        session.disconnected()
        client = await attach(other)
        session.send(Signal(number, "KILL"))
        ends: list[Any] = []
        while not ends:
            ends = [event for event in await step(client) if isinstance(event, Exited)]
        assert ends[0].result["signal"] == "KILL"
        await client.send(client.library.close(1000, ""))
        while (await client.next()).kind != "close":
            pass
        await client.ended()
