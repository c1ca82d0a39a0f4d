"""The output of one command while somebody may still want it.

Owns the bytes, their order over both streams, absolute offsets per stream, what was dropped, and the digests. Every reader has a
cursor of its own. Bytes go when all readers took them, except the last window's worth, which a client may not have received yet; that
goes with ``release``, some time after the exit was delivered. Readers whose client is away hold nobody up who is there: they find a gap
when they were a whole spool behind. It does not read pipes nor send (``pipes``, ``commands``). Bounds: ``limits.SPOOL_*``; a full spool
stops the reading (``block``) or drops the oldest with an exact count (``tail``).
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast_wire.limits import DATA_BYTES, MIB, SPOOL_COMMAND_BYTES, SPOOL_SANDBOX_BYTES, WINDOW_BYTES

if TYPE_CHECKING:
    from hashlib import _Hash

EMPTY_SHA256 = hashlib.sha256().hexdigest()
ATTACHED_BYTES = 2 * MIB
"""What is held for a client that is connected but slow: beyond it the process itself has to wait."""
_MERGE_BYTES = 16 * 1024
_NONE: deque[tuple[int, bytes]] = deque(maxlen=0)
"""The segments of all spools that hold none: an empty deque takes 760 bytes, and records of commands are kept by the thousand."""


@dataclass(slots=True)
class Budget:
    """What all spools of the sandbox hold together, bytes."""

    limit_bytes: int = SPOOL_SANDBOX_BYTES
    held_bytes: int = 0


class Spool:
    """Append at one end, any number of readers at the other."""

    __slots__ = (
        "_base", "_digests", "_dropped", "_first", "_held", "_seen", "_segments", "budget", "limit_bytes", "on_space",
        "readers", "released", "tail",
    )  # fmt: skip

    def __init__(self, budget: Budget, *, tail: bool = False, limit_bytes: int = SPOOL_COMMAND_BYTES) -> None:
        self.budget = budget
        self.tail = tail
        self.limit_bytes = limit_bytes
        self.readers: list[SpoolReader] = []
        self.on_space: Callable[[], None] | None = None
        self.released = False
        """Whether bytes go as soon as the present readers have them."""
        self._segments = _NONE
        self._first = 0
        self._base = [0, 0, 0]
        self._seen = [0, 0, 0]
        self._dropped = [0, 0, 0]
        self._held = 0
        self._digests: list[_Hash | None] = [None, None, None]

    def append(self, stream: int, data: bytes) -> None:
        """Take bytes of a stream. Never refuses: whoever reads the pipe asks ``full`` before the next read."""
        self._seen[stream] += len(data)
        digest = self._digests[stream]
        if digest is None:
            digest = self._digests[stream] = hashlib.sha256()
        digest.update(data)
        self._held += len(data)
        self.budget.held_bytes += len(data)
        if self._segments is _NONE:
            self._segments = deque()
        segments = self._segments
        if segments and segments[-1][0] == stream and len(segments[-1][1]) + len(data) <= _MERGE_BYTES:
            segments[-1] = (stream, segments[-1][1] + data)
        else:
            segments.append((stream, data))
        if self.tail:
            budget = self.budget
            while len(segments) > 1 and (self._held > self.limit_bytes or budget.held_bytes > budget.limit_bytes):
                self._drop_first(lost=True)
        elif self.budget.held_bytes > self.budget.limit_bytes:
            self._trim(0)

    @property
    def full(self) -> bool:
        """Whether reading the process has to wait."""
        if self.tail:
            return False
        limit = self.limit_bytes
        if self.readers and all(reader.attached() for reader in self.readers):
            limit = min(limit, ATTACHED_BYTES)
        untaken = self._untaken()
        return untaken >= limit or (untaken > 0 and self.budget.held_bytes >= self.budget.limit_bytes)

    def attach(self, attached: Callable[[], bool], starts: dict[int, int] | None = None) -> SpoolReader:
        """A reader from per-stream offsets (default: the oldest kept; older ones become a gap)."""
        starts = starts or {}
        reader = SpoolReader(self, attached, [0] + [max(0, min(starts.get(s, 0), self._seen[s])) for s in (1, 2)])
        self.readers.append(reader)
        return reader

    def detach(self, reader: SpoolReader) -> None:
        """The reader is gone; what it did not take stays for the next one."""
        if reader in self.readers:
            self.readers.remove(reader)
            if self.released:
                self.release()
            self._resume()

    def release(self) -> None:
        """Nobody else will want it: free the bytes but those that readers have yet to take, keep the counts."""
        self.released = True
        wanted = min((reader.index for reader in self.readers if not reader.at_end), default=None)
        while self._segments and (wanted is None or self._first < wanted):
            self._drop_first(lost=False)
        if not self._segments:
            self._segments = _NONE

    def streams(self) -> dict[int, list[int | str]]:
        """Per stream: bytes seen, bytes dropped, SHA-256 of all that was seen."""
        return {stream: [self._seen[stream], self._dropped[stream], self._digest(stream)] for stream in (1, 2)}

    @property
    def truncated(self) -> bool:
        """Whether anything was dropped."""
        return bool(self._dropped[1] or self._dropped[2])

    def taken(self) -> None:
        """A reader moved on, or came or went: free what all have, and let the process go on if it waited."""
        over = self.budget.held_bytes >= self.budget.limit_bytes
        self._trim(0 if self.released or over else WINDOW_BYTES)
        self._resume()

    def _resume(self) -> None:
        if self.on_space is not None and not self.full:
            resume, self.on_space = self.on_space, None
            resume()

    def _digest(self, stream: int) -> str:
        digest = self._digests[stream]
        return EMPTY_SHA256 if digest is None else digest.hexdigest()

    def _untaken(self) -> int:
        if not self.readers:
            return self._held
        return max(self.size - sum(reader.position) for reader in self._present())

    def _present(self) -> list[SpoolReader]:
        """Who decides how far things are: readers whose client is connected; where there is none, all."""
        return [reader for reader in self.readers if reader.attached()] or self.readers

    def _trim(self, keep: int) -> None:
        if not self.readers:
            return
        oldest = min(reader.index for reader in self._present())
        wanted = min(reader.index for reader in self.readers)
        budget = self.budget
        taken = self._held - self._untaken()
        while self._first < oldest and (taken := taken - len(self._segments[0][1])) >= keep:
            if self._first >= wanted and self._held <= self.limit_bytes and budget.held_bytes <= budget.limit_bytes:
                return  # kept for a reader who may come back, as long as there is room
            self._drop_first(lost=False)

    def _drop_first(self, *, lost: bool) -> None:
        stream, data = self._segments.popleft()
        self._first += 1
        self._base[stream] += len(data)
        self._held -= len(data)
        self.budget.held_bytes -= len(data)
        if lost:
            self._dropped[stream] += len(data)

    def at(self, index: int) -> tuple[int, bytes] | None:
        """The segment with this number, None at the end."""
        number = index - self._first
        return self._segments[number] if number < len(self._segments) else None

    def held(self, stream: int) -> bytes:
        """All that is kept of a stream."""
        return b"".join(data for number, data in self._segments if number == stream)

    @property
    def held_bytes(self) -> int:
        """Bytes that are kept, of both streams."""
        return self._held

    @property
    def size(self) -> int:
        """Bytes seen on both streams."""
        return self._seen[1] + self._seen[2]

    @property
    def first(self) -> int:
        """The number of the oldest segment kept."""
        return self._first

    def base(self, stream: int) -> int:
        """The stream's offset at the oldest segment kept."""
        return self._base[stream]


