"""The agent's end of a session: it answers Hello, serves channels, and continues across connections (PROTOCOL §3).

Owns who may attach and which connection that fences, which channels a client may open, when the agent may open one, and how long the last
fact of a channel that ended is kept. Everything else is in ``base``. Called by the agent's sessions.
"""

from __future__ import annotations

import hmac
from collections import deque
from typing import Any

from holdfast_wire import PROTOCOL_VERSION
from holdfast_wire.codec import MAX_CHANNEL
from holdfast_wire.errors import HoldfastError, ProtocolError
from holdfast_wire.frames import Accepted, AnyItem, Hello, Open, Welcome
from holdfast_wire.limits import ACCEPTED_CHANNELS, ACCEPTED_WINDOW_BYTES, CHANNELS, FIRST_ACCEPTED, LISTENERS, UNTAKEN, Timing

from .base import Channel, Session, check_offsets
from .channels import CONNECTION, FACTS, IMPERATIVES, NO_FACTS, UNKNOWN_KIND, State, check_imperative, next_state
from .events import Attached, Delivered, Dropped, Retired, Writable
from .halves import ByteCounter


class AgentSession(Session):
    """The agent's end: answers Hello, serves channels, and continues across connections."""

    def __init__(
        self, session_id: str, secret: bytes, agent_epoch: str, timing: Timing | None = None, whole: ByteCounter | None = None
    ) -> None:
        """``whole``: counts the unacknowledged bytes of all sessions of the agent."""
        super().__init__(session_id, secret, timing)
        self.agent_epoch = agent_epoch
        self.info: dict[str, Any] = {}
        """The field ``info`` of Welcome, which describes the agent."""
        self.counter = ByteCounter(whole)
        """The bytes that were sent or are queued, and are not acknowledged."""
        self._attempt = 0
        self._owned_since = 0
        self._highest = 0
        self._accepts = False
        self._next_accepted = FIRST_ACCEPTED

    def attach(self, hello: Hello, now: float) -> None:
        """Serve the connection that sent ``hello``; the previous connection is fenced. Raises ``HoldfastError`` to refuse it."""
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
            self._accepted = 0
            self._untaken.clear()
            self.counter.clear()
            self._highest = 0  # another client starts to count again
        resumed = self.generation > 0
        self.generation += 1
        self._attempt = hello.attempt
        self._accepts = hello.next_accepted > 0
        for number in [n for n in self._channels if n < _next_number(hello, n) and n not in hello.received]:
            self._retire(number, self._channels[number].outbound.next)  # the client has the end of the channel: its last Ack was lost
        welcome = Welcome(PROTOCOL_VERSION, self.agent_epoch, self.generation, resumed, self._offsets(), self.info)
        self._owed.queue(welcome)
        self._events.append(Attached(self.generation, resumed, {}))
        self._resume(hello.received)

    def _check_resume(self, hello: Hello) -> None:
        """Raise ``ProtocolError`` for impossible offsets (PROTOCOL §3.4), before anything is changed."""
        if hello.next_accepted > self._next_accepted or (self._accepts and not hello.next_accepted):
            raise ProtocolError(f"no connection can have the number {hello.next_accepted} before it is accepted")
        for number, channel in self._channels.items():
            received = hello.received.get(number, 0 if number >= _next_number(hello, number) else None)
            if received is not None:
                channel.outbound.check(received)

    @property
    def idle(self) -> bool:
        """Whether no channel is live: a client that closes its session now has nothing left to resume."""
        return all(channel.state is State.ENDED for channel in self._channels.values())

    @property
    def empty(self) -> bool:
        """Whether nothing is left to resume: no channel, and no unacknowledged last fact of one."""
        return not self._channels

    def _check_outbound(self, channel: Channel, item: AnyItem) -> State:
        state = FACTS.get(channel.kind, NO_FACTS).get((channel.state, type(item)))
        return next_state(channel.kind, channel.state, item) if state is None else state

    def _receive_item(self, item: AnyItem, offset: int, now: float) -> None:
        if item.SENDER != "client":
            raise ProtocolError(f"{type(item).__name__} is sent only to clients")
        number = item.channel
        channel = self._channels.get(number)
        if channel is None:
            if type(item) is not Open or offset != 0:
                raise ProtocolError(f"channel {number} is not open")
            if number <= self._highest or number >= FIRST_ACCEPTED:
                raise ProtocolError(f"channel {number} was used before, or is not a client's")
            if item.kind == "listen":
                self._check_listen()
            if len(self._channels) - self._accepted >= CHANNELS:
                raise ProtocolError(f"a session has at most {CHANNELS} open channels", "session_limit")
            channel = self._channels[number] = Channel(item.kind, self.counter)
            self._highest = number
            channel.inbound.accept(item, offset)
            self._events.append(item)
        elif channel.inbound.accept(item, offset):
            if type(item) not in IMPERATIVES.get(channel.kind, UNKNOWN_KIND):
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
            self._remove(number)
            self._events.append(Retired(number))
        return delivered

    def may_accept(self, listener: int) -> bool:
        """Whether the agent may report a connection of ``listener`` now. If not, ``Writable`` of that channel announces when."""
        channel = self._channels.get(listener)
        is_ready = channel is not None and channel.kind == "listen" and channel.state is State.READY
        return is_ready and self._accepted < ACCEPTED_CHANNELS and self._untaken.get(listener, 0) < UNTAKEN

    def accept(self, listener: int, info: dict[str, Any]) -> int:
        """Open a channel for a connection to ``listener``; returns its number. Raises ``HoldfastError`` unless ``may_accept``."""
        if not self.may_accept(listener):
            raise HoldfastError("session_limit", f"channel {listener} accepts no connection now")
        number = self._next_accepted
        channel = self._channels[number] = Channel(CONNECTION, self.counter, listener)
        channel.outbound.limit = ACCEPTED_WINDOW_BYTES
        self._next_accepted += 1
        self._accepted += 1
        self._count(listener, 1)
        self.send(Accepted(number, listener, info))
        return number

    def _check_listen(self) -> None:
        if not self._accepts:
            raise ProtocolError("Hello did not ask for connections")
        open_ = sum(channel.kind == "listen" and channel.state is not State.ENDED for channel in self._channels.values())
        if open_ >= LISTENERS:
            raise ProtocolError(f"a session listens on at most {LISTENERS} ports", "session_limit")

    def _resume(self, received: dict[int, int]) -> None:
        super()._resume(received)
        if self._accepted:  # a listener's end follows all of its connections (PROTOCOL §7.11)
            self._ready = deque(sorted(self._ready, key=lambda number: number < FIRST_ACCEPTED))

    def _credited(self, channel: Channel) -> None:
        channel.untaken = False
        self._count(channel.listener, -1)
        self._events.append(Writable(channel.listener))

    def _remove(self, number: int) -> Channel:
        channel = self._channels.pop(number)
        if channel.listener:
            if self._accepted == ACCEPTED_CHANNELS:
                self._events.extend(Writable(one) for one, other in self._channels.items() if other.kind == "listen")
            self._accepted -= 1
            if channel.untaken:
                self._credited(channel)
        return channel

    def _retire(self, number: int, offset: int) -> None:
        channel = self._remove(number)
        for command_id in channel.outbound.ack(offset):
            self._events.append(Delivered(number, command_id))
        self._events.append(Retired(number) if channel.state is State.ENDED else Dropped(number))


def check_hello(hello: Hello) -> None:
    """Raise ``ProtocolError`` for a Hello this version cannot serve."""
    if hello.version != PROTOCOL_VERSION:
        raise ProtocolError(f"the client speaks protocol {hello.version}, this agent {PROTOCOL_VERSION}", "version_unsupported")
    if not 16 <= len(hello.session_id) <= 128 or not 16 <= len(hello.secret) <= 64:
        raise ProtocolError("a session id must have 16 to 128 characters, and its secret 16 to 64 bytes")
    check_offsets(hello.received)
    if hello.next_accepted and not FIRST_ACCEPTED <= hello.next_accepted < MAX_CHANNEL:
        raise ProtocolError(f"{hello.next_accepted} is no number of a connection")


def _next_number(hello: Hello, number: int) -> int:
    """The lowest number that the client has not seen, of the channels that are opened by the same end as ``number``."""
    return hello.next_channel if number < FIRST_ACCEPTED else hello.next_accepted
