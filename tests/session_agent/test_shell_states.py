"""The states of a living shell: a closed table, and a shell that can only move along it."""

from __future__ import annotations

import os

import pytest

from session_agent.agent.shell.shell import Shell
from session_agent.agent.shell.states import TRANSITIONS, IllegalTransitionError, State, check_transition
from tests.support.process_channel import client

PATH = os.environ["PATH"]


def reached(start: State) -> set[State]:
    found, left = {start}, [start]
    while left:
        new = TRANSITIONS[left.pop()] - found
        found |= new
        left += new
    return found


def test_every_state_is_reached_and_every_shell_can_end() -> None:
    assert set(TRANSITIONS) == reached(State.STARTING) == set(State)
    assert all(State.ENDED in following for state, following in TRANSITIONS.items() if state is not State.ENDED)
    assert TRANSITIONS[State.ENDED] == frozenset()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (State.RUNNING, State.RUNNING),
        (State.LOADING, State.RUNNING),
        (State.LOST, State.RUNNING),
        (State.SETTLING, State.RUNNING),
        (State.ABORTING, State.IDLE),
        (State.ENDED, State.IDLE),
    ],
)
def test_what_is_not_in_the_table_raises(before: State, after: State) -> None:
    with pytest.raises(IllegalTransitionError, match=f"from {before.value} to {after.value}"):
        check_transition(before, after)


async def test_the_way_of_a_shell_that_is_aborted_and_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[State] = []
    enter = Shell._enter

    def record(shell: Shell, state: State) -> None:
        enter(shell, state)
        seen.append(state)

    monkeypatch.setattr(Shell, "_enter", record)

    def way() -> list[State]:
        """What was seen from the first run on: on a slow machine the shell is asked whether its state is written before that."""
        while seen[0] in (State.CHECKING, State.IDLE):
            del seen[0]
        found = seen[:]
        seen.clear()
        return found

    async with client(env={"PATH": PATH}) as sandbox:
        shell = sandbox.shell()
        await shell.run("true")
        assert way() == [State.RUNNING, State.IDLE]
        await shell.run("sleep 60", timeout_s=0.05)
        await shell.run("true")
        aborted = way()
        assert aborted[:3] == [State.RUNNING, State.ABORTING, State.CHECKING]
        assert aborted[-2:] == [State.RUNNING, State.IDLE]
        await shell.run("exit 3")
        assert way() == [State.RUNNING, State.LOST, State.LOADING, State.IDLE]
        await shell.run("sleep 60 &")
        await shell.run("true")
        assert way()[:3] == [State.RUNNING, State.SETTLING, State.IDLE]
    assert seen[-1] is State.ENDED
