"""The channel kind ``tunnel``: a TCP connection to a port inside the sandbox.

Owns the socket: connecting, half-close in both directions, resets, and backpressure in both directions: it reads only as the client's
credit allows, and returns credit only for bytes that the socket has accepted.
"""

from __future__ import annotations

import asyncio
import errno
import os

from holdfast_wire.errors import HoldfastError
from holdfast_wire.frames import STDOUT, Closed, Failed, Opened, Output

from session_agent.agent.context import AgentContext
from session_agent.agent.request.params import integer, text
from session_agent.agent.session.channels import Channel, Handler

CONNECT_S = 10.0
"""Longest time a connection may take to be made."""
_READ_BYTES = 64 * 1024


def open_tunnel(context: AgentContext, channel: Channel) -> Handler:
    """``tunnel {port, host?}``: Opened{host, port}, Write and Output both ways, Closed{sent, received}.

    The default host is loopback, first IPv4 and then IPv6, because some servers listen on only one of them.
    """
    port = integer(channel.params, "port", None, least=1, most=65535)
    if port is None:
        raise HoldfastError("invalid_argument", "a tunnel needs a port from 1 to 65535")
    host = text(channel.params, "host", None)
    if host is not None and (not host or len(host) > 253 or not host.isascii()):
        raise HoldfastError("invalid_argument", "host must be a name or an address")
    return Tunnel(channel, ("127.0.0.1", "::1") if host is None else (host,), port)


class Tunnel(Handler, asyncio.BufferedProtocol):
    """One connection, from Open to its final fact."""

    def __init__(self, channel: Channel, hosts: tuple[str, ...], port: int) -> None:
        self._channel = channel
        self._port = port
        self._transport: asyncio.Transport | None = None
        self._buffer = memoryview(bytearray(_READ_BYTES))
        self._waiting: list[bytes] = []  # input that arrived before the connection was made
        self._unconsumed = 0
        self._paused = False  # the socket's buffer is full
        self._stalled = False  # the client has given no credit
        self._input_ended = False
        self._output_ended = False
        self._over = False
        self._sent = 0
        self._received = 0
        self._connecting = asyncio.get_running_loop().create_task(self._connect(hosts), name=f"tunnel to port {port}")

    # channels.Handler -------------------------------------------------------------------------------------------

    def write(self, data: bytes, eof: bool) -> None:
        if self._over or self._input_ended:
            self._channel.consume(len(data))
            return
        self._input_ended = eof
        if self._transport is None:
            self._waiting.append(data)
            return
        self._write(data)
        if eof:
            self._end_input()

    def writable(self) -> None:
        if self._stalled and self._transport is not None and self._channel.room() > 0:
            self._stalled = False
            if not self._transport.is_closing():
                self._transport.resume_reading()

    def close(self, detach: bool) -> None:
        self._finish(Closed(self._channel.number, self._counts()))

    def drop(self) -> None:
        self._finish(None)

    # asyncio.BufferedProtocol -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        if self._over:
            transport.abort()
            return
        self._transport = transport
        host, port = transport.get_extra_info("peername")[:2]
        self._channel.send(Opened(self._channel.number, {"host": host, "port": port}))
        waiting, self._waiting = self._waiting, []
        for data in waiting:
            self._write(data)
        if self._input_ended:
            self._end_input()
        self._stall()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer[: max(1, min(_READ_BYTES, self._channel.room()))]

    def buffer_updated(self, nbytes: int) -> None:
        if self._over:
            return
        self._received += nbytes
        self._channel.send(Output(self._channel.number, STDOUT, bytes(self._buffer[:nbytes])))
        self._stall()

    def eof_received(self) -> bool:
        if not self._over:
            self._output_ended = True
            self._channel.send(Output(self._channel.number, STDOUT, b""))
            self._close_if_done()
        return True

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._return_credit(0)
        self._close_if_done()

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is None:
            self._finish(Closed(self._channel.number, self._counts()))
            return
        reason = os.strerror(exc.errno) if isinstance(exc, OSError) and exc.errno else type(exc).__name__
        message = f"the connection to port {self._port} was lost: {reason}"
        error = HoldfastError("port_unreachable", message, hint="the server ended the connection without closing it", detail=self._counts())
        self._finish(Failed(self._channel.number, error.to_map()))

    # Inside -----------------------------------------------------------------------------------------------------

    async def _connect(self, hosts: tuple[str, ...]) -> None:
        loop = asyncio.get_running_loop()
        failure: Exception = OSError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        for host in hosts:
            try:
                async with asyncio.timeout(CONNECT_S):
                    await loop.create_connection(lambda: self, host, self._port)
                return
            except (OSError, UnicodeError) as problem:  # TimeoutError is an OSError; a name may have no IDNA form
                if host == hosts[0]:
                    failure = problem
        number = getattr(failure, "errno", None) or 0  # negative: a failed look-up of the name
        reason = "timed out" if isinstance(failure, TimeoutError) else os.strerror(number) if number > 0 else str(failure)
        message = f"port {self._port} on {hosts[0]} cannot be reached: {reason}"
        error = HoldfastError("port_unreachable", message, hint=f"is anything listening on port {self._port}?")
        self._finish(Failed(self._channel.number, error.to_map()))

    def _write(self, data: bytes) -> None:
        assert self._transport is not None
        if data:
            self._sent += len(data)
            self._transport.write(data)
        self._return_credit(len(data))

    def _return_credit(self, size_bytes: int) -> None:
        """Return credit for accepted bytes, unless the socket's buffer is full."""
        self._unconsumed += size_bytes
        if not self._paused and self._unconsumed and not self._over:
            self._channel.consume(self._unconsumed)
            self._unconsumed = 0

    def _end_input(self) -> None:
        assert self._transport is not None
        if self._transport.can_write_eof() and not self._transport.is_closing():
            self._transport.write_eof()
        self._close_if_done()

    def _stall(self) -> None:
        if not self._stalled and self._channel.room() <= 0 and self._transport is not None and not self._transport.is_closing():
            self._stalled = True
            self._transport.pause_reading()

    def _close_if_done(self) -> None:
        """Close the socket if both directions have ended; buffered bytes are still sent."""
        if self._input_ended and self._output_ended and self._transport is not None:
            self._transport.close()

    def _counts(self) -> dict[str, int]:
        return {"sent": self._sent, "received": self._received}

    def _finish(self, fact: Closed | Failed | None) -> None:
        if self._over:
            return
        self._over = True
        self._waiting.clear()
        if self._connecting is not asyncio.current_task():
            self._connecting.cancel()
        if self._transport is not None:
            self._transport.abort()
        if fact is not None:
            self._channel.send(fact)
