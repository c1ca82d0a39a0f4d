"""``holdfast shell --attach`` on the real stack: after the client of an editor is killed, the next client shows the same screen."""

from __future__ import annotations

import fcntl
import os
import pty
import shutil
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from typing import Any

import pyte
import pytest
from holdfast import SandboxClient

from tests.support.requires import requires
from tests.support.until import until

pytestmark = [requires("namespaces", "redis"), pytest.mark.skipif(shutil.which("vi") is None, reason="vi is not installed")]

ROWS, COLUMNS = 24, 80


class Screen(pyte.Screen):
    """Ignores how an editor sets the encoding of keys (`CSI > 4 ; 2 m`), which the emulator would take for colours."""

    def select_graphic_rendition(self, *attributes: int, private: bool = False) -> None:
        if not private:
            super().select_graphic_rendition(*attributes)


class Window:
    """A user's terminal emulator with the command line in it."""

    def __init__(self, environment: dict[str, str], *words: str) -> None:
        self._screen = Screen(COLUMNS, ROWS)
        self._stream = pyte.ByteStream(self._screen)
        self._master, slave = pty.openpty()
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        os.set_blocking(self._master, False)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "holdfast.cli", "shell", *words],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=environment,
            start_new_session=True,
        )
        os.close(slave)

    def lines(self) -> list[str]:
        try:
            while data := os.read(self._master, 65536):
                self._stream.feed(data)
        except (BlockingIOError, OSError):
            pass
        return [line.rstrip() for line in self._screen.display]

    def wait_for(self, condition: Callable[[list[str]], bool], what: str) -> list[str]:
        until(lambda: condition(self.lines()), deadline_s=60, what=lambda: f"{what}; the screen is\n" + "\n".join(self.lines()))
        return self.lines()

    def type(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(60)
        os.close(self._master)


def test_a_reattached_editor_shows_the_same_screen(stack: Any) -> None:
    with SandboxClient(stack.url, stack.key) as client, client.create_sandbox("host", memory="256Mi") as sandbox:
        text = "".join(f"line {n} äöü 中文\n" for n in range(1, 401))
        sandbox.files.write("/tmp/text", text.encode())
        first = Window(stack.environment(), sandbox.id, "--attach", "editing")
        try:
            first.wait_for(lambda lines: any(line.endswith("#") for line in lines), "a prompt")
            first.type(b"PS1='$ '; export LC_ALL=C.UTF-8; exec vi -u NONE -N /tmp/text\r")
            first.wait_for(lambda lines: lines[0].startswith("line 1 "), "the editor")
            first.type(b"200Gzzione more \xc3\xa9 word \x1b")
            before = first.wait_for(lambda lines: any(line.startswith("one more é word line 200 ") for line in lines), "what was typed")
        finally:
            first.kill()
        again = Window(stack.environment(), sandbox.id, "--attach", "editing")
        try:
            again.wait_for(lambda lines: lines[:-1] == before[:-1], "the same screen, except for the line of messages")
            again.type(b":wq\r")
            assert again.process.wait(60) == 0
        finally:
            again.kill()
        assert "one more é word line 200 " in sandbox.files.read_text("/tmp/text")
