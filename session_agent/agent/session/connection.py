"""One WebSocket connection of the agent, as an asyncio protocol over the sans-IO core of ``websockets``.

Owns the socket: the upgrade with its dial proof, messages in and out, back-pressure and the one timer of the session.
It knows frames only to find the Hello. Every message is handled inside ``data_received``, so that a command costs no task
switch. Called by ``server``.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import TYPE_CHECKING, Protocol

from holdfast_wire.codec import decode
from holdfast_wire.errors import HoldfastError, ProtocolError
from holdfast_wire.frames import Hello
from holdfast_wire.limits import MESSAGE_BYTES
from holdfast_wire.proof import DIAL_HEADER, IDENTITY_HEADER, IDLE_HEADER, PROOF_HEADER, answer_dial, proof_of
from holdfast_wire.websocket_frames import BINARY, MessageReader, server_frame
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import OPEN
from websockets.server import ServerProtocol

from .adoption import Adoption, AdoptRequest, answer

try:
    from websockets.speedups import apply_mask
except ImportError:  # the wheel for this machine has no C extension
    from websockets.utils import apply_mask

if TYPE_CHECKING:
    from .sessions import HeldSession, Sessions

log = logging.getLogger("session_agent.agent.session.connection")

GREETING_S = 10.0
"""Longest time from a connection's first byte to its Hello."""
WRITE_HIGH_BYTES = 512 * 1024
"""Bytes waiting in the socket's buffer above which nothing more is taken from the session."""


class Host(Protocol):
    """What a connection needs of the server it belongs to."""

    sessions: Sessions
    token: str
    identity: str
    taken: bool
    """Whether anybody ever greeted it."""

    def adopt(self, adoption: Adoption, connection: Connection) -> None:
        """Become the agent of a sandbox. Raises ``HoldfastError`` when it has one already."""
        ...

    def idle_s(self) -> float:
        """For how long the sandbox has not been used."""
        ...

    def opened(self, connection: Connection) -> bool:
        """Register the connection; False when there are too many."""
        ...

    def closed(self, connection: Connection) -> None:
        """Forget the connection."""
        ...


