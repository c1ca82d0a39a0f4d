"""The thread that forks: where it is, whose errors are whose, and what was started before it was there."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from session_agent.forking import Forker
from tests.support.until import until


@pytest.fixture
def files(tmp_path: Path) -> list[int]:
    return [os.open(tmp_path / name, os.O_WRONLY | os.O_CREAT) for name in ("tasks", "procs")]


def started(files: list[int]) -> Forker:
    forker = Forker(files[:1], files[1:], crowd=1 << 20)
    forker.start()
    until(lambda: forker.call(threading.get_native_id) != threading.get_native_id(), deadline_s=60, what="the thread to be in its place")
    return forker


def refuse(error: OSError, here: list[int]) -> Callable[[], str]:
    def start() -> str:
        here.append(threading.get_native_id())
        if here[-1] != threading.main_thread().native_id:
            raise error
        return "started"

    return start


def test_it_forks_from_a_thread_that_moved_itself(files: list[int], tmp_path: Path) -> None:
    forker = started(files)
    assert (tmp_path / "tasks").read_text() == str(forker.call(threading.get_native_id))
    forker.stop()


def test_without_groups_there_is_no_thread() -> None:
    forker = Forker()
    forker.start()
    assert forker.call(threading.get_native_id) == threading.get_native_id()
    forker.stop()


def test_where_it_may_not_move_everything_is_forked_by_the_caller(tmp_path: Path) -> None:
    (tmp_path / "tasks").touch()
    forker = Forker([os.open(tmp_path / "tasks", os.O_RDONLY)])
    forker.start()
    assert forker.call(threading.get_native_id) == threading.get_native_id()


def test_errors_are_the_callers(files: list[int]) -> None:
    forker = started(files)
    here: list[int] = []
    with pytest.raises(FileNotFoundError):
        forker.call(refuse(FileNotFoundError(2, "no such program"), here))
    assert len(here) == 1
    forker.stop()


def test_a_full_group_is_gone_around(files: list[int]) -> None:
    forker = started(files)
    here: list[int] = []
    assert forker.call(refuse(BlockingIOError(11, "no room"), here)) == "started"
    assert len(here) == 2
    forker.stop()


def test_among_a_crowd_it_forks_itself(files: list[int]) -> None:
    forker = started(files)
    forker._crowd = 0
    assert forker.call(threading.get_native_id) == threading.get_native_id()
    forker.stop()


def test_what_was_born_early_follows(files: list[int], tmp_path: Path) -> None:
    forker = Forker(files[:1], files[1:])
    forker.born_early(4711)  # before there is a thread nothing is moved
    forker._thread = threading.current_thread()
    forker.born_early(4712)
    forker._thread = None
    forker.start()
    until(lambda: (tmp_path / "procs").read_text() == "4712", deadline_s=60, what="the early one to be moved")
    forker.stop()
