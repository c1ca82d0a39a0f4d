"""The session state machine: what both of its ends have in common (PROTOCOL §3–§6).

It has no sockets, tasks or clocks: five verbs drive it (``receive``, ``events``, ``outgoing``, ``deadline``, ``tick``), ``now`` is any
monotonic clock in seconds, and events report what the caller has to do. Owns channels, acknowledgement, credit, liveness and what is sent
again on resume. Hello and Welcome, and which items an end may receive, are in ``client_session`` and ``agent_session``, which alone use
this module.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from holdfast_wire.codec import MAX_CHANNEL, MAX_OFFSET, decode
from holdfast_wire.errors import HoldfastError, ProtocolError
from holdfast_wire.frames import Ack, AnyItem, Credit, GoAway, Hello, Item, Ping, Pong, Welcome
from holdfast_wire.limits import ACCEPTED_CHANNELS, CHANNELS, WINDOW_BYTES, Timing

from .bookkeeping import Bookkeeping
from .channels import State
from .events import Delivered, Event, Silent, Writable
from .halves import ByteCounter, ReceiveHalf, SendHalf


class Channel:
    """One end's view of a channel: its two halves and its state."""

    __slots__ = ("inbound", "kind", "listener", "outbound", "queued", "state", "untaken")

    def __init__(self, kind: str, counter: ByteCounter | None = None, listener: int = 0) -> None:
        """``listener``: the channel on which the agent accepted this connection; 0 for a channel that the client opened."""
        self.kind = kind
        self.listener = listener
        self.untaken = listener > 0
        """Whether it is a connection that the client's application has not taken yet."""
        self.state = State.OPENING
        self.outbound = SendHalf(counter)
        self.inbound = ReceiveHalf()
        self.queued = False


