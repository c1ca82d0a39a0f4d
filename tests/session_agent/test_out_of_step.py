"""What happens when something is slow: the agent was stopped for a while, a shell gets no processor, an answer comes late."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from holdfast_wire import halves
from holdfast_wire.codec import decode, encode, encode_item
from holdfast_wire.events import Delivered
from holdfast_wire.frames import Ack, Closed, Credit, Exited, Failed, Hello, Open, Opened, Run, Started
from holdfast_wire.limits import WINDOW_BYTES
from holdfast_wire.session import AgentSession

import session_agent.shell
import session_agent.shell_abort
from session_agent import shell_rebuild
from session_agent.handlers import FACTORIES
from session_agent.sandbox import SandboxLimits
from session_agent.sessions import Sessions
from session_agent.shell_output import waiting_bytes
from session_agent.shell_process import ShellProcess
from tests.support.process_channel import Client, ProcessChannel, client
from tests.support.until import until, until_async

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
    return shell._process


async def at_rest(sandbox: Client) -> None:
    """Until a run that is begun begins at once."""
    process = process_of(sandbox)
    await until_async(lambda: not process.settling and process.has_snapshot(), deadline_s=60, what="the state")


def has_reported(process: ShellProcess) -> bool:
    return waiting_bytes(process._status) > 0


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


@SHELLS
async def test_a_run_that_ended_in_time_was_not_timed_out(kind: str) -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        shell = sandbox.shell(shell=kind)
        await shell.run("true")
        await at_rest(sandbox)
        run = shell.begin("echo done; (exit 3)", timeout_s=0.2)
        late = passed(0.2)
        sleep_through(lambda: late() and has_reported(process_of(sandbox)))
        outcome = await shell.wait(run)
        assert (outcome.exit_code, outcome.stdout, outcome.result["timed_out"], outcome.result["cause"]) == (3, b"done\n", False, None)


async def test_a_terminal_that_ended_in_time_was_not_timed_out() -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        channel = sandbox.open("terminal", {"argv": ["sh", "-c", "exit 3"], "timeout_s": 0.2})
        (pid,) = sandbox.context.reaper.pids
        late = passed(0.2)
        sleep_through(lambda: late() and is_dead(pid))
        outcome = await channel.outcome()
        assert (outcome.exit_code, outcome.result["timed_out"]) == (3, False)


@SHELLS
async def test_a_shell_that_is_slow_to_take_fresh_pipes_is_waited_for(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_agent.shell, "_WATCH_S", 0.1)
    async with client(env={"PATH": PATH}) as sandbox:
        shell = sandbox.shell(shell=kind)
        pid = int((await shell.run("X=kept; echo $$")).stdout)
        await shell.run("sleep 30 &")
        assert process_of(sandbox).settling
        os.kill(pid, signal.SIGSTOP)
        run = shell.begin("echo $X")
        looked = asyncio.Event()  # and seen to do something, as one that gets no processor
        monkeypatch.setattr(ShellProcess, "idle", lambda process: looked.set())
        await looked.wait()
        os.kill(pid, signal.SIGCONT)
        outcome = await shell.wait(run)
        assert (outcome.stdout, outcome.result["shell"]["restarted"]) == (b"kept\n", False)


@SHELLS
async def test_a_shell_that_has_taken_them_while_the_agent_slept_is_not_replaced(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_agent.shell, "_WATCH_S", 0.1)
    async with client(env={"PATH": PATH}) as sandbox:
        shell = sandbox.shell(shell=kind)
        await shell.run("X=kept")
        await shell.run("sleep 30 &")
        assert process_of(sandbox).settling
        run = shell.begin("echo $X")
        late = passed(0.1)
        sleep_through(lambda: late() and has_reported(process_of(sandbox)))
        outcome = await shell.wait(run)
        assert (outcome.stdout, outcome.result["shell"]["restarted"]) == (b"kept\n", False)


@SHELLS
async def test_a_shell_that_is_slow_to_answer_is_waited_for(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_agent.shell_abort, "_ASK_AGAIN_S", 0.002)
    monkeypatch.setattr(ShellProcess, "has_snapshot", lambda process: process.number > 1)  # so that the second run is asked for first
    times = 0

    def is_idle(process: ShellProcess) -> bool:
        nonlocal times
        times += 1
        if times > 3:
            os.kill(pid, signal.SIGCONT)
        return False  # as one that gets no processor, which a stopped one is not

    monkeypatch.setattr(ShellProcess, "idle", is_idle)
    async with client(env={"PATH": PATH}) as sandbox:
        shell = sandbox.shell(shell=kind)
        pid = int((await shell.run("X=kept; echo $$")).stdout)
        os.kill(pid, signal.SIGSTOP)
        outcome = await shell.run("echo $X")
        assert (outcome.stdout, outcome.result["shell"]["restarted"], times > 3) == (b"kept\n", False, True)


async def test_a_shell_that_has_loaded_its_state_while_the_agent_slept_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shell_rebuild, "_TURN_S", 0.001)
    load = ShellProcess.load
    loading = asyncio.Event()
    monkeypatch.setattr(ShellProcess, "load", lambda process, dump, token: loading.set() or load(process, dump, token))  # type: ignore[func-returns-value]
    async with client(env={"PATH": PATH}) as sandbox:
        shell = sandbox.shell(shell="bash")
        await shell.run("X=kept")
        run = shell.begin("exit 3")
        await loading.wait()
        pid = process_of(sandbox).pid
        late = passed(0.3)
        sleep_through(lambda: late() and has_reported(process_of(sandbox)))
        outcome = await shell.wait(run)
        assert outcome.result["shell"]["restored"] is True
        assert (await shell.run("echo $X; echo $$")).stdout == b"kept\n%d\n" % pid


async def test_a_shell_that_came_back_from_an_abort_while_the_agent_slept_is_kept() -> None:
    async with client(SandboxLimits(abort_patience_s=0.3), env={"PATH": PATH}) as sandbox:
        shell = sandbox.shell(shell="bash")
        pid = (await shell.run("X=kept; echo $$")).stdout
        run = shell.begin("echo begun; sleep 60")
        await shell.channel.until(lambda: b"begun" in shell.channel.output)
        shell.handler.signal("KILL")
        late = passed(0.4)
        sleep_through(lambda: late() and has_reported(process_of(sandbox)))
        outcome = await shell.wait(run)
        assert outcome.exit_code == 137
        assert (await shell.run("echo $X; echo $$")).stdout == b"kept\n" + pid


async def test_a_lost_run_keeps_its_exit_code_where_the_shell_cannot_be_rebuilt(monkeypatch: pytest.MonkeyPatch) -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        shell = sandbox.shell(shell="bash")
        await shell.run("true")
        monkeypatch.setattr(shell_rebuild, "_TIMES", 0)
        run = shell.begin("exit 3")
        last = await shell.channel.end()
        assert isinstance(last, Failed)
        (result,) = [fact.result for fact in shell.channel.facts if isinstance(fact, Exited) and fact.command_id == run]
        assert (result["exit_code"], result["cause"]) == (3, None)


@SHELLS
async def test_what_a_trap_on_exit_prints_is_whole_whenever_it_is_read(kind: str) -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        shell = sandbox.shell(shell=kind)
        pid = int((await shell.run("echo $$")).stdout)
        await at_rest(sandbox)
        run = shell.begin("trap 'seq 1000 2400' EXIT; exit 3")
        until(lambda: is_dead(pid), deadline_s=60, what="the end of the shell")
        sandbox.context.reaper.reap()
        outcome = await shell.wait(run)
        assert (outcome.exit_code, outcome.stdout) == (3, b"".join(b"%d\n" % i for i in range(1000, 2401)))


async def test_a_slow_reader_gets_what_a_faster_one_has_acknowledged() -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        params: dict[str, Any] = {"id": "a", "script": "head -c 1000000 /dev/zero"}
        slow = sandbox.command(**params, window=65536, reading=False)
        fast = sandbox.command(**params)
        await fast.outcome()
        fast.handler.delivered("a")
        while not slow.ended.is_set():
            slow.read()
            await asyncio.sleep(0)
        outcome = await slow.outcome()
        assert (len(outcome.stdout), outcome.gaps) == (1_000_000, [])
        assert sandbox.context.budget.held_bytes == 0


async def test_terminals_that_end_unseen_leave_nothing_in_the_budget() -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        channel = sandbox.open("terminal", {"name": "t", "argv": ["sh", "-c", "seq 1 1000; read x"]})
        await channel.until(lambda: b"\n1000\r" in channel.output)
        (terminal,) = sandbox.context.terminals.values()
        channel.handler.close(True)
        terminal.cancel()
        await until_async(lambda: not sandbox.context.terminals, deadline_s=60, what="the end of the terminal")
        assert sandbox.context.budget.held_bytes == 0
        channel = sandbox.open("terminal", {"name": "t", "argv": ["seq", "1", "1000"]}, window=100, reading=False)
        await until_async(lambda: not sandbox.context.terminals, deadline_s=60, what="the end of the terminal")
        channel.handler.drop()
        assert sandbox.context.budget.held_bytes == 0
        missing = sandbox.open("terminal", {"argv": ["no-such-program"]})
        assert (await missing.outcome()).stdout == b"no-such-program: command not found\r\n"
        assert sandbox.context.budget.held_bytes == 0


async def test_a_run_that_waits_can_be_killed_by_whoever_follows_it() -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        shell = sandbox.shell()
        first = shell.begin("read x; echo $x", stdin="pipe")
        shell.begin("echo never", command_id="second")
        follower = sandbox.open("follow", {"id": "second"})
        follower.handler.signal("KILL")
        assert isinstance(await follower.end(), Failed)
        last = shell.begin("echo never")
        sandbox.open("follow", {"id": last}).handler.signal("INT")
        shell.handler.signal("KILL")
        assert (await shell.wait(first)).exit_code == 137
        told = await shell.wait(last)
        assert (told.exit_code, told.result["cause"]["reason"]) == (None, "cancelled")


async def test_two_that_die_of_one_shortage_are_both_told_why(monkeypatch: pytest.MonkeyPatch) -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        channels = [sandbox.command("sleep", "60") for _ in range(2)]
        for channel in channels:
            await channel.fact(Started)
        monkeypatch.setattr(sandbox.context.groups, "oom_kills", lambda: 2)
        for pid in sandbox.context.reaper.pids:
            os.kill(pid, signal.SIGKILL)
        for channel in channels:
            assert (await channel.outcome()).result["cause"]["reason"] == "oom"


class Strict(ProcessChannel):
    """A channel that gives no more back than came, as the real one."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.came = 0

    def consume(self, size_bytes: int) -> None:
        super().consume(size_bytes)
        if self.consumed > self.came:
            raise ValueError(f"{self.consumed} bytes consumed, {self.came} came")

    def give(self, data: bytes, eof: bool = False) -> None:
        self.came += len(data)
        self.handler.write(data, eof)


