"""A test in a process of its own fails as it would here, and leaves nothing in this one."""

from __future__ import annotations

import os
import signal

import pytest

from tests.support.own_process import in_own_process

here = os.getpid()
made: list[int] = []


@in_own_process
async def test_it_runs_in_another_process() -> None:
    made.append(os.open(os.devnull, os.O_RDONLY))
    assert os.getpid() != here


def test_the_other_process_changed_nothing_here() -> None:
    assert made == []


@pytest.mark.parametrize("how", ["plain", "coroutine"])
def test_a_failure_there_is_a_failure_here(how: str) -> None:
    @in_own_process
    def plain(expected: int) -> None:
        assert expected == 2, "reported here"

    @in_own_process
    async def coroutine(expected: int) -> None:
        assert expected == 2, "reported here"

    run = plain if how == "plain" else coroutine
    run(2)
    with pytest.raises(AssertionError, match="reported here"):
        run(expected=1)


def test_a_process_that_is_killed_is_a_failure() -> None:
    @in_own_process
    def killed() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(AssertionError, match="ended with -9"):
        killed()
