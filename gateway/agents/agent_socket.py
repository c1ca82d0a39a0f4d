"""A dialled connection to a session agent as a WebSocket: whole messages both ways.

Owns the framing, what an agent may not do to it, and its close. Knows nothing of sessions: ``agent_connection`` drives one over it.

    HoldfastError
    └── AgentCallError           the agent broke the protocol: what was requested may have happened
        └── ConnectionLostError  the connection broke, or is silent; the agent may still be there
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol, cast

from holdfast_wire.errors import HoldfastError
from holdfast_wire.limits import MESSAGE_BYTES
from websockets.frames import Frame, Opcode
from websockets.protocol import Protocol as WebSocket
from websockets.protocol import Side

from .dial import Dialled

_LINGER_S: Final = 5.0
"""How long an agent may take to read what was sent before the connection was closed."""


class AgentCallError(HoldfastError):
    """See the module. ``code`` is ``agent_unreachable`` or, for what may have run, ``outcome_unknown``."""


class ConnectionLostError(AgentCallError):
    """See the module."""


class Receiver(Protocol):
    """Receives a socket's messages and its end."""

    def message_received(self, message: bytes) -> None:
        """A whole message. Must not raise."""
        ...

    def all_received(self) -> None:
        """No more messages for the moment: answer them."""
        ...

    def socket_failed(self, error: HoldfastError) -> None:
        """Nothing more comes or goes. Called once, unless it was closed first."""
        ...


class AgentSocket(asyncio.Protocol):
    """One connection, from its dial to its end."""

    def __init__(self, dialled: Dialled, receiver: Receiver) -> None:
        self._websocket = WebSocket(Side.CLIENT, max_size=MESSAGE_BYTES)
        self._transport = dialled.transport
        self._receiver = receiver
        self._over = False
        self._linger: asyncio.TimerHandle | None = None
        self.writing_paused = False
        """The agent does not read: nothing is sent until it does."""
        self.reading_paused = False
        dialled.transport.set_protocol(self)
        self._early = dialled.early

    def start(self) -> None:
        """Begin to read."""
        if self._early:
            self.data_received(self._early)
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def send(self, messages: list[bytes]) -> None:
        for message in messages:
            self._websocket.send_binary(message)
        self._write_out()

    def pause_reading(self) -> None:
        if not self.reading_paused and not self._transport.is_closing():
            self.reading_paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self.reading_paused and not self._transport.is_closing():
            self.reading_paused = False
            self._transport.resume_reading()

    def close(self) -> None:
        """End it in order, if it has not failed."""
        if self._over:
            return
        self._over = True
        self._websocket.send_close(1000)
        self._write_out()
        self._transport.close()
        if self._transport.get_write_buffer_size():  # an agent that does not read must not keep the socket
            self._linger = asyncio.get_running_loop().call_later(_LINGER_S, self._transport.abort)

    def fail(self, error: HoldfastError) -> None:
        """End it without time to read what waits for the agent."""
        if not self._over:
            self._over = True
            self._transport.abort()
            self._receiver.socket_failed(error)

    def broke_protocol(self, message: str) -> None:
        self.fail(AgentCallError("agent_unreachable", f"the session agent broke the protocol: {message}"))

    # What the transport reports -------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        websocket = self._websocket
        websocket.receive_data(data)
        for event in websocket.events_received():
            if self._over:
                return
            frame = cast(Frame, event)
            if frame.opcode is Opcode.BINARY and frame.fin:
                self._receiver.message_received(bytes(frame.data))
            elif frame.opcode is Opcode.CLOSE:
                self.fail(_refusal(websocket.close_rcvd.reason if websocket.close_rcvd else ""))
            elif frame.opcode is Opcode.PING and self.writing_paused:
                self.broke_protocol("it pings and does not read the answers")
            elif frame.opcode not in (Opcode.PING, Opcode.PONG):
                self.broke_protocol("every message is one unfragmented binary frame")
        if websocket.parser_exc is not None:
            self.broke_protocol(str(websocket.parser_exc))
        if not self._over:
            self._receiver.all_received()
            self._write_out()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._linger is not None:
            self._linger.cancel()
        self.fail(ConnectionLostError("agent_unreachable", "the connection to the sandbox's agent broke"))

    def pause_writing(self) -> None:
        self.writing_paused = True

    def resume_writing(self) -> None:
        self.writing_paused = False
        if not self._over:
            self._receiver.all_received()

    def _write_out(self) -> None:
        pieces = self._websocket.data_to_send()
        if pieces:
            self._transport.write(pieces[0] if len(pieces) == 1 else b"".join(pieces))


def _refusal(reason: str) -> HoldfastError:
    """What a Close means: its reason begins with a code of the table (PROTOCOL §1.5)."""
    code, _, message = reason.partition(":")
    if code in ("session_limit", "sandbox_gone", "draining"):
        return HoldfastError(code, message.strip() or "the sandbox's agent refused the request")
    return ConnectionLostError("agent_unreachable", "the sandbox's agent closed the connection")
