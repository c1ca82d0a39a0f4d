"""The progress of a map: on a terminal one line that is rewritten; in a file a line at most every ten seconds.

Owns the text of the line: how many items are done, how many of these failed, and how many of those because of the infrastructure. Called by
``map`` of both APIs.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import TextIO

from holdfast._errors import HoldfastError

_WIDTH = 30
_TERMINAL_S = 0.1
_FILE_S = 10.0


class Progress:
    """``shown`` None: print to standard error if it is a terminal. ``now`` is a clock in seconds."""

    def __init__(
        self, total: int, shown: bool | None = None, stream: TextIO | None = None, now: Callable[[], float] = time.monotonic
    ) -> None:
        self.stream = stream or sys.stderr
        terminal = self.stream.isatty()
        self.shown = terminal if shown is None else shown
        self.total = total
        self.done = self.failed = self.infrastructure = 0
        self._between_s = _TERMINAL_S if terminal else _FILE_S
        self._before, self._after = ("\r", "") if terminal else ("", "\n")
        self._now = now
        self._began = self._shown_at = now()
        self._lock = threading.Lock()
        if self.shown and total:
            self._show()

    def step(self, outcome: object) -> None:
        """Count one more item, which gave a result or an exception."""
        with self._lock:
            self.done += 1
            if isinstance(outcome, BaseException):
                self.failed += 1
                self.infrastructure += isinstance(outcome, HoldfastError) and outcome.is_infrastructure
            if self.shown and (self.done == self.total or self._now() - self._shown_at >= self._between_s):
                self._show()

    def _show(self) -> None:
        self._shown_at = self._now()
        end = "\n" if self.done == self.total else self._after
        self.stream.write(self._before + self.line() + end)
        self.stream.flush()

    def line(self) -> str:
        """The line for the current numbers."""
        filled = _WIDTH * self.done // max(self.total, 1)
        failed = f", {self.failed} failed ({self.infrastructure} infrastructure)" if self.failed else ""
        return f"[{'#' * filled}{'.' * (_WIDTH - filled)}] {self.done}/{self.total}{failed}, {self._now() - self._began:.0f} s"
