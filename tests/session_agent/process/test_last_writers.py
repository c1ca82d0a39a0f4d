"""The last output of commands whose processes write on for a moment after the command has ended, in shells and by exec."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from session_agent.agent.process import last_writers
from session_agent.agent.shell.shell import Shell
from tests.support.process_channel import Client, Outcome, client
from tests.support.until import until, until_async

PATH = "/usr/local/bin:/usr/bin:/bin"
Execute = Callable[[Client, str], Awaitable[Outcome]]
TIMES = 20


async def _in_a_shell(sandbox: Client, script: str) -> Outcome:
    return await sandbox.shell(shell="bash", name="main").run(script)


async def _by_exec(sandbox: Client, script: str) -> Outcome:
    return await sandbox.execute("bash", "-c", script)


async def _by_exec_and_kill(sandbox: Client, script: str) -> Outcome:
    return await sandbox.execute("bash", "-c", script, outlive="kill")


WAYS = pytest.mark.parametrize("execute", [_in_a_shell, _by_exec, _by_exec_and_kill])

LATE = {
    "a substitution": ("echo out > >(tee {log})", b"out\n", b""),
    "of the errors": ("echo err 2> >(tee {log} >&2) >&2", b"", b"err\n"),
    "of a whole script": ("exec > >(tee {log}) 2>&1; echo one; echo two", b"one\ntwo\n", b""),
    "a script whose shell ends": ("exec > >(tee {log}) 2>&1; echo one; exit 3", b"one\n", b""),
    "two substitutions": ("{{ echo a; echo b >&2; }} > >(sed s/^/1:/) 2> >(sed s/^/2:/ >&2)", b"1:a\n", b"2:b\n"),
    "a pipe in a substitution": ("echo out > >(cat | sed s/o/0/ | tee {log})", b"0ut\n", b""),
    "a slow one": ("echo out > >(sleep 0.3; cat; echo end)", b"out\nend\n", b""),
    "much output": ("seq 60000 > >(cat)", b"".join(b"%d\n" % n for n in range(1, 60001)), b""),
    "of a script that the command runs": ("bash -c 'exec > >(tee {log}); echo inner'; echo outer >&2", b"inner\n", b"outer\n"),
    "a program that does not wait": (
        "python3 -c \"import os, subprocess as s; p = s.Popen('cat', stdin=-1); p.stdin.write(b'x' * 9); p.stdin.close(); os._exit(0)\"",
        b"x" * 9,
        b"",
    ),
    "one in another": ("echo out > >(tee >(tee {log} >&2))", b"out\n", b"out\n"),
    "through a descriptor that the shell keeps": ("exec 3> >(cat); echo out >&3", b"out\n", b""),
    "much through a descriptor": ("exec 3> >(cat); seq 60000 >&3", b"".join(b"%d\n" % n for n in range(1, 60001)), b""),
    "beside a background job": ("sleep 60 & echo out > >(tee {log})", b"out\n", b""),
}


@WAYS
@pytest.mark.parametrize("case", LATE)
async def test_the_last_output_is_complete(case: str, execute: Execute, tmp_path: Path) -> None:
    script, stdout, stderr = LATE[case]
    async with client(env={"PATH": PATH}) as sandbox:
        for at in range(TIMES if "slow" not in case and "python" not in script else 2):
            outcome = await execute(sandbox, script.format(log=tmp_path / "log"))
            assert (outcome.stdout, outcome.stderr) == (stdout, stderr), at
            assert "late" not in outcome.result


BACKGROUND = {
    "a job": "sleep 60 & echo x",
    "a list": "{ sleep 60; echo late; } & echo x",
    "a busy loop": "while ((SECONDS < 3)); do :; done & echo x",
    "a pipe": "sleep 60 | cat & echo x",
    "a coprocess": "coproc cat; echo x",
    "a server": "python3 -c 'import asyncio; asyncio.run(asyncio.sleep(60))' & echo x",
    "a session of its own": "setsid sleep 60 & echo x",
    "a substitution that reads from one": "cat < <(sleep 60) & echo x",
    "a substitution that waits for the shell": "exec 3> >(cat); echo x",
}


@pytest.mark.parametrize("execute", [_in_a_shell, _by_exec])
@pytest.mark.parametrize("job", BACKGROUND)
async def test_background_jobs_do_not_count(job: str, execute: Execute) -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        await execute(sandbox, "true")
        fastest = 60.0
        for _ in range(3):
            begin = time.monotonic()
            outcome = await execute(sandbox, BACKGROUND[job])
            fastest = min(fastest, time.monotonic() - begin)
            assert outcome.stdout == b"x\n"
        assert fastest < 1.5


@WAYS
async def test_the_wait_for_the_last_output_ends(execute: Execute) -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        begin = time.monotonic()
        outcome = await execute(sandbox, "echo now; echo out > >(sleep 60; cat)")
        assert (outcome.stdout, outcome.exit_code, outcome.result["late"]) == (b"now\n", 0, True)
        assert 1.9 <= time.monotonic() - begin < 30
        assert (await execute(sandbox, "echo next")).stdout == b"next\n"


def test_a_writer_that_was_started_by_one_that_ended_is_found() -> None:
    """As ``tee`` in a substitution within another one, on a busy machine: it is not in the first list of processes."""
    output, written = os.pipe()
    stdin, closed = os.pipe()
    os.close(closed)
    found = os.fstat(output)
    other = subprocess.Popen(["sleep", "60"], stdout=subprocess.DEVNULL)
    writer = subprocess.Popen(["sleep", "60"], stdin=stdin, stdout=written)
    lists = [[other.pid], [other.pid, writer.pid]]
    try:
        assert last_writers.has_last_writers(lambda: lists.pop(0), [(found.st_dev, found.st_ino)])
        assert not last_writers.has_last_writers(lambda: [other.pid], [(found.st_dev, found.st_ino)])
    finally:
        for process in (other, writer):
            process.kill()
            process.wait()
        for descriptor in (output, written, stdin):
            os.close(descriptor)


CLOSES = """
import os
os.close(0)
while True:
    pass
