"""The output of one command for as long as a client may ask for it.

Owns the bytes, their order over both streams, absolute offsets per stream, what was dropped, and the digests. Every reader has a
cursor of its own. Bytes go when all readers took them, except the last window's worth, which a client may not have received yet; that
goes with ``release``, some time after the exit was delivered. A reader that keeps leaves them for others while there is room. Readers
whose client is away hold up no connected reader: they find a gap when they were a whole spool behind. It does not read pipes nor send
(``pipes``, ``command``). Bounds: ``limits.SPOOL_*``; a full spool stops the reading (``block``) or drops the oldest with an exact count
(``tail``).
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from holdfast_wire.limits import DATA_BYTES, MIB, SPOOL_COMMAND_BYTES, SPOOL_SANDBOX_BYTES, WINDOW_BYTES

if TYPE_CHECKING:
    from hashlib import _Hash

EMPTY_SHA256 = hashlib.sha256().hexdigest()
ATTACHED_BYTES = 2 * MIB
"""What is held for a client that is connected but slow: beyond it the process itself has to wait."""
_MERGE_BYTES = 16 * 1024
_SEGMENT_BYTES = 128
"""What keeping a piece takes besides its bytes."""
_NONE: deque[tuple[int, bytes]] = deque(maxlen=0)
"""The segments of all spools that hold none: an empty deque takes 760 bytes, and records of commands are kept by the thousand."""


@dataclass(slots=True)
class Budget:
    """What all spools of the sandbox hold together, bytes with what keeping them takes; who waits for there to be less, and what may
    go before any reader waits: ``spare`` altogether, of ``kept`` what its readers had, then ``over``, which no reader had."""

    limit_bytes: int = SPOOL_SANDBOX_BYTES
    held_bytes: int = 0
    waiting: dict[Spool, None] = field(default_factory=dict)
    spare: dict[Spool, None] = field(default_factory=dict)
    kept: dict[Spool, None] = field(default_factory=dict)
    over: dict[Spool, None] = field(default_factory=dict)
    _short: bool = False

    def is_short(self) -> bool:
        """Whether nothing more may be held. What a reader has received whole goes first, the oldest of it."""
        while self.held_bytes >= self.limit_bytes and self.spare:
            next(iter(self.spare)).release()
        while self.held_bytes >= self.limit_bytes and self.kept:
            next(iter(self.kept)).forget()
        while self.held_bytes >= self.limit_bytes and self.over:
            next(iter(self.over)).release()
        if self.held_bytes >= self.limit_bytes:
            self._short = True
            return True
        return False

    def shrunk(self) -> None:
        """Less is held: spools that waited for room go on, also those without readers."""
        if self._short and self.held_bytes < self.limit_bytes:
            self._short = False
            self._call()

    def eased(self) -> None:
        """More may go than when a spool had to wait: that is tried again."""
        if self._short:
            self._call()

    def _call(self) -> None:
        for spool in list(self.waiting):
            spool.resume()


class Spool:
    """Append at one end, any number of readers at the other."""

    __slots__ = (
        "_base", "_digests", "_dropped", "_first", "_had", "_held", "_paused", "_seen", "_segments", "budget", "limit_bytes",
        "readers", "released", "tail", "yields",
    )  # fmt: skip

    def __init__(self, budget: Budget, *, tail: bool = False, yields: bool = False, limit_bytes: int = SPOOL_COMMAND_BYTES) -> None:
        """``yields``: as ``tail`` while it has no reader, so that a command whose output is asked for later never waits for that."""
        self.budget = budget
        self.tail = tail
        self.yields = yields
        self.limit_bytes = limit_bytes
        self.readers: list[SpoolReader] = []
        self.released = False
        """Whether bytes go as soon as the present readers have them."""
        self._paused: tuple[Callable[[], None], ...] = ()
        self._segments = _NONE
        self._first = 0
        self._base = [0, 0, 0]
        self._seen = [0, 0, 0]
        self._dropped = [0, 0, 0]
        self._had = [0, 0, 0]  # as far as readers came that are gone
        self._held = 0
        self._digests: list[_Hash | None] = [None, None, None]

    def append(self, stream: int, data: bytes) -> None:
        """Take bytes of a stream. Never refuses: the reader of the pipe checks ``full`` before the next read."""
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
            self.budget.held_bytes += _SEGMENT_BYTES
        if self._gives_way():
            is_short = self._crowded() and self.budget.is_short()
            while len(segments) > 1 and (self._held > self.limit_bytes or is_short):
                self._drop_first(lost=True)
                is_short = self._crowded()
            self.budget.shrunk()
        elif self._crowded():
            self._trim(0)

    @property
    def full(self) -> bool:
        """Whether reading the process has to wait."""
        if self._gives_way():
            return False
        untaken = self._untaken()
        if untaken >= self.limit_bytes or (untaken > 0 and self.budget.is_short()):
            return True
        if not self.readers or not all(reader.attached() for reader in self.readers):
            return False
        return untaken + self._untaken_segments() * _SEGMENT_BYTES >= ATTACHED_BYTES

    def pause(self, resume: Callable[[], None]) -> None:
        """It is full: ``resume`` is called, once, when it no longer is."""
        self._paused = (*self._paused, resume)
        self.budget.waiting[self] = None

    def resume(self) -> None:
        """Let who waits for room go on, where there is some."""
        if self._paused and not self.full:
            paused, self._paused = self._paused, ()
            self.budget.waiting.pop(self, None)
            for resume in paused:
                resume()

    def attach(self, attached: Callable[[], bool], starts: dict[int, int] | None = None, *, keep: bool = False) -> SpoolReader:
        """A reader from per-stream offsets (default: the oldest kept; older ones become a gap)."""
        starts = starts or {}
        reader = SpoolReader(self, attached, [0] + [max(0, min(starts.get(s, 0), self._seen[s])) for s in (1, 2)], keep=keep)
        self.readers.append(reader)
        return reader

    def detach(self, reader: SpoolReader) -> None:
        """The reader is gone; what it did not take stays for the next one."""
        if reader in self.readers:
            self.readers.remove(reader)
            self._had = [*map(max, self._had, reader.position)]
            if self.released:
                self.release()
            self.resume()

    def end(self) -> None:
        """It grows no more."""
        if self.yields and self._held:
            self.budget.over[self] = None
            self.budget.eased()

    def spare(self) -> None:
        """It is complete and a reader has received all of it: what is kept of it goes before another spool has to wait."""
        if self._held:
            self.budget.spare.pop(self, None)
            self.budget.spare[self] = None
            self.budget.eased()

    def release(self) -> None:
        """Nobody else will want it: free the bytes but those that readers have yet to take, keep the counts."""
        self.released = True
        self.budget.spare.pop(self, None)
        self.budget.kept.pop(self, None)
        self.budget.over.pop(self, None)
        wanted = min((reader.index for reader in self.readers if not reader.at_end), default=None)
        while self._segments and (wanted is None or self._first < wanted):
            self._drop_first(lost=False)
        if not self._segments:
            self._segments = _NONE
        self.resume()
        self.budget.shrunk()

    def streams(self) -> dict[int, list[int | str]]:
        """Per stream: bytes seen, bytes that went before anybody had them, SHA-256 of all that was seen."""
        return {stream: [self._seen[stream], self._dropped[stream], self._digest(stream)] for stream in (1, 2)}

    @property
    def truncated(self) -> bool:
        """Whether anything was dropped."""
        return bool(self._dropped[1] or self._dropped[2])

    def taken(self) -> None:
        """A reader moved on, or came or went: free what all have, and let the process go on if it waited."""
        over = self.budget.held_bytes >= self.budget.limit_bytes
        self._trim(0 if self.released or over else WINDOW_BYTES)
        if self._segments:
            self.budget.kept[self] = None
        self.resume()

    def forget(self) -> None:
        """What all readers had goes, to the last byte."""
        self.budget.kept.pop(self, None)
        self._trim(0)

    def _gives_way(self) -> bool:
        return self.tail or (self.yields and not any(reader.attached() for reader in self.readers))

    def _crowded(self) -> bool:
        return self.budget.held_bytes >= self.budget.limit_bytes

    def _digest(self, stream: int) -> str:
        digest = self._digests[stream]
        return EMPTY_SHA256 if digest is None else digest.hexdigest()

    def _untaken(self) -> int:
        if not self.readers:
            return self._held
        return max(self.size - sum(reader.position) for reader in self._present())

    def _untaken_segments(self) -> int:
        """Pieces that a reader has yet to take: one that is being taken, or may still grow, does not count."""
        last = self._first + len(self._segments) - 1
        return max(0, last - max(self._first, min((reader.index for reader in self._present()), default=0)))

    def _present(self) -> list[SpoolReader]:
        """Who decides how far things are: readers whose client is connected; where there is none, all."""
        return [reader for reader in self.readers if reader.attached()] or self.readers

    def _trim(self, keep: int) -> None:
        if not self.readers:
            return
        oldest = min(reader.index for reader in self._present())
        wanted = min(self._first if reader.keep else reader.index for reader in self.readers)
        taken = self._held - self._untaken()
        while self._first < oldest and (taken := taken - len(self._segments[0][1])) >= keep:
            if self._first >= wanted and self._held <= self.limit_bytes and not self._crowded():
                break  # kept for a reader who may come back, as long as there is room
            self._drop_first(lost=False)
        self.budget.shrunk()

    def _drop_first(self, *, lost: bool) -> None:
        stream, data = self._segments.popleft()
        self._first += 1
        if lost:  # but not to a reader that had it
            had = max(self._base[stream], self._had[stream], *(reader.position[stream] for reader in self.readers))
            self._dropped[stream] += max(0, self._base[stream] + len(data) - had)
        self._base[stream] += len(data)
        self._held -= len(data)
        self.budget.held_bytes -= len(data) + _SEGMENT_BYTES

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
    """One cursor. ``position`` are the per-stream offsets up to which bytes or gaps were delivered.

    ``missed`` is how many of each stream were gaps. ``keep``: what it takes stays for others, as long as there is room.
    """

    __slots__ = ("_spool", "_walk", "attached", "index", "keep", "missed", "position")

    def __init__(self, spool: Spool, attached: Callable[[], bool], position: list[int], *, keep: bool = False) -> None:
        self._spool = spool
        self.attached = attached
        self.keep = keep
        self.index = spool.first
        self.position = position
        self.missed = [0, 0, 0]
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
                self.missed[stream] += missing
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
