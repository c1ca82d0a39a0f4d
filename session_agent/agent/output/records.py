"""The records of all commands of a sandbox, by command id; they make sure that a command runs at most once.

Owns get-or-create by id, the fingerprints that distinguish a repeated request from a conflicting one, and the pruning of records: a record
is kept until its result was delivered and five more minutes. The id of a pruned record is remembered, so that it never runs again. Knows no
process and no clock: times are arguments. Called by ``command`` and ``shell``.
"""

from __future__ import annotations

import hashlib
import logging
from collections import deque
from operator import itemgetter
from time import time
from typing import TYPE_CHECKING, Any, Protocol

import msgpack
from holdfast_wire.errors import HoldfastError
from holdfast_wire.limits import ID_BYTES, KEPT_COMMAND_BYTES, KEPT_SANDBOX_BYTES, KIB, RECORDS, Timing

from .exit_status import ExitStatus
from .history import HEAD, History, first_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from .journal import Journal
    from .spool import Spool

log = logging.getLogger("session_agent.agent.output.records")

_NAME = itemgetter(0)
_PACKER_BYTES = 1024
"""Initial buffer of the packer, enough for most requests. The default size takes three times as long to allocate."""

_PRUNED_IDS = 200_000
_RECORD_OVERHEAD_BYTES = 1 * KIB
"""Memory that a record with output takes besides the bytes of the output."""


class Owner(Protocol):
    """What runs a live command: a ``Command``, a ``Terminal`` or the ``Run`` of a shell."""

    def signal(self, name: str) -> None:
        """Signal it."""
        ...

    def feed(self, data: bytes, eof: bool, consumed: Callable[[int], None]) -> None:
        """Write to its standard input; ``consumed`` is called with the number of bytes that were used."""
        ...

    def cancel(self) -> None:
        """Kill it and every process that it started."""
        ...


class Record:
    """One command. ``exit_status`` is None until it has ended; ``error`` is set instead if it could not be started."""

    __slots__ = (
        "began_at",
        "command_id",
        "cpu_s",
        "ended_at",
        "error",
        "exit_status",
        "fingerprint",
        "followers",
        "head",
        "info",
        "kind",
        "lasting",
        "owner",
        "shell",
        "spool",
        "started",
    )

    def __init__(self, command_id: str, fingerprint: bytes, spool: Spool, kind: str = "", text: str | bytes = "", shell: str = "") -> None:
        """``kind``: ``command``, ``run`` of a shell or ``terminal``; empty for one that the history does not show."""
        self.command_id = command_id
        self.fingerprint = fingerprint
        self.spool = spool
        self.owner: Owner | None = None
        self.started = False
        self.lasting = False
        """Whether the record and its output are kept as long as the sandbox lives."""
        self.info: dict[str, Any] = {}
        self.exit_status: ExitStatus | None = None
        self.error: HoldfastError | None = None
        self.ended_at = 0.0
        self.followers: list[Callable[[], None]] = []
        self.kind = kind
        self.shell = shell
        self.head = text[:HEAD]
        """The beginning of its text."""
        self.began_at = time()
        self.cpu_s: float | None = None
        """Seconds of CPU time of its process and those that it has waited for; None if that is not known."""

    @property
    def line(self) -> str:
        """The first line of its text."""
        return first_line(self.head)

    def notify(self) -> None:
        """Notify all followers: the record or its output has changed."""
        for follower in self.followers[:]:
            try:
                follower()
            except Exception:
                log.exception("a follower of command %.140s failed", self.command_id)


