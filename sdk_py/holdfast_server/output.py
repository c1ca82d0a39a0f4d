"""Prints the output of the processes: each line with the name of its process in front, coloured on a terminal.

Owns stdout and the log files `logs/<name>.log`. A terminal that stops reading must never stop a process of the stack,
so lines pass through a bounded queue to a thread that writes; what does not fit is dropped from the screen with a
count and is still in the log file. That is continued by the next run; at 16 MiB it becomes `NAME.log.1`, and a new one begins.
"""

from __future__ import annotations

import contextlib
import os
import queue
import sys
import threading
from pathlib import Path
from typing import IO, BinaryIO

_COLOURS = (36, 33, 35, 32, 34, 31)
_READ_BYTES = 64 * 1024
_LINE_LIMIT = 64 * 1024
_LOG_LIMIT_BYTES = 16 * 1024 * 1024
_QUEUE_LINES = 4096
_CLOSE_S = 2.0


class Screen:
    """Stdout, written by one thread."""

    def __init__(self, names: list[str]) -> None:
        self._width = max((len(name) for name in names), default=0)
        self._colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        self._order = {name: index for index, name in enumerate(names)}
        self._lines: queue.Queue[bytes | None] = queue.Queue(_QUEUE_LINES)
        self._dropped = 0
        self._thread = threading.Thread(target=self._write, name="screen", daemon=True)
        self._thread.start()

    def show(self, name: str, line: bytes) -> None:
        """One line of a process; never blocks."""
        prefix = f"{name:<{self._width}} | "
        if self._colour:
            prefix = f"\033[{_COLOURS[self._order.get(name, 0) % len(_COLOURS)]}m{prefix}\033[0m"
        self._put(prefix.encode() + _printable(line) + b"\n")

    def note(self, text: str) -> None:
        """Print a line of the runner itself."""
        self._put(text.encode() + b"\n")

    def close(self) -> None:
        """Write the queued lines, for a bounded time."""
        with contextlib.suppress(queue.Full):
            self._lines.put(None, timeout=_CLOSE_S)
            self._thread.join(_CLOSE_S)

    def _put(self, line: bytes) -> None:
        if self._dropped:
            line = f"up: {self._dropped} lines are in the log files only: the terminal did not keep up\n".encode() + line
        try:
            self._lines.put_nowait(line)
            self._dropped = 0
        except queue.Full:
            self._dropped += 1

    def _write(self) -> None:
        lines, out = iter(self._lines.get, None), sys.stdout.buffer
        with contextlib.suppress(OSError, ValueError):  # the reader of the output has ended; the stack continues
            for line in lines:
                out.write(line)
                if self._lines.empty():
                    out.flush()
            out.flush()
        for _ in lines:
            pass


def _printable(line: bytes) -> bytes:
    """The line without control characters other than tab and colour, so that output cannot drive the terminal."""
    return bytes(byte for byte in line if byte >= 32 or byte in b"\t\x1b")


class Lines:
    """The lines of one process, for the screen and its log file; also used when the process is started again."""

    def __init__(self, name: str, screen: Screen, log: Path) -> None:
        self._name = name
        self._screen = screen
        self._path = log
        self._file: BinaryIO = log.open("ab", buffering=0)
        self._written = log.stat().st_size

    def show(self, text: str) -> None:
        """Print a line of the runner about the process."""
        self._screen.show(self._name, text.encode())

    def copy(self, pipe: IO[bytes]) -> None:
        """Copy all output until the end of the pipe; runs in its own thread."""
        rest = b""
        with pipe:
            while data := pipe.read(_READ_BYTES):
                with contextlib.suppress(OSError, ValueError):  # on a full disk lines of the log file are lost, but the stack continues
                    self._keep(data)
                *lines, rest = (rest + data).split(b"\n")
                if len(rest) > _LINE_LIMIT:
                    lines, rest = [*lines, rest], b""
                for line in lines:
                    self._screen.show(self._name, line[:_LINE_LIMIT])
        if rest:
            self._screen.show(self._name, rest)

    def close(self) -> None:
        self._file.close()

    def _keep(self, data: bytes) -> None:
        if self._written + len(data) > _LOG_LIMIT_BYTES:
            self._path.replace(self._path.with_suffix(".log.1"))
            self._file.close()
            self._file = self._path.open("wb", buffering=0)
            self._written = 0
        self._written += self._file.write(data) or 0
