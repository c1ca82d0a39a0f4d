"""Showing a recording on a terminal: the pace, the keys, and which bytes of it the terminal gets.

Owns the filter: of the control sequences in a recording only those pass that move on the screen, change it, or set colours. Sequences that
make a terminal answer, that set its title, clipboard or keys, or that it may not know are written as text. At the end the terminal is as it
was. Called by ``subcommands.recordings``.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import sys
import time
from collections.abc import Iterator
from typing import Any

from holdfast.cli.output import escape

Line = dict[str, Any]
_SHOWN = rb"\x1b\[[0-9;:]{0,32}[ABCDEFGHJKLMPSTXdfm@]|\x1b\[\?(?:1|7|25|47|1047|1049)[hl]|\x1b\[[0-9;]{0,16}r|\x1b[78DEM=>]|\x1b\([0AB]"
_CHARACTERS = rb"\xc2[\xa0-\xbf]|[\xc3-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3}"
_TEXT = rb"[\x20-\x7e]+|[\t\r\n\x08]"
_ALL = re.compile(rb"(" + _SHOWN + rb"|" + _CHARACTERS + rb"|" + _TEXT + rb")|[\x00-\xff]")
_UNFINISHED = re.compile(rb"(?:\x1b(?:\[[0-9;:?]{0,32}|\()?|[\xc2-\xf4]|[\xe0-\xf4][\x80-\xbf]|[\xf0-\xf4][\x80-\xbf]{2})\Z")
_RESET = b"\x1b[?1049l\x1b[?25h\x1b[?7h\x1b[?1l\x1b>\x1b[r\x1b(B\x1b[0m"
_SPEEDS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)


class ReplayFilter:
    """The bytes of a recording that a terminal may get. A sequence may arrive in pieces."""

    def __init__(self) -> None:
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """The bytes that may be written now."""
        data = self._held + data
        unfinished = _UNFINISHED.search(data)
        self._held = unfinished.group() if unfinished else b""
        return _ALL.sub(_passed, data[: len(data) - len(self._held)])

    def end(self) -> bytes:
        """The bytes that were held back."""
        held, self._held = self._held, b""
        return _ALL.sub(_passed, held)


def _passed(found: re.Match[bytes]) -> bytes:
    data = found.group()
    if found.lastindex or data == b"\x07":
        return b"" if data == b"\x07" else data
    return b"\\x%02x" % data[0]


class Replay:
    """Shows lines. ``speed``: how many times as fast; ``pause_s``: the longest pause between two lines."""

    def __init__(self, lines: list[Line], speed: float, pause_s: float, begin: int) -> None:
        self._lines = lines
        self._speed = speed
        self._pause_s = pause_s
        self._at = begin
        self._keys = -1
        self._paused = False
        self._terminals: set[str] = set()
        self._filter = ReplayFilter()

    def run(self) -> None:
        """Show everything, unless the user ends it."""
        with self._reading_keys():
            try:
                self._show_all()
            finally:
                self._write(self._filter.end())
                if sys.stdout.isatty():
                    self._write(_RESET + b"\r\n")

    def _show_all(self) -> None:
        before = self._lines[self._at]["time"] if self._at < len(self._lines) else 0.0
        while self._at < len(self._lines):
            line = self._lines[self._at]
            wait_s = min(max(line["time"] - before, 0.0) / self._speed, self._pause_s)
            before = max(line["time"], before)
            if not self._wait(wait_s):
                return
            if self._lines[self._at] is not line:  # moved to another command
                before = self._lines[self._at]["time"]
                continue
            self._at += 1
            self._show(line)

    def _show(self, line: Line) -> None:
        kind, id_ = line["type"], str(line.get("id", ""))
        if kind == "command_started":
            if line.get("kind") == "terminal":
                self._terminals.add(id_)
            command = (line.get("command") or str(line.get("line", "")).encode("utf-8", "replace")).decode("utf-8", "replace")
            where = f"[{escape(str(line.get('shell') or line.get('kind') or ''))}] "
            self._note(f"{where}$ {escape(command)}")
        elif kind == "output":
            data = self._filter.feed(line.get("data", b""))
            self._write(data if id_ in self._terminals else re.sub(rb"(?<!\r)\n", b"\r\n", data))
        elif kind == "command_ended":
            self._terminals.discard(id_)
            self._write(self._filter.end() + b"\x1b[0m" * sys.stdout.isatty())
            if line.get("exit_code") != 0 or line.get("reason"):
                reason = f" ({escape(str(line['reason']))})" if line.get("reason") else ""
                self._note(f"exit code {escape(str(line.get('exit_code')))}{reason}")
        elif kind in ("gap", "branched", "sandbox_ended", "files_written"):
            text = line.get("message") or line.get("path") or line.get("parent") or ""
            self._note(f"-- {kind.replace('_', ' ')}: {escape(str(text))}")

    def _note(self, text: str) -> None:
        bold, plain = (b"\x1b[1m", b"\x1b[0m") if sys.stdout.isatty() else (b"", b"")
        self._write(b"%s%s%s\r\n" % (bold, text.replace("\n", "\r\n").encode("utf-8", "replace"), plain))

    def _write(self, data: bytes) -> None:
        if not sys.stdout.isatty():
            data = data.replace(b"\r\n", b"\n")
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()

    # Keys ------------------------------------------------------------------------------------------------------------

    def _wait(self, seconds: float) -> bool:
        """Wait, while paused without end; False if the user ends the replay."""
        end, at = time.monotonic() + seconds, self._at
        while True:
            left_s = end - time.monotonic()
            if not self._paused and (left_s <= 0 or self._at != at):
                return True
            if self._keys < 0:
                time.sleep(left_s)
                return True
            if select.select([self._keys], [], [], None if self._paused else max(left_s, 0.0))[0]:
                key = os.read(self._keys, 1)
                if key in (b"q", b"\x03", b""):
                    return False
                self._pressed(key)

    def _pressed(self, key: bytes) -> None:
        if key == b" ":
            self._paused = not self._paused
        elif key == b"+":
            self._speed = next((one for one in _SPEEDS if one > self._speed), _SPEEDS[-1])
        elif key == b"-":
            self._speed = next((one for one in reversed(_SPEEDS) if one < self._speed), _SPEEDS[0])
        elif key == b"n":
            later = range(self._at + 1, len(self._lines))
            self._at = next((number for number in later if self._lines[number]["type"] == "command_started"), self._at)

    @contextlib.contextmanager
    def _reading_keys(self) -> Iterator[None]:
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            yield
            return
        import termios
        import tty

        self._keys = sys.stdin.fileno()
        before = termios.tcgetattr(self._keys)
        try:
            tty.setcbreak(self._keys)
            yield
        finally:
            termios.tcsetattr(self._keys, termios.TCSADRAIN, before)
