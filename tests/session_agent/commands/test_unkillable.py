"""Commands that SIGKILL does not end: a process waits in the kernel for a file server that does not answer (state D).

Each gets its result within some seconds; its process ends, and is reaped, once the server has answered.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest
from holdfast_wire.frames import Started

from session_agent.agent.context import SandboxLimits
from session_agent.agent.process.process_tree import KILL_PATIENCE_S, TreeKill, members
from tests.session_agent.processes import alive, gone, nap, sleepers
from tests.support.pace import Stopwatch
from tests.support.process_channel import Client, ProcessChannel, client
from tests.support.requires import requires
from tests.support.running import only_shell
from tests.support.stuck_files import StuckFiles, state_of, stuck_files
from tests.support.until import until_async

pytestmark = requires("root", "fuse", "bash")
PATH = os.environ["PATH"]


@pytest.fixture
def stuck() -> Iterator[StuckFiles]:
    with stuck_files() as files:
        yield files


@asynccontextmanager
async def stuck_client(stuck: StuckFiles, patience_s: float = 0.3, **settings: Any) -> AsyncIterator[Client]:
    """A client whose processes can end when the test does, and that waits for the end of killed ones for ``patience_s``."""
    async with client(SandboxLimits(abort_patience_s=0.3, kill_patience_s=patience_s), env={"PATH": PATH}, **settings) as sandbox:
        try:
            yield sandbox
        finally:
            stuck.answer()


@contextmanager
def soon() -> Iterator[None]:
    """The block ends; a bound of a few seconds would fail on a busy machine."""
    with Stopwatch() as watch:
        yield
    assert watch.elapsed_s < 10.0


def assert_timed_out(result: dict[str, Any]) -> None:
    assert (result["exit_code"], result["timed_out"], result["cause"]["reason"]) == (124, True, "timeout")
    assert "not ended" in result["cause"]["message"]


def assert_cancelled(result: dict[str, Any]) -> None:
    assert (result["exit_code"], result["signal"], result["timed_out"]) == (137, "KILL", False)
    assert (result["cause"]["fault"], result["cause"]["reason"]) == ("workload", "cancelled")
    assert "not ended" in result["cause"]["message"]


async def in_the_kernel(pid: int) -> None:
    """It has asked the file server, and SIGKILL does not end it."""
    await until_async(lambda: state_of(pid) == "D", deadline_s=60, what=f"state D of {pid}")


async def asks(stuck: StuckFiles, pid: int) -> None:
    """It waits for the file server."""
    await until_async(lambda: pid in stuck.asked, deadline_s=60, what=f"that {pid} waits")


SCRIPTS = {
    "the command": "echo partial; exec cat {file}",
    "its shell": "echo partial; cat < {file}",
    "a child": "echo partial; cat {file}; true",
    "a child in its own session": "echo partial; setsid cat {file} & sleep 60",
    "beside others": "echo partial; cat {file} & cat {file} & (sleep 60; sleep 60) & sleep 60; true",
}


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
async def test_a_time_limit_holds(stuck: StuckFiles, script: str) -> None:
    async with stuck_client(stuck) as sandbox:
        with soon():
            outcome = await sandbox.execute(script=script.format(file=stuck.path).replace("60", nap(60)), timeout_s=0.5)
        assert_timed_out(outcome.result)
        assert outcome.stdout == b"partial\n"
        assert sleepers(nap(60)) == []
        waiting = sandbox.context.started_processes()
        assert {state_of(pid) for pid in waiting} == {"D"}
        assert (await sandbox.execute("echo", "next")).stdout == b"next\n"
        stuck.answer()
        for pid in waiting:
            await gone(pid)
        await until_async(lambda: not sandbox.context.reaper.pids, deadline_s=60, what="that it is reaped")


@pytest.mark.parametrize("how", ["cancel", "KILL"])
async def test_a_client_that_ends_it_gets_the_result(stuck: StuckFiles, how: str) -> None:
    async with stuck_client(stuck) as sandbox:
        channel = sandbox.command("cat", stuck.path, live=True)
        pid = (await channel.fact(Started)).info["pid"]
        await asks(stuck, pid)
        with soon():
            end(channel, how)
            outcome = await channel.outcome()
        assert_cancelled(outcome.result)
        assert state_of(pid) == "D"
        stuck.answer()
        await gone(pid)


def end(channel: ProcessChannel, how: str) -> None:
    if how == "cancel":
        channel.handler.close(False)
    else:
        channel.handler.signal("KILL")


async def test_the_processes_have_three_seconds_to_end(stuck: StuckFiles) -> None:
    async with stuck_client(stuck, SandboxLimits().kill_patience_s) as sandbox:
        with Stopwatch() as watch:
            outcome = await sandbox.execute("cat", stuck.path, timeout_s=0.5)
        assert_timed_out(outcome.result)
        assert KILL_PATIENCE_S < watch.elapsed_s < 10.0


async def test_a_program_that_cannot_be_read_is_ended(stuck: StuckFiles) -> None:
    # With limits of its own a command executes itself, as on a node: the agent does not wait for it.
    async with stuck_client(stuck, ulimits={"nofile": (256, 256)}) as sandbox:
        with soon():
            outcome = await sandbox.execute(stuck.path, timeout_s=0.5)
        assert_timed_out(outcome.result)


async def test_a_command_that_has_ended_keeps_its_exit_code(stuck: StuckFiles) -> None:
    async with stuck_client(stuck) as sandbox:
        with soon():
            outcome = await sandbox.execute(script=f"cat {stuck.path} & echo $!; exit 7", outlive="kill")
        assert (outcome.exit_code, outcome.result["cause"]) == (7, None)
        assert state_of(int(outcome.stdout)) == "D"


@pytest.mark.parametrize("script", ["exec cat {file}", "cat < {file}", "cat {file}; true"])
async def test_a_terminal_ends(stuck: StuckFiles, script: str) -> None:
    async with stuck_client(stuck) as sandbox:
        argv = ["bash", "-c", script.format(file=stuck.path)]
        with soon():
            channel = sandbox.open("terminal", {"argv": argv, "name": "t", "timeout_s": 0.5})
            result = (await channel.outcome()).result
        assert_timed_out(result)
        assert not sandbox.context.terminals
        again = sandbox.open("terminal", {"argv": ["echo", "again"], "name": "t"})
        assert (await again.outcome()).stdout == b"again\r\n"


IN_A_SHELL = {"the shell": "X=2; read x < {file}", "a child": "X=2; cat {file}", "both": "X=2; cat {file} & read x < {file}"}


@pytest.mark.parametrize("kind", ["bash", "sh"])
@pytest.mark.parametrize("script", IN_A_SHELL.values(), ids=IN_A_SHELL)
async def test_a_time_limit_in_a_shell_holds(stuck: StuckFiles, script: str, kind: str) -> None:
    async with stuck_client(stuck) as sandbox:
        shell = sandbox.shell(shell=kind)
        await shell.run("X=1; cd /usr")
        with soon():
            outcome = await shell.run(script.format(file=stuck.path), timeout_s=0.5)
        assert_timed_out(outcome.result)
        assert outcome.result["shell"]["restarted"]
        assert outcome.result["shell"]["restored"]
        assert (await shell.run("echo $X; pwd", timeout_s=30)).stdout == b"1\n/usr\n"
        stuck.answer()
        await until_async(lambda: len(sandbox.context.reaper.pids) == 1, deadline_s=60, what="that the first shell is reaped")
        assert (await shell.run("echo $X", timeout_s=30)).stdout == b"1\n"


async def test_a_cancelled_command_of_a_shell_ends(stuck: StuckFiles) -> None:
    async with stuck_client(stuck) as sandbox:
        shell = sandbox.shell()
        command_id = shell.begin(f"read x < {stuck.path}")
        await asks(stuck, only_shell(sandbox.context).pid)
        with soon():
            shell.handler.signal("KILL")
            outcome = await shell.wait(command_id)
        assert_cancelled(outcome.result)
        assert (await shell.run("echo next", timeout_s=30)).stdout == b"next\n"


async def test_a_shell_with_a_terminal_goes_on(stuck: StuckFiles) -> None:
    async with stuck_client(stuck) as sandbox:
        shell = sandbox.shell(tty=True, rows=24, columns=80)
        await shell.run("X=1")
        with soon():
            outcome = await shell.run(f"read x < {stuck.path}", timeout_s=0.5)
        assert_timed_out(outcome.result)
        assert b"1" in (await shell.run("echo $X", timeout_s=30)).stdout


async def test_a_shell_can_be_ended(stuck: StuckFiles) -> None:
    async with stuck_client(stuck) as sandbox:
        shell = sandbox.shell()
        command_id = shell.begin(f"read x < {stuck.path}")
        process = only_shell(sandbox.context).process
        await asks(stuck, process.pid)
        with soon():
            only_shell(sandbox.context).end()
            outcome = await shell.wait(command_id)
        assert outcome.exit_code == 137
        await in_the_kernel(process.pid)


async def test_a_tree_of_processes_that_do_not_end_is_left(stuck: StuckFiles) -> None:
    async with stuck_client(stuck) as sandbox:
        channel = sandbox.command("cat", stuck.path, live=True)
        pid = (await channel.fact(Started)).info["pid"]
        await asks(stuck, pid)
        over = asyncio.Event()
        kill = TreeKill(lambda _: False, over.set, roots=(pid,), patience_s=0.2)
        await asyncio.wait_for(over.wait(), 60)
        assert kill.left == {pid}
        assert alive(pid)
        assert pid in members(lambda _: False, roots=(pid,))