def strict(sandbox: Client, kind: str, params: dict[str, Any]) -> Strict:
    channel = Strict(kind, params)
    channel.handler = FACTORIES[kind](sandbox.context, channel)
    return channel


async def test_input_of_two_clients_arrives_once_and_each_gets_its_own_credit(tmp_path: Path) -> None:
    go = tmp_path / "go"
    os.mkfifo(go)
    async with client(env={"PATH": PATH}) as sandbox:
        first = strict(sandbox, "command", {"id": "a", "script": f"read x <{go}; cat", "stdin": "pipe"})
        first.give(b"1" * 300_000)
        first.handler.close(True)
        second = strict(sandbox, "follow", {"id": "a"})
        second.give(b"2" * 10, True)
        go.write_text("on\n")
        assert (await second.outcome()).stdout == b"1" * 300_000 + b"2" * 10
        assert second.consumed == 10


async def test_keys_of_two_clients_are_typed_once() -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        params = {"name": "t", "argv": ["sh", "-c", "stty raw -echo; echo ready; read x; head -c 300003 | tr -d '\\n' | wc -c; read x"]}
        first = strict(sandbox, "terminal", params)
        await first.until(lambda: b"ready" in first.output)
        first.give(b"\n" + b"1" * 300_000)
        second = strict(sandbox, "terminal", params)
        second.give(b"222\n")
        await second.until(lambda: b"300003" in second.output)
        assert (first.consumed, second.consumed) == (300_001, 4)


