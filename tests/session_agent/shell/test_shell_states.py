"""The states of a living shell: the table of transitions is complete, and a shell makes no transition outside of it."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
from collections.abc import Callable
from typing import Any

import pytest
from holdfast_wire.frames import Failed

from session_agent.agent.process.process_tree import TreeKill
from session_agent.agent.shell import shell as shell_module
from session_agent.agent.shell.shell import Shell
from session_agent.agent.shell.states import TRANSITIONS, IllegalTransitionError, State, check_transition
from tests.support.own_process import in_own_process
from tests.support.process_channel import client
from tests.support.running import only_shell
from tests.support.until import until_async

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
        (State.RUNNING, State.KILLED),
        (State.ABORTING, State.IDLE),
        (State.KILLING, State.IDLE),
        (State.KILLED, State.LOADING),
        (State.LOST, State.LOST),
        (State.ENDED, State.IDLE),
    ],
)
def test_a_transition_that_is_not_in_the_table_raises(before: State, after: State) -> None:
    with pytest.raises(IllegalTransitionError, match=f"from {before.value} to {after.value}"):
        check_transition(before, after)


async def test_the_states_of_a_shell_that_is_aborted_and_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[State] = []
    enter = Shell._enter

    def record(shell: Shell, state: State) -> None:
        enter(shell, state)
        seen.append(state)

    monkeypatch.setattr(Shell, "_enter", record)

    def take_states() -> list[State]:
        """The states since the last call, from the first run on: on a slow machine a check for the snapshot comes before it."""
        while seen[0] in (State.CHECKING, State.IDLE):
            del seen[0]
        found = seen[:]
        seen.clear()
        return found

    async with client(env={"PATH": PATH}) as sandbox:
        shell = sandbox.shell()
        await shell.run("true")
        assert take_states() == [State.RUNNING, State.IDLE]
        await shell.run("sleep 60", timeout_s=0.05)
        await shell.run("true")
        aborted = take_states()
        assert aborted[:4] == [State.RUNNING, State.ABORTING, State.KILLING, State.CHECKING]
        assert aborted[-2:] == [State.RUNNING, State.IDLE]
        await shell.run("exit 3")
        assert take_states() == [State.RUNNING, State.LOST, State.LOADING, State.IDLE]
        await shell.run("sleep 60 &")
        await shell.run("true")
        backgrounded = [
            state for state in take_states() if state is not State.FINISHING
        ]  # a process that was just forked is looked at again
        assert backgrounded[:3] == [State.RUNNING, State.SETTLING, State.IDLE]
    assert seen[-1] is State.ENDED


async def test_a_shell_that_ends_while_the_processes_of_its_run_are_killed_is_rebuilt_after_that(monkeypatch: pytest.MonkeyPatch) -> None:
    kills: list[Callable[[], object]] = []
    monkeypatch.setattr(shell_module, "TreeKill", lambda *values, **options: kills.append(lambda: TreeKill(*values, **options)))
    async with client(env={"PATH": PATH}) as sandbox:
        shell = sandbox.shell()
        await shell.run("X=kept")
        run = shell.begin("sleep 60", timeout_s=0.05)
        live = only_shell(sandbox.context)
        await until_async(lambda: live._state is State.KILLING, deadline_s=60, what="the report of the aborted run")
        os.kill(live.pid, signal.SIGKILL)
        await until_async(lambda: live._state is State.LOST, deadline_s=60, what="the end of the shell")
        monkeypatch.undo()
        (kill,) = kills
        kill()
        outcome = await shell.wait(run)
        assert (outcome.result["timed_out"], outcome.result["shell"]["restarted"]) == (True, True)
        assert (await shell.run("echo $X")).stdout == b"kept\n"


@pytest.mark.parametrize(("kind", "tty"), [("bash", False), ("sh", False), ("bash", True)])
@in_own_process
async def test_a_shell_that_lacks_a_descriptor_leaves_none_open(kind: str, tty: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call that makes a descriptor fails once, in turn, until none is left that can fail."""
    left = -1

    def limit(call: Callable[..., Any]) -> Callable[..., Any]:
        def limited(*args: Any, **options: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return call(*args, **options)

        return limited

    async with client(env={"PATH": PATH}) as sandbox:
        before = set(os.listdir("/proc/self/fd"))
        for name in ("pipe", "memfd_create", "openpty", "dup"):
            monkeypatch.setattr(os, name, limit(getattr(os, name)))
        monkeypatch.setattr(fcntl, "fcntl", limit(fcntl.fcntl))
        for failing in range(1, 80):
            left = failing
            shell = sandbox.shell(shell=kind, tty=tty)
            if left > 0:
                break
            failed = await shell.channel.end()
            assert isinstance(failed, Failed)
            assert failed.error["code"] == "spawn_failed", failed.error
            assert set(os.listdir("/proc/self/fd")) == before, f"call {failing}"
            assert not sandbox.context.shells
        assert failing > 6
        assert (await shell.run("echo on")).stdout.strip() == b"on"
