"""What an agent holds for clients that open many channels and read nothing: a limit for all, room for each, and all of it is released."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from holdfast_wire.codec import decode, encode, encode_item
from holdfast_wire.frames import Ack, Hello, Open, Opened, Output
from holdfast_wire.limits import MIB, UNACKED_SESSION_BYTES, WINDOW_BYTES

from session_agent.agent.context import AgentContext
from session_agent.agent.session.channels import Channel
from session_agent.agent.session.sessions import HeldSession, Sessions
from session_agent.agent.settings import AgentSettings
from session_agent.agent.startup.handlers import LazyHandlers
from tests.support.channel import SilentConnection
from tests.support.until import until_async

PIECE = b"x" * 65536
MEMORY = 64 * MIB
ALL = MEMORY // 8
"""The bytes that all sessions of a sandbox of this size may hold, besides the share of each."""


class Flood:
    """A handler that sends as long as there is room."""

    def __init__(self, context: AgentContext, channel: Channel) -> None:
        self.channel = channel
        channel.send(Opened(channel.number, {}))
        self.writable()

    def writable(self) -> None:
        while (room := self.channel.room()) > 0:
            self.channel.send(Output(self.channel.number, 1, PIECE[:room]))

    def drop(self) -> None: ...


class Reader:
    """A client that receives what is sent only when asked, and acknowledges it separately."""

    def __init__(self, sessions: Sessions, session_id: str) -> None:
        self.held: HeldSession = sessions.attach(Hello(1, session_id, b"k" * 16, "", 0, 1, {}, 1), SilentConnection(), 0.0)
        self.received: dict[int, int] = {}

    def send(self, *messages: bytes) -> None:
        for message in messages:
            self.held.session.receive(message, 0.0)
            self.held.dispatch(0.0)

    def open(self, count: int, kind: str = "tunnel", params: dict[str, Any] | None = None) -> None:
        self.send(*(encode_item(Open(number, kind, params or {}), 0) for number in range(1, count + 1)))

    def receive(self) -> int:
        """Receive what was sent, each piece after the one before; returns the number of bytes of output."""
        size_bytes = 0
        for frame, offset in map(decode, self.held.session.outgoing()):
            if isinstance(frame, Opened | Output):
                assert offset == self.received.get(frame.channel, 0)
                self.received[frame.channel] = offset + frame.length
                size_bytes += len(frame.data) if isinstance(frame, Output) else 0
        return size_bytes

    def acknowledge(self) -> None:
        self.send(*(encode(Ack(number, offset)) for number, offset in self.received.items()))


@pytest.fixture
async def sessions() -> Sessions:
    context = AgentContext(AgentSettings("sb", "t", memory_bytes=MEMORY))
    context._loop = asyncio.get_running_loop()  # its clock alone: nothing is started
    return Sessions(context, {"tunnel": Flood}, "epoch", {})  # type: ignore[dict-item]


async def test_unread_windows_are_limited_and_arrive_in_order(sessions: Sessions) -> None:
    reader = Reader(sessions, "r" * 16)
    reader.open(100)
    held = reader.held.session.counter.held
    assert ALL <= held <= ALL + UNACKED_SESSION_BYTES + len(PIECE) + 100 * 300
    other = Reader(sessions, "o" * 16)
    other.open(1)
    assert other.receive() >= UNACKED_SESSION_BYTES - len(PIECE), "a client that reads is not blocked by one that does not"
    other.acknowledge()
    assert other.receive() > 0
    total = 0
    while size_bytes := reader.receive():
        total += size_bytes
        reader.acknowledge()
    assert total == 100 * (WINDOW_BYTES - 1), "every channel got to the end of its credit, in order"
    other.receive()
    other.acknowledge()
    assert sessions._total.whole.held == 0


async def test_bytes_that_one_session_releases_are_available_to_another(sessions: Sessions) -> None:
    first, second = Reader(sessions, "a" * 16), Reader(sessions, "b" * 16)
    first.open(100)
    second.open(8)
    assert second.receive() <= 2 * UNACKED_SESSION_BYTES
    first.held.session.disconnected()
    sessions._expire(first.held)
    assert second.receive() >= 5 * MIB
    sessions.attach(Hello(1, "b" * 16, b"k" * 16, "", 1, 1, {}, 1, True), SilentConnection(), 0.0).dispatch(0.0)
    assert sessions._total.whole.held == 0, "a take-over drops all channels"


async def test_unread_files_are_read_ahead_within_limits(sessions: Sessions, tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(bytes(2 * MIB))
    held = Sessions(sessions._context, {"read": LazyHandlers()["read"]}, "epoch", {})
    reader = Reader(held, "r" * 16)
    read_ahead = sessions._context.read_ahead.whole
    reader.open(80, "read", {"path": str(tmp_path / "big")})
    seen: list[int] = []

    def has_stopped() -> bool:
        seen.append(held._total.whole.held + read_ahead.held)
        return len(seen) > 20 and len(set(seen[-20:])) == 1

    await until_async(has_stopped, deadline_s=60, what="the reading to stop")
    assert seen[-1] <= ALL + UNACKED_SESSION_BYTES + 24 * MIB
    deadline = asyncio.get_running_loop().time() + 60
    while sum(reader.received.values()) < 80 * (WINDOW_BYTES - 8) and asyncio.get_running_loop().time() < deadline:
        reader.receive()
        reader.acknowledge()
        await asyncio.sleep(0)
    assert all(received == WINDOW_BYTES for received in reader.received.values())
    held._expire(reader.held)
    await until_async(lambda: read_ahead.held == 0, deadline_s=60, what="what was read ahead to be released")
