"""A limit on how many bytes all file transfers of a sandbox may read before they can send them.

Owns the byte count and the queue of readers. Above ``LIMIT_BYTES`` a transfer reads only what it can send at once, and at most ``READERS``
transfers read at the same time. One instance per agent, in its context; ``files.transfers`` uses it.
"""

from __future__ import annotations

from typing import Protocol

from holdfast_wire.session.halves import ByteCounter

LIMIT_BYTES = 16 * 1024 * 1024
READERS = 16


class WaitingReader(Protocol):
    """A transfer that waits until it may read."""

    def writable(self) -> None:
        """The transfer may try again to read."""
        ...


class ReadAheadQuota:
    """The bytes that transfers have read ahead, and the transfers that wait to read."""

    def __init__(self) -> None:
        self.whole = ByteCounter()
        """Bytes that all transfers together have read ahead or are reading."""
        self._reading: set[WaitingReader] = set()
        self._waiting: dict[WaitingReader, None] = {}

    @property
    def is_exceeded(self) -> bool:
        """Whether the number of transfers that read at the same time is limited."""
        return self.whole.held > LIMIT_BYTES

    def may_read(self, reader: WaitingReader) -> bool:
        """Whether ``reader`` may read now. If not, its ``writable`` is called later."""
        if not self.is_exceeded:
            return True
        if len(self._reading) < READERS:
            self._reading.add(reader)
            return True
        self._waiting[reader] = None
        return False

    def done(self, reader: WaitingReader) -> None:
        """``reader`` has read a piece: let waiting ones read."""
        self._reading.discard(reader)
        while self._waiting and len(self._reading) < READERS:
            other = next(iter(self._waiting))
            del self._waiting[other]
            other.writable()

    def forget(self, reader: WaitingReader) -> None:
        """Remove ``reader``, which has ended."""
        self._waiting.pop(reader, None)
        self.done(reader)
