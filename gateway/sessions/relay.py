"""The opaque relay between a client and a session agent: bytes in, the same bytes out.

Owns two transports, back-pressure between them, and the only frames a gateway adds (``GoAway``, Close). It never decodes a message: it
follows frame headers, so that neither side can send what the other must not receive (fragments, huge messages, extension bits). Each
direction is paused on its own while the other side's buffer is full, and cut off when that lasts (``sweep``); one that sends many small
frames is followed a few at a time, in turn with the others (``gateway.turns``). A closed side still gets its buffered bytes, for
``linger_s``; the session ends when both transports have. Set up by ``routes.attach``.
"""

from __future__ import annotations

import asyncio
import copy
import socket
import struct
from collections.abc import Callable

from holdfast_wire.codec import encode
from holdfast_wire.errors import TABLE, ProtocolError
from holdfast_wire.frames import GoAway
from holdfast_wire.websocket_frames import BINARY, FrameHeaders, close_frame, server_frame

from gateway.turns import turns

FRAMES = 256
"""Most frames of one side that are followed in one turn of the event loop: a fraction of a millisecond."""
_TCP_INFO_BYTES = 136
_TCP_INFO_TOTALS = struct.Struct("@QQ")
_TCP_INFO_AT = 120
"""Where ``struct tcp_info`` of Linux (4.1) has the bytes that were acknowledged and received."""
_QUIET_S = 0.5
"""If a client that was sent Close is silent for this long, no more of its bytes are on the way."""


