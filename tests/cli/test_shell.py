"""``holdfast shell`` on a real pseudo-terminal: raw mode, size changes, exit code, detaching."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator

import pytest
from holdfast_wire.frames import Resize

from tests.cli.test_cli import environment
from tests.sdk.support.fake_agent import FakeAgent, HeldSession
from tests.support.until import until


class Terminal:
    """The user's side of a terminal in which the command line runs."""

    def __init__(self, agent: FakeAgent, *words: str) -> None:
        self.master, slave = pty.openpty()
        self.resize(30, 100)
        self.before = termios.tcgetattr(slave)
        self.slave = slave
        self.process = subprocess.Popen(
            [sys.executable, "-m", "holdfast.cli", "shell", *words],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=environment(agent.url),
            start_new_session=True,
        )

    def resize(self, rows: int, cols: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))

    def type(self, data: bytes) -> None:
        os.write(self.master, data)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(60)
        os.close(self.master)
        os.close(self.slave)


@pytest.fixture
def agent() -> Iterator[FakeAgent]:
    with FakeAgent() as running:
        yield running


def resizes(agent: FakeAgent) -> list[tuple[int, int]]:
    return [(item.rows, item.columns) for item in agent.other if isinstance(item, Resize)]


def test_a_shell_on_a_terminal(agent: FakeAgent) -> None:
    typed = bytearray()

    def write(held: HeldSession, data: bytes) -> None:
        typed.extend(data)

    agent.typed = write
    terminal = Terminal(agent, "sb")
    try:
        until(lambda: len(agent.ran) == 1, deadline_s=60, what="the terminal to open")
        params = agent.opened[0].params
        assert (params["rows"], params["cols"], params.get("login")) == (30, 100, None)
        until(lambda: not termios.tcgetattr(terminal.slave)[3] & termios.ICANON, deadline_s=60, what="raw mode")
        terminal.type(b"\x03ls\r")
        until(lambda: bytes(typed) == b"\x03ls\r", deadline_s=60, what="the keys, Ctrl-C among them")
        terminal.resize(40, 120)
        os.kill(terminal.process.pid, signal.SIGWINCH)
        until(lambda: resizes(agent) == [(40, 120)], deadline_s=60, what="the new size")
        agent.finish(agent.ran[0], 3)
        assert terminal.process.wait(60) == 3
        assert termios.tcgetattr(terminal.slave) == terminal.before, "the terminal's modes are restored"
    finally:
        terminal.close()


def test_detaching_does_not_end_the_remote_terminal(agent: FakeAgent) -> None:
    terminal = Terminal(agent, "sb", "--attach", "work")
    try:
        until(lambda: len(agent.ran) == 1, deadline_s=60, what="the terminal to open")
        assert agent.opened[0].params["name"] == "work"
        until(lambda: not termios.tcgetattr(terminal.slave)[3] & termios.ICANON, deadline_s=60, what="raw mode")
        terminal.type(b"\x1d")
        assert terminal.process.wait(60) == 0
        assert [close.detach for close in agent.closes] == [True]
    finally:
        terminal.close()