class Connection(asyncio.Protocol):
    """A connection from accept to close."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._loop = asyncio.get_running_loop()
        self._socket = ServerProtocol(max_size=MESSAGE_BYTES)
        self._transport: asyncio.Transport | None = None
        self._held: HeldSession | None = None
        self._paused = False
        self._flush_scheduled = False
        self._receiving = False
        self._refused = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = 0.0
        self._messages: MessageReader | None = None
        """From the end of the handshake on: what follows is cut into messages here, and the library gets what is none."""
        self._spoken = False
        self._adopting: AdoptRequest | None = None

    # asyncio.Protocol -------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES)
        connection = transport.get_extra_info("socket")
        if connection.family != socket.AF_UNIX:
            # asyncio sets it only where the listener was made with IPPROTO_TCP, which ``socket.create_server`` does not do. Without it
            # the second of two small writes waits for the acknowledgement of the first, which the other end delays by 40 ms.
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if not self._host.opened(self):
            transport.abort()
            return
        self._timer = self._loop.call_later(GREETING_S, self._too_slow)

    def data_received(self, data: bytes) -> None:
        if self._adopting is not None or (not self._spoken and data.startswith(b"P")):
            self._adopt(data)
            return
        self._spoken = True
        self._receiving = True
        try:
            if self._messages is None:
                shaken = self._socket.state is OPEN
                self._feed_library(data)
                # Only in the chunk that ends the handshake: later the library may be within a frame.
                if not shaken and self._socket.state is OPEN and data.endswith(b"\r\n\r\n"):
                    self._messages = MessageReader(apply_mask)
            else:
                for first, frame in self._messages.feed(data):
                    if first != BINARY:
                        self._feed_library(frame)
                    elif self._socket.state is OPEN:
                        self._take(frame)
        finally:
            self._receiving = False
        self._flush()
        self._arm()

    def eof_received(self) -> bool:
        self._socket.receive_eof()
        self._write_out()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._transport = None
        if self._held is not None:
            close = self._socket.close_rcvd
            self._host.sessions.detach(self._held, self, goodbye=close is not None and close.code == CloseCode.NORMAL_CLOSURE)
            self._held = None
        self._host.closed(self)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._flush()

    # sessions.Connection ----------------------------------------------------------------------------------------

    def wake(self, *, now: bool) -> None:
        if self._receiving:
            return  # data_received flushes when all that came is dealt with
        if now:
            self._flush()  # a client waits for the end of a command: another turn of the loop would cost 20 µs
        elif not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def fence(self) -> None:
        self._held = None
        self.refuse(HoldfastError("session_fenced", "a later connection holds this session"))

    def refuse(self, error: HoldfastError) -> None:
        """Close with the error's close code; the reason carries its code and message."""
        self._refused = True
        if self._socket.state is OPEN:
            reason = f"{error.reason}: " if error.reason else ""
            self._socket.send_close(error.kind.close_code or 4400, f"{error.code}: {reason}{error.message}"[:120])
        self._write_out()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Break the connection without a word."""
        if self._transport is not None:
            self._transport.abort()

    # Inside -----------------------------------------------------------------------------------------------------

    def _upgrade(self, request: Request) -> None:
        if request.path == "/healthz":
            self._socket.send_response(self._socket.reject(200, "ok\n"))
            return
        identity = self._host.identity
        proof = answer_dial(self._host.token, request.headers.get(DIAL_HEADER, ""), identity)
        if request.path != "/session" or proof is None:
            status = 404 if request.path != "/session" else 403
            self._socket.send_response(self._socket.reject(status, "refused\n"))
            return
        response = self._socket.accept(request)
        if response.status_code == 101:
            response.headers[PROOF_HEADER] = proof
            response.headers[IDLE_HEADER] = f"{self._host.idle_s():.3f}"
            if identity:
                response.headers[IDENTITY_HEADER] = identity
        self._socket.send_response(response)

    def _adopt(self, data: bytes) -> None:
        """A request that is no upgrade: the only one there is adopts the agent."""
        transport, host = self._transport, self._host
        if transport is None or transport.is_closing():
            return
        request = self._adopting = self._adopting or AdoptRequest(lambda: host.token)
        try:
            adoption = request.feed(data)
            if adoption is None:
                return
            host.adopt(adoption, self)
        except HoldfastError as error:
            log.info("refusing to be adopted: %s", error.code)
            transport.write(answer(error.kind.status, error.to_map()))
        else:
            headers = {PROOF_HEADER: proof_of(host.token, request.nonce, host.identity)}
            if host.identity:
                headers[IDENTITY_HEADER] = host.identity
            transport.write(answer(200, {"sandbox_id": adoption.sandbox_id}, headers))
        transport.close()

    def _feed_library(self, data: bytes) -> None:
        """Have the library read the handshake, control frames, and whatever breaks the protocol."""
        self._socket.receive_data(data)
        for event in self._socket.events_received():
            if isinstance(event, Request):
                self._upgrade(event)
            elif not isinstance(event, Frame) or event.opcode is Opcode.PING or event.opcode is Opcode.PONG:
                if self._paused and self._transport is not None:
                    self._transport.abort()  # it pings and does not read the answers: they would pile up here
            elif event.opcode is Opcode.BINARY and event.fin:
                self._take(bytes(event.data))
            elif event.opcode is not Opcode.CLOSE and not self._refused:
                self._refuse_breach(ProtocolError("every message is one unfragmented binary frame"))

    def _take(self, message: bytes) -> None:
        if self._refused:
            return  # what followed a breach comes again, on a connection that is not closing
        try:
            if self._held is None:
                self._greet(message)
            else:
                self._held.session.receive(message, self._loop.time())
                self._held.dispatch()
        except HoldfastError as error:
            self._refuse_breach(error)

    def _refuse_breach(self, error: HoldfastError) -> None:
        log.info("refusing a connection: %s", error.code)
        self.refuse(error)

    def _greet(self, message: bytes) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        frame, _ = decode(message)
        if not isinstance(frame, Hello):
            raise ProtocolError("the first frame is Hello")
        self._host.taken = True
        self._held = self._host.sessions.attach(frame, self, self._loop.time())
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._held.dispatch()

    def _flush(self) -> None:
        self._flush_scheduled = False
        held = self._held
        if held is not None:
            session = held.session
            while session.has_outgoing and not self._paused and self._socket.state is OPEN:
                frames = [server_frame(BINARY, message) for message in session.outgoing(WRITE_HIGH_BYTES)]
                if self._socket.writes:
                    self._write_out()
                if self._transport is not None and not self._transport.is_closing():
                    self._transport.write(frames[0] if len(frames) == 1 else b"".join(frames))
        if self._socket.writes:  # pongs and the answer to a Close are the socket's own
            self._write_out()

    def _write_out(self) -> None:
        pieces = self._socket.data_to_send()
        transport = self._transport
        if not pieces or transport is None or transport.is_closing():
            return
        ends = pieces[-1] == b""
        transport.write(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        if ends:
            transport.close()

    def _arm(self) -> None:
        held = self._held
        due = held.session.deadline() if held is not None else None  # which only what arrives brings nearer
        if due is None or (self._timer is not None and self._timer_due <= due):
            return  # a timer that fires early asks again, which costs less than moving it for every message
        if self._timer is not None:
            self._timer.cancel()
        self._timer_due = due
        self._timer = self._loop.call_at(due, self._tick)

    def _tick(self) -> None:
        self._timer = None
        held = self._held
        if held is None:
            return
        held.session.tick(self._loop.time())
        if not held.session.connected and self._transport is not None:
            self._transport.abort()
            return
        held.dispatch()
        self._flush()
        self._arm()

    def _too_slow(self) -> None:
        if self._transport is not None:
            self._transport.abort()
