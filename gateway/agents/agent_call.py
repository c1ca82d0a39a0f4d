"""One request to a session agent over a connection of its own: what REST does when nobody holds a session.

Owns the greeting, one channel, its offsets, credit and acknowledgement, in the simplest form that keeps the protocol: a fresh
session for each call, no resume. It is the gateway's only decoder, and everything an agent says is checked before it is
believed. Called by ``operations``, ``jobs`` and ``terminal``.

    HoldfastError
    └── AgentCallError   the agent broke the protocol, or the connection broke: what was asked may have happened
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import struct
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import msgpack
from holdfast_wire import PROTOCOL_VERSION
from holdfast_wire.codec import decode, encode, encode_item
from holdfast_wire.errors import HoldfastError, ProtocolError
from holdfast_wire.frames import (
    Ack,
    AnyItem,
    Close,
    Closed,
    Credit,
    Exited,
    Fact,
    Failed,
    Gap,
    Hello,
    Open,
    Opened,
    Output,
    Ping,
    Pong,
    Started,
    Welcome,
    Write,
)
from holdfast_wire.limits import (
    CONTROL_SLACK,
    DATA_BYTES,
    DECODE_ITEMS,
    ITEM_BYTES,
    MESSAGE_BYTES,
    PARAMS_BYTES,
    WINDOW_BYTES,
    Timing,
)

from .frame_headers import BINARY, CLOSE, PING, PONG

CHANNEL: Final = 1
_OPEN_BYTES: Final = MESSAGE_BYTES - 1024
"""Parameters up to this size fit a message."""
_QUEUED_BYTES: Final = 2 * WINDOW_BYTES
"""Received bytes that may wait for us before the socket is read no further."""
_PONG_BYTES: Final = 64 * 1024
"""Bytes waiting for an agent that does not read, beyond which its pings are not answered."""
_LINGER_S: Final = 5.0
"""How long an agent may take to read what was sent before the connection was closed."""
_WAITING_FACTS: Final = 2 * CONTROL_SLACK
"""Facts that may wait for us while we wait for something else."""
_FACTS: Final = (Opened, Started, Output, Gap, Exited, Closed, Failed)
_ENDS: Final = (Exited, Closed, Failed)
_PING_HEAD: Final = encode(Ping(0))[:2]
"""What every Ping begins with."""


class AgentCallError(HoldfastError):
    """See the module. ``code`` is ``agent_unreachable`` or, for what may have run, ``outcome_unknown``."""


class AgentCall:
    """One channel on one connection: ``greet``, ``open``, then facts; ``close`` in any case."""

    def __init__(self, transport: asyncio.Transport, early: bytes, timing: Timing | None = None) -> None:
        self._timing = timing or Timing()
        self._socket = _Socket(transport, self._answered)
        transport.set_protocol(self._socket)
        if early:
            self._socket.data_received(early)
        transport.resume_reading()
        self._sent = 0
        self._allowed = WINDOW_BYTES
        self._received = 0
        self._credited = WINDOW_BYTES
        self._unacked_bytes = 0
        self._pings = 0
        self._waiting: deque[Fact] = deque()
        self._news = asyncio.Event()
        """Set when credit came or the channel ended."""
        self.ended = False
        """The channel's last fact has come."""

    async def greet(self) -> None:
        """Open a fresh session. Raises ``AgentCallError``."""
        hello = Hello(PROTOCOL_VERSION, secrets.token_hex(16), secrets.token_bytes(16), "", 0, 1, {}, 1)
        self._socket.send(encode(hello))
        try:
            frame, _ = decode(await self._socket.message())
        except ProtocolError:
            frame = None
        if not isinstance(frame, Welcome) or frame.version != PROTOCOL_VERSION:
            raise AgentCallError("agent_unreachable", "the session agent did not greet")

    def close(self) -> None:
        self._socket.close()

    def open(self, kind: str, params: dict[str, Any]) -> None:
        self.send(Open(CHANNEL, kind, params))

    async def begin(self, kind: str, params: dict[str, Any]) -> None:
        """As ``open``, also for parameters that are larger than a message (PROTOCOL §7.8)."""
        packed = msgpack.packb(params)
        if len(packed) <= _OPEN_BYTES and not any(
            isinstance(value, list | dict) and len(value) > DECODE_ITEMS for value in params.values()
        ):
            self.open(kind, params)
            return
        if len(packed) > PARAMS_BYTES:
            raise HoldfastError("arguments_too_long", f"the command and its variables are {len(packed)} bytes, over {PARAMS_BYTES}")
        self.open(kind, {"packed": len(packed)})
        await self.write_all(packed, eof=False)

    def send(self, item: AnyItem) -> None:
        """Send an imperative without bytes, or bytes for which there is credit."""
        self._socket.send(encode_item(item, self._sent))
        self._sent += item.length

    def detach(self) -> None:
        """Stop reading; what runs goes on."""
        if not self.ended:
            self.send(Close(CHANNEL, detach=True))

    async def write_all(self, data: bytes | memoryview, *, eof: bool = True) -> None:
        """Send bytes and, with ``eof``, the end of input, within the agent's credit. Stops early when the channel has ended."""
        view = memoryview(data)
        while view and not self.ended:
            piece = view[: min(DATA_BYTES, self._allowed - self._sent)]
            if not piece:
                self._take(await self._socket.message(), self._waiting)
                continue
            self.send(Write(CHANNEL, bytes(piece)))
            view = view[len(piece) :]
        if eof and not self.ended:
            self.send(Write(CHANNEL, b"", eof=True))

    async def write(self, data: bytes) -> None:
        """Send bytes within the agent's credit, while another task reads the facts (and so learns of credit)."""
        view = memoryview(data)
        while view and not self.ended:
            piece = view[: min(DATA_BYTES, self._allowed - self._sent)]
            if piece:
                self.send(Write(CHANNEL, bytes(piece)))
                view = view[len(piece) :]
            else:
                self._news.clear()
                await self._news.wait()

    async def facts(self) -> AsyncIterator[Fact]:
        """Every fact of the channel, up to and including its last; output is credited as it is handed out."""
        while True:
            while self._waiting:
                fact = self._waiting.popleft()
                if type(fact) is Output:
                    self._credit()
                self._confirm(fact)
                yield fact
            if self.ended:
                return
            self._take(await self._heard(), self._waiting)

    async def _heard(self) -> bytes:
        """The next message, however long that takes while the agent answers pings (PROTOCOL §6). Raises ``AgentCallError``."""
        timing, silent_s = self._timing, 0.0
        while True:
            try:
                async with asyncio.timeout(timing.ping_interval_s):
                    return await self._socket.message()
            except TimeoutError:
                silent_s += timing.ping_interval_s
            if silent_s >= timing.silence_limit_s:
                raise AgentCallError("agent_unreachable", f"the session agent has been silent for {silent_s:g} s")
            self._pings += 1
            self._socket.send(encode(Ping(self._pings)))

    async def settled(self) -> list[Fact]:
        """The facts that are there now: the channel's last one has come, or the agent has said all it has so far.

        A Pong may overtake facts that wait to be sent, but not those sent with the Pong before: so it takes two rounds.
        """
        facts: deque[Fact] = deque()
        for _ in range(2):
            self._pings += 1
            self._socket.send(encode(Ping(self._pings)))
            while not self.ended and not self._take(await self._socket.message(), facts):
                pass
        return list(facts)

    def acknowledge(self) -> None:
        """Tell the agent that everything arrived: it may forget the output, and in five minutes the record."""
        self._socket.send(encode(Ack(CHANNEL, self._received)))

    def _take(self, message: bytes, into: deque[Fact]) -> bool:
        """Handle one message; True for the answer to our latest Ping."""
        try:
            frame, offset = decode(message)
        except ProtocolError as error:
            raise self._breach(f"the session agent broke the protocol: {error.message}") from None
        if isinstance(frame, _FACTS):
            if frame.channel != CHANNEL or offset != self._received or self.ended:
                raise self._breach("the session agent broke the order of its facts")
            self._received += frame.length
            slack = 0 if frame.length > 1 else CONTROL_SLACK
            if self._received > self._credited + slack or len(into) >= _WAITING_FACTS:
                raise self._breach("the session agent sends more than it was allowed to")
            self.ended = isinstance(frame, _ENDS)
            self._news.set()
            into.append(frame)
        elif isinstance(frame, Credit):
            self._allowed = max(self._allowed, frame.limit)
            self._news.set()
        elif isinstance(frame, Pong):
            return frame.number == self._pings
        return False

    def _answered(self, message: bytes) -> bool:
        """Answer a Ping, at once: whoever takes the facts may be slow, and the agent must not think that nobody is here."""
        if not message.startswith(_PING_HEAD):
            return False
        with contextlib.suppress(ProtocolError):
            frame, _ = decode(message)
            if isinstance(frame, Ping) and self._socket.unsent_bytes <= _PONG_BYTES:
                self._socket.send(encode(Pong(frame.number)))
            return isinstance(frame, Ping)
        return False

    def _breach(self, message: str) -> AgentCallError:
        """An agent that breaks the protocol gets no time to read what waits for it."""
        self._socket.abort()
        return AgentCallError("agent_unreachable", message)

    def _credit(self) -> None:
        if self._received + WINDOW_BYTES >= self._credited + WINDOW_BYTES // 2:
            self._credited = self._received + WINDOW_BYTES
            self._socket.send(encode(Credit(CHANNEL, self._credited)))

    def _confirm(self, fact: Fact) -> None:
        """Say what arrived, but not the end: until then the agent keeps it, and of much, or many, it sends no more (PROTOCOL §4.5, §8)."""
        self._unacked_bytes += fact.length + ITEM_BYTES
        if self._unacked_bytes >= self._timing.ack_bytes and not self.ended:
            self._unacked_bytes = 0
            self._socket.send(encode(Ack(CHANNEL, self._received)))


