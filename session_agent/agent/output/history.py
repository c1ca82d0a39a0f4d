"""The last commands of a sandbox after their records are gone: what ran, when, how it ended and what it used.

Owns how many are remembered, in number and bytes, and the map of each. ``records`` adds a command when it ends; ``commands.history`` sends
them. Times are of the wall clock, because people read them.
"""

from __future__ import annotations

from collections import deque
from time import time
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from holdfast_wire.limits import HISTORY_BYTES, HISTORY_COMMANDS, HISTORY_LINE_CHARACTERS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .exit_status import ExitStatus
    from .spool import Spool

_ENTRY_BYTES = 650
"""Memory of an entry besides the text of its command."""
HEAD = 4 * HISTORY_LINE_CHARACTERS
"""How much of a command's text is kept until its first line is wanted."""


class Described(Protocol):
    """What the history needs of a ``records.Record``."""

    command_id: str
    kind: str
    shell: str
    head: str | bytes
    began_at: float
    cpu_s: float | None
    info: dict[str, Any]
    spool: Spool


def first_line(text: str | bytes) -> str:
    """The first line of a command that is not empty, cut to what an entry keeps."""
    head = text[:HEAD]
    if isinstance(head, bytes):
        head = head.decode("utf-8", "replace")
    return head.lstrip().partition("\n")[0][:HISTORY_LINE_CHARACTERS]


class _Entry(NamedTuple):
    """What is kept of a command. Few of them are ever read, so its line is cut and a map is made only then."""

    ended_at: float
    command_id: str
    kind: str
    shell: str
    head: str | bytes
    cpu_s: float | None
    pid: int | None
    sizes: tuple[int, int]
    exit_status: ExitStatus
    size_bytes: int


class History:
    """The commands that have ended, the oldest first."""

    def __init__(self, *, most: int = HISTORY_COMMANDS, most_bytes: int = HISTORY_BYTES) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._entries: deque[_Entry] = deque()
        self.held_bytes = 0
        """Memory that the entries take."""

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """The map of each command."""
        for entry in self._entries:
            status = entry.exit_status
            cause = status.cause
            yield _described(entry, entry.pid, entry.sizes) | {
                "started_at": entry.ended_at - status.duration_s,
                "duration_s": status.duration_s,
                "running": False,
                "exit_code": status.exit_code,
                "signal": status.signal,
                "reason": None if cause is None else cause["reason"],
                "cpu_s": entry.cpu_s,
            }

    def add(self, record: Described, exit_status: ExitStatus) -> None:
        """A command has ended."""
        head = record.head
        size = _ENTRY_BYTES + head.__sizeof__()
        entries = self._entries
        entries.append(
            _new_entry(
                (
                    time(),
                    record.command_id,
                    record.kind,
                    record.shell,
                    head,
                    record.cpu_s,
                    record.info.get("pid"),
                    record.spool.sizes(),
                    exit_status,
                    size,
                )
            )
        )
        self.held_bytes += size
        while self.held_bytes > self._most_bytes or len(entries) > self._most:
            self.held_bytes -= entries.popleft().size_bytes


_new_entry = _Entry._make
"""From a tuple: less than a third of the time of a call with names."""


def described(record: Described) -> dict[str, Any]:
    """The map of a command that has not ended."""
    return _described(record, record.info.get("pid"), record.spool.sizes()) | {"started_at": record.began_at, "running": True}


def _described(command: Described | _Entry, pid: int | None, sizes: tuple[int, int]) -> dict[str, Any]:
    return {
        "id": command.command_id,
        "kind": command.kind,
        "shell": command.shell,
        "pid": pid,
        "line": first_line(command.head),
        "stdout_bytes": sizes[0],
        "stderr_bytes": sizes[1],
    }
