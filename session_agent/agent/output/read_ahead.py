"""How much the file transfers of a sandbox may read before they can send it, all together.

Owns the count and the turns: beyond ``MUCH_BYTES`` nothing is read that cannot be sent at once, and at most ``READERS`` read a piece at a
time. One for each agent, in its context; ``files.transfers`` asks it.
"""

from __future__ import annotations

from typing import Protocol

from holdfast_wire.halves import ByteCounter

MUCH_BYTES = 16 * 1024 * 1024
READERS = 16


class WaitingReader(Protocol):
    """A transfer that waits for its turn to read."""

    def writable(self) -> None:
        """It may read."""
        ...


class ReadAheadQuota:
    """See the module."""

    def __init__(self) -> None:
        self.whole = ByteCounter()
        """What all transfers have read ahead, or are about to."""
        self._reading: set[WaitingReader] = set()
        self._waiting: dict[WaitingReader, None] = {}

    @property
    def is_much(self) -> bool:
        """Whether transfers take turns."""
        return self.whole.held > MUCH_BYTES

    def may_read(self, reader: WaitingReader) -> bool:
        """Whether it is the turn of ``reader``, which has room to send; its ``writable`` is called when it is."""
        if not self.is_much:
            return True
        if len(self._reading) < READERS:
            self._reading.add(reader)
            return True
        self._waiting[reader] = None
        return False

    def done(self, reader: WaitingReader) -> None:
        """``reader`` has read: others first."""
        self._reading.discard(reader)
        while self._waiting and len(self._reading) < READERS:
            other = next(iter(self._waiting))
            del self._waiting[other]
            other.writable()

    def forget(self, reader: WaitingReader) -> None:
        """``reader`` will not read any more."""
        self._waiting.pop(reader, None)
        self.done(reader)