class Session:
    """The common base of both ends. A subclass defines which items, Hello or Welcome it accepts."""

    def __init__(self, session_id: str, secret: bytes, timing: Timing | None = None) -> None:
        self.session_id = session_id
        self.secret = secret
        self.generation = 0
        self.agent_epoch = ""
        self.timing = timing or Timing()
        self.attached = False
        """Whether the session is attached, so that items may be sent."""
        self.connected = False
        """Whether there is a connection, even before Hello and Welcome were exchanged."""
        self.lost: HoldfastError | None = None
        self._channels: dict[int, Channel] = {}
        self._accepted = 0
        """How many of the channels the agent has opened."""
        self._untaken: dict[int, int] = {}
        """How many of those the client's application has not taken yet, for each listener that has any."""
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
                if channel.untaken:
                    self._credited(channel)
        elif isinstance(frame, Ping):
            self._owed.pong(frame.number)
        elif isinstance(frame, Pong):
            self._receive_pong(frame.number)
        elif isinstance(frame, GoAway):
            self._events.append(frame)
        elif isinstance(frame, Hello | Welcome):
            self._greeted(frame, now)

    def events(self) -> list[Event]:
        """The events since the last call, in order."""
        events, self._events = self._events, []
        return events

    def outgoing(self, max_bytes: int = 1 << 62) -> list[bytes]:
        """Messages for the connection, at least one where there is any, about ``max_bytes`` at most; channels take turns."""
        owed, ready = self._owed, self._ready
        if not ready or not self.attached:
            return owed.take() if owed.pending else []
        now = self._heard  # this end's clock as of the last message: late enough for those that answer each other
        if owed.due is not None and now >= owed.next_s:
            owed.acknowledge_with_items(now)
        messages = owed.take() if owed.pending else []
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

    @property
    def has_outgoing(self) -> bool:
        """Whether ``outgoing`` has a message."""
        return self._owed.pending or (self.attached and bool(self._ready))

    def deadline(self) -> float | None:
        """The latest time at which ``tick`` must be called."""
        if not self.connected:
            return None
        heard, timing, owed = self._heard, self.timing, self._owed.due
        ping = (max(self._pinged, heard)) + timing.ping_interval_s
        due = min(ping, heard + timing.silence_limit_s)
        return owed if owed is not None and owed < due else due

    def tick(self, now: float) -> None:
        """Handle the deadlines that have passed: acknowledge, send a Ping, or treat the connection as lost."""
        if not self.connected:
            return
        due = self.deadline()
        if due is not None and now - due > 1.0:
            # This process was suspended: the peer gets the time that our own loop lost (PROTOCOL §6.2).
            self._heard += now - due
        if self._owed.due is not None and now >= self._owed.due:
            self._owed.acknowledge()
        if now >= self._heard + self.timing.silence_limit_s:
            self._events.append(Silent())
            self.disconnected()
        elif now >= max(self._heard, self._pinged) + self.timing.ping_interval_s:
            self._queue_ping(now)

    # Actions ----------------------------------------------------------------------------------------------------

    def send(self, item: AnyItem) -> None:
        """Queue ``item`` on its channel. Raises ``HoldfastError`` if the channel is over or has no credit for it."""
        channel = self._channels.get(item.channel)
        if channel is None:
            raise HoldfastError("not_found", f"channel {item.channel} is over")
        state = self._check_outbound(channel, item)
        channel.outbound.push(item)
        channel.state = state
        if self.attached and not channel.queued:
            channel.queued = True
            self._ready.append(item.channel)

    def room(self, number: int) -> int:
        """Bytes that ``send`` accepts on the channel now; 0 if it is over."""
        channel = self._channels.get(number)
        if channel is None:
            return 0
        half = channel.outbound
        return half.limit - half.next if half.limit > half.next else 0

    def is_open(self, number: int) -> bool:
        """Whether the channel exists and has not ended."""
        channel = self._channels.get(number)
        return channel is not None and channel.state is not State.ENDED

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
            self._owed.queue(GoAway(deadline_s, jitter_s, reason))

    def disconnected(self) -> None:
        """The connection ended. Everything unacknowledged stays stored for the next one."""
        self.connected = self.attached = False
        self._owed.forget()

    # Inside -----------------------------------------------------------------------------------------------------

    def _enqueue(self, number: int, channel: Channel) -> None:
        if self.attached and not channel.queued and channel.outbound.unsent:
            channel.queued = True
            self._ready.append(number)

    def _receive_item(self, item: AnyItem, offset: int, now: float) -> None:
        raise NotImplementedError

    def _check_outbound(self, channel: Channel, item: AnyItem) -> State:
        raise NotImplementedError

    def _greeted(self, frame: Hello | Welcome, now: float) -> None:
        raise ProtocolError(f"{type(frame).__name__} is out of place")

    def _receive_ack(self, number: int, offset: int) -> list[str]:
        channel = self._channels.get(number)
        return channel.outbound.ack(offset) if channel is not None else []

    def _count(self, listener: int, change: int) -> None:
        """The number of connections of ``listener`` that are not taken changes by ``change``."""
        left = self._untaken.pop(listener, 0) + change
        if left:
            self._untaken[listener] = left

    def _credited(self, channel: Channel) -> None:
        """The peer has given credit for a connection that was not taken yet."""

    def _queue_ping(self, now: float) -> None:
        self._pings += 1
        self._pinged = now
        self._owed.queue(Ping(self._pings))

    def _receive_pong(self, number: int) -> None:
        """Nothing to do: ``tick`` only needs to know that the peer is alive, and any message shows that."""

    def _begin(self, now: float) -> None:
        self.connected = True
        self._heard = self._pinged = now
        self._owed.forget()

    def _resume(self, received: dict[int, int]) -> None:
        """Send the items again that the peer does not have, and repeat credit that it may have missed."""
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


def check_offsets(received: dict[Any, Any]) -> None:
    """Raise ``ProtocolError`` unless this can be the map of received offsets of a Hello or Welcome."""
    if len(received) > CHANNELS + ACCEPTED_CHANNELS:
        raise ProtocolError(f"a session has at most {CHANNELS + ACCEPTED_CHANNELS} channels")
    for number, offset in received.items():
        if type(number) is not int or not 0 < number < MAX_CHANNEL or type(offset) is not int or not 0 <= offset < MAX_OFFSET:
            raise ProtocolError("the map of received offsets is malformed")
