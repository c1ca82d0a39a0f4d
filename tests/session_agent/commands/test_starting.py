"""Requests to a command, a terminal or a shell that arrive before it is known whether its process could be started.

The children here are real. Each is held up between fork and exec, because the file through which it joins its control group is a full pipe.
"""

from __future__ import annotations

import asyncio
import fcntl
import functools
import os
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from holdfast_wire.errors import HoldfastError
from holdfast_wire.frames import Exited, Failed, Output, Started
from holdfast_wire.limits import ENTRYPOINT_ID

from session_agent.agent.commands.entrypoint import start_entrypoint, stop_entrypoint
from session_agent.agent.process import fork as forking
from session_agent.agent.process.stub import Call, execs, supported
from tests.session_agent.processes import gone
from tests.support.own_process import in_own_process
from tests.support.process_channel import Client, client
from tests.support.until import until_async

pytestmark = pytest.mark.skipif(not supported(), reason="there are no stubs for this machine")

PATH = os.environ["PATH"]
_PIPE_BYTES = 4096


@dataclass
class Held:
    """A sandbox in which no process that is started reaches its exec before ``release``."""

    sandbox: Client
    descriptor: int
    before: list[str]

    def release(self) -> None:
        fcntl.fcntl(self.descriptor, fcntl.F_SETPIPE_SZ, 64 * _PIPE_BYTES)  # a page for each write
        os.read(self.descriptor, _PIPE_BYTES)

    @property
    def starting(self) -> bool:
        reaper = self.sandbox.context.reaper
        return any(reaper.is_starting(pid) for pid in reaper.pids)

    async def assert_nothing_left(self) -> None:
        """All descriptors are closed when the last child is gone."""
        await until_async(lambda: not self.sandbox.context.reaper.pids, deadline_s=60, what="the end of all children")
        assert sorted(os.listdir("/proc/self/fd")) == self.before


@asynccontextmanager
async def held(path: str = PATH, **settings: Any) -> AsyncIterator[Held]:
    reader, writer = os.pipe()
    os.write(writer, bytes(fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)))
    try:
        async with client(env={"PATH": path}, cgroup_thread_fds=(writer,), **settings) as sandbox:
            yield Held(sandbox, reader, sorted(os.listdir("/proc/self/fd")))
    finally:
        os.close(reader)
        os.close(writer)


