"""The session state machine, the same for both ends (PROTOCOL §3–§6).

Owns attach and resume, channels, acknowledgement, credit and liveness of one session. It has no sockets, tasks or clocks:
five verbs drive it (``receive``, ``events``, ``outgoing``, ``deadline``, ``tick``), ``now`` is any monotonic clock in seconds, and
what is to be done comes back as events. ``ClientSession`` and ``AgentSession`` add only who greets whom. The faces that own
sockets are the SDK's transport and the agent's link.
"""

from __future__ import annotations

import hmac
from collections import deque
from collections.abc import Callable
from typing import Any

from . import PROTOCOL_VERSION
from .bookkeeping import Bookkeeping
from .channels import State, check_imperative, next_state
from .codec import MAX_CHANNEL, MAX_OFFSET, decode
from .errors import HoldfastError, ProtocolError
from .events import Attached, Delivered, Dropped, Event, Lost, Retired, Silent, Writable
from .frames import (
    Ack,
    AnyItem,
    Credit,
    GoAway,
    Hello,
    Item,
    Open,
    Ping,
    Welcome,
)
from .halves import ReceiveHalf, SendHalf
from .limits import CHANNELS, WINDOW_BYTES, Timing


class _Channel:
    __slots__ = ("inbound", "kind", "outbound", "queued", "state")

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.state = State.OPENING
        self.outbound = SendHalf()
        self.inbound = ReceiveHalf()
        self.queued = False


