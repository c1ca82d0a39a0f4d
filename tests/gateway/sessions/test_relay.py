"""The relay: unchanged bytes, hostile clients and agents, back-pressure, and which connections it cuts."""

from __future__ import annotations

import asyncio
import contextlib
import os
import struct
from pathlib import Path

import pytest
from holdfast_wire.codec import decode
from holdfast_wire.frames import GoAway
from holdfast_wire.limits import MESSAGE_BYTES
from holdfast_wire.websocket_frames import BINARY, CLOSE, client_frame, server_frame
from websockets.asyncio.client import ClientConnection

from gateway.sessions.relay import FRAMES
from gateway.settings import RelaySettings
from tests.gateway.harness import DEADLINE_S, Connection, ScriptedAgent, Served, closed_with, echo, serve, silent
from tests.gateway.refusals import refusal
from tests.support.requires import requires
from tests.support.until import until_async

pytestmark = requires("redis")


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65535, 65536, MESSAGE_BYTES])
async def test_messages_pass_unchanged(served: Served, size: int) -> None:
    async with ScriptedAgent(echo) as agent:
        await served.place("sb-1", agent.endpoint)
        async with served.attach("sb-1") as client:
            message = os.urandom(size)
            for _ in range(3):
                await client.send(message)
            for _ in range(3):
                assert await client.recv() == message


async def test_data_that_the_agent_sends_first_arrives(served: Served) -> None:
    async def greet(connection: Connection) -> None:
        await connection.send(server_frame(BINARY, b"early"))
        await echo(connection)

    async with ScriptedAgent(greet) as agent:
        await served.place("sb-1", agent.endpoint)
        async with served.attach("sb-1") as client:
            assert await client.recv() == b"early"


async def test_close_codes_pass_both_ways(served: Served) -> None:
    seen: list[bytes] = []

    async def close(connection: Connection) -> None:
        message = await connection.message()
        if message == b"go":
            await connection.send(server_frame(CLOSE, b"\x11\x3bsession_fenced: later"))
        seen.append((await connection.frame())[1])
        await connection.send(server_frame(CLOSE, seen[-1]))

    async with ScriptedAgent(close) as agent:
        await served.place("sb-1", agent.endpoint)
        async with served.attach("sb-1") as client:
            await client.send(b"go")
            assert await closed_with(client) == (4411, "session_fenced: later")
        async with served.attach("sb-1") as client:
            await client.send(b"stay")
            await client.close(1001, "leaving")
        await until_async(lambda: b"\x03\xe9leaving" in seen, deadline_s=60, what="the close at the agent")


async def test_a_lost_agent_is_a_lost_connection(served: Served) -> None:
    async def die(connection: Connection) -> None:
        await connection.message()
        connection.writer.transport.abort()

    async with ScriptedAgent(die) as agent:
        await served.place("sb-1", agent.endpoint)
        async with served.attach("sb-1") as client:
            await client.send(b"x")
            assert (await closed_with(client))[0] == 1006


async def _send_and_abort(connection: Connection) -> None:
    """Send more than a socket buffers, then abort without waiting until the client has read it."""
    await connection.message()
    connection.writer.write(server_frame(BINARY, bytes(MESSAGE_BYTES)) * 16)
    await connection.message()
    sent = connection.writer.transport
    await until_async(lambda: not sent.get_write_buffer_size(), deadline_s=60, what="all of it to be sent")
    sent.abort()


async def test_the_last_data_of_a_lost_agent_still_arrives(redis_url: str, tmp_path: Path) -> None:
    settings = RelaySettings(buffer_bytes=64 * MESSAGE_BYTES)
    async with serve(redis_url, tmp_path, settings) as served, ScriptedAgent(_send_and_abort) as agent:
        await served.place("sb-1", agent.endpoint)
        async with served.attach("sb-1") as client:
            client.transport.pause_reading()
            await client.send(b"speak")
            (relay,) = served.gateway.attached._relays
            assert relay._client is not None
            await until_async(lambda: relay._down.boundary >= 0 and relay.chunks > 16, deadline_s=60, what="all of it at the gateway")
            await client.send(b"end")
            await until_async(lambda: relay._agent_gone, deadline_s=60, what="the agent to be gone")
            assert relay._client.get_write_buffer_size() > 0
            assert not relay.done.done()
            assert len(served.gateway.attached) == 1, "the session counts until its buffer is empty"
            client.transport.resume_reading()
            for _ in range(16):
                assert len(await client.recv()) == MESSAGE_BYTES
            assert (await closed_with(client))[0] == 1006
        await until_async(lambda: len(served.gateway.attached) == 0, deadline_s=60, what="the session to end")