def make_starts_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every process forked from now on fails between fork and exec."""
    monkeypatch.setattr(forking, "execs", lambda paths: [Call("ioctl", (0, 0, 0)), *execs(paths)])
    monkeypatch.setattr(forking, "_stub_image", functools.lru_cache(forking._stub_image.__wrapped__))  # a cache for these images alone


@in_own_process
async def test_nothing_is_reported_before_the_start_is_known() -> None:
    async with held() as box:
        channel = box.sandbox.command("sh", "-c", "cat; echo err >&2; exit 3", stdin="pipe", id="a")
        channel.handler.write(b"kept ", False)
        channel.handler.write(b"for it\n", True)
        again = box.sandbox.command("sh", "-c", "cat; echo err >&2; exit 3", stdin="pipe", id="a")
        follower = box.sandbox.open("follow", {"id": "a"})
        assert box.starting
        assert channel.facts == again.facts == follower.facts == []
        assert box.sandbox.context.runs()
        box.release()
        for one in (channel, again, follower):
            outcome = await one.outcome()
            assert (outcome.exit_code, outcome.stdout, outcome.stderr) == (3, b"kept for it\n", b"err\n")
            assert isinstance(one.facts[0], Started)
        assert channel.consumed == len("kept for it\n")
        await box.assert_nothing_left()


@in_own_process
async def test_the_event_loop_runs_while_processes_start() -> None:
    async with held() as box:
        channels = [box.sandbox.command("sh", "-c", f"exit {code}") for code in range(20)]
        turns = 0
        while turns < 100:
            await asyncio.sleep(0)
            turns += 1
        assert box.starting
        box.release()
        assert [(await channel.outcome()).exit_code for channel in channels] == list(range(20))
        await box.assert_nothing_left()


@in_own_process
async def test_signals_wait_for_the_program() -> None:
    async with held() as box:
        channel = box.sandbox.command("sleep", "60")
        for name in ("INT", "INT", "NO-SUCH-SIGNAL"):
            channel.handler.signal(name)
        for _ in range(10):
            await asyncio.sleep(0.001)  # nothing is sent: there is no event to wait for
        assert box.starting
        assert channel.facts == []
        box.release()
        outcome = await channel.outcome()
        assert (outcome.exit_code, outcome.result["signal"]) == (130, "INT")
        await box.assert_nothing_left()


@pytest.mark.parametrize("way", ["close", "kill", "time-out", "agent"])
@in_own_process
async def test_the_end_does_not_wait_for_the_start(way: str) -> None:
    async with held() as box:
        channel = box.sandbox.command("sh", "-c", "echo ran", id="a", timeout_s=0.01 if way == "time-out" else None)
        (pid,) = box.sandbox.context.reaper.pids
        if way == "close":
            channel.handler.close(False)
        elif way == "kill":
            channel.handler.signal("KILL")
        elif way == "agent":
            box.sandbox.context.stop()
        outcome = await channel.outcome()
        assert (outcome.stdout, outcome.exit_code) == (b"", 124 if way == "time-out" else 137)
        reason = {"close": "cancelled", "agent": "cancelled", "time-out": "timeout"}.get(way)
        assert (outcome.result["cause"] or {}).get("reason") == reason
        await gone(pid)
        again = await box.sandbox.command("sh", "-c", "echo ran", id="a", timeout_s=0.01 if way == "time-out" else None).outcome()
        assert again.result == outcome.result, "it never runs again"
        await box.assert_nothing_left()


@in_own_process
async def test_an_agent_that_stops_leaves_no_starting_process() -> None:
    async with held() as box:
        for kind in ("command", "terminal"):
            box.sandbox.open(kind, {"id": kind, "argv": ["sleep", "60"]})
        box.sandbox.shell()
        pids = box.sandbox.context.reaper.pids
        assert len(pids) == 3
    for pid in pids:
        await gone(pid)


@in_own_process
async def test_a_client_that_detaches_during_the_start_can_follow_later() -> None:
    async with held() as box:
        channel = box.sandbox.command("echo", "here", id="a")
        channel.handler.close(True)
        assert isinstance(await channel.end(), Failed)
        follower = box.sandbox.open("follow", {"id": "a"})
        assert follower.facts == []
        box.release()
        assert (await follower.outcome()).stdout == b"here\n"


@in_own_process
async def test_a_program_that_does_not_exist() -> None:
    async with held() as box:
        channel = box.sandbox.command("no-such-program", stdin="pipe")
        channel.handler.write(b"for nobody", True)
        channel.handler.signal("INT")
        assert channel.facts == []
        box.release()
        outcome = await channel.outcome()
        assert (outcome.exit_code, outcome.started, outcome.stderr) == (127, True, b"no-such-program: command not found\n")
        assert not box.sandbox.context.commands
        await box.assert_nothing_left()


@in_own_process
async def test_a_start_that_fails_leaves_the_id_free(monkeypatch: pytest.MonkeyPatch) -> None:
    async with held() as box:
        with monkeypatch.context() as patched:
            make_starts_fail(patched)
            channel = box.sandbox.command("echo", "ran", id="a", stdin="pipe")
            channel.handler.write(b"for nobody", False)
            follower = box.sandbox.open("follow", {"id": "a"})
            box.release()
            for one in (channel, follower):
                last = await one.end()
                assert isinstance(last, Failed)
                assert last.error["code"] == "spawn_failed"
                assert one.facts == [last]
        channel.handler.write(b"too late", True)
        channel.handler.close(False)
        assert channel.consumed <= len("for nobody" + "too late")
        assert not box.sandbox.context.commands
        assert len(box.sandbox.context.records) == 0
        assert (await box.sandbox.command("echo", "ran", id="a").outcome()).stdout == b"ran\n"
        await box.assert_nothing_left()


@pytest.mark.parametrize("written", ["junk", "a failure"])
async def test_what_another_process_writes_to_the_report_changes_nothing(written: str) -> None:
    """A process of the stub's user can open the pipe of the report as /proc/PID/fd/N."""
    async with held() as box:
        channel = box.sandbox.command("sh", "-c", "echo ran; exit 3")
        ((starting, _),) = box.sandbox.context.reaper._starting.values()
        last = len(starting._report.calls) - 1
        records = struct.pack("<qQ", -13, 0x400180 + 48 * last)
        with open(f"/proc/self/fd/{starting.descriptor}", "wb", buffering=0) as report:
            report.write(b"\xff" * 64 if written == "junk" else records)
        box.release()
        outcome = await channel.outcome()
        assert (outcome.exit_code, outcome.stdout, outcome.stderr) == (3, b"ran\n", b"")
        await box.assert_nothing_left()