class Session:
    """What both ends share. Use ``ClientSession`` or ``AgentSession``."""

    def __init__(self, session_id: str, secret: bytes, timing: Timing | None = None) -> None:
        self.session_id = session_id
        self.secret = secret
        self.generation = 0
        self.agent_epoch = ""
        self.timing = timing or Timing()
        self.attached = False
        """Whether a connection carries the session: items flow."""
        self.connected = False
        """Whether there is a connection at all, be it still greeting."""
        self.lost: HoldfastError | None = None
        self._channels: dict[int, _Channel] = {}
        self._events: list[Event] = []
        self._owed = Bookkeeping(self.timing)
        self._ready: deque[int] = deque()
        self._heard = 0.0
        self._pinged = 0.0
        self._pings = 0

    # The five verbs ---------------------------------------------------------------------------------------------

    def receive(self, message: bytes, now: float) -> None:
        """Take one message from the connection. Raises ``ProtocolError``: close the connection with its close code."""
        self._heard = now
        frame, offset = decode(message)
        if isinstance(frame, Item):
            if not self.attached:
                raise ProtocolError(f"{type(frame).__name__} came before the greeting")
            self._receive_item(frame, offset, now)
        elif isinstance(frame, Ack):
            self._receive_ack(frame.channel, frame.offset)
        elif isinstance(frame, Credit):
            channel = self._channels.get(frame.channel)
            if channel is not None and frame.limit > channel.outbound.next + 2 * WINDOW_BYTES:
                raise ProtocolError(f"credit of {frame.limit} is beyond the window")
            if channel is not None and channel.outbound.grant(frame.limit):
                self._events.append(Writable(frame.channel))
        elif isinstance(frame, Ping):
            self._owed.pong(frame.number)
        elif isinstance(frame, GoAway):
            self._events.append(frame)
        elif isinstance(frame, Hello | Welcome):
            self._greeted(frame, now)

    def events(self) -> list[Event]:
        """What happened since the last call, in order."""
        events, self._events = self._events, []
        return events

    def outgoing(self, max_bytes: int = 1 << 62) -> list[bytes]:
        """Messages for the connection, at least one where there is any, about ``max_bytes`` at most; channels take turns."""
        owed, ready = self._owed, self._ready
        if ready and self.attached:
            owed.go_along(self._heard)  # this end's clock as of the last message: late enough for those that answer each other
        messages = owed.take() if owed.pending else []
        if not ready or not self.attached:
            return messages
        size = 0
        while ready and size < max_bytes:
            number = ready.popleft()
            channel = self._channels.get(number)
            if channel is None:
                continue
            message = channel.outbound.pop()
            messages.append(message)
            size += len(message)
            if channel.outbound.unsent:
                ready.append(number)
            else:
                channel.queued = False
        return messages

    def deadline(self) -> float | None:
        """When ``tick`` wants to be called at the latest."""
        if not self.connected:
            return None
        due = min(max(self._heard, self._pinged) + self.timing.ping_interval_s, self._heard + self.timing.silence_limit_s)
        owed = self._owed.due
        return due if owed is None else min(due, owed)

    def tick(self, now: float) -> None:
        """Let time pass: acknowledge, probe, or declare the connection dead."""
        if not self.connected:
            return
        due = self.deadline()
        if due is not None and now - due > 1.0:
            # We were the ones asleep: the peer gets the time that our own loop lost (PROTOCOL §6.2).
            self._heard += now - due
        if self._owed.due is not None and now >= self._owed.due:
            self._owed.acknowledge()
        if now >= self._heard + self.timing.silence_limit_s:
            self._events.append(Silent())
            self.disconnected()
        elif now >= max(self._heard, self._pinged) + self.timing.ping_interval_s:
            self._pings += 1
            self._pinged = now
            self._owed.say(Ping(self._pings))

    # Actions ----------------------------------------------------------------------------------------------------

    def send(self, item: AnyItem) -> None:
        """Queue ``item`` on its channel. Raises ``HoldfastError`` when the channel is over, or has no credit for it."""
        channel = self._channels.get(item.channel)
        if channel is None:
            raise HoldfastError("not_found", f"channel {item.channel} is over")
        self._check_outbound(channel, item)
        channel.outbound.push(item)
        self._enqueue(item.channel, channel)

    def room(self, number: int) -> int:
        """Bytes that ``send`` takes on the channel now; 0 when it is over."""
        channel = self._channels.get(number)
        return channel.outbound.room if channel is not None else 0

    def consume(self, number: int, size_bytes: int) -> None:
        """The application has used ``size_bytes`` of the channel's Output or Write data: the peer gets credit back."""
        channel = self._channels.get(number)
        if channel is None:
            return
        channel.inbound.consume(size_bytes)
        limit = channel.inbound.grant()
        if limit is not None and self.attached:
            self._owed.credit(number, limit)

    @property
    def settled(self) -> bool:
        """Whether the peer has acknowledged everything it was sent."""
        return all(channel.outbound.settled for channel in self._channels.values())

    def go_away(self, deadline_s: float, jitter_s: float, reason: str) -> None:
        """Announce the end of the connection, or of the sandbox (PROTOCOL §6.3, §6.4)."""
        if self.attached:
            self._owed.say(GoAway(deadline_s, jitter_s, reason))

    def disconnected(self) -> None:
        """The connection is gone. Everything unacknowledged stays stored for the next one."""
        self.connected = self.attached = False
        self._owed.forget()

    # Inside -----------------------------------------------------------------------------------------------------

    def _enqueue(self, number: int, channel: _Channel) -> None:
        if self.attached and not channel.queued and channel.outbound.unsent:
            channel.queued = True
            self._ready.append(number)

    def _receive_item(self, item: AnyItem, offset: int, now: float) -> None:
        raise NotImplementedError

    def _check_outbound(self, channel: _Channel, item: AnyItem) -> None:
        raise NotImplementedError

    def _greeted(self, frame: Hello | Welcome, now: float) -> None:
        raise ProtocolError(f"{type(frame).__name__} is out of place")

    def _receive_ack(self, number: int, offset: int) -> list[str]:
        channel = self._channels.get(number)
        return channel.outbound.ack(offset) if channel is not None else []

    def _begin(self, now: float) -> None:
        self.connected = True
        self._heard = self._pinged = now
        self._owed.forget()

    def _resume(self, received: dict[int, int]) -> None:
        """Send again what the peer does not have, and repeat the credit it may have missed."""
        self.attached = True
        self._ready.clear()
        for number, channel in self._channels.items():
            for command_id in channel.outbound.rewind(received.get(number, 0)):
                self._events.append(Delivered(number, command_id))
            channel.queued = False
            if channel.inbound.granted != WINDOW_BYTES:
                self._owed.credit(number, channel.inbound.granted)
            self._enqueue(number, channel)
            self._events.append(Writable(number))

    def _offsets(self) -> dict[int, int]:
        return {number: channel.inbound.received for number, channel in self._channels.items()}


def _check_offsets(received: dict[Any, Any]) -> None:
    if len(received) > CHANNELS:
        raise ProtocolError(f"a session has at most {CHANNELS} channels")
    for number, offset in received.items():
        if type(number) is not int or not 0 < number < MAX_CHANNEL or type(offset) is not int or not 0 <= offset < MAX_OFFSET:
            raise ProtocolError("the map of received offsets is malformed")