async def test_a_client_that_reads_nothing_keeps_a_lost_session_only_until_linger_ends(redis_url: str, tmp_path: Path) -> None:
    settings = RelaySettings(buffer_bytes=64 * MESSAGE_BYTES, linger_s=1.0, sessions_per_owner=1)
    async with serve(redis_url, tmp_path, settings) as served, ScriptedAgent(_send_and_abort) as agent:
        await served.place("sb-1", agent.endpoint)
        async with served.attach("sb-1") as client:
            client.transport.pause_reading()
            await client.send(b"speak")
            (relay,) = served.gateway.attached._relays
            await until_async(lambda: relay.chunks > 16, deadline_s=60, what="all of it at the gateway")
            await client.send(b"end")
            await until_async(lambda: relay._agent_gone, deadline_s=60, what="the agent to be gone")
            assert (await refusal(served))[:2] == (429, "session_limit"), "the session still counts while it holds memory"
            await until_async(lambda: len(served.gateway.attached) == 0, deadline_s=60, what="the linger time to end")
            assert relay.done.done()
            client.transport.abort()


async def test_a_lost_client_is_noticed_by_the_agent(served: Served) -> None:
    async with ScriptedAgent(echo) as agent:
        await served.place("sb-1", agent.endpoint)
        async with served.attach("sb-1") as client:
            client.transport.abort()
            await until_async(lambda: len(served.gateway.attached) == 0, deadline_s=60, what="the session to end")
            async with asyncio.timeout(DEADLINE_S):
                assert await agent.connections[0].reader.read() == b""


@pytest.mark.parametrize(
    "bad",
    [
        server_frame(0x81, b"text"),
        server_frame(0x02, b"fragment"),
        server_frame(0xC2, b"compressed"),
        bytes((BINARY, 0x80 | 1, 0, 0, 0, 0, 7)),
        bytes((BINARY, 127)) + (MESSAGE_BYTES + 1).to_bytes(8, "big"),
        bytes((0x89, 126, 0, 200)) + bytes(200),
        b"\xff" * 100,
    ],
)
async def test_a_hostile_agent_affects_only_its_session(served: Served, bad: bytes) -> None:
    async def misbehave(connection: Connection) -> None:
        if await connection.message() == b"bad":
            await connection.send(bad)
        await echo(connection)

    async with ScriptedAgent(misbehave) as agent:
        await served.place("sb-1", agent.endpoint)
        async with served.attach("sb-1") as other, served.attach("sb-1") as client:
            await other.send(b"good")
            await client.send(b"bad")
            assert (await closed_with(client))[0] == 1011
            await other.send(b"still here")
            assert await other.recv() == b"still here"


async def test_a_client_that_breaks_the_framing_gets_a_close_code(served: Served) -> None:
    async with ScriptedAgent(echo) as agent:
        await served.place("sb-1", agent.endpoint)
        async with served.attach("sb-1") as client:
            await client.send("text is not of this protocol")
            assert (await closed_with(client))[0] == 4400
        async with served.attach("sb-1") as client:
            await client.send(bytes(MESSAGE_BYTES + 1))
            assert (await closed_with(client))[0] == 4413


@pytest.mark.parametrize("who", ["client", "agent"])
async def test_the_close_code_reaches_a_client_that_is_still_sending(served: Served, who: str) -> None:
    """Closing a socket with unread bytes resets the connection, and the peer loses the last bytes that were sent."""
    ended = asyncio.Event()

    async def behave(connection: Connection) -> None:
        try:
            if who == "agent":
                await connection.message()
                await connection.send(server_frame(CLOSE, struct.pack("!H", 4414)))
                return
            await echo(connection)
        finally:
            ended.set()

    async with ScriptedAgent(behave) as agent:
        await served.place("sb-1", agent.endpoint)
        async with served.attach("sb-1") as client:
            client.transport.pause_reading()
            sending = asyncio.create_task(_send_many(client, bytes(64 * MESSAGE_BYTES) if who == "client" else bytes(MESSAGE_BYTES)))
            await ended.wait()
            await until_async(
                lambda: all(r.client_shut_down for r in served.gateway.attached._relays),
                deadline_s=DEADLINE_S,
                what="the relay to send its close",
            )
            client.transport.resume_reading()
            assert (await closed_with(client))[0] == (4413 if who == "client" else 4414)
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)


