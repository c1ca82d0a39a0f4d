"""The sender's and the receiver's half of one direction of a channel.

Owns offsets, storage for replay, acknowledgement and credit (PROTOCOL §4, §5). Does not know the meaning of frames, sessions or time. The
send half stores an item before it sends it and frees it when it is acknowledged; the receive half drops duplicates and refuses gaps. Called
by ``base`` and its two ends.
"""

from __future__ import annotations

from collections import deque

from holdfast_wire.codec import encode_item
from holdfast_wire.errors import HoldfastError, ProtocolError
from holdfast_wire.frames import AnyItem, Exited, Output, Write
from holdfast_wire.limits import CONTROL_SLACK, ITEM_BYTES, WINDOW_BYTES


class ByteCounter:
    """Counts the unacknowledged bytes of several send halves; ``whole`` counts them together with those of other sessions."""

    __slots__ = ("held", "whole")

    def __init__(self, whole: ByteCounter | None = None) -> None:
        self.held = 0
        self.whole = whole

    def add(self, size_bytes: int) -> None:
        """Add ``size_bytes``, which may be negative."""
        self.held += size_bytes
        if self.whole is not None:
            self.whole.held += size_bytes

    def clear(self) -> None:
        """Subtract everything this counter holds."""
        self.add(-self.held)


_Stored = tuple[int, int, bytes, str | None]
"""One item: its offset, the offset after it, the encoded message, and the command whose end it reports."""


class SendHalf:
    """Items on their way to the peer. ``next`` is the offset the next item gets, ``limit`` the peer's credit."""

    __slots__ = ("_counter", "_stored", "acked", "limit", "next", "unsent")

    def __init__(self, counter: ByteCounter | None = None) -> None:
        self._counter = counter
        self.next = 0
        self.acked = 0
        self.limit = WINDOW_BYTES
        self._stored: deque[_Stored] = deque()
        self.unsent: deque[_Stored] = deque()
        """The items that were not sent on the current connection yet."""

    @property
    def settled(self) -> bool:
        """Whether everything pushed was acknowledged."""
        return not self._stored

    def push(self, item: AnyItem) -> None:
        """Number ``item`` and store it.

        Raises ``HoldfastError`` if its bytes exceed the credit, or if too many items without bytes are ahead of it.
        """
        size = len(item.data) if isinstance(item, (Output, Write)) else 0
        end = self.next + (size or 1)
        if end > self.limit + (0 if size > 1 else CONTROL_SLACK):
            raise HoldfastError("queue_full", f"channel {item.channel} has no credit for {type(item).__name__}")
        command_id = item.command_id if type(item) is Exited and "error" not in item.result else None  # a refusal ends no command
        message = encode_item(item, self.next)
        stored = self.next, end, message, command_id
        self.next = end
        self._stored.append(stored)
        self.unsent.append(stored)
        if self._counter is not None:
            self._counter.add(len(message) + ITEM_BYTES)

    def pop(self) -> bytes:
        """The next message for the current connection; it stays stored until acknowledged."""
        return self.unsent.popleft()[2]

    def ack(self, offset: int) -> list[str]:
        """Free the items below ``offset``, which the peer has received; returns the commands whose end is now acknowledged."""
        if offset > self.next:
            raise ProtocolError(f"offset {offset} is acknowledged, {self.next} was reached")
        delivered: list[str] = []
        stored, freed_bytes = self._stored, 0
        while stored and stored[0][1] <= offset:
            _, _, message, command_id = stored.popleft()
            freed_bytes += len(message) + ITEM_BYTES
            if command_id is not None:
                delivered.append(command_id)
        if freed_bytes and self._counter is not None:
            self._counter.add(-freed_bytes)
        self.acked = max(self.acked, offset)
        return delivered

    def grant(self, limit: int) -> bool:
        """Raise the credit; returns whether it rose. A lower limit is a late duplicate and is ignored."""
        if limit <= self.limit:
            return False
        self.limit = limit
        return True

    def check(self, received: int) -> None:
        """Raise ``ProtocolError`` if ``received`` cannot be the offset up to which the peer has received."""
        if received < self.acked:
            raise ProtocolError(f"the peer lost what it had acknowledged: {received} < {self.acked}")
        if received > self.next:
            raise ProtocolError(f"offset {received} is acknowledged, {self.next} was reached")
        if received != self.next and all(start != received for start, *_ in self._stored):
            raise ProtocolError(f"offset {received} is inside an item")

    def rewind(self, received: int) -> list[str]:
        """On a new connection: the peer has everything below ``received``; send all other items again. Returns the same as ``ack``."""
        self.check(received)
        delivered = self.ack(received)
        self.unsent = deque(self._stored)
        return delivered


class ReceiveHalf:
    """Items from the peer. ``received`` is the offset expected next, ``granted`` the credit sent to the peer."""

    __slots__ = ("acked", "consumed", "granted", "received")

    def __init__(self) -> None:
        self.received = 0
        self.consumed = 0
        self.acked = 0
        self.granted = WINDOW_BYTES

    def accept(self, item: AnyItem, offset: int) -> bool:
        """Whether ``item`` is new; False for a duplicate.

        Raises ``ProtocolError`` for a missing item before it, an overlap or too many bytes.
        """
        size = len(item.data) if isinstance(item, (Output, Write)) else 0
        end = offset + (size or 1)
        if end <= self.received:
            return False
        if offset != self.received:
            raise ProtocolError(f"channel {item.channel} jumps from offset {self.received} to {offset}")
        if end > self.granted + (0 if size > 1 else CONTROL_SLACK):
            raise ProtocolError(f"channel {item.channel} overran its credit of {self.granted}")
        self.received = end
        if not size:
            self.consumed += 1
        return True

    def consume(self, size_bytes: int) -> None:
        """The application has consumed ``size_bytes`` of the received bytes."""
        if self.consumed + size_bytes > self.received:
            raise ValueError(f"{size_bytes} bytes consumed, only {self.received - self.consumed} were received")
        self.consumed += size_bytes

    def grant(self) -> int | None:
        """A new credit limit to send to the peer, once half of the window has been consumed."""
        if self.granted - self.consumed > WINDOW_BYTES // 2:
            return None
        self.granted = self.consumed + WINDOW_BYTES
        return self.granted