class ClientSession(Session):
    """The client's end: opens channels, greets first, and finds out when the agent is another one."""

    def __init__(self, session_id: str, secret: bytes, timing: Timing | None = None, *, take_over: bool = False) -> None:
        super().__init__(session_id, secret, timing)
        self._next_channel = 1
        self._attempt = 0
        self._take_over = take_over

    def connect(self, now: float) -> None:
        """A new connection is there: greet. Items flow once the Welcome has come."""
        if self.lost is not None:
            raise self.lost
        self.disconnected()
        self._begin(now)
        self._attempt += 1
        hello = Hello(
            PROTOCOL_VERSION,
            self.session_id,
            self.secret,
            self.agent_epoch,
            self.generation,
            self._attempt,
            self._offsets(),
            self._next_channel,
            self._take_over,
        )
        self._owed.say(hello)

    def open(self, kind: str, params: dict[str, Any]) -> int:
        """Open a channel; returns its number. Raises ``HoldfastError`` when too many are open or the params are too large."""
        if self.lost is not None:
            raise self.lost
        if len(self._channels) >= CHANNELS:
            raise HoldfastError("session_limit", f"a session has at most {CHANNELS} open channels")
        number = self._next_channel
        channel = _Channel(kind)
        channel.outbound.push(Open(number, kind, params))
        self._next_channel += 1
        self._channels[number] = channel
        self._enqueue(number, channel)
        return number

    def _check_outbound(self, channel: _Channel, item: AnyItem) -> None:
        check_imperative(channel.kind, item)

    def _greeted(self, frame: Hello | Welcome, now: float) -> None:
        if type(frame) is not Welcome or self.attached or not self.connected:
            raise ProtocolError(f"{type(frame).__name__} is out of place")
        if frame.version != PROTOCOL_VERSION:
            raise ProtocolError(f"the agent speaks protocol {frame.version}, this client {PROTOCOL_VERSION}", "version_unsupported")
        _check_offsets(frame.received)
        if self.agent_epoch and (frame.agent_epoch != self.agent_epoch or not frame.resumed):
            restarted = frame.agent_epoch != self.agent_epoch
            self._lose(
                HoldfastError(
                    "session_lost",
                    "the session agent is not the one this session began with" if restarted else "the session has expired at the agent",
                    reason="agent-restarted" if restarted else "expired",
                )
            )
            return
        if frame.generation <= self.generation:
            raise ProtocolError(f"generation {frame.generation} does not rise above {self.generation}")
        self.agent_epoch = frame.agent_epoch
        self.generation = frame.generation
        self._take_over = False
        self._events.append(Attached(frame.generation, frame.resumed, frame.info))
        self._resume(frame.received)

    def _receive_item(self, item: AnyItem, offset: int, now: float) -> None:
        if item.SENDER != "agent":
            raise ProtocolError(f"{type(item).__name__} is for agents")
        number = item.channel
        channel = self._channels.get(number)
        if channel is None:
            if number >= self._next_channel:
                raise ProtocolError(f"channel {number} was never opened")
            self._owed.received(number, offset + item.length, 0, now)  # over here, but our last word was lost
            return
        if channel.inbound.accept(item, offset):
            channel.state = next_state(channel.kind, channel.state, item)
            if channel.state is State.ENDED:
                del self._channels[number]
            self._events.append(item)
        received = channel.inbound.received
        self._owed.received(number, received, received - offset, now)

    def _lose(self, error: HoldfastError) -> None:
        self.lost = error
        self.disconnected()
        self._channels.clear()
        self._events.append(Lost(error))