async def test_a_run_that_waits_has_its_input_from_two_clients_once() -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        shell = sandbox.shell()
        shell.begin("read x", command_id="first", stdin="pipe")
        shell.begin("cat", command_id="second", stdin="pipe")
        one, two = (strict(sandbox, "follow", {"id": "second"}) for _ in range(2))
        one.give(b"1" * 300_000)
        two.give(b"2" * 10, True)
        feeder = strict(sandbox, "follow", {"id": "first"})
        feeder.give(b"on\n")
        assert (await two.outcome()).stdout == b"1" * 300_000 + b"2" * 10


async def test_a_run_that_is_refused_takes_no_input_for_another() -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        shell = sandbox.shell()
        first = shell.begin("read x; echo $x", stdin="pipe")
        shell.begin("cat", command_id="refused", stdin="nonsense")
        shell.handler.write(b"for the second\n", False)
        sandbox.open("follow", {"id": first}).handler.write(b"for the first\n", False)
        assert (await shell.wait(first)).stdout == b"for the first\n"


async def test_who_follows_a_run_that_never_starts_is_told_and_so_are_the_others() -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        shell = sandbox.shell()
        shell.begin("sleep 60")
        for command_id in ("second", "third"):
            shell.begin("echo never", command_id=command_id)
        followers = [sandbox.open("follow", {"id": command_id}) for command_id in ("second", "third")]
        shell.handler.close(False)
        for follower in followers:
            last = await follower.end()
            assert isinstance(last, Failed)
            assert last.error["code"] == "cancelled"
        assert isinstance(await shell.channel.end(), Closed)


