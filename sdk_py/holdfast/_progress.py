"""How far a map is: one line on a terminal, rewritten as items are done.

Owns the line. It says how many are done, how many of them failed and of these how many by infrastructure. Called by ``map`` of both faces.
"""

from __future__ import annotations

import sys
import threading
import time
from typing import TextIO

from holdfast._errors import HoldfastError

_WIDTH = 30
_LEAST_S = 0.1


class Progress:
    """``shown`` None: on standard error where that is a terminal."""

    def __init__(self, total: int, shown: bool | None = None, stream: TextIO | None = None) -> None:
        self.stream = stream or sys.stderr
        self.shown = self.stream.isatty() if shown is None else shown
        self.total = total
        self.done = self.failed = self.infrastructure = 0
        self._began = time.monotonic()
        self._said_at = 0.0
        self._lock = threading.Lock()

    def step(self, outcome: object) -> None:
        """One more is done, with a result or an exception."""
        with self._lock:
            self.done += 1
            if isinstance(outcome, BaseException):
                self.failed += 1
                self.infrastructure += isinstance(outcome, HoldfastError) and outcome.is_infrastructure
            now = time.monotonic()
            if self.shown and (self.done == self.total or now - self._said_at >= _LEAST_S):
                self._said_at = now
                self.stream.write("\r" + self.line() + ("\n" if self.done == self.total else ""))
                self.stream.flush()

    def line(self) -> str:
        """As it stands."""
        filled = _WIDTH * self.done // max(self.total, 1)
        failed = f", {self.failed} failed ({self.infrastructure} infrastructure)" if self.failed else ""
        return f"[{'#' * filled}{'.' * (_WIDTH - filled)}] {self.done}/{self.total}{failed}, {time.monotonic() - self._began:.0f} s"
