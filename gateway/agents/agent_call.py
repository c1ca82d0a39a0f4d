"""One request to a session agent over a connection of its own: what REST does where no session is attached.

Owns the I/O around the pure session core (``holdfast_wire.client_session``): a new session for each call, one channel, no resume. The
core checks everything the agent sends; a breach closes the connection at once. The end of the channel is acknowledged only on request,
because the agent may discard a command's output after that. Called by ``oneoff`` and ``orchard.terminal``.

    HoldfastError
    └── AgentCallError   the agent broke the protocol, or the connection broke: what was requested may have happened
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections import deque
from collections.abc import AsyncIterator
from typing import Any, Final, cast

import msgpack
from holdfast_wire.client_session import ClientSession
from holdfast_wire.codec import decode, encode
from holdfast_wire.errors import HoldfastError, ProtocolError
from holdfast_wire.events import Silent
from holdfast_wire.frames import AnyItem, Close, Closed, Exited, Fact, Failed, Gap, Opened, Output, Ping, Pong, Started, Write
from holdfast_wire.limits import CONTROL_SLACK, DATA_BYTES, DECODE_ITEMS, MESSAGE_BYTES, PARAMS_BYTES, Timing
from websockets.frames import Frame, Opcode
from websockets.protocol import Protocol, Side

CHANNEL: Final = 1
_OPEN_BYTES: Final = MESSAGE_BYTES - 1024
"""Parameters up to this size fit a message."""
_LINGER_S: Final = 5.0
"""How long an agent may take to read what was sent before the connection was closed."""
_WAITING_FACTS: Final = 2 * CONTROL_SLACK
"""Facts that may wait for the caller; of their bytes at most the channel's window waits (PROTOCOL §5)."""
_FACTS: Final = (Opened, Started, Output, Gap, Exited, Closed, Failed)
_ENDS: Final = (Exited, Closed, Failed)
_PONG_HEAD: Final = encode(Pong(0))[:2]
"""The first bytes of every Pong."""
_FIRST_PING: Final = 2**32
"""Above every ping number of the core."""


class AgentCallError(HoldfastError):
    """See the module. ``code`` is ``agent_unreachable`` or, for what may have run, ``outcome_unknown``."""


