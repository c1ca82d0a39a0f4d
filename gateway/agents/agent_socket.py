"""A dialled connection to a session agent as a WebSocket: whole messages both ways.

Owns the framing, the checks of what an agent sends, and the closing of the connection. Knows nothing of sessions: ``agent_connection``
drives one over it.

    HoldfastError
    └── AgentCallError           the agent violated the protocol: the request may have taken effect
        └── ConnectionLostError  the connection broke or is silent; the agent may still run
"""

from __future__ import annotations

import asyncio
import os
from typing import Any, Final, Protocol

from holdfast_wire.agent_errors import reported_error
from holdfast_wire.errors import Fault, HoldfastError
from holdfast_wire.websocket_frames import BINARY, CLOSE, PING, PONG, TOO_LARGE, MessageReader, client_frame, control_breach

from gateway.turns import turns

from .dial import Dialled

try:
    from websockets.speedups import apply_mask
except ImportError:  # pragma: no cover
    from holdfast_wire.websocket_frames import apply_mask

_PIECE_BYTES: Final = 4096
_FRAMES: Final = 256
"""Frames after which the rest of what was received waits for a later turn of the event loop: an agent may send many small ones."""
_NORMAL: Final = (1000).to_bytes(2, "big")
_LINGER_S: Final = 5.0
"""How long an agent may take to read what was sent before the connection was closed."""


class AgentCallError(HoldfastError):
    """See the module. ``code`` is ``agent_unreachable`` or, for what may have run, ``outcome_unknown``.

    The fault is of the workload, which may control the agent: the infrastructure's failures are in the sandbox's record.
    """

    def __init__(self, code: str, message: str | None = None, *, fault: Fault = "workload", **more: Any) -> None:
        super().__init__(code, message, fault=fault, **more)


class ConnectionLostError(AgentCallError):
    """See the module."""


class ReportedEndError(HoldfastError):
    """The agent reports that its sandbox has ended, which the record has to confirm. Unconfirmed, it is this error, of the workload."""


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
        self._frames = MessageReader(masked=False)
        self._transport = dialled.transport
        self._receiver = receiver
        self._over = False
        self._held = b""
        """Received bytes that were not read yet; while there are any, the transport is paused."""
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
        """Send whole messages, in one write."""
        self._write([_frame(BINARY, message) for message in messages])

    def pause_reading(self) -> None:
        if not self.reading_paused and not self._transport.is_closing():
            self.reading_paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self.reading_paused and not self._transport.is_closing():
            self.reading_paused = False
            if self._held:
                turns().add(self._continue)
            else:
                self._transport.resume_reading()

    def close(self) -> None:
        """Close it with a Close frame, unless it has failed."""
        if self._over:
            return
        self._over = True
        self._write([_frame(CLOSE, _NORMAL)])
        self._transport.close()
        if self._transport.get_write_buffer_size():  # an agent that does not read must not keep the socket
            self._linger = asyncio.get_running_loop().call_later(_LINGER_S, self._transport.abort)

    def fail(self, error: HoldfastError) -> None:
        """Abort it; bytes that were not sent are dropped."""
        if not self._over:
            self._over = True
            self._transport.abort()
            self._receiver.socket_failed(error)

    def broke_protocol(self, message: str) -> None:
        self.fail(AgentCallError("agent_unreachable", f"the sandbox's agent broke the protocol: {message}"))

    # What the transport reports -------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        pongs: list[bytes] = []
        position, size, count = 0, len(data), 0
        while position < size and not self._over:
            if count > _FRAMES:
                self._held = data[position:]
                self._transport.pause_reading()
                turns().add(self._continue)
                break
            frames = self._frames.feed(data if size <= _PIECE_BYTES else data[position : position + _PIECE_BYTES])
            position += _PIECE_BYTES
            count += len(frames)
            self._take(frames, pongs)
        if not self._over:
            self._receiver.all_received()
            self._write(pongs)

    def _continue(self) -> None:
        if self._held and not self.reading_paused and not self._over:
            data, self._held = self._held, b""
            self.data_received(data)
            if not self._held and not self.reading_paused and not self._transport.is_closing():
                self._transport.resume_reading()

    def _take(self, frames: list[tuple[int, bytes]], pongs: list[bytes]) -> None:
        """Handle whole frames; the answers to pings are added to ``pongs``."""
        for first, payload in frames:
            if self._over:
                return
            if first == BINARY:
                self._receiver.message_received(payload)
            elif control_breach(first, payload):
                self.broke_protocol("every message must be one unfragmented binary frame")
            elif first == CLOSE:
                self.fail(_refusal(payload[2:].decode()))
            elif first == PING and self.writing_paused:
                self.broke_protocol("it sends pings and does not read the answers")
            elif first == PING:
                pongs.append(_frame(PONG, payload))
        if self._frames.breach:
            self.broke_protocol("a message is over the limit" if self._frames.breach == TOO_LARGE else "a frame is masked")

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

    def _write(self, frames: list[bytes]) -> None:
        if frames and not self._transport.is_closing():  # for a closing socket, the end has yet to be reported
            self._transport.write(frames[0] if len(frames) == 1 else b"".join(frames))


def _frame(first: int, payload: bytes) -> bytes:
    return client_frame(first, payload, os.urandom(4), apply_mask)


def _refusal(reason: str) -> HoldfastError:
    """The error of a Close, whose reason begins with a code of the table (PROTOCOL §1.5)."""
    code, _, message = reason.partition(":")
    message = message.strip() or "the sandbox's agent refused the request"
    if code == "session_limit":
        return HoldfastError(code, message)
    if code == "sandbox_gone":
        reported = reported_error({"code": code, "message": message})
        return ReportedEndError(reported.code, reported.message, hint=reported.hint, fault=reported.fault, retryable=False)
    return ConnectionLostError("agent_unreachable", "the sandbox's agent closed the connection")
