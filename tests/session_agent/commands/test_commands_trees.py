"""The process tree of a one-off command: what a time-out and a cancel kill, and which processes survive a normal exit."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import sys
from pathlib import Path

import pytest
from holdfast_wire.frames import Output, Started

from session_agent.agent.process.processes import child_pids
from tests.session_agent.processes import alive, gone, nap, sleepers
from tests.support.own_process import in_own_process
from tests.support.process_channel import client
from tests.support.until import until_async

PATH = os.environ["PATH"]


ESCAPES = [
    "sleep 77",
    "setsid sleep 77; sleep 77",
    "setsid sh -c 'sleep 77 & exec sleep 77'; sleep 77",
    "(setsid sh -c 'sleep 77 >/dev/null 2>&1 &' >/dev/null 2>&1 &); sleep 77",
    "env -i /usr/bin/setsid /bin/sh -c '/bin/sleep 77 </dev/null >/dev/null 2>&1 & /bin/sleep 0.01' & sleep 77",
    "nohup sh -c 'trap \"\" TERM HUP INT; sleep 77' >/dev/null 2>&1 & sleep 77",
    "for i in 1 2 3 4 5; do (for j in 1 2 3; do sleep 77 & done; wait) & done; wait",
]


@pytest.mark.parametrize("script", ESCAPES)
async def test_time_out_kills_the_tree_and_only_the_tree(script: str) -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        bystander = sandbox.command("sleep", "66")
        bystander_pid = (await bystander.fact(Started)).info["pid"]
        outcome = await sandbox.execute(script=f"echo partial; {script.replace('77', nap(77))}", timeout_s=2.0)
        assert outcome.stdout == b"partial\n"
        assert (outcome.exit_code, outcome.result["timed_out"], outcome.result["signal"]) == (124, True, None)
        assert outcome.result["cause"] == {
            "fault": "workload",
            "reason": "timeout",
            "message": outcome.result["cause"]["message"],
        }
        assert sleepers(nap(77)) == []
        assert alive(bystander_pid)


FIRST_THREAD_ENDS = (
    "import ctypes, threading, time; threading.Thread(target=time.sleep, args=(80,)).start(); print('there', flush=True); "
    "ctypes.CDLL(None).pthread_exit(None)"
)
"""Then /proc/PID/stat shows a zombie."""


@pytest.mark.parametrize("in_shell", [False, True])
async def test_time_out_kills_a_process_whose_first_thread_has_ended(in_shell: bool) -> None:
    name = f"holdfast-threads-{os.getpid()}-{in_shell}"
    words = [sys.executable, "-S", "-c", FIRST_THREAD_ENDS, name]
    async with client(env={"PATH": PATH}) as sandbox:
        if in_shell:
            outcome = await sandbox.shell().run(f"echo $$; {shlex.join(words)}", timeout_s=2.0)
        else:
            outcome = await sandbox.execute(*words, timeout_s=2.0)
        assert outcome.stdout.endswith(b"there\n")
        assert (outcome.exit_code, outcome.result["timed_out"]) == (124, True)
        threads = [path for path in Path("/proc").glob("[0-9]*/task/*/cmdline") if name.encode() in content(path)]
        assert threads == []


def content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


async def test_time_out_kills_a_fork_bomb() -> None:
    bomb = "import os,time\nfor i in range(6):\n  os.fork()\nos.setsid() if os.getpgrp()!=os.getpid() else 0\ntime.sleep(77)"
    name = f"holdfast-bomb-{os.getpid()}"
    async with client(env={"PATH": PATH}) as sandbox:
        began = asyncio.get_running_loop().time()
        outcome = await sandbox.execute("python3", "-S", "-c", bomb, name, timeout_s=2.0)
        assert outcome.result["timed_out"]
        assert asyncio.get_running_loop().time() - began < 30
        assert sleepers(name) == []


@pytest.mark.parametrize("end", ["cancel", "exit"])
@in_own_process
async def test_the_zombies_of_a_tree_are_reaped_before_its_exit_is_reported(end: str) -> None:
    """Otherwise they count against the sandbox's process limit: after a fork bomb no process could be started for a second."""
    async with client(env={"PATH": PATH}) as sandbox:
        other_children = set(child_pids())  # of this test process, not of the agent
        script = "for i in $(seq 100); do (sleep 79 &); done; echo there" + ("; sleep 79" if end == "cancel" else "")
        channel = sandbox.command(script=script, outlive="kill")
        await channel.fact(Output)
        if end == "cancel":
            channel.handler.close(False)
        assert (await channel.outcome()).stdout == b"there\n"
        assert set(child_pids()) - other_children <= sandbox.context.reaper.pids


async def test_cancel_kills_the_tree() -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        channel = sandbox.command(script=f"echo begun; setsid sleep {nap(78)} & wait")
        await channel.fact(Output)
        channel.handler.close(False)
        outcome = await channel.outcome()
        assert (outcome.exit_code, outcome.result["signal"], outcome.stdout) == (137, "KILL", b"begun\n")
        assert outcome.result["cause"]["reason"] == "cancelled"
        assert sleepers(nap(78)) == []


async def test_kill_signal_ends_the_whole_tree() -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        channel = sandbox.command(script=f"setsid sleep {nap(79)} & echo begun; wait")
        await channel.fact(Output)
        channel.handler.signal("KILL")
        assert (await channel.outcome()).exit_code == 137
        assert sleepers(nap(79)) == []


async def test_background_processes_are_killed_on_request() -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        script = f"setsid sleep {nap(80)} & setsid sleep {nap(80)} >/dev/null 2>&1 & echo done"
        outcome = await sandbox.execute(script=script, outlive="kill")
        assert (outcome.exit_code, outcome.stdout) == (0, b"done\n")
        assert sleepers(nap(80)) == []


@pytest.mark.parametrize("params", [{}, {"outlive": "adopt"}])
async def test_background_processes_are_adopted(params: dict[str, str]) -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        outcome = await sandbox.execute(script=f"(sleep 1; echo late; exec sleep {nap(81)}) & echo $!", **params)
        pid = int(outcome.stdout)
        assert outcome.exit_code == 0
        await until_async(lambda: sleepers(nap(81)) == [pid], deadline_s=60, what="the adopted child to survive its output")
        os.kill(pid, signal.SIGKILL)
        await gone(pid)


async def test_background_processes_are_waited_for() -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        outcome = await sandbox.execute(script="(sleep 0.1; echo late) & echo now; exit 4", outlive="wait")
        assert (outcome.exit_code, outcome.stdout) == (4, b"now\nlate\n")
        outcome = await sandbox.execute(script="sleep 0.1 >/dev/null 2>&1 & echo now", outlive="wait")
        assert outcome.result["duration_s"] >= 0.1


async def test_waiting_for_background_processes_obeys_the_time_out() -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        outcome = await sandbox.execute(script=f"sleep {nap(82)} & echo now", outlive="wait", timeout_s=2.0)
        assert (outcome.exit_code, outcome.stdout) == (124, b"now\n")
        assert sleepers(nap(82)) == []