class SpoolReader:
    """One cursor. ``position`` are the per-stream offsets up to which bytes or gaps were handed out."""

    __slots__ = ("_spool", "_walk", "attached", "index", "position")

    def __init__(self, spool: Spool, attached: Callable[[], bool], position: list[int]) -> None:
        self._spool = spool
        self.attached = attached
        self.index = spool.first
        self.position = position
        self._walk = [0, spool.base(1), spool.base(2)]  # the offsets at the start of segment ``index``

    def gap(self) -> tuple[int, int] | None:
        """``(stream, bytes)`` that are gone before the next bytes; ask until None."""
        spool = self._spool
        if self.index < spool.first:
            self.index = spool.first
            self._walk = [0, spool.base(1), spool.base(2)]
        if self.index > spool.first:
            return None
        for stream in (1, 2):
            missing = spool.base(stream) - self.position[stream]
            if missing > 0:
                self.position[stream] += missing
                return stream, missing
        return None

    def take(self, room: int) -> tuple[int, bytes] | None:
        """The next bytes, at most ``room`` and a frame's worth; None when there are none or no room."""
        if room <= 0:
            return None
        spool = self._spool
        while (segment := spool.at(self.index)) is not None:
            stream, data = segment
            skip = self.position[stream] - self._walk[stream]
            size = min(room, DATA_BYTES, len(data) - skip)
            if size <= 0:
                if spool.at(self.index + 1) is None:
                    return None  # the last segment may still grow
                self._walk[stream] += len(data)
                self.index += 1
                continue
            self.position[stream] += size
            return stream, data if size == len(data) else data[skip : skip + size]
        return None

    @property
    def at_end(self) -> bool:
        """Whether everything there is was taken."""
        return sum(self.position) >= self._spool.size