class Relay:
    """One attached session. ``done`` resolves when both transports have ended, after their buffered bytes."""

    __slots__ = (
        "_agent",
        "_agent_gone",
        "_client",
        "_client_gone",
        "_counted",
        "_down",
        "_down_rest",
        "_go_away",
        "_linger_s",
        "_patience",
        "_seen",
        "_stalled_bytes",
        "_up",
        "_up_rest",
        "agent_paused",
        "chunks",
        "client_paused",
        "client_shut_down",
        "done",
        "on_bytes",
        "on_stall",
        "quiet_sweeps",
        "sandbox_id",
        "stalled_sweeps",
    )

    def __init__(self, sandbox_id: str, agent: asyncio.Transport, buffer_bytes: int, linger_s: float) -> None:
        self.sandbox_id = sandbox_id
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.chunks = 0
        """Chunks relayed in both directions: shows that the session is alive."""
        self.quiet_sweeps = 0
        self.stalled_sweeps = 0
        self.client_paused = False
        self.agent_paused = False
        self.client_shut_down = False
        """Everything was written to the client; some of it may still be buffered."""
        self.on_stall: Callable[[Relay], None] | None = None
        """Called when a side's buffer is full, and when it has room again."""
        self.on_bytes: Callable[[int, int], None] | None = None
        """Called now and then, and at the end, with how many more bytes came from the client and were delivered to it."""
        self._counted = (0, 0)
        self._agent = agent
        self._client: asyncio.Transport | None = None
        self._up = FrameHeaders(masked=True)
        self._up_rest = b""
        """Bytes of the client that are not followed yet; while there are any, it is not read."""
        self._down = FrameHeaders(masked=False)
        self._down_rest = b""
        self._go_away = b""
        self._linger_s = linger_s
        self._patience: asyncio.TimerHandle | None = None
        self._agent_gone = False
        self._client_gone = False
        self._seen = 0
        self._stalled_bytes = 0
        agent.set_write_buffer_limits(high=buffer_bytes)

    def start(self, client: asyncio.Transport, early: bytes, buffer_bytes: int, client_early: bytes = b"") -> None:
        """Begin: ``client`` has been accepted; ``early`` and ``client_early`` are what agent and client sent after their upgrades."""
        self._client = client
        self._counted = bytes_of(client)
        client.set_write_buffer_limits(high=buffer_bytes)
        self._agent.set_protocol(AgentEnd(self))
        _set_reading(self._agent, True)
        if early:
            self.from_agent(early)
        if client_early:
            self.from_client(client_early)

    # The hot path: once per chunk -----------------------------------------------------------------------------------

    def from_client(self, data: bytes) -> None:
        self.chunks += 1
        try:
            followed = self._up.feed(data, FRAMES)
        except ProtocolError as error:
            self.close(error.kind.close_code, f"{error.code}: {error.message}")
            return
        if followed < len(data):
            self._up_rest = data[followed:]
            data = data[:followed]
            assert self._client is not None
            _set_reading(self._client, False)
            turns().add(self._continue_up)
        self._agent.write(data)

    def from_agent(self, data: bytes) -> None:
        self.chunks += 1
        client = self._client
        assert client is not None
        was_mid_frame = self._down.mid_frame
        try:
            followed = self._down.feed(data, FRAMES)
        except ProtocolError as error:
            self._down.mid_frame = was_mid_frame  # none of this chunk is forwarded
            self.close(TABLE["internal"].close_code, f"internal: the sandbox's agent broke the protocol: {error.message}")
            return
        if followed < len(data):
            self._down_rest = data[followed:]
            data = data[:followed]
            _set_reading(self._agent, False)
            turns().add(self._continue_down)
        if self._go_away and self._down.boundary >= 0:
            data = data[: self._down.boundary] + self._go_away + data[self._down.boundary :]
            self._go_away = b""
        client.write(data)

    def _continue_up(self) -> None:
        """Follow the client's next frames, unless the agent's buffer is full: ``pause_client_reading`` continues then."""
        client = self._client
        if client is None or client.is_closing() or self._agent.is_closing() or self.client_shut_down:
            self._up_rest = b""
        elif self._up_rest and not self.agent_paused:
            data, self._up_rest = self._up_rest, b""
            self.from_client(data)
            if not self._up_rest and not self.agent_paused and not self.client_shut_down:
                _set_reading(client, True)

    def _continue_down(self) -> None:
        """Follow the agent's next frames, unless the client's buffer is full: ``pause_agent_reading`` continues then."""
        client = self._client
        if client is None or client.is_closing() or self._agent.is_closing() or self.client_shut_down:
            self._down_rest = b""
        elif self._down_rest and not self.client_paused:
            data, self._down_rest = self._down_rest, b""
            self.from_agent(data)
            if not self._down_rest and not self.client_paused:
                _set_reading(self._agent, True)

    # Ends and back-pressure -----------------------------------------------------------------------------------------

    def pause_agent_reading(self, paused: bool) -> None:
        """The client's buffer is full, or has room again."""
        self.client_paused = paused
        self.stalled_sweeps = 0
        if self._down_rest:
            if not paused:
                turns().add(self._continue_down)
        else:
            _set_reading(self._agent, not paused)
        if self.on_stall is not None:
            self.on_stall(self)

    def pause_client_reading(self, paused: bool) -> None:
        """The agent's buffer is full, or has room again."""
        self.agent_paused = paused
        self.stalled_sweeps = 0
        if self._up_rest:
            if not paused:
                turns().add(self._continue_up)
        elif self._client is not None:
            _set_reading(self._client, not paused)
        if self.on_stall is not None:
            self.on_stall(self)

    def agent_lost(self) -> None:
        """The agent's side ended. Its buffered bytes are delivered first; without a Close the client sees 1006, and may resume."""
        self._agent_gone = True
        self._shut_down_client()
        self._leave()

    def count_bytes(self) -> None:
        """Report what was relayed since the last call."""
        if self.on_bytes is not None and self._client is not None:
            received, delivered = bytes_of(self._client)
            before, self._counted = self._counted, (received, delivered)
            if received >= before[0] and delivered >= before[1]:
                self.on_bytes(received - before[0], delivered - before[1])

    def client_lost(self) -> None:
        """The client's side has ended. Its buffered bytes are delivered first; the agent keeps the session."""
        self.count_bytes()
        self._client_gone = True
        self._agent.close()
        self._leave()

    def close(self, code: int, reason: str) -> None:
        """End both sides, with a Close to the client where the stream is between two frames."""
        if self._client is not None and not self.client_shut_down and not self._client.is_closing():
            if not self._down.mid_frame and not self._down.close_seen:
                self._client.write(close_frame(code, reason))
                self._down.close_seen = True
            self._shut_down_client()
        self._agent.close()
        self._leave()

    def _shut_down_client(self) -> None:
        """Write nothing more to the client. Its bytes are read and discarded until it closes too."""
        client = self._client
        if client is None or self.client_shut_down or client.is_closing():
            return
        self.client_shut_down = True
        if self._up.close_seen or not client.can_write_eof():
            client.close()  # after its own Close a client sends nothing
            return
        # a copy: bytes that the client sends from here on answer our Close, and do not end the session by themselves
        client.set_protocol(_ClosingClient(client, client.get_protocol(), None if self._up_rest else copy.copy(self._up)))
        _set_reading(client, True)
        if not self._down.close_seen:
            client.write_eof()  # without a Close only the end of the stream reaches the client

    def abort(self) -> None:
        """End both sides at once, without their buffered bytes."""
        if self._client is not None:
            self._client.abort()
        self._agent.abort()

    def go_away(self, deadline_s: float, jitter_s: float, reason: str) -> None:
        """Ask the client to leave, at the next boundary between two messages."""
        frame = server_frame(BINARY, encode(GoAway(deadline_s, jitter_s, reason)))
        if self._down.mid_frame:
            self._go_away = frame
        elif self._client is not None and not self.client_shut_down and not self._client.is_closing():
            self._client.write(frame)

    def sweep(self) -> None:
        """Called periodically: count how long nothing was relayed, and how long a full buffer did not shrink."""
        self.quiet_sweeps = self.quiet_sweeps + 1 if self.chunks == self._seen else 0
        self._seen = self.chunks
        waiting = 0
        if self.client_paused and self._client is not None:
            waiting += self._client.get_write_buffer_size()
        if self.agent_paused:
            waiting += self._agent.get_write_buffer_size()
        self.stalled_sweeps = self.stalled_sweeps + 1 if waiting and waiting >= self._stalled_bytes else 0
        self._stalled_bytes = waiting

    def _leave(self) -> None:
        """Resolve ``done`` once both sides have ended; buffered bytes have ``linger_s``."""
        if self._agent_gone and self._client_gone:
            if self._patience is not None:
                self._patience.cancel()
            if not self.done.done():
                self.done.set_result(None)
        elif self._patience is None:
            self._patience = asyncio.get_running_loop().call_later(self._linger_s, self.abort)


