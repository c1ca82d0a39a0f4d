"""The agent's end of a session: it answers Hello, serves channels, and continues across connections (PROTOCOL §3).

Owns who may attach and which connection that fences, which channels a client may open, and how long the last fact of a channel that ended
is kept. Everything else is in ``base``. Called by the agent's sessions.
"""

from __future__ import annotations

import hmac
from typing import Any

from holdfast_wire import PROTOCOL_VERSION
from holdfast_wire.errors import HoldfastError, ProtocolError
from holdfast_wire.frames import AnyItem, Hello, Open, Welcome
from holdfast_wire.limits import CHANNELS, Timing

from .base import Channel, Session, check_offsets
from .channels import FACTS, IMPERATIVES, NO_FACTS, UNKNOWN_KIND, State, check_imperative, next_state
from .events import Attached, Delivered, Dropped, Retired
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
            self.counter.clear()
            self._highest = 0  # another client starts to count again
        resumed = self.generation > 0
        self.generation += 1
        self._attempt = hello.attempt
        for number in [n for n in self._channels if n < hello.next_channel and n not in hello.received]:
            self._retire(number, self._channels[number].outbound.next)  # the client has the end of the channel: its last Ack was lost
        welcome = Welcome(PROTOCOL_VERSION, self.agent_epoch, self.generation, resumed, self._offsets(), self.info)
        self._owed.queue(welcome)
        self._events.append(Attached(self.generation, resumed, {}))
        self._resume(hello.received)

    def _check_resume(self, hello: Hello) -> None:
        """Raise ``ProtocolError`` for impossible offsets (PROTOCOL §3.4), before anything is changed."""
        for number, channel in self._channels.items():
            received = hello.received.get(number, 0 if number >= hello.next_channel else None)
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
            if number <= self._highest:
                raise ProtocolError(f"channel {number} was used before")
            if len(self._channels) >= CHANNELS:
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
        raise ProtocolError("a session id must have 16 to 128 characters, and its secret 16 to 64 bytes")
    check_offsets(hello.received)
