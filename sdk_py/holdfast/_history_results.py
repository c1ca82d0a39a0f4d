"""The results of ``sandbox.history()``, and their reading from a REST answer.

Pure. Owns field names and units. All values are the sandbox's own report, which the service has only bounded.
"""

from __future__ import annotations

from typing import Any, Literal

from holdfast_wire.fast_dataclass import dataclass

from ._results import Fields, take_all


@dataclass(frozen=True, slots=True)
class PastCommand:
    """One command in the history of a sandbox, as the sandbox reports it: code in it may have changed the report."""

    command_id: str
    """Its id; of a terminal, its name. ``sandbox.follow(command_id)`` gives the output that is still held."""
    kind: Literal["command", "run", "terminal"]
    """``command`` (of ``exec`` and ``start``), ``run`` of a living shell, or ``terminal``."""
    shell: str = ""
    """The name of the shell of a ``run``."""
    line: str = ""
    """Its first line, at most 200 characters."""
    started_at: float | None = None
    """When it started, in seconds since the epoch by the sandbox's clock."""
    duration_s: float | None = None
    """How long it ran; None while it runs."""
    running: bool = False
    """Whether it has not ended."""
    exit_code: int | None = None
    """Its exit code, as in ``CommandResult``."""
    signal: str | None = None
    """The name of the signal that ended it."""
    reason: str | None = None
    """Why it was ended from outside: ``timeout``, ``oom``, ``cancelled``."""
    cpu_s: float | None = None
    """CPU time of its process and of those that it has waited for; None for a ``run``."""
    stdout_bytes: int = 0
    """How many bytes it has written to standard output."""
    stderr_bytes: int = 0
    """How many bytes it has written to standard error."""
    held_bytes: int = 0
    """How many bytes of its output the sandbox still holds."""
    pid: int | None = None
    """The id of its process in the sandbox; None for a ``run``."""


_NUMBER = (int, float)
_FIELDS: Fields = (
    ("command_id", (str,), ""), ("kind", (str,), "command"), ("shell", (str,), ""), ("line", (str,), ""), ("started_at", _NUMBER, None),
    ("duration_s", _NUMBER, None), ("running", (bool,), False), ("exit_code", (int,), None), ("signal", (str,), None),
    ("reason", (str,), None), ("cpu_s", _NUMBER, None), ("stdout_bytes", (int,), 0), ("stderr_bytes", (int,), 0), ("held_bytes", (int,), 0),
    ("pid", (int,), None),
)  # fmt: skip


def read_history(rows: list[Any]) -> list[PastCommand]:
    """The commands of an answer."""
    return [PastCommand(*take_all(row, _FIELDS)) for row in rows if isinstance(row, dict)]


PastCommand.__module__ = "holdfast"  # where it is imported from
