"""What happens when something is slow: the agent was stopped for a while, a shell gets no CPU time, a report arrives late."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest
from holdfast_wire.frames import Exited, Failed, Started

from session_agent.agent.context import SandboxLimits
from session_agent.agent.output.pipes import waiting_bytes
from session_agent.agent.shell import rebuild as shell_rebuild
from session_agent.agent.shell import retry as shell_retry
from session_agent.agent.shell.process import ShellProcess
from tests.support.process_channel import Client, client
from tests.support.running import only_command, only_shell
from tests.support.until import until, until_async

PATH = os.environ["PATH"]
SHELLS = pytest.mark.parametrize("kind", ["bash", "sh"])


def stop_agent_until(condition: Callable[[], object]) -> None:
    """Behave as if the agent had been stopped in its ``select`` until the condition holds.

    The interrupted ``select`` returns nothing, so timers that are due run before anything is read.
    """
    until(condition, deadline_s=60, what="the condition to hold while the agent is stopped")
    selector = asyncio.get_running_loop()._selector  # type: ignore[attr-defined]
    original = selector.select

    def interrupted(timeout: float | None = None) -> list[Any]:
        selector.select = original
        return []

    selector.select = interrupted


def passed(seconds: float) -> Callable[[], bool]:
    due = time.monotonic() + seconds
    return lambda: time.monotonic() > due


def is_dead(pid: int) -> bool:
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] == "Z"


def process_of(sandbox: Client) -> ShellProcess:
    shell = only_shell(sandbox.context)
    return shell.process


async def ready_for_a_run(sandbox: Client) -> None:
    """Wait until the shell would begin a run at once."""
    process = process_of(sandbox)
    await until_async(lambda: not process.opening_pipes and process.has_snapshot(), deadline_s=60, what="the snapshot")


def has_reported(process: ShellProcess) -> bool:
    return waiting_bytes(process.descriptors.status) > 0


async def test_a_command_that_ended_in_time_was_not_timed_out() -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        channel = sandbox.command("sh", "-c", "echo done; exit 3", timeout_s=0.2)
        (pid,) = sandbox.context.reaper.pids
        late = passed(0.2)
        stop_agent_until(lambda: late() and is_dead(pid))
        outcome = await channel.outcome()
        assert (outcome.exit_code, outcome.stdout, outcome.result["timed_out"], outcome.result["cause"]) == (3, b"done\n", False, None)


async def test_a_time_out_after_the_exit_changes_no_exit_code() -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        channel = sandbox.command("sh", "-c", "sleep 71 & exit 3")
        command = only_command(sandbox.context)
        ended = command._exited

        def exited(status: int) -> None:
            ended(status)
            command.end("timeout")

        sandbox.context.reaper._owners[command.pid] = exited
        outcome = await channel.outcome()
        assert (outcome.exit_code, outcome.result["timed_out"], outcome.result["cause"]) == (3, False, None)


@SHELLS
async def test_a_run_that_ended_in_time_was_not_timed_out(kind: str) -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        shell = sandbox.shell(shell=kind)
        await shell.run("true")
        await ready_for_a_run(sandbox)
        run = shell.begin("echo done; (exit 3)", timeout_s=0.2)
        late = passed(0.2)
        stop_agent_until(lambda: late() and has_reported(process_of(sandbox)))
        outcome = await shell.wait(run)
        assert (outcome.exit_code, outcome.stdout, outcome.result["timed_out"], outcome.result["cause"]) == (3, b"done\n", False, None)


async def test_a_terminal_that_ended_in_time_was_not_timed_out() -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        channel = sandbox.open("terminal", {"argv": ["sh", "-c", "exit 3"], "timeout_s": 0.2})
        (pid,) = sandbox.context.reaper.pids
        late = passed(0.2)
        stop_agent_until(lambda: late() and is_dead(pid))
        outcome = await channel.outcome()
        assert (outcome.exit_code, outcome.result["timed_out"]) == (3, False)


@SHELLS
async def test_a_shell_that_is_slow_to_open_new_pipes_is_waited_for(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shell_retry, "_OPEN_CHECK_S", 0.1)
    async with client(env={"PATH": PATH}) as sandbox:
        shell = sandbox.shell(shell=kind)
        pid = int((await shell.run("X=kept; echo $$")).stdout)
        await shell.run("sleep 30 &")
        assert process_of(sandbox).opening_pipes
        os.kill(pid, signal.SIGSTOP)
        run = shell.begin("echo $X")
        checked = asyncio.Event()  # and found not idle, as a shell that gets no CPU time
        monkeypatch.setattr(ShellProcess, "idle", lambda process: checked.set())
        await checked.wait()
        os.kill(pid, signal.SIGCONT)
        outcome = await shell.wait(run)
        assert (outcome.stdout, outcome.result["shell"]["restarted"]) == (b"kept\n", False)


@SHELLS
async def test_a_shell_that_opened_new_pipes_while_the_agent_was_stopped_is_kept(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shell_retry, "_OPEN_CHECK_S", 0.1)
    async with client(env={"PATH": PATH}) as sandbox:
        shell = sandbox.shell(shell=kind)
        await shell.run("X=kept")
        await shell.run("sleep 30 &")
        assert process_of(sandbox).opening_pipes
        run = shell.begin("echo $X")
        late = passed(0.1)
        stop_agent_until(lambda: late() and has_reported(process_of(sandbox)))
        outcome = await shell.wait(run)
        assert (outcome.stdout, outcome.result["shell"]["restarted"]) == (b"kept\n", False)


@SHELLS
async def test_a_shell_that_never_opens_new_pipes_is_replaced(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shell_retry, "_OPEN_CHECK_S", 0.01)
    async with client(env={"PATH": PATH}) as sandbox:
        shell = sandbox.shell(shell=kind)
        await shell.run("X=kept")
        await ready_for_a_run(sandbox)
        monkeypatch.setattr(type(process_of(sandbox).dialect), "rotate", lambda *_: b"")
        await shell.run("sleep 30 &")
        outcome = await shell.run("echo $X")
        assert (outcome.stdout, outcome.result["shell"]["restarted"]) == (b"kept\n", True)


@SHELLS
async def test_a_shell_that_is_slow_to_answer_is_waited_for(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shell_retry, "_PING_AGAIN_S", 0.002)
    monkeypatch.setattr(ShellProcess, "has_snapshot", lambda process: process.number > 1)  # so the shell is pinged before the second run
    checks = 0

    def is_idle(process: ShellProcess) -> bool:
        nonlocal checks
        checks += 1
        if checks > 3:
            os.kill(pid, signal.SIGCONT)
        return False  # as for a shell that gets no CPU time, unlike a stopped one

    monkeypatch.setattr(ShellProcess, "idle", is_idle)
    async with client(env={"PATH": PATH}) as sandbox:
        shell = sandbox.shell(shell=kind)
        pid = int((await shell.run("X=kept; echo $$")).stdout)
        os.kill(pid, signal.SIGSTOP)
        outcome = await shell.run("echo $X")
        assert (outcome.stdout, outcome.result["shell"]["restarted"], checks > 3) == (b"kept\n", False, True)


async def test_a_shell_that_loaded_its_state_while_the_agent_was_stopped_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shell_retry, "_LOAD_CHECK_S", 0.001)
    load = ShellProcess.load
    loading = asyncio.Event()
    monkeypatch.setattr(ShellProcess, "load", lambda process, state: loading.set() or load(process, state))  # type: ignore[func-returns-value]
    async with client(env={"PATH": PATH}) as sandbox:
        shell = sandbox.shell(shell="bash")
        await shell.run("X=kept")
        run = shell.begin("exit 3")
        await loading.wait()
        pid = process_of(sandbox).pid
        late = passed(0.3)
        stop_agent_until(lambda: late() and has_reported(process_of(sandbox)))
        outcome = await shell.wait(run)
        assert outcome.result["shell"]["restored"] is True
        assert (await shell.run("echo $X; echo $$")).stdout == b"kept\n%d\n" % pid


async def test_a_shell_that_survived_an_abort_while_the_agent_was_stopped_is_kept() -> None:
    async with client(SandboxLimits(abort_patience_s=0.3), env={"PATH": PATH}) as sandbox:
        shell = sandbox.shell(shell="bash")
        pid = (await shell.run("X=kept; echo $$")).stdout
        run = shell.begin("echo begun; sleep 60")
        await shell.channel.until(lambda: b"begun" in shell.channel.output)
        shell.handler.signal("KILL")
        late = passed(0.4)
        stop_agent_until(lambda: late() and has_reported(process_of(sandbox)))
        outcome = await shell.wait(run)
        assert outcome.exit_code == 137
        assert (await shell.run("echo $X; echo $$")).stdout == b"kept\n" + pid


async def test_a_lost_run_keeps_its_exit_code_where_the_shell_cannot_be_rebuilt(monkeypatch: pytest.MonkeyPatch) -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        shell = sandbox.shell(shell="bash")
        await shell.run("true")
        monkeypatch.setattr(shell_rebuild, "_MAX_ATTEMPTS", 0)
        run = shell.begin("exit 3")
        last = await shell.channel.end()
        assert isinstance(last, Failed)
        (result,) = [fact.result for fact in shell.channel.facts if isinstance(fact, Exited) and fact.command_id == run]
        assert (result["exit_code"], result["cause"]) == (3, None)


@SHELLS
async def test_output_of_an_exit_trap_is_complete_even_if_it_is_read_late(kind: str) -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        shell = sandbox.shell(shell=kind)
        pid = int((await shell.run("echo $$")).stdout)
        await ready_for_a_run(sandbox)
        run = shell.begin("trap 'seq 1000 2400' EXIT; exit 3")
        until(lambda: is_dead(pid), deadline_s=60, what="the end of the shell")
        sandbox.context.reaper.reap()
        outcome = await shell.wait(run)
        assert (outcome.exit_code, outcome.stdout) == (3, b"".join(b"%d\n" % i for i in range(1000, 2401)))


async def test_two_commands_killed_for_lack_of_memory_both_report_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        channels = [sandbox.command("sleep", "60") for _ in range(2)]
        for channel in channels:
            await channel.fact(Started)
        monkeypatch.setattr(sandbox.context.groups, "oom_kills", lambda: 2)
        for pid in sandbox.context.reaper.pids:
            os.kill(pid, signal.SIGKILL)
        for channel in channels:
            assert (await channel.outcome()).result["cause"]["reason"] == "oom"


async def test_a_shell_survives_a_million_commands_and_their_background_processes() -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        shell = sandbox.shell()
        pid = (await shell.run("echo $$")).stdout
        sandbox.context.tags._owners += (1 << 20) - 1
        await sandbox.execute("sh", "-c", "sleep 60 & exit 0")
        assert (await shell.run("echo $$")).stdout == pid


@SHELLS
async def test_a_run_is_refused_if_no_descriptor_is_free_for_its_input(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        shell = sandbox.shell(shell=kind)
        await shell.run("X=kept")
        await ready_for_a_run(sandbox)
        opened = os.open

        def refuse(path: Any, *args: Any, **options: Any) -> int:
            if ".holdfast-" in str(path) or str(path).startswith("/proc/self/fd/"):
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return opened(path, *args, **options)

        monkeypatch.setattr(os, "open", refuse)
        run = shell.begin("cat; echo $X", stdin="pipe")
        shell.handler.write(b"lost", True)
        assert (await shell.wait(run)).result["error"]["code"] == "spawn_failed"
        assert shell.channel.consumed == len(b"lost")
        assert (await shell.run("echo $X")).stdout == b"kept\n"