async def test_an_entrypoint_whose_start_fails_late(monkeypatch: pytest.MonkeyPatch) -> None:
    async with held(entrypoint=("sleep", "60")) as box:
        make_starts_fail(monkeypatch)
        start_entrypoint(box.sandbox.context)
        assert box.starting
        box.release()
        await until_async(lambda: not box.sandbox.context.reaper.pids, deadline_s=60, what="the end of the stub")
        stop_entrypoint(box.sandbox.context)
        outcome = await box.sandbox.open("follow", {"id": ENTRYPOINT_ID}).outcome()
        assert (outcome.exit_code, b"cannot start 'sleep'" in outcome.stderr) == (126, True)
        await box.assert_nothing_left()


async def test_an_entrypoint_whose_start_fails_while_the_agent_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    async with held(entrypoint=("sleep", "60")) as box:
        make_starts_fail(monkeypatch)
        start_entrypoint(box.sandbox.context)
        box.sandbox.context.records.refuse(HoldfastError("sandbox_gone", "the agent stops"))
        box.release()
        await until_async(lambda: not box.sandbox.context.reaper.pids, deadline_s=60, what="the end of the stub")
        stop_entrypoint(box.sandbox.context)
        await box.assert_nothing_left()


@in_own_process
async def test_a_process_that_is_killed_while_it_starts() -> None:
    async with held() as box:
        channel = box.sandbox.command("true")
        (pid,) = box.sandbox.context.reaper.pids
        os.kill(pid, 15)
        outcome = await channel.outcome()
        assert (outcome.exit_code, outcome.result["signal"]) == (143, "TERM")
        await box.assert_nothing_left()


@in_own_process
async def test_a_starting_terminal_keeps_input_and_signals() -> None:
    async with held() as box:
        channel = box.sandbox.open(
            "terminal", {"name": "t", "argv": ["sh", "-c", "trap 'echo winched' WINCH; read x; echo got $x; sleep 60"]}
        )
        channel.handler.write(b"kept\r", False)
        channel.handler.resize(40, 100)
        channel.handler.signal("WINCH")
        other = box.sandbox.open("terminal", {"name": "t"})
        assert channel.facts == other.facts == []
        box.release()
        await channel.until(lambda: b"got kept" in channel.output)
        assert isinstance(channel.facts[0], Started)
        channel.handler.signal("KILL")
        for one in (channel, other):
            assert (await one.outcome()).result["cause"]["reason"] == "cancelled"
        await box.assert_nothing_left()


@in_own_process
async def test_a_terminal_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    async with held() as box:
        missing = box.sandbox.open("terminal", {"name": "t", "argv": ["no-such-program"]})
        assert missing.facts == []
        box.release()
        outcome = await missing.outcome()
        assert (outcome.exit_code, outcome.stdout) == (127, b"no-such-program: command not found\r\n")
        make_starts_fail(monkeypatch)
        last = await box.sandbox.open("terminal", {"name": "t", "argv": ["true"]}).end()
        assert isinstance(last, Failed)
        assert last.error["code"] == "spawn_failed"
        assert not box.sandbox.context.terminals
        await box.assert_nothing_left()


@in_own_process
async def test_a_terminal_that_ends_before_it_started() -> None:
    async with held() as box:
        channel = box.sandbox.open("terminal", {"name": "t", "argv": ["cat"]})
        channel.handler.close(False)
        outcome = await channel.outcome()
        assert (outcome.exit_code, outcome.result["cause"]["reason"]) == (137, "cancelled")
        await box.assert_nothing_left()


@pytest.mark.parametrize("kind", ["bash", "sh"])
@in_own_process
async def test_a_starting_shell_keeps_its_first_run(kind: str) -> None:
    async with held() as box:
        shell = box.sandbox.shell(shell=kind)
        run = shell.begin("echo here; exit 7")
        assert box.starting
        assert not any(isinstance(fact, Exited | Output) for fact in shell.channel.facts)
        box.release()
        outcome = await shell.wait(run)
        assert (outcome.exit_code, outcome.stdout) == (7, b"here\n")


@in_own_process
async def test_a_shell_that_cannot_be_executed_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "bash").write_bytes(b"\x7fELF of another machine")
    (tmp_path / "bash").chmod(0o755)
    async with held(f"{tmp_path}:{PATH}") as box:
        shell = box.sandbox.shell(shell="bash")
        shell.begin("echo here")
        box.release()
        last = await shell.channel.end()
        assert isinstance(last, Failed)
        assert HoldfastError.from_map(last.error).code == "shell_unavailable"
        (result,) = [fact.result for fact in shell.channel.facts if isinstance(fact, Exited)]
        assert (result["exit_code"], result["signal"]) == (None, None), "it never ran"
        assert not box.sandbox.context.shells
