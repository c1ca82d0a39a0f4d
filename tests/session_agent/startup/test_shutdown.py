"""An agent whose sandbox is evicted (PROTOCOL §6.4): the real SDK against the agent as a container's command, stopped with SIGTERM."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from holdfast import AsyncSandbox, SandboxLostError
from holdfast_wire.proof import agent_token

from tests.support.front import Front, sdk_on
from tests.support.requires import requires
from tests.support.until import until_async

pytestmark = requires("bash")

TOKEN = agent_token("a deployment's secret", "sb-1", "1")
REPOSITORY = Path(__file__).resolve().parents[3]
Running = tuple[AsyncSandbox, Front, asyncio.subprocess.Process]


@pytest.fixture
def agent(tmp_path: Path) -> Callable[..., Any]:
    @asynccontextmanager
    async def run(grace_s: float = 90, **settings: str) -> AsyncIterator[Running]:
        endpoint = f"unix://{tmp_path}/agent.sock"
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),  # no start-up files of the machine's user: a terminal's shell would execute them
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "HOLDFAST_AGENT_LISTEN": endpoint,
            "HOLDFAST_AGENT_TOKEN": TOKEN,
            "HOLDFAST_AGENT_WORKDIR": str(tmp_path),
            "HOLDFAST_AGENT_GRACE_S": str(grace_s),
            **settings,
        }
        process = await asyncio.create_subprocess_exec(sys.executable, "-m", "session_agent", cwd=REPOSITORY, env=environment)
        try:
            await until_async((tmp_path / "agent.sock").exists, deadline_s=60, what="the agent to listen")
            async with sdk_on(endpoint, TOKEN, resume_timeout_s=30.0) as (sandbox, front):
                yield sandbox, front, process
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()

    return run


async def lost(awaitable: Any, within_s: float = 60.0) -> SandboxLostError:
    async with asyncio.timeout(within_s):
        with pytest.raises(SandboxLostError) as caught:
            await awaitable
    return caught.value


async def until_refused(sandbox: AsyncSandbox) -> None:
    """Run commands until one is refused: the signal takes a moment to arrive."""
    while True:
        await sandbox.exec("true")


async def test_an_idle_agent_exits_at_once(agent: Callable[..., Any]) -> None:
    async with agent() as (sandbox, front, process):
        shell = await sandbox.shell()
        await shell.run("echo hi")
        front.leaving = "evicted"
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(60):
            assert await process.wait() == 0
        error = await lost(shell.run("echo more"))
        assert (error.reason, error.fault) == ("evicted", "infrastructure")
        assert (await lost(sandbox.exec("true"))).reason == "evicted"


async def test_running_commands_may_end_within_the_grace_period(agent: Callable[..., Any]) -> None:
    async with agent() as (sandbox, front, process):
        shell = await sandbox.shell()
        running = asyncio.create_task(shell.run("echo begun; while ! test -e go; do sleep 0.02; done; echo done"))
        one_off = asyncio.create_task(sandbox.exec("while ! test -e go; do sleep 0.02; done; head -c 3000000 /dev/zero"))
        await sandbox.exec("true")
        front.leaving = "evicted"
        process.send_signal(signal.SIGTERM)
        refused = await lost(until_refused(sandbox))
        assert (refused.reason, refused.detail["started"]) == ("evicted", False)
        assert not running.done()
        assert not one_off.done()
        await sandbox.files.write("go", b"")
        async with asyncio.timeout(60):
            assert (await running).stdout == "begun\ndone\n"
            assert len((await one_off).stdout_bytes) == 3_000_000
            assert await process.wait() == 0


async def test_a_command_past_the_grace_period_is_lost_with_its_reason_and_counts(agent: Callable[..., Any]) -> None:
    async with agent(grace_s=4, HOLDFAST_AGENT_STOP_REASON="preempted") as (sandbox, front, process):
        running = await sandbox.start("echo partial; sleep 60")
        chunk = await running.read(timeout=60)
        assert chunk.text == "partial\n"
        front.leaving = "preempted"
        process.send_signal(signal.SIGTERM)
        error = await lost(running.wait())
        assert (error.reason, error.fault) == ("preempted", "infrastructure")
        assert (error.detail["started"], error.detail["received"]) == (True, {1: 8, 2: 0})
        assert await process.wait() == 0


@pytest.mark.parametrize("end", ["", "; exit 0"])
@pytest.mark.parametrize("by_shell", [False, True])
async def test_a_command_past_the_grace_period_runs_its_trap(agent: Callable[..., Any], tmp_path: Path, end: str, by_shell: bool) -> None:
    """Its trap runs and its output arrives, but its exit is not reported as a result: the eviction caused it."""
    script = f"trap 'echo saved; echo done > saved{end}' TERM; echo begun; while :; do sleep 0.02; done"
    async with agent(grace_s=10) as (sandbox, front, process):
        if by_shell:
            shell = await sandbox.shell()
            running = asyncio.create_task(shell.run(f"touch up; bash -c {shlex.quote(script)}"))
            waiting = asyncio.create_task(shell.run("touch never"))
            await until_async((tmp_path / "up").exists, deadline_s=60, what="the command to run")
        else:
            started = await sandbox.start(["bash", "-c", script])
            assert (await started.read(timeout=60)).text == "begun\n"
            running, waiting = asyncio.create_task(started.wait()), None
        front.leaving = "evicted"
        process.send_signal(signal.SIGTERM)
        error = await lost(running)
        assert (error.reason, error.fault, error.detail["started"]) == ("evicted", "infrastructure", True)
        assert error.detail["received"][1] == len("begun\nsaved\n")
        if waiting is not None:
            assert not (await lost(waiting)).detail["started"]
        assert await process.wait() == 0
        assert (tmp_path / "saved").read_text() == "done\n"
        assert not (tmp_path / "never").exists()


async def test_background_processes_may_flush_their_files(agent: Callable[..., Any], tmp_path: Path) -> None:
    async with agent() as (sandbox, front, process):
        script = "trap 'sleep 0.3; echo all > flushed; exit' TERM; touch up; while :; do sleep 0.02; done"
        await sandbox.exec(f"setsid nohup bash -c {shlex.quote(script)} > /dev/null 2>&1 &", outlive="adopt")
        await until_async((tmp_path / "up").exists, deadline_s=60, what="the process to be up")
        front.leaving = "evicted"
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(60):  # the grace period is 90 s
            assert await process.wait() == 0
        assert (tmp_path / "flushed").read_text() == "all\n"


async def test_a_disconnected_client_gets_its_result_within_the_grace_period(agent: Callable[..., Any]) -> None:
    async with agent() as (sandbox, front, process):
        running = asyncio.create_task(sandbox.exec("while ! test -e go; do sleep 0.02; done; echo done"))
        await sandbox.exec("true")
        endpoint, front.endpoint = front.endpoint, "unix:///nowhere"
        front.cut()
        front.leaving = "evicted"
        process.send_signal(signal.SIGTERM)
        (Path(endpoint.removeprefix("unix://")).parent / "go").touch()
        await asyncio.sleep(0)
        assert process.returncode is None
        front.endpoint = endpoint
        async with asyncio.timeout(60):
            assert (await running).stdout == "done\n"
            assert await process.wait() == 0
        assert (await lost(sandbox.exec("true"))).reason == "evicted"


async def test_the_reason_that_the_service_gives_takes_precedence(agent: Callable[..., Any]) -> None:
    async with agent() as (sandbox, front, process):
        shell = await sandbox.shell()
        front.refusal = json.dumps({"code": "sandbox_gone", "detail": "the node was reclaimed", "reason": "preempted"}).encode()
        front.leaving = "evicted"
        process.send_signal(signal.SIGTERM)
        await process.wait()
        assert (await lost(shell.run("true"))).reason == "preempted"


async def test_a_terminal_does_not_delay_the_exit(agent: Callable[..., Any]) -> None:
    async with agent() as (sandbox, front, process):
        terminal = await sandbox.terminal()
        front.leaving = "evicted"
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(60):
            assert await process.wait() == 0
        error = await lost(terminal.wait())
        assert error.reason == "evicted"
