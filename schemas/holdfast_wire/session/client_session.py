"""The client's end of a session: it sends Hello, opens channels, and detects a changed agent epoch (PROTOCOL §3).

Owns Hello with its attempts, the numbers of channels, which connections the agent may report, and the end of a session that is lost.
Everything else is in ``base``. Called by the SDK's transport.
"""

from __future__ import annotations

from typing import Any

from holdfast_wire import PROTOCOL_VERSION
from holdfast_wire.errors import HoldfastError, ProtocolError
from holdfast_wire.frames import Accepted, AnyItem, Hello, Open, Welcome
from holdfast_wire.limits import ACCEPTED_CHANNELS, ACCEPTED_WINDOW_BYTES, CHANNELS, FIRST_ACCEPTED, LISTENERS, UNTAKEN, Timing

from .base import Channel, Session, check_offsets
from .channels import CONNECTION, FACTS, IMPERATIVES, NO_FACTS, UNKNOWN_KIND, State, check_imperative, next_state
from .events import Attached, Lost, Ponged


class ClientSession(Session):
    """The client's end: sends Hello, opens channels, and detects a changed agent epoch."""

    def __init__(
        self,
        session_id: str,
        secret: bytes,
        timing: Timing | None = None,
        *,
        take_over: bool = False,
        acknowledge_ends: bool = True,
        accepts: bool = False,
    ) -> None:
        """With ``acknowledge_ends`` False, the last fact of a channel is acknowledged only by ``acknowledge_end``.

        ``accepts``: channels of kind ``listen`` may be opened, so that the agent opens one for each connection (PROTOCOL §7.10).
        """
        super().__init__(session_id, secret, timing)
        self._next_accepted = FIRST_ACCEPTED if accepts else 0
        self._next_channel = 1
        self._attempt = 0
        self._take_over = take_over
        self._acknowledge_ends = acknowledge_ends
        self._ends: dict[int, int] = {}
        self._requested_ping = self._answered_ping = 0

    def connect(self, now: float) -> None:
        """Send Hello on a new connection. Items are sent once the Welcome was received."""
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
            self._next_accepted,
        )
        self._owed.queue(hello)

    def open(self, kind: str, params: dict[str, Any]) -> int:
        """Open a channel; returns its number. Raises ``HoldfastError`` if too many are open or the params are too large."""
        if self.lost is not None:
            raise self.lost
        if len(self._channels) - self._accepted >= CHANNELS or self._next_channel >= FIRST_ACCEPTED:
            raise HoldfastError("session_limit", f"a session has at most {CHANNELS} open channels")
        if kind == "listen":
            self._check_listen()
        if len(self._channels) + self._owed.waiting >= CHANNELS:
            self._owed.acknowledge()  # the agent counts a channel until its end is acknowledged: send that before the Open
        number = self._next_channel
        channel = Channel(kind)
        channel.outbound.push(Open(number, kind, params))
        self._next_channel += 1
        self._channels[number] = channel
        self._enqueue(number, channel)
        return number

    def _check_listen(self) -> None:
        if not self._next_accepted:
            raise HoldfastError("unsupported", "this session was attached without listening")
        if sum(channel.kind == "listen" for channel in self._channels.values()) >= LISTENERS:
            raise HoldfastError("session_limit", f"a session listens on at most {LISTENERS} ports", hint="close one of its listeners")

    def take(self, number: int) -> None:
        """The application has taken the connection ``number``: more of its bytes may come, and another connection in its place."""
        channel = self._channels.get(number)
        if channel is None or not channel.untaken:
            return
        channel.untaken = False
        self._count(channel.listener, -1)
        if channel.state is State.ENDED:
            del self._channels[number]
            self._accepted -= 1
            self._owed.received(number, channel.inbound.received, 0, 0.0)
            self._owed.acknowledge()
        else:
            self.consume(number, 0)

    def acknowledge_end(self, number: int) -> None:
        """Acknowledge the end of a channel now. No effect before its end, or if it was acknowledged already."""
        offset = self._ends.pop(number, None)
        if offset is not None:
            self._owed.received(number, offset, 0, 0.0)
            self._owed.acknowledge()

    def ping(self, now: float) -> int:
        """Send a Ping with the next messages of this connection; ``Ponged`` with this number or a higher one reports the answer."""
        self._queue_ping(now)
        self._requested_ping = self._pings
        return self._pings

    def _receive_pong(self, number: int) -> None:
        answered = min(number, self._requested_ping)  # the agent answers the newest Ping alone, which may be a later probe
        if number <= self._pings and answered > self._answered_ping:
            self._answered_ping = answered
            self._events.append(Ponged(answered))

    def _check_outbound(self, channel: Channel, item: AnyItem) -> State:
        if type(item) not in IMPERATIVES.get(channel.kind, UNKNOWN_KIND):
            check_imperative(channel.kind, item)
        return channel.state

    def _greeted(self, frame: Hello | Welcome, now: float) -> None:
        if type(frame) is not Welcome or self.attached or not self.connected:
            raise ProtocolError(f"{type(frame).__name__} is out of place")
        if frame.version != PROTOCOL_VERSION:
            raise ProtocolError(f"the agent speaks protocol {frame.version}, this client {PROTOCOL_VERSION}", "version_unsupported")
        check_offsets(frame.received)
        if self.agent_epoch and (frame.agent_epoch != self.agent_epoch or not frame.resumed):
            restarted = frame.agent_epoch != self.agent_epoch
            self._lose(
                HoldfastError(
                    "session_lost",
                    "the sandbox's agent was restarted since this session began" if restarted else "the session has expired at the agent",
                    reason="agent-restarted" if restarted else "expired",
                )
            )
            return
        if frame.generation <= self.generation:
            raise ProtocolError(f"generation {frame.generation} does not rise above {self.generation}")
        self.agent_epoch = frame.agent_epoch
        self.generation = frame.generation
        self._take_over = False
        if any(channel.listener and number not in frame.received for number, channel in self._channels.items()):
            raise ProtocolError("the agent has removed a connection without reporting its end")
        self._events.append(Attached(frame.generation, frame.resumed, frame.info))
        self._resume(frame.received)

    def _receive_item(self, item: AnyItem, offset: int, now: float) -> None:
        if item.SENDER != "agent":
            raise ProtocolError(f"{type(item).__name__} is sent only to agents")
        number = item.channel
        channel = self._channels.get(number)
        if channel is None:
            if type(item) is not Accepted:
                if number >= (self._next_channel if number < FIRST_ACCEPTED else self._next_accepted):
                    raise ProtocolError(f"channel {number} was never opened")
                self._owed.received(number, offset + item.length, 0, now)  # the channel ended here, but the last fact of it was lost
                return
            channel = self._accept(item)
        if channel.inbound.accept(item, offset):
            state = FACTS.get(channel.kind, NO_FACTS).get((channel.state, type(item)))
            channel.state = next_state(channel.kind, channel.state, item) if state is None else state
            if channel.state is State.ENDED:
                if channel.untaken:
                    self._events.append(item)
                    return  # until it is taken it is kept, and its end not acknowledged, so that it counts at both ends
                del self._channels[number]
                self._accepted -= channel.listener > 0
                if not self._acknowledge_ends:
                    self._ends[number] = channel.inbound.received
                    self._events.append(item)
                    return
            self._events.append(item)
        received = channel.inbound.received
        self._owed.received(number, received, received - offset, now)

    def _accept(self, item: Accepted) -> Channel:
        """The channel of a connection that the agent reports. Raises ``ProtocolError`` if the client has not asked for it."""
        number, listener = item.channel, self._channels.get(item.listener)
        if listener is None or listener.kind != "listen":
            raise ProtocolError(f"a connection was accepted on channel {item.listener}, which does not listen")
        if number < self._next_accepted or number < FIRST_ACCEPTED:
            raise ProtocolError(f"a connection has the number {number} of another channel")
        if self._accepted >= ACCEPTED_CHANNELS:
            raise ProtocolError(f"a session has at most {ACCEPTED_CHANNELS} connections")
        if self._untaken.get(item.listener, 0) >= UNTAKEN:
            raise ProtocolError(f"more than {UNTAKEN} connections wait on channel {item.listener}")
        channel = self._channels[number] = Channel(CONNECTION, listener=item.listener)
        channel.inbound.granted = ACCEPTED_WINDOW_BYTES
        self._count(item.listener, 1)
        self._accepted += 1
        self._next_accepted = number + 1
        return channel

    def _lose(self, error: HoldfastError) -> None:
        self.lost = error
        self.disconnected()
        self._channels.clear()
        self._events.append(Lost(error))
