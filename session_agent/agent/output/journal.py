"""What happens in a sandbox, in order, while a gateway follows or records it: a bounded journal beside the history.

Owns the entries, their positions and their bounds; what is dropped is counted, so that a reader reports a gap. It exists from the first
channel ``activity`` until two minutes after the last one, so that another gateway can continue where one was killed. Nothing waits for it:
no command, no client and no pipe. Filled by ``records``, spools, terminals, sessions and file channels; read by ``commands.activity``.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from holdfast_wire.limits import JOURNAL_BYTES, JOURNAL_COMMAND_BYTES, JOURNAL_TEXT_BYTES

from .history import first_line

if TYPE_CHECKING:
    from .exit_status import ExitStatus
    from .history import Described

ENTRY_BYTES: Final = 400
"""Memory of an entry besides its content."""
_MOST_PIECES: Final = 64
"""So much output joins the entry of the command that has just started."""

Entry = dict[str, Any]


class Journal:
    """The entries since it was begun, as far as there is room. Times are of the sandbox's clock, in seconds since the epoch."""

    def __init__(self, limit_bytes: int = JOURNAL_BYTES) -> None:
        self.epoch = os.urandom(8).hex()
        """Distinguishes the positions of this journal from those of another one."""
        self.began_at = time.time()
        self.next = 1
        """The position of the next entry."""
        self.content = False
        """Whether anything wants output and input too."""
        self.entries: deque[tuple[int, Entry]] = deque()
        """Sizes and entries; the positions are consecutive."""
        self.dropped_at = 0.0
        """The time of the latest entry that was dropped."""
        self.readers: dict[Callable[[], None], None] = {}
        """Called when there is a new entry."""
        self.taken = 0
        """The latest position that a reader has read: what came after it may still grow."""
        self.noted_bytes = 0
        """Memory of all entries since the beginning, those that were dropped included."""
        self._limit_bytes = limit_bytes
        self._held_bytes = 0
        self._open: dict[str, tuple[int, Entry]] = {}
        """The entries of commands that run, with their positions."""
        self._recorded: dict[str, int] = {}
        """So many bytes of each running command's output and input are or were in it."""

    @property
    def first(self) -> int:
        """The position of the oldest entry."""
        return self.next - len(self.entries)

    def note(self, kind: str, facts: Entry, size_bytes: int = 0) -> Entry:
        """Add an entry."""
        entry = {"n": self.next, "t": time.time(), "type": kind, **facts}
        self.next += 1
        self.entries.append((ENTRY_BYTES + size_bytes, entry))
        self._grow(ENTRY_BYTES + size_bytes)
        for wake in self.readers:
            wake()
        return entry

    def began(self, record: Described, text: str | bytes = "", size: tuple[int, int] | None = None) -> None:
        """A command was accepted. ``text``: all of it; ``size``: rows and columns of its terminal."""
        line = first_line(record.head)
        facts: Entry = {"id": record.command_id, "kind": record.kind, "shell": record.shell, "line": line}
        if size is not None:
            facts |= {"rows": size[0], "cols": size[1]}
        cost = len(line)
        if self.content:
            data = text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape")
            facts["command"] = data[:JOURNAL_TEXT_BYTES]
            cost += len(facts["command"])
            self._tap(record)
        position = self.next
        self._open[record.command_id] = position, self.note("command_started", facts, cost)

    def found(self, record: Described) -> None:
        """A command that runs already when the journal begins, or when content is wanted for the first time."""
        self.began(record, first_line(record.head))
        entry = self._open[record.command_id][1]
        entry["late"] = True
        if self.content:
            for stream in (1, 2):
                if held := record.spool.held(stream):
                    self.output(record.command_id, stream, held[-JOURNAL_COMMAND_BYTES:])

    def ended(self, record: Described, exit_status: ExitStatus) -> None:
        """A command has ended."""
        cause = exit_status.cause
        stdout, stderr = record.spool.sizes()
        self._end(
            record.command_id,
            {
                "duration_s": exit_status.duration_s,
                "exit_code": exit_status.exit_code,
                "signal": exit_status.signal,
                "reason": None if cause is None else cause["reason"],
                "cpu_s": record.cpu_s,
                "stdout_bytes": stdout,
                "stderr_bytes": stderr,
            },
        )

    def withdrawn(self, record: Described) -> None:
        """A command was not started after all."""
        self._end(record.command_id, {"reason": "not_started"})

    def output(self, command_id: str, stream: int, data: bytes) -> None:
        """A command has written. What exceeds the limit of one command is left out; the end of the command has the whole size."""
        self._piece(command_id, "output", stream, data)

    def input(self, command_id: str, data: bytes) -> None:
        """A client has typed into a terminal."""
        if self.content:
            self._piece(command_id, "input", 0, data)

    def resized(self, command_id: str, rows: int, columns: int) -> None:
        """A client has changed the size of a terminal."""
        self.note("resized", {"id": command_id, "rows": rows, "cols": columns})

    def _piece(self, command_id: str, kind: str, stream: int, data: bytes) -> None:
        used = self._recorded.get(command_id, 0)
        piece = data[: max(JOURNAL_COMMAND_BYTES - used, 0)]
        if not self.content or not piece:
            return
        self._recorded[command_id] = used + len(piece)
        open_ = self._open.get(command_id)
        if kind == "output" and open_ is not None and open_[0] > self.taken and open_[0] == self.next - 1:
            pieces = open_[1].setdefault("output", [])
            if len(pieces) < _MOST_PIECES:  # no reader has it yet, and nothing came after it: one entry instead of three
                pieces.append([time.time() - open_[1]["t"], stream, piece])
                self._resize(len(piece) + 100)
                return
        facts = {"id": command_id, "data": piece}
        self.note(kind, facts | {"stream": stream} if kind == "output" else facts, len(piece))

    def _end(self, command_id: str, facts: Entry) -> None:
        open_ = self._open.pop(command_id, None)
        self._recorded.pop(command_id, None)
        if open_ is not None and open_[0] > self.taken and open_[0] == self.next - 1:
            open_[1]["ended"] = facts
            self._resize(200)
            return
        self.note("command_ended", {"id": command_id, **facts})

    def _tap(self, record: Described) -> None:
        command_id = record.command_id

        def tap(stream: int, data: bytes) -> None:
            self.output(command_id, stream, data)

        record.spool.tap = tap

    def _resize(self, more_bytes: int) -> None:
        """The newest entry has grown."""
        size, entry = self.entries[-1]
        self.entries[-1] = size + more_bytes, entry
        self._grow(more_bytes)

    def _grow(self, more_bytes: int) -> None:
        self._held_bytes += more_bytes
        self.noted_bytes += more_bytes
        while self._held_bytes > self._limit_bytes and len(self.entries) > 1:
            size, entry = self.entries.popleft()
            self._held_bytes -= size
            self.dropped_at = entry["t"]
