"""The progress of a map and of transfers: on a terminal one line that is rewritten; of a map in a file a line at most every ten seconds.

Owns the text of the lines: how many items are done, how many of these failed, and how many of those because of the infrastructure; how many
bytes were moved. Called by ``map`` and ``files`` of both APIs, and by the command line.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import IO, TextIO

from holdfast._errors import HoldfastError

Moved = Callable[[int, "int | None"], None]
"""Called with how many bytes of a transfer were moved, and how many there are in all, None if that is not known."""
_WIDTH = 30
_TERMINAL_S = 0.1
_FILE_S = 10.0
_PATIENCE_S = 1.0


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


class CountedFile:
    """A file that is read for a transfer."""

    def __init__(self, file: IO[bytes], moved: Moved) -> None:
        self._file, self._moved = file, moved
        self._size, self._read = os.fstat(file.fileno()).st_size, 0

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self._read += len(data)
        if data:
            self._moved(self._read, max(self._size, self._read))
        return data

    def seek(self, place: int) -> None:
        self._read = self._file.seek(place)


def counted(pieces: Iterator[bytes], moved: Moved | None) -> Iterator[bytes]:
    """The pieces of an archive. Its size is not known before."""
    count = 0
    for piece in pieces:
        yield piece
        count += len(piece)
        if moved is not None:
            moved(count, None)


class TransferBar:
    """The line of a transfer that takes over a second, on standard error if that is a terminal. An object of it is a ``Moved``."""

    def __init__(self, stream: TextIO | None = None, now: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream or sys.stderr
        self._now = now
        self._began = now()
        self._next_at = self._began + _PATIENCE_S
        self._wide = 0 if self._stream.isatty() else -1

    def __call__(self, moved: int, total: int | None) -> None:
        now = self._now()
        if self._wide < 0 or now < self._next_at:
            return
        self._next_at = now + _TERMINAL_S
        rate = f"{moved / 2**20 / max(now - self._began, 0.001):.1f} MiB/s"
        line = f"{moved / 2**20:.1f} MiB, {rate}"
        if total:
            filled = _WIDTH * min(moved, total) // total
            line = f"[{'#' * filled}{'.' * (_WIDTH - filled)}] {moved / 2**20:.1f} of {total / 2**20:.1f} MiB, {rate}"
        self._stream.write("\r" + line.ljust(self._wide))
        self._stream.flush()
        self._wide = len(line)

    def clear(self) -> None:
        """Remove the line."""
        if self._wide > 0:
            self._stream.write("\r" + " " * self._wide + "\r")
            self._stream.flush()
            self._wide = 0
