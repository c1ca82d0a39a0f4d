"""The progress of a collection: one line on a terminal, rewritten when rollouts finish.

Owns the line. Counts are the run's; the speed and the time left are those of this process.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from typing import TextIO

from .evaluate import Trial

_WIDTH = 24
_LEAST_S = 0.2


class Progress:
    """``shown`` None: where the stream is a terminal."""

    def __init__(self, shown: bool | None = None, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream or sys.stderr
        self._shown = self._stream.isatty() if shown is None else shown
        self._clock, self._printed_at, self._began_at = clock, -1.0, clock()
        self._began = self._done = self._total = 0
        self._outcomes: Mapping[Trial, int] = {}

    def begin(self, done: int, total: int) -> None:
        """So many of ``total`` were done before."""
        self._began = self._done = done
        self._total = total
        self._began_at = self._clock()
        self._say(last=False)

    def step(self, outcomes: Mapping[Trial, int], done: int) -> None:
        self._outcomes, self._done = outcomes, done
        if self._clock() - self._printed_at >= _LEAST_S:
            self._say(last=False)

    def end(self) -> None:
        self._say(last=True)

    def line(self) -> str:
        """As it stands."""
        filled = _WIDTH * self._done // max(self._total, 1)
        solved, failed = self._outcomes.get(Trial.SOLVED, 0), self._outcomes.get(Trial.FAILED, 0)
        parts = [f"[{'#' * filled}{'.' * (_WIDTH - filled)}] {self._done}/{self._total}"]
        parts.append(f"{solved} solved, {failed} failed")
        if spoiled := self._outcomes.get(Trial.INFRASTRUCTURE, 0):
            parts.append(f"{spoiled} tried again")
        now_done, elapsed_s = self._done - self._began, self._clock() - self._began_at
        if now_done and elapsed_s > 0:
            left_s = (self._total - self._done) * elapsed_s / now_done
            parts += [f"{60 * now_done / elapsed_s:.1f}/min", f"{_duration(left_s)} left"]
        return ", ".join(parts)

    def _say(self, *, last: bool) -> None:
        if not self._shown:
            return
        self._printed_at = self._clock()
        self._stream.write(f"\r\x1b[K{self.line()}" + ("\n" if last else ""))
        self._stream.flush()


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min" if minutes else f"{seconds} s"
