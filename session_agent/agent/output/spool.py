"""The spool: the output of one command, kept while a client may request it.

Owns the bytes of both streams in their order, absolute offsets per stream, counts of dropped bytes, and digests. Each reader has its own
cursor. Bytes that all readers have taken are freed, except the last window, which a client may not have received; ``release`` frees that
too. Readers without a connected client do not delay connected ones; if they fall behind by a whole spool they get a gap. A full spool
stops the reading of the pipe (``block``) or drops the oldest bytes and counts them (``tail``); limits are ``limits.SPOOL_*``. If all
spools together are full, ``Budget`` reclaims output in the order of the ranks below.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from holdfast_wire.fast_dataclass import dataclass, field
from holdfast_wire.limits import DATA_BYTES, MIB, SPOOL_COMMAND_BYTES, SPOOL_SANDBOX_BYTES, WINDOW_BYTES

from .checksums import Sha256

EMPTY_SHA256 = Sha256().hexdigest()
ATTACHED_BYTES = 2 * MIB
"""Bytes held for a client that is connected but slow; beyond it the process has to wait."""
RECEIVED, READ, UNREAD = range(3)
"""Ranks of output that is reclaimed before a spool has to wait, in this order, oldest first: complete output that a reader has received;
the part of other output that all readers have taken; complete output that was never read, of a spool that ``drops_unattached``."""
_MERGE_BYTES = 16 * 1024
_SEGMENT_BYTES = 128
"""Memory that a segment takes besides its bytes."""
_NONE: deque[tuple[int, bytes]] = deque(maxlen=0)
"""The shared value of ``segments`` of all empty spools: a deque takes 760 bytes, and thousands of records are kept."""


@dataclass(slots=True)
class Budget:
    """The memory of all spools of a sandbox, with overhead; the spools that wait for room, and those that are ``reclaimable``, by rank."""

    limit_bytes: int = SPOOL_SANDBOX_BYTES
    held_bytes: int = 0
    waiting: dict[Spool, None] = field(default_factory=dict)
    reclaimable: tuple[dict[Spool, None], ...] = field(default_factory=lambda: ({}, {}, {}))
    _short: bool = False

    @property
    def is_full(self) -> bool:
        """Whether the limit is reached, before anything is reclaimed."""
        return self.held_bytes >= self.limit_bytes

    def is_short(self) -> bool:
        """Reclaim until the limit is not reached any more. True if it still is."""
        for spools in self.reclaimable:
            while self.held_bytes >= self.limit_bytes and spools:
                next(iter(spools)).reclaim()
        self._short = self._short or self.held_bytes >= self.limit_bytes
        return self.held_bytes >= self.limit_bytes

    def offer(self, spool: Spool, rank: int) -> None:
        """Some output of ``spool`` may be reclaimed: let waiting spools try again."""
        self.reclaimable[rank][spool] = None
        if self._short:
            self._resume_waiting()

    def shrunk(self) -> None:
        """Bytes were freed: let waiting spools try again."""
        if self._short and self.held_bytes < self.limit_bytes:
            self._short = False
            self._resume_waiting()

    def _resume_waiting(self) -> None:
        for spool in list(self.waiting):
            spool.resume()


class Spool:
    """The output of one command, with one writer and any number of readers."""

    __slots__ = (
        "_detached_at", "_digests", "_dropped", "_ended", "_paused", "_rank", "_seen", "base", "budget", "drops_unattached", "first",
        "held_bytes", "limit_bytes", "readers", "released", "segments", "size", "tail", "tap",
    )  # fmt: skip

    def __init__(
        self, budget: Budget, *, tail: bool = False, drops_unattached: bool = False, limit_bytes: int = SPOOL_COMMAND_BYTES
    ) -> None:
        """``tail``: drop the oldest bytes instead of blocking.

        ``drops_unattached``: do so while no reader is attached, so that a command whose output is requested later never blocks on it.
        """
        self.budget = budget
        self.tail = tail
        self.drops_unattached = drops_unattached
        self.limit_bytes = limit_bytes
        self.readers: list[SpoolReader] = []
        self.released = False
        """Whether bytes are freed as soon as the present readers have taken them."""
        self.size = 0
        """Bytes appended so far, of both streams."""
        self.held_bytes = 0
        """Bytes that are held now, of both streams."""
        self.first = 0
        """The number of the oldest segment held."""
        self.base = [0, 0, 0]
        """Each stream's offset at the start of the oldest segment held."""
        self._paused: tuple[Callable[[], None], ...] = ()
        self.segments = _NONE
        self._seen = [0, 0, 0]
        self._dropped = [0, 0, 0]
        self._detached_at = [0, 0, 0]  # the highest offsets of readers that have detached
        self._digests: list[Sha256 | None] = [None, None, None]
        self._ended = False
        self._rank: int | None = None
        self.tap: Callable[[int, bytes], None] | None = None
        """Called with what is appended, for a recording. It must not block."""

    def sizes(self) -> tuple[int, int]:
        """How many bytes were written to stdout and to stderr."""
        return self._seen[1], self._seen[2]

    def append(self, stream: int, data: bytes) -> None:
        """Append bytes of a stream, always: the reader of the pipe checks ``full`` before it reads again."""
        size, budget = len(data), self.budget
        self.size += size
        self._seen[stream] += size
        digest = self._digests[stream]
        if digest is None:
            self._digests[stream] = Sha256(data)
        else:
            digest.update(data)
        if self.tap is not None:
            self.tap(stream, data)
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
        if (self.tail or self.drops_unattached) and self._drops_oldest():
            is_short = budget.is_full and budget.is_short()
            while len(segments) > 1 and (self.held_bytes > self.limit_bytes or is_short):
                self._drop_first(lost=True)
                is_short = budget.is_full
            budget.shrunk()
        elif budget.held_bytes >= budget.limit_bytes:
            self._trim(0)

    @property
    def full(self) -> bool:
        """Whether the pipe must not be read for now."""
        if self._drops_oldest():
            return False
        untaken = self._untaken()
        if untaken >= self.limit_bytes or (untaken > 0 and self.budget.is_short()):
            return True
        if not self.readers or not all(reader.attached() for reader in self.readers):
            return False
        return untaken + self._untaken_segments() * _SEGMENT_BYTES >= ATTACHED_BYTES

    def pause(self, resume: Callable[[], None]) -> None:
        """The spool is full: call ``resume`` once when it is not any more."""
        self._paused = (*self._paused, resume)
        self.budget.waiting[self] = None

    def resume(self) -> None:
        """Resume the paused pipes, unless the spool is still full."""
        if self._paused and not self.full:
            paused, self._paused = self._paused, ()
            self.budget.waiting.pop(self, None)
            for resume in paused:
                resume()

    def attach(self, attached: Callable[[], bool], starts: dict[int, int] | None = None, *, keep: bool = False) -> SpoolReader:
        """Attach a reader at per-stream offsets (default: 0). Bytes that are not held any more are reported to it as a gap."""
        position = [0, 0, 0] if starts is None else [0, *(max(0, min(starts.get(s, 0), self._seen[s])) for s in (1, 2))]
        reader = SpoolReader(self, attached, position, keep=keep)
        self.readers.append(reader)
        return reader

    def detach(self, reader: SpoolReader) -> None:
        """Remove a reader; bytes that it has not taken stay for the next one."""
        if reader in self.readers:
            self.readers.remove(reader)
            self._detached_at = [*map(max, self._detached_at, reader.position)]
            if self.released:
                self.release()
            if self._paused:
                self.resume()

    def end(self) -> None:
        """The output is complete."""
        self._ended = True
        for digest in self._digests:
            if digest is not None:
                digest.end()
        if self.drops_unattached and self.held_bytes:
            self._offer(UNREAD if self._rank is None else self._rank)

    def received(self, reader: SpoolReader) -> None:
        """The output is complete and was sent to ``reader``, which is removed."""
        if self.held_bytes > WINDOW_BYTES or self.budget.is_full:
            self.taken()
        self.detach(reader)
        if self.held_bytes:
            self._offer(RECEIVED)

    def release(self) -> None:
        """Free all bytes that no present reader has still to take; the counts are kept. No other client will request the output."""
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
        """Free the output that this spool has offered (see the ranks)."""
        if self._rank != READ:
            self.release()
            return
        self._withdraw()
        self._trim(0)
        if self._ended and self.drops_unattached and self.held_bytes:
            self._offer(UNREAD)

    def streams(self) -> dict[int, list[int | str]]:
        """Per stream: bytes appended, bytes dropped before any reader had taken them, SHA-256 of all bytes appended."""
        seen, dropped, (_, out, err) = self._seen, self._dropped, self._digests
        return {
            1: [seen[1], dropped[1], EMPTY_SHA256 if out is None else out.hexdigest()],
            2: [seen[2], dropped[2], EMPTY_SHA256 if err is None else err.hexdigest()],
        }

    def taken(self) -> None:
        """A reader has taken bytes, or was attached or detached: free what all have taken, and resume paused pipes."""
        self._trim(0 if self.released or self.budget.is_full else WINDOW_BYTES)
        if self.segments and self._rank is None:
            self._offer(READ)
        if self._paused:
            self.resume()

    def held(self, stream: int) -> bytes:
        """All bytes of a stream that are held."""
        return b"".join(data for number, data in self.segments if number == stream)

    def _offer(self, rank: int) -> None:
        """Offer output to the budget, as the newest entry of a rank."""
        if self._rank is not None:
            self._withdraw()
        self._rank = rank
        self.budget.offer(self, rank)

    def _withdraw(self) -> None:
        rank, self._rank = self._rank, None
        if rank is not None:
            self.budget.reclaimable[rank].pop(self, None)

    def _drops_oldest(self) -> bool:
        """Whether a full spool drops its oldest bytes instead of blocking."""
        return self.tail or (self.drops_unattached and not any(reader.attached() for reader in self.readers))

    def _untaken(self) -> int:
        if not self.readers:
            return self.held_bytes
        return max(self.size - sum(reader.position) for reader in self._present())

    def _untaken_segments(self) -> int:
        """Segments that the slowest reader has not begun to take, without the last one, which may still grow."""
        last = self.first + len(self.segments) - 1
        return max(0, last - max(self.first, min((reader.index for reader in self._present()), default=0)))

    def _present(self) -> list[SpoolReader]:
        """The readers with a connected client; if there are none, all readers."""
        return [reader for reader in self.readers if reader.attached()] or self.readers

    def _trim(self, keep: int) -> None:
        if not self.readers or self.held_bytes < keep:
            return
        oldest = min(reader.index for reader in self._present())
        wanted = min(self.first if reader.keep else reader.index for reader in self.readers)
        taken = self.held_bytes - self._untaken()
        while self.first < oldest and (taken := taken - len(self.segments[0][1])) >= keep:
            if self.first >= wanted and self.held_bytes <= self.limit_bytes and not self.budget.is_full:
                break  # kept, while there is room, for a reader that may resume
            self._drop_first(lost=False)
        self.budget.shrunk()

    def _drop_first(self, *, lost: bool) -> None:
        stream, data = self.segments.popleft()
        self.first += 1
        if lost:  # count only bytes that no reader has taken
            had = max(self.base[stream], self._detached_at[stream], *(reader.position[stream] for reader in self.readers))
            self._dropped[stream] += max(0, self.base[stream] + len(data) - had)
        self.base[stream] += len(data)
        self.held_bytes -= len(data)
        self.budget.held_bytes -= len(data) + _SEGMENT_BYTES


class SpoolReader:
    """A cursor. ``position``: per-stream offsets up to which bytes or gaps were taken; ``missed``: how many bytes per stream were gaps.

    ``keep``: bytes that it takes are kept for other readers while there is room.
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
        """``(stream, bytes)`` that were dropped before the next bytes. Call until it returns None."""
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
        """``(stream, bytes)``: the next bytes, at most ``room`` and one frame; None if there are none or no room."""
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
        """Whether all bytes appended so far were taken."""
        return self.position[1] + self.position[2] >= self._spool.size