async def _send_many(client: ClientConnection, message: bytes) -> None:
    for _ in range(200):
        await client.send(message)


async def test_a_stopped_reader_takes_bounded_memory(redis_url: str, tmp_path: Path) -> None:
    sent = 0

    async def flood(connection: Connection) -> None:
        nonlocal sent
        frame = server_frame(BINARY, bytes(MESSAGE_BYTES))
        while True:
            await connection.send(frame)
            sent += len(frame)

    settings = RelaySettings(buffer_bytes=512 * 1024)
    async with serve(redis_url, tmp_path, settings) as served, ScriptedAgent(flood) as agent:
        await served.place("sb-1", agent.endpoint)
        async with served.attach("sb-1") as client:
            client.transport.pause_reading()
            (relay,) = served.gateway.attached._relays
            await until_async(lambda: relay.client_paused, deadline_s=60, what="the agent to be paused")
            assert relay._client is not None
            assert relay._client.get_write_buffer_size() < 2 * 1024 * 1024
            for _ in range(2):
                relay.sweep()
            assert relay.stalled_sweeps >= 1
            client.transport.resume_reading()
            for _ in range(100):
                assert len(await client.recv()) == MESSAGE_BYTES
            assert relay.stalled_sweeps == 0
            client.transport.abort()


async def test_the_number_of_stalled_readers_is_limited(redis_url: str, tmp_path: Path) -> None:
    async def flood(connection: Connection) -> None:
        frame = server_frame(BINARY, bytes(MESSAGE_BYTES))
        while True:
            await connection.send(frame)

    settings = RelaySettings(buffer_bytes=256 * 1024, stalled_sessions=2)
    async with serve(redis_url, tmp_path, settings) as served, ScriptedAgent(flood) as agent, contextlib.AsyncExitStack() as attached:
        await served.place("sb-1", agent.endpoint)
        relays, clients = [], []
        for number in range(3):
            known = set(served.gateway.attached._relays)
            client = await attached.enter_async_context(served.attach("sb-1"))
            client.transport.pause_reading()
            clients.append(client)
            (relay,) = set(served.gateway.attached._relays) - known
            relays.append(relay)
            await until_async(lambda relay=relay: relay.client_paused, deadline_s=60, what=f"reader {number} to be full")
        await until_async(lambda: any(relay.done.done() for relay in relays), deadline_s=60, what="a stalled session to be cut off")
        assert sum(relay.done.done() for relay in relays) == 1
        assert not relays[2].done.done(), "it stalled last"
        assert len(served.gateway.attached._stalled) == 2
        client.transport.resume_reading()
        for _ in range(20):
            assert len(await client.recv()) == MESSAGE_BYTES
        for relay in relays:
            relay.abort()
        for one in clients:
            one.transport.abort()  # otherwise each would wait for a closing handshake that does not come


async def test_sweeps_cut_off_idle_connections(redis_url: str, tmp_path: Path) -> None:
    settings = RelaySettings(idle_limit_s=20.0, sweep_interval_s=10.0)
    async with serve(redis_url, tmp_path, settings) as served, ScriptedAgent(echo) as agent:
        await served.place("sb-1", agent.endpoint)
        async with served.attach("sb-1") as client:
            await client.send(b"x")
            await client.recv()
            served.gateway.attached.sweep()
            served.gateway.attached.sweep()
            served.gateway.attached.sweep()
            assert (await closed_with(client))[0] == 1001


