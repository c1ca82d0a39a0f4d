"""A session with an agent that carries the REST requests to one sandbox, each on its own channel.

Owns the I/O around the pure session core (``holdfast_wire.session.client_session``), which checks everything the agent sends, and the
resume after a broken connection: the first request that waits for the agent dials again and resumes the session, once, so that nothing is
requested twice. ``agent_call`` owns the requests on the channels. ``kept_connections`` decides how long the session is used.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

from holdfast_wire.errors import HoldfastError, ProtocolError
from holdfast_wire.frames import AnyItem, Closed, Exited, Fact, Failed, Gap, Opened, Output, Started
from holdfast_wire.limits import Timing
from holdfast_wire.session.client_session import ClientSession
from holdfast_wire.session.events import Lost, Ponged, Silent, Writable

from .agent_socket import AgentCallError, AgentSocket, ConnectionLostError
from .dial import Dialled

_HEARD_S: Final = 0.25
"""An agent that sent something this recently is not pinged before the next request."""
_PONG_S: Final = 1.0
"""How long an agent may take to answer before it is dialled again."""
_ACK_S: Final = 0.05
"""How long the acknowledgement of an end is delayed, so that it is sent with the next request: it is not urgent, and each write wakes the
agent."""
_LEAVING: Final = 16
"""Most channels whose end is still to come after their request was answered."""
_FACTS: Final = (Opened, Started, Output, Gap, Exited, Closed, Failed)
_ENDS: Final = (Exited, Closed, Failed)


class Channel(Protocol):
    """The request that a channel belongs to."""

    def take(self, fact: Fact) -> bool:
        """A fact of the channel. True if so many facts wait that the agent must not send more."""
        ...

    def wake(self) -> None:
        """Credit, a Pong or the end of the connection has arrived."""
        ...


class AgentConnection:
    """``dial`` reaches the agent anew; it and the agent's greeting may take ``timeout_s`` each."""

    def __init__(self, dial: Callable[[], Awaitable[Dialled]], timeout_s: float, timing: Timing | None = None) -> None:
        self._dial = dial
        self._timeout_s = timeout_s
        self._session = ClientSession(f"gateway-{secrets.token_hex(16)}", secrets.token_bytes(16), timing, acknowledge_ends=False)
        self._socket: AgentSocket | None = None
        self._clock = asyncio.get_running_loop().time
        self._timer: asyncio.Handle | None = None
        """The timer for the core's deadline or for a delayed acknowledgement."""
        self._timer_due = 0.0
        self._soon: asyncio.Handle | None = None
        self._changed = asyncio.Event()
        self._channels: dict[int, Channel] = {}
        self._leaving: set[int] = set()
        self._unacknowledged: set[int] = set()
        """Ended channels whose last fact must not be acknowledged yet. A resume would acknowledge it."""
        self._full: set[int] = set()
        """Channels with too many waiting facts."""
        self._resuming = asyncio.Lock()
        self._resumed = False
        self._ponged = 0
        self._heard_at = 0.0
        self.error: HoldfastError | None = None
        """Why the connection cannot be used until it is resumed."""
        self.retired = False
        """No further request may begin on it."""

    async def connect(self) -> None:
        """Dial, and begin the session or resume it. Raises ``HoldfastError``."""
        dialled = await self._dial()
        self.error = None
        self._socket = AgentSocket(dialled, self)
        try:
            self._session.connect(self._clock())
            self.flush()
            self._socket.start()
            async with asyncio.timeout(self._timeout_s):
                while not self._session.attached:
                    await self._wait()
        except TimeoutError:
            self.close()
            raise AgentCallError("agent_unreachable", f"the sandbox's agent sent no Welcome within {self._timeout_s:g} s") from None
        except BaseException:
            self.close()
            raise

    async def resume(self) -> None:
        """Dial again and resume the session. Raises the error that ended the connection if it cannot be resumed."""
        error = self.error
        async with self._resuming:
            if error is None or self.error is not error:
                return  # another request has resumed the session
            if self._resumed or self._unacknowledged or not isinstance(error, ConnectionLostError):
                raise error
            self.retired = True
            try:
                await self.connect()
            except BaseException as failed:
                self.error = error
                if not isinstance(failed, HoldfastError):
                    raise  # this request was cancelled: another one may resume the session
                self._resumed = True
                raise error from None
            self._resumed = True
            for channel in list(self._channels.values()):
                channel.wake()

    async def answers(self) -> bool:
        """Whether the agent still answers: it has sent something a moment ago, or answers a Ping now."""
        if self._clock() - self._heard_at < _HEARD_S:
            return self.error is None
        try:
            async with asyncio.timeout(_PONG_S):
                number = self.ping()
                while not self.ponged(number):
                    await self._wait()
        except (TimeoutError, HoldfastError):
            return False
        return True

    def close(self) -> None:
        """Close the connection; the agent drops the session unless a channel of it is still open. Waiting requests get an error."""
        self.retired = True
        if self._socket is not None:
            if self.error is None:
                self.flush()
            self._socket.close()
        for handle in (self._timer, self._soon):
            if handle is not None:
                handle.cancel()
        self._timer = self._soon = None
        if self.error is None:
            closed = "the gateway closed the connection to the sandbox's agent"
            self._ended(AgentCallError("agent_unreachable", closed, fault="infrastructure"))

    # What requests do -----------------------------------------------------------------------------------------------

    def open(self, channel: Channel, kind: str, params: dict[str, Any]) -> int:
        """Open a channel for a request. Raises the error of a connection that cannot be resumed."""
        if self._session.lost is not None:
            raise self.error or AgentCallError("agent_unreachable", "the session with the sandbox's agent has ended")
        number = self._session.open(kind, params)
        self._channels[number] = channel
        self._flush_soon()
        return number

    def send(self, item: AnyItem) -> None:
        """Send an imperative. No effect on a channel that is over; when the session has ended, all channels are."""
        if self._session.is_open(item.channel):
            self._session.send(item)
            self._flush_soon()

    def flush(self) -> None:
        """Send the core's messages, unless the agent does not read, and schedule the core's next deadline."""
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None
        socket = self._socket
        if self.error is not None or socket is None:
            return
        messages = [] if socket.writing_paused else self._session.outgoing()
        if messages:
            socket.send(messages)
        due = self._session.deadline()
        if due is not None:
            # While the socket is not read, silence does not mean that the agent has ended.
            self._tick_by(max(due, self._clock() + self._session.timing.ping_interval_s) if socket.reading_paused else due)

    def flush_queued(self) -> None:
        """Send the messages at once for which ``_flush_soon`` has scheduled a write."""
        if self._soon is not None:
            self.flush()

    def room(self, number: int) -> int:
        """Bytes that the agent accepts on the channel now."""
        return self._session.room(number)

    def taken(self, number: int, size_bytes: int, waiting: int) -> None:
        """The request has consumed this number of bytes; ``waiting`` facts are not read yet."""
        if size_bytes:
            self._session.consume(number, size_bytes)
            if self._session.has_outgoing:
                self._flush_soon()
        if number in self._full and not waiting:
            self._full.discard(number)
            if not self._full and self._socket is not None:
                self._socket.resume_reading()

    def acknowledge(self, number: int) -> None:
        """Everything of an ended channel arrived: the agent may discard the output, and after five minutes the record."""
        self._unacknowledged.discard(number)
        self._session.acknowledge_end(number)
        self._tick_by(self._clock() + _ACK_S)

    def ping(self) -> int:
        """Send a Ping; its number is passed to ``ponged``."""
        self.flush()  # the Pong then follows the answers to what was queued
        number = self._session.ping(self._clock())
        self.flush()
        return number

    def ponged(self, number: int) -> bool:
        return self._ponged >= number

    def leave(self, number: int, *, detached: bool) -> None:
        """The request is over. ``detached``: it has requested the end of its channel, for which this connection waits."""
        del self._channels[number]
        self.taken(number, 0, 0)
        if number in self._unacknowledged:
            self.retired = True
        elif self._session.is_open(number):
            self._leaving.add(number)
            self.retired |= not detached or len(self._leaving) > _LEAVING

    def broke_protocol(self, message: str) -> None:
        if self._socket is not None:
            self._socket.broke_protocol(message)

    # What the socket reports ----------------------------------------------------------------------------------------

    def message_received(self, message: bytes) -> None:
        now = self._heard_at = self._clock()
        try:
            self._session.receive(message, now)
        except ProtocolError as error:
            self.broke_protocol(error.message)
            return
        self._take_events()

    def all_received(self) -> None:
        self.flush()

    def socket_failed(self, error: HoldfastError) -> None:
        if self.error is None:
            self._ended(error)

    # ----------------------------------------------------------------------------------------------------------------

    def _ended(self, error: HoldfastError) -> None:
        self.error = error
        self._session.disconnected()
        self._full.clear()
        self._wake_all()

    def _wake_all(self) -> None:
        self._changed.set()
        for channel in list(self._channels.values()):
            channel.wake()

    def _take_events(self) -> None:
        for event in self._session.events():
            if isinstance(event, _FACTS):
                self._take_fact(event)
            elif isinstance(event, Writable):
                if event.channel in self._channels:
                    self._channels[event.channel].wake()
            elif isinstance(event, Ponged):
                self._ponged = event.number
                self._wake_all()
            elif isinstance(event, Silent):
                limit_s = self._session.timing.silence_limit_s
                self._fail(ConnectionLostError("agent_unreachable", f"the sandbox's agent has been silent for {limit_s:g} s"))
            elif isinstance(event, Lost):
                self._fail(AgentCallError("agent_unreachable", f"the session with the sandbox's agent has ended: {event.error.message}"))
        self._changed.set()

    def _take_fact(self, fact: Fact) -> None:
        number = fact.channel
        ends = isinstance(fact, _ENDS)
        if number in self._leaving:
            if isinstance(fact, Output):
                self._session.consume(number, len(fact.data))
            elif ends:
                self._leaving.discard(number)
                if isinstance(fact, Exited):
                    self.retired = True  # the command has just ended, and its output has yet to be queried
                    self._unacknowledged.add(number)
                else:
                    self._session.acknowledge_end(number)
            return
        if ends:
            self._unacknowledged.add(number)
        if self._channels[number].take(fact) and self._socket is not None:
            self._full.add(number)
            self._socket.pause_reading()

    def _fail(self, error: HoldfastError) -> None:
        if self._socket is not None:
            self._socket.fail(error)

    def _flush_soon(self) -> None:
        """Queue a flush: messages that are sent before the request waits share one write, and each write wakes the agent."""
        if self._soon is None:
            self._soon = asyncio.get_running_loop().call_soon(self.flush)

    def _tick(self) -> None:
        self._timer = None
        if self._socket is not None and not self._socket.reading_paused:
            self._session.tick(self._clock())
            self._take_events()
        self.flush()

    def _tick_by(self, due: float) -> None:
        """Call ``_tick`` at ``due`` at the latest. The time is stored, because uvloop's handle has none for a time in the past."""
        if self._timer is not None:
            if self._timer_due <= due:
                return
            self._timer.cancel()
        self._timer_due = due
        self._timer = asyncio.get_running_loop().call_at(due, self._tick)

    async def _wait(self) -> None:
        """Wait until a message came. Raises the error that ended the connection."""
        if self.error is not None:
            raise self.error
        self._changed.clear()
        await self._changed.wait()