class Records:
    """All commands of the sandbox by id."""

    def __init__(self, timing: Timing | None = None, *, most: int = RECORDS) -> None:
        self._timing = timing or Timing()
        self._most = most
        self._records: dict[str, Record] = {}
        self._unacknowledged: dict[str, Record] = {}
        self._delivered: deque[tuple[float, Record]] = deque()
        self._kept: deque[tuple[Record, int]] = deque()
        self._kept_bytes = 0
        self._pruned: dict[bytes, None] = {}
        self._refused: HoldfastError | None = None
        self._interrupted: set[str] = set()
        self.history = History()
        self.journal: Journal | None = None
        """While a gateway follows what happens."""
        self.latest_end = 0.0
        """When a command ended most recently."""

    def __len__(self) -> int:
        return len(self._records)

    def find(self, command_id: str, fingerprint: bytes) -> Record | None:
        """The command of this id, None for a new one. Raises ``command_conflict`` and ``pruned``."""
        record = self._records.get(command_id)
        if record is None:
            if self._pruned and _digest(command_id) in self._pruned:
                raise HoldfastError("pruned", f"command {command_id!r:.140} ran and its record was removed")
            return None
        if record.fingerprint != fingerprint:
            raise HoldfastError("command_conflict", f"command {command_id!r:.140} exists with other parameters")
        return record

    def running(self) -> list[Record]:
        """The commands that have not ended, those of shells included."""
        return [record for record in self._records.values() if record.exit_status is None and record.error is None]

    def get(self, command_id: str) -> Record:
        """The command of this id. Raises ``command_not_found`` and ``pruned``."""
        record = self._records.get(command_id)
        if record is not None:
            return record
        if _digest(command_id) in self._pruned:
            raise HoldfastError("pruned", f"command {command_id!r:.140} ran and its record was removed")
        raise HoldfastError("command_not_found", f"there is no command {command_id!r:.140}")

    def held_bytes(self, command_id: str) -> int:
        """How many bytes of a command's output ``follow`` still gives."""
        record = self._records.get(command_id)
        return 0 if record is None else record.spool.held_bytes

    @property
    def undelivered(self) -> bool:
        """Whether a command ended and no client has received its result."""
        return bool(self._unacknowledged)

    def refuse(self, why: HoldfastError) -> None:
        """Refuse all new commands from now on, with this error."""
        self._refused = why

    def interrupt(self) -> None:
        """The sandbox is being stopped: the results of commands that run now are not sent, because the stop is what ends them."""
        self._interrupted = {command_id for command_id, record in self._records.items() if record.exit_status is None}

    def create(self, command_id: str, fingerprint: bytes, spool: Spool, kind: str = "", text: str | bytes = "", shell: str = "") -> Record:
        """A new entry, after ``find`` returned None; the other arguments as of ``Record``. Raises what ``refuse`` was given."""
        if self._refused is not None:
            raise self._refused
        record = self._records[command_id] = Record(command_id, fingerprint, spool, kind, text, shell)
        return record

    def ended(self, record: Record, exit_status: ExitStatus) -> None:
        """Note the end of a command that has a kind."""
        self.history.add(record, exit_status)
        if self.journal is not None:
            self.journal.ended(record, exit_status)

    def keep(self, record: Record) -> None:
        """Never prune the record, even after its result was delivered."""
        record.lasting = True
        self._unacknowledged.pop(record.command_id, None)

    def forget(self, record: Record) -> None:
        """Remove a command that never started; its id may be used again."""
        if self._records.get(record.command_id) is record:
            del self._records[record.command_id]
            if self.journal is not None and record.kind:
                self.journal.withdrawn(record)
        record.spool.release()

    def fail(self, record: Record, error: HoldfastError) -> None:
        """Remove a command whose start failed after ``create``, and pass the error to its followers."""
        record.owner = None
        record.error = error
        self.forget(record)
        record.notify()

    def finish(self, record: Record, exit_status: ExitStatus, now: float) -> None:
        """Store the result before the resources of the command are released, then notify its followers."""
        if record.command_id in self._interrupted:
            record.owner = None
            record.notify()  # its last output is still sent
            return
        self.latest_end = now
        record.exit_status = exit_status
        record.ended_at = now
        record.owner = None
        record.spool.end()
        if not record.lasting:
            self._unacknowledged[record.command_id] = record
        record.notify()
        if record.kind:  # the history is written after the result was sent
            self.ended(record, exit_status)
        self.prune(now)

    def delivered(self, command_id: str, now: float) -> None:
        """A client has received the result: the record may be pruned later.

        Large output is freed now. If its spool ``drops_unattached`` it is kept until the memory is needed.
        """
        record = self._unacknowledged.pop(command_id, None)
        if record is None:
            return
        self._delivered.append((now, record))
        held_bytes = record.spool.held_bytes
        if held_bytes > KEPT_COMMAND_BYTES:
            if not record.spool.drops_unattached:
                record.spool.release()
        elif held_bytes:
            self._kept.append((record, held_bytes + _RECORD_OVERHEAD_BYTES))
            self._kept_bytes += held_bytes + _RECORD_OVERHEAD_BYTES
            while self._kept_bytes > KEPT_SANDBOX_BYTES:
                self._free_oldest_output()

    def prune(self, now: float) -> None:
        """Remove old records, and if there are too many also newer ones, those with delivered results first."""
        delivered, waiting = self._delivered, self._unacknowledged
        while delivered and (delivered[0][0] + self._timing.record_ttl_s <= now or len(self._records) > self._most):
            self._remove(delivered.popleft()[1])
        while waiting:
            oldest = next(iter(waiting.values()))
            if oldest.ended_at + self._timing.record_max_age_s > now and len(self._records) <= self._most:
                break
            del waiting[oldest.command_id]
            self._remove(oldest)

    def _remove(self, record: Record) -> None:
        if self._records.get(record.command_id) is not record:
            return
        del self._records[record.command_id]
        if self._kept and self._kept[0][0] is record:
            self._free_oldest_output()
        record.spool.release()
        self._pruned[_digest(record.command_id)] = None
        if len(self._pruned) > _PRUNED_IDS:
            del self._pruned[next(iter(self._pruned))]

    def _free_oldest_output(self) -> None:
        oldest, kept_bytes = self._kept.popleft()
        self._kept_bytes -= kept_bytes
        oldest.spool.release()


def check_id(command_id: object) -> str:
    """The id as text. Raises ``invalid_argument``."""
    if not isinstance(command_id, str) or not 0 < len(command_id.encode(errors="replace")) <= ID_BYTES:
        raise HoldfastError("invalid_argument", f"a command id must be a string of 1 to {ID_BYTES} bytes")
    return command_id


def fingerprint(kind: str, params: dict[str, Any]) -> bytes:
    """A digest of the parameters: equal for a repeated request, different for another request with the same id."""
    try:
        items = sorted(params.items(), key=_NAME)
    except TypeError:  # keys of different types
        items = sorted(params.items(), key=lambda item: str(item[0]))
    packed = msgpack.Packer(use_bin_type=True, buf_size=_PACKER_BYTES).pack([kind, items])
    return hashlib.blake2b(packed, digest_size=16).digest()


def _digest(command_id: str) -> bytes:
    return hashlib.blake2b(command_id.encode(errors="replace"), digest_size=8).digest()