async def test_go_away_waits_for_the_end_of_a_message(served: Served) -> None:
    halves: list[asyncio.Event] = [asyncio.Event(), asyncio.Event()]
    frame = server_frame(BINARY, b"x" * 1000)

    async def slow(connection: Connection) -> None:
        await connection.send(frame + frame[:500])
        halves[0].set()
        await halves[1].wait()
        await connection.send(frame[500:] + frame[:1])
        await connection.send(frame[1:])
        await echo(connection)

    async with ScriptedAgent(slow) as agent:
        await served.place("sb-1", agent.endpoint)
        async with served.attach("sb-1") as client:
            await halves[0].wait()
            assert await client.recv() == b"x" * 1000
            (relay,) = served.gateway.attached._relays
            await until_async(lambda: relay._down.mid_frame, deadline_s=60, what="half a message")
            relay.go_away(5.0, 1.0, "shutdown")
            halves[1].set()
            messages = [await client.recv() for _ in range(3)]
    kinds = [isinstance(decode(m)[0], GoAway) if m[:1] != b"x" else False for m in messages if isinstance(m, bytes)]
    assert sum(kinds) == 1
    assert messages.count(b"x" * 1000) == 2


async def test_many_small_frames_are_relayed_in_several_turns(served: Served) -> None:
    """256 KiB of empty frames in one read took the event loop for 30 ms, in which no other connection was served."""
    frame = client_frame(BINARY, b"", bytes(4))
    count = 10_000
    received = 0
    done = asyncio.Event()

    async def flood(connection: Connection) -> None:
        nonlocal received
        connection.writer.write(server_frame(BINARY, b"") * count + server_frame(BINARY, b"last"))
        while received < count * len(frame):
            data = await connection.reader.read(1 << 20)
            assert data == (frame * (len(data) // len(frame) + 2))[received % len(frame) :][: len(data)]
            received += len(data)
        done.set()
        await silent(connection)  # else the end of this connection could reach the client before GoAway

    async with ScriptedAgent(flood) as agent, asyncio.timeout(DEADLINE_S):
        await served.place("sb-1", agent.endpoint)
        async with served.attach("sb-1") as client:
            client.transport.write(frame * count)
            (relay,) = served.gateway.attached._relays
            while await client.recv() != b"last":
                pass
            await done.wait()
            assert relay.chunks >= 2 * count / FRAMES
            assert not relay._up_rest
            assert not relay._down_rest
            relay.go_away(1.0, 0.5, "shutdown")
            message = await client.recv()
            assert isinstance(message, bytes)
            assert isinstance(decode(message)[0], GoAway)


async def test_the_drain_reaches_a_client_between_two_small_frames(served: Served) -> None:
    async def flood(connection: Connection) -> None:
        while True:
            await connection.send(server_frame(BINARY, b"x" * 9) * 10_000)

    async with ScriptedAgent(flood) as agent, asyncio.timeout(DEADLINE_S):
        await served.place("sb-1", agent.endpoint)
        async with served.attach("sb-1") as client:
            await client.recv()
            (relay,) = served.gateway.attached._relays
            relay.go_away(1.0, 0.5, "shutdown")
            while (message := await client.recv()) == b"x" * 9:
                pass
            assert isinstance(message, bytes)
            assert isinstance(decode(message)[0], GoAway)
            client.transport.abort()


async def test_small_frames_wait_while_the_other_side_reads_nothing(redis_url: str, tmp_path: Path) -> None:
    """The bytes that are held back are not read again, and not lost, when the other side's buffer is full."""
    frame = client_frame(BINARY, b"y" * 100, bytes(4))
    count, begin = 40_000, asyncio.Event()
    received = bytearray()

    async def late(connection: Connection) -> None:
        connection.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await begin.wait()
        connection.writer.transport.resume_reading()  # type: ignore[attr-defined]
        while len(received) < count * len(frame):
            received.extend(await connection.reader.read(1 << 20))
        await connection.send(server_frame(BINARY, b"all"))
        await silent(connection)

    async with (
        serve(redis_url, tmp_path, RelaySettings(buffer_bytes=16 * 1024)) as served,
        ScriptedAgent(late) as agent,
        asyncio.timeout(DEADLINE_S),
    ):
        await served.place("sb-1", agent.endpoint)
        async with served.attach("sb-1") as client:
            client.transport.write(frame * count)
            (relay,) = served.gateway.attached._relays
            await until_async(lambda: relay.agent_paused, deadline_s=60, what="the agent's buffer to be full")
            begin.set()
            assert await client.recv() == b"all"
            assert received == frame * count
            client.transport.abort()
