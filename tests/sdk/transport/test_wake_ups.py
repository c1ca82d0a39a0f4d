"""Waking the waiting threads of a session: waking twice is harmless, and no wake-up is written to a file that reuses the descriptor."""

from __future__ import annotations

import os
import threading
from io import FileIO
from pathlib import Path
from typing import Any

import pytest
from holdfast import SandboxClient
from holdfast._options import Options
from holdfast._transport.threads.driver import SessionDriver

from tests.sdk.support.fake_agent import FakeAgent


def test_closing_does_not_write_to_a_file_that_reuses_the_descriptor(
    agent: FakeAgent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SandboxClient(agent.url, "key") as client:
        sandbox = client.get_sandbox("sb")
        sandbox.exec("true")
        driver = sandbox._driver
        assert driver is not None
        wake_end, this_thread, write = driver._wake_write, threading.current_thread(), os.write
        opened: list[FileIO] = []

        def late(descriptor: int, data: bytes) -> int:
            if descriptor == wake_end and threading.current_thread() is this_thread:
                driver._thread.join(0.2)  # it ends now, if it can
                opened.extend((tmp_path / str(number)).open("wb", buffering=0) for number in range(len(opened), len(opened) + 4))
            return write(descriptor, data)

        monkeypatch.setattr(os, "write", late)
        driver.close()
        monkeypatch.undo()
        assert opened
        for file in opened:
            assert os.fstat(file.fileno()).st_size == 0
            file.close()


def test_a_waiter_that_was_cancelled_can_be_woken_again() -> None:
    class Woken:
        def release(self) -> None:
            raise RuntimeError("release unlocked lock")

    driver = SessionDriver(Options(url="http://127.0.0.1:1", api_key="key"), "sb")
    changed = driver.event()
    waiter: Any = Woken()
    changed._waiters.append(waiter)
    changed.set()
    assert changed.wait(0)