class AgentSession(Session):
    """The agent's end: answers Hello, serves channels, and outlives its connections."""

    def __init__(self, session_id: str, secret: bytes, agent_epoch: str, timing: Timing | None = None) -> None:
        super().__init__(session_id, secret, timing)
        self.agent_epoch = agent_epoch
        self.info: dict[str, Any] = {}
        """What Welcome tells about the agent."""
        self._attempt = 0
        self._owned_since = 0
        self._highest = 0

    def attach(self, hello: Hello, now: float) -> None:
        """Serve the connection that sent ``hello``; the one before is fenced. Raises ``HoldfastError`` to refuse it."""
        check_hello(hello)
        if not hmac.compare_digest(hello.secret, self.secret):
            raise HoldfastError("session_forbidden", "the secret is not the one this session began with")
        if not hello.take_over and (hello.generation < self._owned_since or hello.attempt <= self._attempt):
            raise HoldfastError("session_fenced", "a later connection holds this session")
        if not hello.take_over:
            self._check_resume(hello)
        self.disconnected()
        self._begin(now)
        if hello.take_over:
            self._owned_since = self.generation + 1
            for number in self._channels:
                self._events.append(Dropped(number))
            self._channels.clear()
            self._highest = 0  # another client counts anew
        resumed = self.generation > 0
        self.generation += 1
        self._attempt = hello.attempt
        for number in [n for n in self._channels if n < hello.next_channel and n not in hello.received]:
            self._retire(number, self._channels[number].outbound.next)  # the client has its end: its last Ack was lost
        welcome = Welcome(PROTOCOL_VERSION, self.agent_epoch, self.generation, resumed, self._offsets(), self.info)
        self._owed.say(welcome)
        self._events.append(Attached(self.generation, resumed, {}))
        self._resume(hello.received)

    def _check_resume(self, hello: Hello) -> None:
        """Raise ``ProtocolError`` for offsets that cannot be (PROTOCOL §3.4), before anything is changed."""
        for number, channel in self._channels.items():
            received = hello.received.get(number, 0 if number >= hello.next_channel else None)
            if received is not None:
                channel.outbound.check(received)

    @property
    def idle(self) -> bool:
        """Whether no channel is live: a client that says goodbye now has nothing to come back for."""
        return all(channel.state is State.ENDED for channel in self._channels.values())

    @property
    def empty(self) -> bool:
        """Whether there is nothing to come back for at all: no channel, and no last word that was not acknowledged."""
        return not self._channels

    def _check_outbound(self, channel: _Channel, item: AnyItem) -> None:
        channel.state = next_state(channel.kind, channel.state, item)

    def _receive_item(self, item: AnyItem, offset: int, now: float) -> None:
        if item.SENDER != "client":
            raise ProtocolError(f"{type(item).__name__} is for clients")
        number = item.channel
        channel = self._channels.get(number)
        if channel is None:
            if type(item) is not Open or offset != 0:
                raise ProtocolError(f"channel {number} is not open")
            if number <= self._highest:
                raise ProtocolError(f"channel {number} was used before")
            if len(self._channels) >= CHANNELS:
                raise ProtocolError(f"a session has at most {CHANNELS} open channels", "session_limit")
            channel = self._channels[number] = _Channel(item.kind)
            self._highest = number
            channel.inbound.accept(item, offset)
            self._events.append(item)
        elif channel.inbound.accept(item, offset):
            check_imperative(channel.kind, item)
            if channel.state is State.ENDED:
                channel.inbound.consume(channel.inbound.received - channel.inbound.consumed)
            else:
                self._events.append(item)
        received = channel.inbound.received
        self._owed.received(number, received, received - offset, now)

    def _receive_ack(self, number: int, offset: int) -> list[str]:
        channel = self._channels.get(number)
        if channel is None:
            return []
        delivered = channel.outbound.ack(offset)
        for command_id in delivered:
            self._events.append(Delivered(number, command_id))
        if channel.state is State.ENDED and channel.outbound.acked == channel.outbound.next:
            del self._channels[number]
            self._events.append(Retired(number))
        return delivered

    def _retire(self, number: int, offset: int) -> None:
        channel = self._channels.pop(number)
        for command_id in channel.outbound.ack(offset):
            self._events.append(Delivered(number, command_id))
        self._events.append(Retired(number) if channel.state is State.ENDED else Dropped(number))


def check_hello(hello: Hello) -> None:
    """Raise ``ProtocolError`` for a Hello this version cannot serve."""
    if hello.version != PROTOCOL_VERSION:
        raise ProtocolError(f"the client speaks protocol {hello.version}, this agent {PROTOCOL_VERSION}", "version_unsupported")
    if not 16 <= len(hello.session_id) <= 128 or not 16 <= len(hello.secret) <= 64:
        raise ProtocolError("a session id has 16 to 128 characters and its secret 16 to 64 bytes")
    _check_offsets(hello.received)


Clock = Callable[[], float]
"""A monotonic clock in seconds, injected wherever time matters."""