async def test_a_refusal_that_was_acknowledged_says_nothing_of_the_command_whose_id_it_has() -> None:
    agent = AgentSession("s" * 16, b"k" * 16, "epoch")
    agent.attach(Hello(1, "s" * 16, b"k" * 16, "", 0, 1, {}, 1), 0.0)
    agent.receive(encode_item(Open(1, "shell", {}), 0), 0.0)
    for fact in (Opened(1, {}), Exited(1, "refused", {"error": {"code": "command_conflict"}}), Exited(1, "ran", {"exit_code": 0})):
        agent.send(fact)
    agent.events()
    agent.receive(encode(Ack(1, 3)), 0.0)
    assert [event.command_id for event in agent.events() if isinstance(event, Delivered)] == ["ran"]


class Idle:
    """A connection that nobody carries anything over."""

    def wake(self, *, now: bool) -> None: ...
    def fence(self) -> None: ...


@pytest.mark.parametrize("ends", [False, True])
async def test_results_wait_for_a_client_that_takes_not_even_facts(ends: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(halves, "CONTROL_SLACK", 4)
    async with client(env={"PATH": PATH}) as sandbox:
        records = sandbox.context.records
        held = Sessions(sandbox.context, FACTORIES, "epoch", {}).attach(Hello(1, "s" * 16, b"k" * 16, "", 0, 1, {}, 1), Idle(), 0.0)
        ids = [f"run-{number}" for number in range(20)]
        told: list[str] = []

        def say(*messages: bytes) -> None:
            for message in messages:
                held.session.receive(message, 0.0)
                held.dispatch()

        def hear() -> None:
            told.extend(type(frame).__name__ for frame, _ in map(decode, held.session.outgoing()))

        say(encode_item(Open(1, "shell", {"name": "main"}), 0))
        say(encode_item(Run(1, "much", {"script": f"head -c {WINDOW_BYTES - 2} /dev/zero"}), 1))
        say(*(encode_item(Run(1, command_id, {"script": ":"}), 2 + at) for at, command_id in enumerate(ids)))
        await until_async(lambda: all(records.get(command_id).ending for command_id in ids), deadline_s=60, what="the end of all runs")
        hear()
        assert told.count("Exited") < len(ids)
        if ends:
            sandbox.context.shells["main"].end()
        say(encode(Credit(1, 2 * WINDOW_BYTES)))
        hear()
        assert told[-1] == "Closed" if ends else told.count("Exited") == 1 + len(ids)


async def test_a_shell_outlives_a_million_commands_and_what_they_leave() -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        shell = sandbox.shell()
        pid = (await shell.run("echo $$")).stdout
        sandbox.context.tags._owners += (1 << 20) - 1
        await sandbox.execute("sh", "-c", "sleep 60 & exit 0")
        assert (await shell.run("echo $$")).stdout == pid


@SHELLS
async def test_a_run_for_whose_input_no_descriptor_is_to_spare_ends_all_the_same(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        shell = sandbox.shell(shell=kind)
        await shell.run("X=kept")
        await at_rest(sandbox)
        opened = os.open

        def refuse(path: Any, *args: Any, **options: Any) -> int:
            if ".holdfast-" in str(path):
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return opened(path, *args, **options)

        monkeypatch.setattr(os, "open", refuse)
        run = shell.begin("cat; echo $X", stdin="pipe")
        shell.handler.write(b"lost", True)
        assert (await shell.wait(run)).stdout == b"kept\n"
        assert shell.channel.consumed == len(b"lost")
