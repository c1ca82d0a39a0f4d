"""The last commands of a sandbox after their records are gone: what ran, when, how it ended and what it used.

Owns how many are remembered, in number and bytes, and the map of each. ``records`` adds a command when it ends; ``commands.history`` sends
them. Times are of the wall clock, because people read them.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

from holdfast_wire.limits import HISTORY_BYTES, HISTORY_COMMANDS, HISTORY_LINE_CHARACTERS

if TYPE_CHECKING:
    from .exit_status import ExitStatus
    from .spool import Spool

_ENTRY_BYTES = 600
"""Memory of an entry besides its texts."""


class Described(Protocol):
    """What the history needs of a ``records.Record``."""

    command_id: str
    kind: str
    shell: str
    line: str
    began_at: float
    cpu_s: float | None
    spool: Spool


def first_line(text: str | bytes) -> str:
    """The first line of a command that is not empty, cut to what an entry keeps."""
    head = text[: 4 * HISTORY_LINE_CHARACTERS]
    if isinstance(head, bytes):
        head = head.decode("utf-8", "replace")
    return head.lstrip().partition("\n")[0][:HISTORY_LINE_CHARACTERS]


class History:
    """The commands that have ended, the oldest first."""

    def __init__(self, *, most: int = HISTORY_COMMANDS, most_bytes: int = HISTORY_BYTES) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._held_bytes = 0
        self.entries: deque[tuple[int, dict[str, Any]]] = deque()

    def add(self, record: Described, exit_status: ExitStatus) -> None:
        """A command has ended."""
        now = time.time()
        cause = exit_status.cause
        entry = described(record) | {
            "started_at": now - exit_status.duration_s,
            "duration_s": exit_status.duration_s,
            "running": False,
            "exit_code": exit_status.exit_code,
            "signal": exit_status.signal,
            "reason": None if cause is None else cause["reason"],
            "cpu_s": record.cpu_s,
        }
        size = _ENTRY_BYTES + len(entry["id"]) + 4 * len(entry["line"]) + len(entry["shell"])
        self.entries.append((size, entry))
        self._held_bytes += size
        while self._held_bytes > self._most_bytes or len(self.entries) > self._most:
            self._held_bytes -= self.entries.popleft()[0]


def described(record: Described) -> dict[str, Any]:
    """The map of a command that has not ended."""
    stdout, stderr = record.spool.sizes()
    return {
        "id": record.command_id,
        "kind": record.kind,
        "shell": record.shell,
        "line": record.line,
        "started_at": record.began_at,
        "running": True,
        "stdout_bytes": stdout,
        "stderr_bytes": stderr,
    }
