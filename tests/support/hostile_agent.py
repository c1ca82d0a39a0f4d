"""An agent that its workload controls: it completes the handshake, then answers with whatever a script says.

Owns the scripts: each is one way in which an agent's messages can be wrong, in their fields, order, number or time. The session's state is
not kept, because a hostile agent need not. Used behind the SDK's sessions (``tests.sdk.support.hostile_agent``) and behind the gateway's
REST routes (``tests.gateway.agents.test_hostile_messages``), which own the sockets.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import msgpack
from holdfast_wire import PROTOCOL_VERSION
from holdfast_wire.codec import decode, encode, encode_item
from holdfast_wire.errors import TABLE, HoldfastError
from holdfast_wire.frames import Closed, Credit, Exited, Failed, Gap, GoAway, Hello, Open, Opened, Output, Ping, Pong, Run, Started, Welcome
from websockets.exceptions import ConnectionClosed

FLOOD = 5_000


class Peer:
    """One connection, after the client's Hello."""

    def __init__(self, connection: Any, hello: Hello) -> None:
        self.connection, self.hello = connection, hello
        self.offsets: dict[int, int] = {}

    async def send(self, *frames: Any) -> None:
        """Send frames; items get the next offset of their channel."""
        for frame in frames:
            if hasattr(frame, "channel") and hasattr(frame, "length"):
                offset = self.offsets.get(frame.channel, 0)
                self.offsets[frame.channel] = offset + frame.length
                await self.connection.send(encode_item(frame, offset))
            else:
                await self.connection.send(encode(frame))

    async def raw(self, *messages: bytes) -> None:
        for message in messages:
            await self.connection.send(message)

    async def welcome(self, **changed: Any) -> None:
        fields: dict[str, Any] = {
            "version": PROTOCOL_VERSION,
            "agent_epoch": self.hello.agent_epoch or "e1",
            "generation": self.hello.generation + 1,
            "resumed": bool(self.hello.agent_epoch),
            "received": dict.fromkeys(self.hello.received, 1),
            "info": {},
        }
        await self.send(Welcome(**{**fields, **changed}))


Script = Callable[[Peer, Any], Awaitable[None]]
"""Called for each message of the client: the decoded frame."""


async def converse(connection: Any, greets: Callable[[Peer], Awaitable[None]], script: Callable[[], Script]) -> None:
    """The agent's side of one connection: ``greets`` answers the Hello, the script each later message. Pings are answered."""
    hello, _ = decode(await connection.recv())
    assert isinstance(hello, Hello)
    peer = Peer(connection, hello)
    await greets(peer)
    while True:
        message = await connection.recv()
        with suppress(HoldfastError):
            frame, _ = decode(message)
            if isinstance(frame, Ping):
                await peer.send(Pong(frame.number))
            else:
                await script()(peer, frame)


def _result(**changed: Any) -> dict[str, Any]:
    return {"exit_code": 0, "duration_s": 0.1, "timed_out": False, "signal": None, "truncated": False, **changed}


async def silence(peer: Peer, frame: Any) -> None:
    """Only answers pings."""


async def go_away(peer: Peer, frame: Any) -> None:
    """Floods the client with requests to leave."""
    for _ in range(FLOOD):
        await peer.send(GoAway(60.0, 60.0, "drain"))


async def go_away_at_once(peer: Peer, frame: Any) -> None:
    await peer.send(GoAway(0.0, 0.0, "drain"))


async def pings(peer: Peer, frame: Any) -> None:
    for number in range(FLOOD):
        await peer.send(Ping(number))


async def output_without_end(peer: Peer, frame: Any) -> None:
    """As much as the credit allows and more."""
    if isinstance(frame, Open | Run):
        number = frame.channel
        await peer.send(*_begin(frame))
        for _ in range(400):
            await peer.send(Output(number, 1, b"x" * 65536))


async def credit_without_end(peer: Peer, frame: Any) -> None:
    if isinstance(frame, Open):
        for limit in (2**62, 1, -1, 2**63 - 1):
            with suppress(HoldfastError, OverflowError):
                await peer.send(Credit(frame.channel, limit))


async def drops_after_start(peer: Peer, frame: Any) -> None:
    """Every connection makes progress, then breaks: no outage is long."""
    if isinstance(frame, Open | Run):
        await peer.send(*_begin(frame))
    peer.connection.transport.abort()


async def begins_only(peer: Peer, frame: Any) -> None:
    if isinstance(frame, Open | Run):
        await peer.send(*_begin(frame))


def _begin(frame: Open | Run) -> list[Any]:
    if isinstance(frame, Open) and frame.kind not in ("command", "follow", "terminal"):
        return [Opened(frame.channel, {"size": 10, "name": "s", "pid": 1})]
    id_ = frame.command_id if isinstance(frame, Run) else frame.params.get("id", "x")
    return [Started(frame.channel, id_, {"pid": 7})]


VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**63 - 1, -(2**63), 1.5, float("nan"), float("inf"), "", "x", "\x1b[2J", "x" * 7_000, b"", b"\xff",
    [], [[[]]], {}, {"a": {"b": {"c": []}}}, {1: [1, 2, 3], 2: [0, 0, ""]}, {"code": "sandbox_gone", "fault": "infrastructure"},
)  # fmt: skip
FIELDS = (
    "exit_code", "duration_s", "timed_out", "signal", "truncated", "cause", "streams", "shell", "error", "size", "crc32", "sha256", "name",
    "pid", "created", "tty", "mode", "mtime", "entries", "skipped", "changed", "code", "message", "fault", "reason", "detail", "cwd",
    "restarted", "info", "type", "path",
)  # fmt: skip


def random_map(rng: random.Random) -> dict[str, Any]:
    found = _result() if rng.random() < 0.5 else {}
    for _ in range(rng.randint(0, 4)):
        found[rng.choice(FIELDS)] = rng.choice(VALUES)
    if rng.random() < 0.3:
        found["code"] = rng.choice(list(TABLE))
    return found


def random_frame(rng: random.Random, number: int, id_: str) -> Any:
    """One frame of an agent, with a wrong or right channel, id and content."""
    channel = rng.choice((number,) * 6 + (1, 2, 2**31, 0, 65_535))
    id_ = rng.choice((id_,) * 4 + ("", "other", "x" * 9000))
    stream = rng.choice((1, 1, 2, 0, 3, 255))
    data = rng.choice((b"", b"x", b"y" * 100, b"\xc1" * 3, msgpack.packb({"name": "a"}), b"z" * 200_000))
    return rng.choice(
        (
            lambda: Opened(channel, random_map(rng)),
            lambda: Started(channel, id_, random_map(rng)),
            lambda: Output(channel, stream, data),
            lambda: Gap(channel, stream, rng.choice((0, 1, 2**40, -1))),
            lambda: Exited(channel, id_, random_map(rng)),
            lambda: Closed(channel, random_map(rng)),
            lambda: Failed(channel, random_map(rng)),
            lambda: Credit(channel, rng.choice((0, 1, 2**20, 2**40, -1))),
            lambda: GoAway(rng.choice((0.0, 1.0, -1.0, 1e9)), rng.choice((0.0, 1e9)), rng.choice(("drain", "evicted", "node-lost", ""))),
            lambda: Ping(rng.choice((0, 1, 2**40))),
            lambda: Pong(rng.choice((0, 1, 2**40))),
        )
    )()


def at_random(seed: int) -> Script:
    """Answers each request with random frames, raw garbage, a close, or nothing."""
    rng = random.Random(seed)

    async def script(peer: Peer, frame: Any) -> None:
        if not isinstance(frame, Open | Run) and rng.random() < 0.7:
            return
        number = getattr(frame, "channel", 1)
        id_ = getattr(frame, "command_id", None) or (frame.params.get("id", "x") if isinstance(frame, Open) else "x")
        if rng.random() < 0.6 and isinstance(frame, Open | Run):
            await peer.send(*_begin(frame))
        for _ in range(rng.randint(0, 6)):
            choice = rng.random()
            try:
                if choice < 0.85:
                    await peer.send(random_frame(rng, number, id_))
                elif choice < 0.9:
                    peer.offsets[number] = rng.choice((0, 5, 2**50))
                elif choice < 0.95:
                    await peer.raw(rng.choice((b"", b"\xc1", rng.randbytes(40), msgpack.packb([rng.randint(0, 60), number, 0, "x", {}]))))
                elif choice < 0.98:
                    await peer.connection.close(rng.choice((1000, 1001, 1011, 4400, 4403, 4404, 4410, 4411, 4414, 4503)), "sandbox_gone: x")
                else:
                    await peer.connection.send("text")
            except (HoldfastError, OverflowError, ValueError, TypeError):  # this library does not encode it
                continue

    return script


SCRIPTS: dict[str, Script] = {
    one.__name__: one
    for one in (
        silence, go_away, go_away_at_once, pings, output_without_end, credit_without_end, drops_after_start, begins_only,
    )
}  # fmt: skip


async def no_welcome(peer: Peer) -> None:
    """Answers pings, and sends some, but no Welcome."""
    end = time.monotonic() + 30
    with suppress(ConnectionClosed):
        while time.monotonic() < end:
            await peer.send(Ping(1))
            await asyncio.sleep(0.05)


GREETINGS: dict[str, dict[str, Any]] = {
    "version": {"version": 99},
    "generation": {"generation": 0},
    "huge generation": {"generation": 2**63 - 1},
    "unknown channels": {"received": {7: 2**50}},
    "negative offsets": {"received": {1: -1}},
    "resumed": {"resumed": True},
    "epoch": {"agent_epoch": "x" * 60_000},
}
