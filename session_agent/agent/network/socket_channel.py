"""The bytes of one connection in the sandbox, on one channel: the common part of ``tunnel`` and ``listen``.

Owns the socket once it is connected: half-close in both directions, resets, and backpressure in both directions. It reads only as the
client's credit allows, and returns credit only for bytes that the socket has accepted. How the connection is made is up to its subclasses.
"""

from __future__ import annotations

import asyncio
import os

from holdfast_wire.frames import STDOUT, Closed, Failed, Output

from session_agent.agent.session.channels import Channel, Handler

_READ_BYTES = 64 * 1024
_BUFFER = memoryview(bytearray(_READ_BYTES))
"""The loop fills it and passes it on in one step, so one is enough for all connections."""


class SocketChannel(Handler, asyncio.BufferedProtocol):
    """One connection, until its final fact. A subclass calls ``_established`` from ``connection_made``."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._transport: asyncio.Transport | None = None
        self._waiting: list[bytes] = []  # input that arrived before the connection was made
        self._unconsumed = 0
        self._paused = False  # the socket's buffer is full
        self._stalled = False  # the client has given no credit
        self._input_ended = False
        self._output_ended = False
        self._over = False
        self._sent = 0
        self._received = 0

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

    def get_buffer(self, sizehint: int) -> memoryview:
        return _BUFFER[: max(1, min(_READ_BYTES, self._channel.room()))]

    def buffer_updated(self, nbytes: int) -> None:
        if self._over:
            return
        self._received += nbytes
        self._channel.send(Output(self._channel.number, STDOUT, bytes(_BUFFER[:nbytes])))
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
        else:
            reason = os.strerror(exc.errno) if isinstance(exc, OSError) and exc.errno else type(exc).__name__
            self._finish(self._lost(reason))

    # Inside -----------------------------------------------------------------------------------------------------

    def _lost(self, reason: str) -> Failed:
        """The end of a connection that was not closed by the program."""
        raise NotImplementedError

    def _established(self, transport: asyncio.Transport) -> None:
        """The connection is there, and was reported to the client."""
        self._transport = transport
        waiting, self._waiting = self._waiting, []
        for data in waiting:
            self._write(data)
        if self._input_ended:
            self._end_input()
        self._stall()

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
        """Bytes that the kernel has accepted for the program, and bytes that came from it."""
        unsent = 0 if self._transport is None else self._transport.get_write_buffer_size()
        return {"sent": self._sent - unsent, "received": self._received}

    def _finish(self, fact: Closed | Failed | None) -> None:
        if self._over:
            return
        self._over = True
        self._waiting.clear()
        if self._transport is not None:
            self._transport.abort()
        if fact is not None:
            self._channel.send(fact)