class AgentEnd(asyncio.Protocol):
    """The agent's transport, once relayed."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay
        self.data_received = relay.from_agent  # type: ignore[method-assign]

    def pause_writing(self) -> None:
        self._relay.pause_client_reading(True)

    def resume_writing(self) -> None:
        self._relay.pause_client_reading(False)

    def connection_lost(self, exc: Exception | None) -> None:
        self._relay.agent_lost()


class ClientEnd(asyncio.Protocol):
    """The client's transport, once taken over from the server."""

    def __init__(self, relay: Relay, origin: asyncio.BaseProtocol) -> None:
        """``origin``: the server's protocol of the connection, which still counts it."""
        self._relay = relay
        self._origin = origin
        self.data_received = relay.from_client  # type: ignore[method-assign]

    def pause_writing(self) -> None:
        self._relay.pause_agent_reading(True)

    def resume_writing(self) -> None:
        self._relay.pause_agent_reading(False)

    def connection_lost(self, exc: Exception | None) -> None:
        self._relay.client_lost()
        self._origin.connection_lost(exc)


class _ClosingClient(asyncio.Protocol):
    """A client to which everything was written, until it sends Close, disconnects, or is silent for a moment.

    Closing a socket with unread bytes resets the connection, which would discard what was sent to the client last.
    """

    def __init__(self, transport: asyncio.Transport, before: asyncio.BaseProtocol, headers: FrameHeaders | None) -> None:
        """``headers``: where its frames begin and end, None if that is not known."""
        self._transport = transport
        self._before = before
        self._headers = headers
        self._quiet = self._wait()

    def pause_writing(self) -> None:
        self._before.pause_writing()

    def resume_writing(self) -> None:
        self._before.resume_writing()

    def data_received(self, data: bytes) -> None:
        if self._headers is not None:
            try:
                followed = self._headers.feed(data, FRAMES)
            except ProtocolError:
                self._headers = None
            else:
                if followed < len(data):
                    self._headers = None
                elif self._headers.close_seen:
                    self._transport.close()
                    return
        self._quiet.cancel()
        self._quiet = self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._quiet.cancel()
        self._before.connection_lost(exc)

    def _wait(self) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(_QUIET_S, self._transport.close)


def bytes_of(transport: asyncio.Transport) -> tuple[int, int]:
    """The bytes that a connection has received and delivered since it exists, as its kernel counts them; zeros where it does not.

    Counting them here would cost each chunk of each session.
    """
    connection = transport.get_extra_info("socket")
    if connection is None or connection.family == socket.AF_UNIX:
        return 0, 0
    try:
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
    except (OSError, AttributeError, NotImplementedError):
        return 0, 0
    if len(info) < _TCP_INFO_BYTES:
        return 0, 0
    delivered, received = _TCP_INFO_TOTALS.unpack_from(info, _TCP_INFO_AT)
    return received, delivered


def _set_reading(transport: asyncio.Transport, reading: bool) -> None:
    if transport.is_closing():
        return
    if reading:
        transport.resume_reading()
    else:
        transport.pause_reading()
