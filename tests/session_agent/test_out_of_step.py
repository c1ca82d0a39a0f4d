"""What happens when something is slow: the agent was stopped for a while, a shell gets no processor, an answer comes late."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from typing import Any, cast

import pytest

from session_agent.shell import Shell
from session_agent.shell_output import _waiting_bytes
from session_agent.shell_process import ShellProcess
from tests.support.process_channel import Client, client
from tests.support.until import until

PATH = os.environ["PATH"]
SHELLS = pytest.mark.parametrize("kind", ["bash", "sh"])


def sleep_through(condition: Callable[[], object]) -> None:
    """As if the agent had been stopped while it waited for something to read, until the condition holds.

    Its select was interrupted then, and finds nothing: timers that fell due come before whatever there is to read.
    """
    until(condition, deadline_s=60, what="what the agent is to sleep through")
    selector = asyncio.get_running_loop()._selector  # type: ignore[attr-defined]
    ready = selector.select

    def interrupted(timeout: float | None = None) -> list[Any]:
        selector.select = ready
        return []

    selector.select = interrupted


def passed(seconds: float) -> Callable[[], bool]:
    due = time.monotonic() + seconds
    return lambda: time.monotonic() > due


def is_dead(pid: int) -> bool:
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] == "Z"


def process_of(sandbox: Client) -> ShellProcess:
    (shell,) = sandbox.context.shells.values()
    return cast("Shell", shell)._process


def has_reported(process: ShellProcess) -> bool:
    return _waiting_bytes(process._status) > 0


async def test_a_command_that_ended_in_time_was_not_timed_out() -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        channel = sandbox.command("sh", "-c", "echo done; exit 3", timeout_s=0.2)
        (pid,) = sandbox.context.reaper.pids
        late = passed(0.2)
        sleep_through(lambda: late() and is_dead(pid))
        outcome = await channel.outcome()
        assert (outcome.exit_code, outcome.stdout, outcome.result["timed_out"], outcome.result["cause"]) == (3, b"done\n", False, None)


async def test_a_time_out_that_comes_while_what_is_left_is_killed_changes_no_exit_code() -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        channel = sandbox.command("sh", "-c", "sleep 71 & exit 3")
        (command,) = sandbox.context.commands
        ended = command._exited

        def exited(status: int) -> None:
            ended(status)
            command._end("timeout")

        sandbox.context.reaper._owners[command._pid] = exited
        outcome = await channel.outcome()
        assert (outcome.exit_code, outcome.result["timed_out"], outcome.result["cause"]) == (3, False, None)


async def test_a_terminal_that_ended_in_time_was_not_timed_out() -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        channel = sandbox.open("terminal", {"argv": ["sh", "-c", "exit 3"], "timeout_s": 0.2})
        (pid,) = sandbox.context.reaper.pids
        late = passed(0.2)
        sleep_through(lambda: late() and is_dead(pid))
        outcome = await channel.outcome()
        assert (outcome.exit_code, outcome.result["timed_out"]) == (3, False)
