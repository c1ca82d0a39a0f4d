"""One connection to the agent, as an asyncio protocol: an HTTP request, which usually becomes a WebSocket.

Owns the socket: the upgrade with its dial proof, messages, control frames, backpressure, and the timer of the session. Of the session's
frames it decodes only Hello. Every message is handled inside ``data_received``, so that a command needs no task switch. ``server``
creates one instance per connection.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from typing import TYPE_CHECKING, Protocol

from holdfast_wire.codec import decode
from holdfast_wire.errors import HoldfastError, ProtocolError
from holdfast_wire.frames import Hello
from holdfast_wire.http1 import RequestHead, answer
from holdfast_wire.limits import MESSAGE_BYTES
from holdfast_wire.proof import DIAL_HEADER, IDENTITY_HEADER, IDLE_HEADER, PROOF_HEADER, answer_dial, proof_of
from holdfast_wire.websocket_frames import (
    BINARY,
    CLOSE,
    PING,
    PONG,
    TOO_LARGE,
    MessageReader,
    close_frame,
    control_breach,
    server_frame,
    server_messages,
)

from .adoption import Adoption, AdoptRequest
from .http_request import read_head, upgrade_headers

try:
    from websockets.speedups import apply_mask
except ImportError:  # the wheel for this machine has no C extension
    from holdfast_wire.websocket_frames import apply_mask

if TYPE_CHECKING:
    from .sessions import HeldSession, Sessions

log = logging.getLogger("session_agent.agent.session.connection")

GREETING_S = 10.0
"""Longest time from a connection's first byte to its Hello."""
WRITE_HIGH_BYTES = 512 * 1024
"""No more frames are taken from the session while the socket's buffer holds more than this."""
_TEXT_OR_BINARY = (1, 2)
_NORMAL_CLOSURE = 1000


class Host(Protocol):
    """The server of a connection, as the connection uses it."""

    sessions: Sessions
    token: str
    identity: str
    taken: bool
    """Whether any client has ever sent a Hello."""

    def adopt(self, adoption: Adoption, connection: Connection) -> None:
        """Become the agent of a sandbox. Raises ``HoldfastError`` if it is one already."""
        ...

    def idle_s(self) -> float:
        """Seconds for which the sandbox has not been used."""
        ...

    def opened(self, connection: Connection) -> bool:
        """Register the connection; False if there are too many."""
        ...

    def closed(self, connection: Connection) -> None:
        """Forget the connection."""
        ...