class AgentCall(asyncio.Protocol):
    """One channel on one connection: ``greet``, ``open``, then facts; ``close`` in any case."""

    def __init__(self, transport: asyncio.Transport, early: bytes, timing: Timing | None = None) -> None:
        self._session = ClientSession(secrets.token_hex(16), secrets.token_bytes(16), timing, acknowledge_ends=False)
        self._websocket = Protocol(Side.CLIENT, max_size=MESSAGE_BYTES)
        self._transport = transport
        self._clock = asyncio.get_running_loop().time
        self._facts: deque[Fact] = deque()
        self._changed = asyncio.Event()
        """Set when something came that a waiter may wait for: a fact, credit, the greeting, a Pong, the end of the connection."""
        self._error: HoldfastError | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._reads = False
        """Whether a task takes facts."""
        self._writing_paused = False
        self._reading_paused = False
        self._pinged = self._ponged = _FIRST_PING
        self.ended = False
        """The channel's last fact has come."""
        transport.set_protocol(self)
        if early:
            self.data_received(early)
        transport.resume_reading()

    # What a caller does ---------------------------------------------------------------------------------------------

    async def greet(self) -> None:
        """Open a new session. Raises ``AgentCallError``."""
        self._session.connect(self._clock())
        self._flush()
        while not self._session.attached:
            await self._wait()

    def open(self, kind: str, params: dict[str, Any]) -> None:
        self._session.open(kind, params)
        self._flush()

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
        await self.write(packed)

    def send(self, item: AnyItem) -> None:
        """Send an imperative, unless the channel has ended. Bytes need credit."""
        if not self.ended:
            self._session.send(item)
            self._flush()

    def detach(self) -> None:
        """Stop reading; what runs continues."""
        self.send(Close(CHANNEL, detach=True))

    async def write(self, data: bytes) -> None:
        """Send bytes within the agent's credit. Stops early when the channel has ended. Raises ``AgentCallError``."""
        view = memoryview(data)
        while view and not self.ended:
            piece = view[: min(DATA_BYTES, self._session.room(CHANNEL))]
            if piece:
                self.send(Write(CHANNEL, bytes(piece)))
                view = view[len(piece) :]
            elif len(self._facts) > _WAITING_FACTS and not self._reads:
                raise self._break("the session agent sends too many facts while it grants no credit")
            else:
                await self._wait()

    async def write_all(self, data: bytes) -> None:
        """As ``write``, followed by the end of input."""
        await self.write(data)
        self.send(Write(CHANNEL, b"", eof=True))

    async def facts(self) -> AsyncIterator[Fact]:
        """Every fact of the channel, up to and including its last; output is credited as it is taken. Raises ``AgentCallError``."""
        self._reads = True
        while True:
            while self._facts:
                fact = self._facts.popleft()
                if type(fact) is Output:
                    self._session.consume(CHANNEL, len(fact.data))
                    self._flush()
                if self._reading_paused and len(self._facts) <= _WAITING_FACTS // 2 and not self._transport.is_closing():
                    self._reading_paused = False
                    self._transport.resume_reading()
                yield fact
            if self.ended:
                return
            await self._wait()

    async def settled(self) -> list[Fact]:
        """The facts that are there now: up to the channel's last, or all that the agent has to report so far.

        A Pong may overtake facts that wait to be sent, but not those sent with the Pong before: so it takes two rounds.
        """
        for _ in range(2):
            self._pinged += 1
            self._websocket.send_binary(encode(Ping(self._pinged)))
            self._flush()
            while not self.ended and self._ponged != self._pinged:
                await self._wait()
        facts = list(self._facts)
        self._facts.clear()
        return facts

    def acknowledge(self) -> None:
        """Report that everything arrived: the agent may discard the output, and after five minutes the record."""
        self._session.acknowledge_end(CHANNEL)
        self._flush()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._transport.is_closing():
            return
        if self._error is None:
            self._writing_paused = False
            self._flush()
            self._websocket.send_close(1000)
            self._transport.write(b"".join(self._websocket.data_to_send()))
        self._transport.close()
        if self._transport.get_write_buffer_size():  # an agent that does not read must not keep the socket
            self._timer = asyncio.get_running_loop().call_later(_LINGER_S, self._transport.abort)

    # What the transport reports -------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        websocket = self._websocket
        websocket.receive_data(data)
        for event in websocket.events_received():
            frame = cast(Frame, event)
            if self._error is not None:
                return
            if frame.opcode is Opcode.BINARY and frame.fin:
                self._receive(bytes(frame.data))
            elif frame.opcode is Opcode.CLOSE:
                self._fail(_refusal(websocket.close_rcvd.reason if websocket.close_rcvd else ""))
            elif frame.opcode is Opcode.PING and self._writing_paused:
                self._break("the session agent pings and does not read the answers")
            elif frame.opcode not in (Opcode.PING, Opcode.PONG):
                self._break("every message is one unfragmented binary frame")
        if websocket.parser_exc is not None and self._error is None:
            self._break(str(websocket.parser_exc))
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._fail(AgentCallError("agent_unreachable", "the connection to the sandbox's agent broke"))

    def pause_writing(self) -> None:
        self._writing_paused = True

    def resume_writing(self) -> None:
        self._writing_paused = False
        self._flush()

    def _receive(self, message: bytes) -> None:
        if message.startswith(_PONG_HEAD):
            with contextlib.suppress(ProtocolError):
                frame, _ = decode(message)
                self._ponged = frame.number if isinstance(frame, Pong) else self._ponged
        try:
            self._session.receive(message, self._clock())
        except ProtocolError as error:
            self._break(error.message)
        self._take_events()

    def _take_events(self) -> None:
        for event in self._session.events():
            if isinstance(event, Silent):
                limit_s = self._session.timing.silence_limit_s
                self._fail(AgentCallError("agent_unreachable", f"the session agent has been silent for {limit_s:g} s"))
                self._transport.abort()
            elif isinstance(event, _FACTS):
                self.ended = isinstance(event, _ENDS)
                self._facts.append(event)
        if len(self._facts) > _WAITING_FACTS and not self._reading_paused and not self._transport.is_closing():
            self._reading_paused = True  # facts without bytes need little credit: the socket bounds their number
            self._transport.pause_reading()
        self._changed.set()

    def _flush(self) -> None:
        """Write what the core has for the agent, while the agent reads."""
        if self._error is not None or self._writing_paused:
            return
        for message in self._session.outgoing():
            self._websocket.send_binary(message)
        self._transport.write(b"".join(self._websocket.data_to_send()))
        due = self._session.deadline()
        if due is not None and (self._timer is None or self._timer.when() > due):
            if self._timer is not None:
                self._timer.cancel()
            self._timer = asyncio.get_running_loop().call_at(due, self._tick)

    def _tick(self) -> None:
        self._timer = None
        if not self._reading_paused:  # while nothing is read the agent's silence means nothing
            self._session.tick(self._clock())
            self._take_events()
        self._flush()

    async def _wait(self) -> None:
        """Until something came. Raises the error that ended the connection."""
        if self._error is not None:
            raise self._error
        self._changed.clear()
        await self._changed.wait()

    def _break(self, message: str) -> AgentCallError:
        """End the connection to an agent that breaks the protocol, without time to read what waits for it."""
        error = AgentCallError("agent_unreachable", f"the session agent broke the protocol: {message}")
        self._fail(error)
        self._transport.abort()
        return error

    def _fail(self, error: HoldfastError) -> None:
        if self._error is None:
            self._error = error
        self._changed.set()


def _refusal(reason: str) -> HoldfastError:
    """What a Close means: its reason begins with a code of the table (PROTOCOL §1.5)."""
    code, _, message = reason.partition(":")
    if code in ("session_limit", "sandbox_gone", "draining"):
        return HoldfastError(code, message.strip() or "the sandbox's agent refused the request")
    return AgentCallError("agent_unreachable", "the sandbox's agent closed the connection")
