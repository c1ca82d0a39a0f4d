"""Signal handlers that ``run_on`` installs: no action runs after its block."""

from __future__ import annotations

import os
import signal
import threading
from queue import SimpleQueue

from holdfast.cli.signals import run_on

WAIT_S = 60.0


def test_a_queued_action_is_dropped_when_the_block_is_left() -> None:
    began, go_on, runs = threading.Semaphore(0), SimpleQueue[None](), list[bool]()
    inside = threading.Event()

    def action() -> None:
        runs.append(inside.is_set())
        began.release()
        go_on.get(timeout=WAIT_S)

    before = set(threading.enumerate())
    inside.set()
    with run_on(signal.SIGWINCH, action):
        os.kill(os.getpid(), signal.SIGWINCH)
        assert began.acquire(timeout=WAIT_S)
        (follower,) = set(threading.enumerate()) - before
        os.kill(os.getpid(), signal.SIGWINCH)  # queued behind the first
        leaving = threading.Timer(0.05, go_on.put, [None])  # the first ends while the block is being left
        leaving.start()
    inside.clear()
    go_on.put(None)
    follower.join(WAIT_S)
    leaving.join(WAIT_S)
    assert runs == [True]


def test_leaving_the_block_waits_for_a_running_action() -> None:
    began, ended = threading.Event(), threading.Event()

    def action() -> None:
        began.set()
        threading.Event().wait(0.05)
        ended.set()

    with run_on(signal.SIGWINCH, action):
        os.kill(os.getpid(), signal.SIGWINCH)
        assert began.wait(WAIT_S)
    assert ended.is_set()


def test_every_signal_without_a_pending_one_runs_the_action() -> None:
    runs = threading.Semaphore(0)
    with run_on(signal.SIGWINCH, runs.release):
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGWINCH)
            assert runs.acquire(timeout=WAIT_S)
