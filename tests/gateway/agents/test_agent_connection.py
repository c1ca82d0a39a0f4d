"""``AgentConnection`` when its transport is paused, a resume is cancelled, or an agent grants no credit."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
import uvloop
from holdfast_wire.codec import decode, encode, encode_item
from holdfast_wire.errors import HoldfastError
from holdfast_wire.frames import Ack, Closed, Open, Started, Welcome, Write
from holdfast_wire.limits import CONTROL_SLACK, Timing
from holdfast_wire.proof import agent_token
from holdfast_wire.websocket_frames import BINARY, server_frame

from gateway.agents.agent_call import AgentCall
from gateway.agents.agent_connection import AgentConnection
from gateway.agents.agent_socket import AgentSocket, ConnectionLostError
from gateway.agents.dial import Dialled, dial_agent
from gateway.agents.kept_connections import KeptConnections, _Kept
from gateway.model.records import Record, SandboxSpec
from tests.gateway.harness import SECRET, ScriptedAgent, silent
from tests.support.until import until_async

QUICK = Timing(ping_interval_s=0.05, silence_limit_s=0.2)
KEY = ("sb-1", "1" * 16, "unix:///a")
RECORD = Record(SandboxSpec("sb-1", "ada", "1" * 16, "host"), "ready", 1.0, endpoint="unix:///a")


async def welcomes(connection: Any) -> None:
    await connection.message()
    await connection.send(server_frame(BINARY, encode(Welcome(1, "e1", 1, False, {}, {}))))
    await silent(connection)


@contextlib.asynccontextmanager
async def connected(timing: Timing | None = None) -> AsyncIterator[AgentConnection]:
    async with ScriptedAgent(welcomes) as agent:
        token = agent_token(SECRET, "sb-1", "1" * 16)
        connection = AgentConnection(lambda: dial_agent(agent.endpoint, token, 60.0), 5.0, timing)
        await connection.connect()
        yield connection
        connection.close()


async def test_a_paused_reader_does_not_spin(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks, tick = 0, AgentConnection._tick

    def counted(self: AgentConnection) -> None:
        nonlocal ticks
        ticks += 1
        tick(self)

    monkeypatch.setattr(AgentConnection, "_tick", counted)
    async with connected(QUICK) as connection:
        assert connection._socket is not None
        connection._socket.pause_reading()
        clock = asyncio.get_running_loop().time
        ticks, began = 0, clock()
        await until_async(lambda: ticks >= 7, deadline_s=60, what="the timer to run")
        assert connection.error is None
        assert clock() - began > 5 * QUICK.ping_interval_s


async def test_silence_is_detected_while_the_agent_does_not_read() -> None:
    async with connected(QUICK) as connection:
        assert connection._socket is not None
        connection._socket.writing_paused = True
        await until_async(lambda: connection.error, deadline_s=60, what="the silence to be detected")


def test_a_deadline_in_the_past_is_scheduled_once_on_uvloop(monkeypatch: pytest.MonkeyPatch) -> None:
    async def late() -> None:
        async with connected() as connection:
            now = asyncio.get_running_loop().time()
            monkeypatch.setattr(type(connection._session), "deadline", lambda _: now - 1)
            connection.flush()
            connection.flush()
            assert connection._timer_due == now - 1
            monkeypatch.undo()

    uvloop.run(late())


async def test_a_closed_connection_has_no_timer() -> None:
    async with connected() as connection:
        connection.close()
        assert connection._timer is None


async def test_a_cancelled_resume_fails_no_other_request() -> None:
    async with connected() as connection:
        dial, hold = connection._dial, asyncio.Event()

        async def never() -> Dialled:
            dialled = await dial()
            hold.set()
            return dialled

        connection._dial = never
        start = connection._session.connect

        def fails(now: float) -> None:
            connection._session.connect = start  # type: ignore[method-assign]
            raise asyncio.CancelledError

        assert connection._socket is not None
        lost = ConnectionLostError("agent_unreachable", "cut")
        connection._socket.fail(lost)
        connection._session.connect = fails  # type: ignore[method-assign]
        with pytest.raises(asyncio.CancelledError):
            await connection.resume()
        assert connection.error is lost
        with pytest.raises(HoldfastError):
            await connection.resume()  # the scripted agent does not resume a session, so this is its error and not the cancellation
        assert hold.is_set()


async def test_a_call_that_cannot_detach_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ScriptedAgent(welcomes) as agent:
        token = agent_token(SECRET, "sb-1", "1" * 16)
        kept = KeptConnections(lambda _: dial_agent(agent.endpoint, token, 60.0), lambda *_: asyncio.sleep(0), 60.0)

        def full(self: AgentCall) -> None:
            raise HoldfastError("queue_full", "no credit")

        monkeypatch.setattr(AgentCall, "detach", full)
        async with kept.call(RECORD) as call:
            call.open("terminal", {})
            assert len(kept) == 1
        assert len(kept) == 0
        assert call._connection.error is not None
        assert not call._connection._channels


async def test_a_connection_dropped_during_its_liveness_check_is_not_used() -> None:
    async def no_dial(_: Record) -> Dialled:
        raise HoldfastError("agent_unreachable", "it was dialled")

    kept = KeptConnections(no_dial, lambda *_: asyncio.sleep(0), 5.0)

    async def answers() -> bool:
        del kept._kept[KEY]
        return True

    fake = SimpleNamespace(retired=False, error=None, answers=answers, close=lambda: None)
    kept._kept[KEY] = _Kept(cast(AgentConnection, fake))
    with pytest.raises(HoldfastError, match="it was dialled"):
        async with kept.call(RECORD):
            pass


async def test_too_many_items_for_a_call_that_only_waits_for_its_end_are_an_error() -> None:
    async with connected() as connection:
        call = AgentCall(connection)
        call.open("exec", {})
        for _ in range(2 * CONTROL_SLACK + 1):
            call.take(Started(1, "j", {}))
        async with asyncio.timeout(60):
            with pytest.raises(HoldfastError, match="too many messages"):
                await call.settled()


async def test_the_messages_of_one_request_are_sent_in_one_write(monkeypatch: pytest.MonkeyPatch) -> None:
    writes: list[list[object]] = []
    send = AgentSocket.send

    def recorded(self: AgentSocket, messages: list[bytes]) -> None:
        writes.append([decode(message)[0] for message in messages])
        send(self, messages)

    async with connected() as connection:
        monkeypatch.setattr(AgentSocket, "send", recorded)
        first = AgentCall(connection)
        first.open("write", {"path": "a", "size": 2})
        await first.write(b"ab", eof=True)
        assert not writes
        waiting = asyncio.create_task(first._wait())
        await asyncio.sleep(0)
        assert writes == [[Open(1, "write", {"path": "a", "size": 2}), Write(1, b"ab", eof=True)]]
        connection.message_received(encode_item(Closed(1, {}), 0))
        await waiting
        first.acknowledge()
        first.leave()
        await asyncio.sleep(0)
        assert len(writes) == 1
        AgentCall(connection).open("read", {"path": "a"})
        await asyncio.sleep(0)
        assert [type(frame) for frame in writes[1]] == [Ack, Open]  # the acknowledgement was held back until the next request


async def test_an_acknowledgement_is_not_held_back_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[type[object]] = []
    send = AgentSocket.send

    def recorded(self: AgentSocket, messages: list[bytes]) -> None:
        sent.extend(type(decode(message)[0]) for message in messages)
        send(self, messages)

    async with connected() as connection:
        monkeypatch.setattr(AgentSocket, "send", recorded)
        call = AgentCall(connection)
        call.open("read", {"path": "a"})
        await asyncio.sleep(0)
        assert sent == [Open], "nothing is queued with which the acknowledgement could leave"
        connection.message_received(encode_item(Closed(1, {}), 0))
        call.leave()
        await until_async(lambda: len(sent) > 1, deadline_s=60, what="another message")
    assert sent == [Open, Ack], "it did not wait for the next Ping"