class _Socket(asyncio.Protocol):
    """Messages over an upgraded transport, from the client's side."""

    def __init__(self, transport: asyncio.Transport, answered: Callable[[bytes], bool]) -> None:
        self._transport = transport
        self._answered = answered
        """Sees each message first; one that it has dealt with waits for nobody."""
        self._buffer = bytearray()
        self._messages: deque[bytes] = deque()
        self._queued_bytes = 0
        self._paused = False
        self._lost: HoldfastError | None = None
        self._patience: asyncio.TimerHandle | None = None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def unsent_bytes(self) -> int:
        return self._transport.get_write_buffer_size()

    async def message(self) -> bytes:
        """The next message. Raises ``AgentCallError`` when there will be none."""
        while not self._messages:
            if self._lost is not None:
                raise self._lost
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        message = self._messages.popleft()
        self._queued_bytes -= len(message)
        if self._paused and self._queued_bytes <= _QUEUED_BYTES // 2:
            self._paused = False
            if not self._transport.is_closing():
                self._transport.resume_reading()
        return message

    def send(self, message: bytes) -> None:
        # The mask is a frame's four bytes and hides nothing between two servers of ours: zeros spare both ends the work.
        size = len(message)
        if size < 126:
            head = struct.pack("!BB", BINARY, 0x80 | size)
        elif size < 65536:
            head = struct.pack("!BBH", BINARY, 0x80 | 126, size)
        else:
            head = struct.pack("!BBQ", BINARY, 0x80 | 127, size)
        self._transport.write(head + b"\0\0\0\0" + message)

    def close(self) -> None:
        if not self._transport.is_closing():
            self._transport.write(struct.pack("!BB4xH", CLOSE, 0x82, 1000))
            self._transport.close()
            if self._transport.get_write_buffer_size():  # an agent that reads no more must not keep the socket
                self._patience = asyncio.get_running_loop().call_later(_LINGER_S, self._transport.abort)

    def abort(self) -> None:
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        try:
            while (taken := self._frame(buffer)) > 0:
                del buffer[:taken]
        except ProtocolError as error:
            self._fail(AgentCallError("agent_unreachable", f"the session agent broke the protocol: {error.message}"))
            self._transport.abort()
            return
        if self._queued_bytes > _QUEUED_BYTES and not self._paused:
            self._paused = True
            self._transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._patience is not None:
            self._patience.cancel()
        self._fail(AgentCallError("agent_unreachable", "the connection to the sandbox's agent broke"))

    def _frame(self, buffer: bytearray) -> int:
        """Take the first frame, if it is whole; how many bytes it had."""
        if len(buffer) < 2:
            return 0
        first, size = buffer[0], buffer[1]
        start = 2
        if size == 126:
            start = 4
        elif size == 127:
            start = 10
        if len(buffer) < start:
            return 0
        if start > 2:
            size = int.from_bytes(buffer[2:start], "big")
        if size > MESSAGE_BYTES or first not in (BINARY, CLOSE, PING, PONG) or buffer[1] & 0x80:
            raise ProtocolError("a frame is too large, masked or of an unknown kind")
        end = start + size
        if len(buffer) < end:
            return 0
        payload = bytes(buffer[start:end])
        if first == BINARY:
            if self._answered(payload):
                return end
            self._messages.append(payload)
            self._queued_bytes += size
            self._wake()
        elif first == CLOSE:
            self._fail(_refusal(payload))
        elif first == PING and self._transport.get_write_buffer_size() <= _PONG_BYTES:
            self._transport.write(struct.pack("!BB4x", PONG, 0x80 | (size & 0x7F)) + payload[:125])
        return end

    def _fail(self, error: HoldfastError) -> None:
        if self._lost is None:
            self._lost = error
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _refusal(payload: bytes) -> HoldfastError:
    """What a Close means: its reason begins with a code of the table (PROTOCOL §1.5)."""
    code, _, message = payload[2:].decode("utf-8", "replace").partition(":")
    if code in ("session_limit", "sandbox_gone", "draining"):
        return HoldfastError(code, message.strip() or "the sandbox's agent refused the request")
    return AgentCallError("agent_unreachable", "the sandbox's agent closed the connection")
