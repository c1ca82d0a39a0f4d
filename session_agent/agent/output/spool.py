"""The output of one command for as long as a client may ask for it.

Owns the bytes, their order over both streams, absolute offsets per stream, what was dropped, and the digests. Every reader has a
cursor of its own. Bytes go when all readers took them, except the last window's worth, which a client may not have received yet; that
goes with ``release``, some time after the exit was delivered. A reader that keeps leaves them for others while there is room. Readers
whose client is away hold up no connected reader: they find a gap when they were a whole spool behind. It does not read pipes nor send
(``pipes``, ``command``). Bounds: ``limits.SPOOL_*``; a full spool stops the reading (``block``) or drops the oldest with an exact count
(``tail``). When all spools together are full, ``Budget`` takes back what is wanted least, in the order of the ranks below.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from holdfast_wire.limits import DATA_BYTES, MIB, SPOOL_COMMAND_BYTES, SPOOL_SANDBOX_BYTES, WINDOW_BYTES
from holdfast_wire.records import dataclass, field

from .checksums import Sha256

EMPTY_SHA256 = Sha256().hexdigest()
ATTACHED_BYTES = 2 * MIB
"""What is held for a client that is connected but slow: beyond it the process itself has to wait."""
RECEIVED, READ, UNREAD = range(3)
"""What is reclaimed before a spool has to wait, in this order, of each the oldest first: output that is complete and that a reader
received whole; of other output what all its readers had; output that ended unread, of a command whose output is asked for later."""
_MERGE_BYTES = 16 * 1024
_SEGMENT_BYTES = 128
"""What keeping a piece takes besides its bytes."""
_NONE: deque[tuple[int, bytes]] = deque(maxlen=0)
"""The segments of all spools that hold none: an empty deque takes 760 bytes, and records of commands are kept by the thousand."""


@dataclass(slots=True)
class Budget:
    """What all spools of the sandbox hold together, bytes with what keeping them takes; which of them wait for there to be less, and
    what may be ``reclaimable`` before, by rank."""

    limit_bytes: int = SPOOL_SANDBOX_BYTES
    held_bytes: int = 0
    waiting: dict[Spool, None] = field(default_factory=dict)
    reclaimable: tuple[dict[Spool, None], ...] = field(default_factory=lambda: ({}, {}, {}))
    _short: bool = False

    @property
    def is_full(self) -> bool:
        """Whether the spools hold all they may, without reclaiming anything."""
        return self.held_bytes >= self.limit_bytes

    def is_short(self) -> bool:
        """Whether nothing more may be held, after all was reclaimed that may be."""
        for spools in self.reclaimable:
            while self.held_bytes >= self.limit_bytes and spools:
                next(iter(spools)).reclaim()
        self._short = self._short or self.held_bytes >= self.limit_bytes
        return self.held_bytes >= self.limit_bytes

    def offer(self, spool: Spool, rank: int) -> None:
        """Something of ``spool`` may be reclaimed: spools that had to wait try again."""
        self.reclaimable[rank][spool] = None
        if self._short:
            self._call()

    def shrunk(self) -> None:
        """Less is held: spools that waited for room go on, also those without readers."""
        if self._short and self.held_bytes < self.limit_bytes:
            self._short = False
            self._call()

    def _call(self) -> None:
        for spool in list(self.waiting):
            spool.resume()


class Spool:
    """Append at one end, any number of readers at the other."""

    __slots__ = (
        "_digests", "_dropped", "_ended", "_had", "_paused", "_rank", "_seen", "base", "budget", "first", "held_bytes",
        "limit_bytes", "readers", "released", "segments", "size", "tail", "yields",
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
        self.size = 0
        """Bytes seen on both streams."""
        self.held_bytes = 0
        """Bytes that are kept, of both streams."""
        self.first = 0
        """The number of the oldest segment kept."""
        self.base = [0, 0, 0]
        """Each stream's offset at the oldest segment kept."""
        self._paused: tuple[Callable[[], None], ...] = ()
        self.segments = _NONE
        self._seen = [0, 0, 0]
        self._dropped = [0, 0, 0]
        self._had = [0, 0, 0]  # as far as readers came that are gone
        self._digests: list[Sha256 | None] = [None, None, None]
        self._ended = False
        self._rank: int | None = None

    def append(self, stream: int, data: bytes) -> None:
        """Take bytes of a stream. Never refuses: the reader of the pipe checks ``full`` before the next read."""
        size, budget = len(data), self.budget
        self.size += size
        self._seen[stream] += size
        digest = self._digests[stream]
        if digest is None:
            self._digests[stream] = Sha256(data)
        else:
            digest.update(data)
        self.held_bytes += size
        if self.segments is _NONE:
            self.segments = deque()
        segments = self.segments
        if segments and segments[-1][0] == stream and len(segments[-1][1]) + size <= _MERGE_BYTES:
            segments[-1] = (stream, segments[-1][1] + data)
            budget.held_bytes += size
        else:
            segments.append((stream, data))
            budget.held_bytes += size + _SEGMENT_BYTES
        if (self.tail or self.yields) and self._gives_way():
            is_short = budget.is_full and budget.is_short()
            while len(segments) > 1 and (self.held_bytes > self.limit_bytes or is_short):
                self._drop_first(lost=True)
                is_short = budget.is_full
            budget.shrunk()
        elif budget.held_bytes >= budget.limit_bytes:
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
        """Resume the pipes that wait for room, where there is some."""
        if self._paused and not self.full:
            paused, self._paused = self._paused, ()
            self.budget.waiting.pop(self, None)
            for resume in paused:
                resume()

    def attach(self, attached: Callable[[], bool], starts: dict[int, int] | None = None, *, keep: bool = False) -> SpoolReader:
        """A reader from per-stream offsets (default: the oldest kept; older ones become a gap)."""
        position = [0, 0, 0] if starts is None else [0, *(max(0, min(starts.get(s, 0), self._seen[s])) for s in (1, 2))]
        reader = SpoolReader(self, attached, position, keep=keep)
        self.readers.append(reader)
        return reader

    def detach(self, reader: SpoolReader) -> None:
        """The reader is gone; what it did not take stays for the next one."""
        if reader in self.readers:
            self.readers.remove(reader)
            self._had = [*map(max, self._had, reader.position)]
            if self.released:
                self.release()
            if self._paused:
                self.resume()

    def end(self) -> None:
        """It grows no more."""
        self._ended = True
        for digest in self._digests:
            if digest is not None:
                digest.end()
        if self.yields and self.held_bytes:
            self._offer(UNREAD if self._rank is None else self._rank)

    def received(self, reader: SpoolReader) -> None:
        """It is complete and ``reader``, which leaves, received all of it."""
        if self.held_bytes > WINDOW_BYTES or self.budget.is_full:
            self.taken()
        self.detach(reader)
        if self.held_bytes:
            self._offer(RECEIVED)

    def release(self) -> None:
        """No other client will ask for it: free the bytes but those that readers have yet to take, keep the counts."""
        self.released = True
        self._withdraw()
        wanted = min((reader.index for reader in self.readers if not reader.at_end), default=None)
        while self.segments and (wanted is None or self.first < wanted):
            self._drop_first(lost=False)
        if not self.segments:
            self.segments = _NONE
        self.resume()
        self.budget.shrunk()

    def reclaim(self) -> None:
        """Free what may go before another spool has to wait."""
        if self._rank != READ:
            self.release()
            return
        self._withdraw()
        self._trim(0)
        if self._ended and self.yields and self.held_bytes:
            self._offer(UNREAD)

    def streams(self) -> dict[int, list[int | str]]:
        """Per stream: bytes seen, bytes that went before any reader had them, SHA-256 of all that was seen."""
        seen, dropped, (_, out, err) = self._seen, self._dropped, self._digests
        return {
            1: [seen[1], dropped[1], EMPTY_SHA256 if out is None else out.hexdigest()],
            2: [seen[2], dropped[2], EMPTY_SHA256 if err is None else err.hexdigest()],
        }

    @property
    def truncated(self) -> bool:
        """Whether anything was dropped."""
        return bool(self._dropped[1] or self._dropped[2])

    def taken(self) -> None:
        """A reader moved on, or came or went: free what all have, and resume the process if it waited."""
        self._trim(0 if self.released or self.budget.is_full else WINDOW_BYTES)
        if self.segments and self._rank is None:
            self._offer(READ)
        if self._paused:
            self.resume()

    def held(self, stream: int) -> bytes:
        """All that is kept of a stream."""
        return b"".join(data for number, data in self.segments if number == stream)

    def _offer(self, rank: int) -> None:
        """Let it be reclaimed as the newest of a rank."""
        if self._rank is not None:
            self._withdraw()
        self._rank = rank
        self.budget.offer(self, rank)

    def _withdraw(self) -> None:
        rank, self._rank = self._rank, None
        if rank is not None:
            self.budget.reclaimable[rank].pop(self, None)

    def _gives_way(self) -> bool:
        return self.tail or (self.yields and not any(reader.attached() for reader in self.readers))

    def _untaken(self) -> int:
        if not self.readers:
            return self.held_bytes
        return max(self.size - sum(reader.position) for reader in self._present())

    def _untaken_segments(self) -> int:
        """Pieces that a reader has yet to take: one that is being taken, or may still grow, does not count."""
        last = self.first + len(self.segments) - 1
        return max(0, last - max(self.first, min((reader.index for reader in self._present()), default=0)))

    def _present(self) -> list[SpoolReader]:
        """The readers that decide how far things are: those whose client is connected; where there is none, all."""
        return [reader for reader in self.readers if reader.attached()] or self.readers

    def _trim(self, keep: int) -> None:
        if not self.readers or self.held_bytes < keep:
            return
        oldest = min(reader.index for reader in self._present())
        wanted = min(self.first if reader.keep else reader.index for reader in self.readers)
        taken = self.held_bytes - self._untaken()
        while self.first < oldest and (taken := taken - len(self.segments[0][1])) >= keep:
            if self.first >= wanted and self.held_bytes <= self.limit_bytes and not self.budget.is_full:
                break  # kept for a reader who may come back, as long as there is room
            self._drop_first(lost=False)
        self.budget.shrunk()

    def _drop_first(self, *, lost: bool) -> None:
        stream, data = self.segments.popleft()
        self.first += 1
        if lost:  # but not to a reader that had it
            had = max(self.base[stream], self._had[stream], *(reader.position[stream] for reader in self.readers))
            self._dropped[stream] += max(0, self.base[stream] + len(data) - had)
        self.base[stream] += len(data)
        self.held_bytes -= len(data)
        self.budget.held_bytes -= len(data) + _SEGMENT_BYTES


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
        self._walk = spool.base[:]  # the offsets at the start of segment ``index``

    def gap(self) -> tuple[int, int] | None:
        """``(stream, bytes)`` that are gone before the next bytes; ask until None."""
        spool = self._spool
        first, base = spool.first, spool.base
        if self.index < first:
            self.index = first
            self._walk = base[:]
        if self.index == first:
            for stream in (1, 2):
                missing = base[stream] - self.position[stream]
                if missing > 0:
                    self.position[stream] += missing
                    self.missed[stream] += missing
                    return stream, missing
        return None

    def take(self, room: int) -> tuple[int, bytes] | None:
        """The next bytes, at most ``room`` and a frame's worth; None when there are none or no room."""
        if room <= 0:
            return None
        segments = self._spool.segments
        at = self.index - self._spool.first
        while at < len(segments):
            stream, data = segments[at]
            skip = self.position[stream] - self._walk[stream]
            size = min(room, DATA_BYTES, len(data) - skip)
            if size <= 0:
                at += 1
                if at == len(segments):
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
        return self.position[1] + self.position[2] >= self._spool.size