"""


@pytest.mark.parametrize("ends", [True, False])
def test_a_writer_whose_input_is_held_by_a_process_that_ends_is_found(ends: bool) -> None:
    """A process that ends closes its standard input first. One that keeps it may write more."""
    output, written = os.pipe()
    stdin, held = os.pipe()
    found = os.fstat(output)
    holder = subprocess.Popen([sys.executable, "-c", CLOSES if ends else "while True: pass"], pass_fds=[held], stdout=written)
    writer = subprocess.Popen(["sleep", "60"], stdin=stdin, stdout=written)
    os.close(held)
    try:
        until(lambda: ends is not os.path.lexists(f"/proc/{holder.pid}/fd/0"), deadline_s=60, what="the standard input to be closed")
        pids = [holder.pid, writer.pid]
        assert last_writers.has_last_writers(lambda: pids, [(found.st_dev, found.st_ino)]) is ends
    finally:
        for process in (holder, writer):
            process.kill()
            process.wait()
        for descriptor in (output, written, stdin):
            os.close(descriptor)


async def test_a_shell_that_is_closed_or_killed_meanwhile() -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        shell = sandbox.shell(shell="bash", name="main")
        await shell.run("X=kept")
        live = sandbox.context.shells["main"]
        assert isinstance(live, Shell)

        def awaits_output() -> bool:
            return live.awaits_output

        async def begin() -> str:
            run = shell.begin("echo out > >(sleep 60); (exit 4)")
            await until_async(awaits_output, deadline_s=60, what="the end of the command")
            return run

        for name in ("KILL", "INT"):
            run = await begin()
            shell.handler.signal(name)
            outcome = await shell.wait(run)
            assert (outcome.exit_code, outcome.result["late"]) == (4, True)
        run = await begin()
        os.kill(live.pid, signal.SIGKILL)
        assert (await shell.wait(run)).exit_code == 4
        after = await shell.run("echo $X")
        assert (after.stdout, after.result["shell"]["restarted"]) == (b"kept\n", True)
        run = await begin()
        shell.handler.close(False)
        assert (await shell.wait(run)).exit_code in (4, 137)