class Connection(asyncio.Protocol):
    """A connection from accept to close."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._held: HeldSession | None = None
        self._paused = False
        self._flush_scheduled = False
        self._receiving = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = 0.0
        self._head = b""
        self._adopting: AdoptRequest | None = None
        self._frames = MessageReader(apply_mask)
        self._open = False
        """Whether it is an open WebSocket: from the handshake until either side sends Close."""
        self._goodbye = False

    # asyncio.Protocol -------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES)
        connection = transport.get_extra_info("socket")
        if connection.family != socket.AF_UNIX:
            # asyncio sets it only for a listener created with IPPROTO_TCP, unlike those of ``socket.create_server``. Without it the
            # second of two small writes waits for the acknowledgement of the first, which the peer delays by 40 ms.
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if not self._host.opened(self):
            transport.abort()
            return
        self._timer = self._loop.call_later(GREETING_S, self._too_slow)

    def data_received(self, data: bytes) -> None:
        if self._transport is None:
            return
        self._receiving = True
        try:
            if not self._open:
                data = self._receive_request(data)
            if data:
                for first, payload in self._frames.feed(data):
                    if not self._open:
                        break  # the client sends the rest again after it has resumed on another connection
                    if first == BINARY:
                        self._take(payload)
                    else:
                        self._take_other(first, payload)
                if self._frames.breach and self._open:
                    self._close(self._frames.breach, f"at most {MESSAGE_BYTES} bytes" if self._frames.breach == TOO_LARGE else "not masked")
        finally:
            self._receiving = False
        self._flush()
        self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._transport = None
        if self._held is not None:
            self._host.sessions.detach(self._held, self, goodbye=self._goodbye)
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
            return  # data_received flushes at its end
        if now:
            self._flush()  # a client waits for a result: another iteration of the loop would cost 20 µs
        elif not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def fence(self) -> None:
        self._held = None
        self.refuse(HoldfastError("session_fenced", "a later connection holds this session"))

    def refuse(self, error: HoldfastError) -> None:
        """Close with the close code of the error; the reason has its code and message."""
        reason = f"{error.reason}: " if error.reason else ""
        self._close(error.kind.close_code or 4400, f"{error.code}: {reason}{error.message}"[:120])

    def abort(self) -> None:
        """Close the connection without a Close frame."""
        self._open = False
        if self._transport is not None:
            self._transport.abort()

    # Inside -----------------------------------------------------------------------------------------------------

    def _receive_request(self, data: bytes) -> bytes:
        """Accept bytes of the HTTP request; returns the bytes after the head of an upgrade."""
        assert self._transport is not None
        host = self._host
        try:
            if self._adopting is None:
                self._head += data
                found = read_head(self._head)
                if found is None:
                    return b""
                head, data = found
                if head.method == "GET":
                    self._upgrade(head)
                    return data if self._open else b""
                self._adopting = AdoptRequest(head, host.token)
            adoption = self._adopting.feed(data, host.token)
            if adoption is None:
                return b""
            host.adopt(adoption, self)
        except HoldfastError as error:
            log.info("refusing a request: %s", error.code)
            self._answer(error.kind.status, json.dumps(error.to_map()).encode(), "application/json")
        else:
            proof = self._proof_headers(proof_of(host.token, self._adopting.nonce, host.identity))
            self._answer(200, json.dumps({"sandbox_id": adoption.sandbox_id}).encode(), "application/json", proof)
        return b""

    def _upgrade(self, head: RequestHead) -> None:
        assert self._transport is not None
        host = self._host
        if head.target == "/healthz":
            self._answer(200, b"ok\n")
            return
        proof = answer_dial(host.token, head.headers.get(DIAL_HEADER.lower(), ""), host.identity)
        if head.target != "/session" or proof is None:
            self._answer(404 if head.target != "/session" else 403, b"refused\n")
            return
        headers = {**upgrade_headers(head), **self._proof_headers(proof), IDLE_HEADER: f"{host.idle_s():.3f}"}
        self._transport.write(answer(101, headers))
        self._open = True

    def _proof_headers(self, proof: str) -> dict[str, str]:
        identity = self._host.identity
        return {PROOF_HEADER: proof, **({IDENTITY_HEADER: identity} if identity else {})}

    def _answer(self, status: int, body: bytes, kind: str = "text/plain; charset=utf-8", headers: dict[str, str] | None = None) -> None:
        assert self._transport is not None
        self._transport.write(answer(status, {"Content-Type": kind, **(headers or {})}, body))
        self._transport.close()

    def _take_other(self, first: int, payload: bytes) -> None:
        """Handle a frame that is not a complete binary message."""
        assert self._transport is not None
        if first & 0x70 == 0 and first & 0x0F in _TEXT_OR_BINARY:
            self._refuse_breach(ProtocolError("every message must be one unfragmented binary frame"))
        elif code := control_breach(first, payload):
            self._close(code, "not a frame of this protocol")
        elif first == CLOSE:
            self._goodbye = payload[:2] == _NORMAL_CLOSURE.to_bytes(2, "big")
            self._open = False
            self._transport.write(server_frame(CLOSE, payload))
            self._transport.close()
        elif self._paused:
            self.abort()  # the client sends pings and does not read the answers, which would fill the buffer
        elif first == PING:
            self._transport.write(server_frame(PONG, payload))

    def _close(self, code: int, reason: str) -> None:
        if self._transport is not None and not self._transport.is_closing():
            if self._open:
                self._transport.write(close_frame(code, reason))
            self._transport.close()
        self._open = False

    def _take(self, message: bytes) -> None:
        try:
            held, now = self._held, self._loop.time()
            if held is None:
                self._greet(message, now)
            else:
                held.session.receive(message, now)
                held.dispatch(now)
        except HoldfastError as error:
            self._refuse_breach(error)

    def _refuse_breach(self, error: HoldfastError) -> None:
        log.info("refusing a connection: %s", error.code)
        self.refuse(error)

    def _greet(self, message: bytes, now: float) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        frame, _ = decode(message)
        if not isinstance(frame, Hello):
            raise ProtocolError("the first frame must be Hello")
        self._host.taken = True
        self._held = self._host.sessions.attach(frame, self, now)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._held.dispatch(now)

    def _flush(self) -> None:
        self._flush_scheduled = False
        held, transport = self._held, self._transport
        if held is None or not self._open or transport is None:
            return
        more = True
        while more and not self._paused and (messages := held.session.outgoing(WRITE_HIGH_BYTES)):
            if transport.is_closing():
                return  # what was not acknowledged is sent again on the next connection
            data = server_messages(messages)
            transport.write(data)
            more = len(data) >= WRITE_HIGH_BYTES

    def _arm(self) -> None:
        held = self._held
        due = held.session.deadline() if held is not None else None  # only a received message can make it earlier
        if due is None or (self._timer is not None and self._timer_due <= due):
            return  # a timer that fires too early is set again, which costs less than moving it for every message
        if self._timer is not None:
            self._timer.cancel()
        self._timer_due = due
        self._timer = self._loop.call_at(due, self._tick)

    def _tick(self) -> None:
        self._timer = None
        held = self._held
        if held is None:
            return
        now = self._loop.time()
        held.session.tick(now)
        if not held.session.connected and self._transport is not None:
            self._transport.abort()
            return
        held.dispatch(now)
        self._flush()
        self._arm()

    def _too_slow(self) -> None:
        if self._transport is not None:
            self._transport.abort()
