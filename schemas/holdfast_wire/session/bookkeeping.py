"""The frames of a connection besides items: Hello, Welcome, GoAway, pings, acknowledgements, credit (PROTOCOL §4.5, §5.2, §6).

Owns when an acknowledgement is due, and combines messages: of a channel's acknowledgements and credits, and of Pongs, only the newest is
kept until it can be sent, so a peer that sends and never reads cannot fill a queue. Nothing is kept after the connection. Called by
``base`` and its two ends.
"""

from __future__ import annotations

from collections import deque

from holdfast_wire.codec import encode
from holdfast_wire.frames import Ack, Credit, GoAway, Hello, Ping, Pong, Welcome
from holdfast_wire.limits import Timing


class Bookkeeping:
    """See the module.

    ``due`` is when acknowledgements have waited long enough, None while none wait; ``next_s``: when they may be sent along with items
    again; ``pending``: whether there is anything to ``take``.
    """

    __slots__ = (
        "_acks",
        "_credits",
        "_delay_s",
        "_pong",
        "_queued",
        "_unacked",
        "_unacked_bytes",
        "_worth_bytes",
        "due",
        "next_s",
        "pending",
    )

    def __init__(self, timing: Timing) -> None:
        self.due: float | None = None
        self.pending = False
        self._delay_s = timing.ack_delay_s
        self._worth_bytes = timing.ack_bytes
        self._queued: deque[bytes] = deque()
        self._pong: int | None = None
        self._credits: dict[int, int] = {}
        self._acks: dict[int, int] = {}
        self._unacked: dict[int, int] = {}  # channel → offset; also of channels that are over
        self._unacked_bytes = 0
        self.next_s = 0.0

    def queue(self, frame: Hello | Welcome | Ping | GoAway) -> None:
        """Send a frame unchanged, after those queued before it. Pings and attaches are rare, which bounds the queue."""
        self._queued.append(encode(frame))
        self.pending = True

    def pong(self, number: int) -> None:
        """The peer sent a Ping."""
        self._pong = number
        self.pending = True

    def credit(self, number: int, limit: int) -> None:
        """The peer may send bytes of the channel up to ``limit``."""
        self._credits[number] = limit
        self.pending = True

    def received(self, number: int, offset: int, size_bytes: int, now: float) -> None:
        """Everything of the channel below ``offset`` was received: acknowledge it soon, or at once if it is much."""
        self._unacked[number] = offset
        self._unacked_bytes += size_bytes
        if self._unacked_bytes >= self._worth_bytes:
            self.acknowledge()
        elif self.due is None:
            self.due = now + self._delay_s

    @property
    def waiting(self) -> int:
        """Channels with received items that are not acknowledged yet."""
        return len(self._unacked)

    def acknowledge(self) -> None:
        """Acknowledge the received items with the next messages."""
        self._acks.update(self._unacked)
        self.pending = True
        self._unacked.clear()
        self._unacked_bytes = 0
        self.due = None

    def acknowledge_with_items(self, now: float) -> None:
        """Send acknowledgements with items that are sent now: it saves both ends a wake-up. Not again before ``next_s``."""
        self.next_s = now + self._delay_s / 2
        self.acknowledge()

    def take(self) -> list[bytes]:
        """The messages for the connection."""
        messages: list[bytes] = []
        self.pending = False
        if self._pong is not None:
            messages.append(encode(Pong(self._pong)))
            self._pong = None
        if self._queued:
            messages.extend(self._queued)
            self._queued.clear()
        if self._credits:
            messages.extend([encode(Credit(number, limit)) for number, limit in self._credits.items()])
            self._credits.clear()
        if self._acks:
            messages.extend([encode(Ack(number, offset)) for number, offset in self._acks.items()])
            self._acks.clear()
        return messages

    def forget(self) -> None:
        """Drop everything that is queued: the connection has ended, or a new one begins."""
        self.due = None
        self.pending = False
        self._queued.clear()
        self._pong = None
        self._credits.clear()
        self._acks.clear()
        self._unacked.clear()
        self._unacked_bytes = 0
