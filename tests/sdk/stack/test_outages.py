"""Outages longer than ``resume_timeout_s`` on the real stack: errors of old handles, and how soon clients give up and reconnect."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any

import pytest
from holdfast import HoldfastError, OutcomeUnknownError, ServiceUnavailableError, SessionLostError

from tests.faults.proxy import FaultProxy
from tests.sdk.support.fake_agent import FakeAgent
from tests.support.pace import Stopwatch
from tests.support.requires import requires
from tests.support.stack import Stack
from tests.support.until import until

real = requires("namespaces", "redis", "bash")


@pytest.fixture
def proxy(stack: Stack) -> Iterator[FaultProxy]:
    with FaultProxy(stack.url) as running:
        yield running


@pytest.fixture
async def impatient(proxy: FaultProxy, stack: Stack, face: Any) -> AsyncIterator[Any]:
    client = face.client(proxy.url, stack.key, resume_timeout_s=0.5)
    async with await client.create_sandbox("host") as sandbox:
        yield sandbox
    await client.close()


async def eventually(condition: Any, what: str) -> None:
    await asyncio.to_thread(until, condition, deadline_s=60, what=what)


async def _outage(proxy: FaultProxy, sandbox: Any) -> None:
    """Refuse connections until the client gives up the session of ``sandbox``, then accept them again."""
    proxy.refuse(True)
    proxy.cut_all()
    with pytest.raises((ServiceUnavailableError, OutcomeUnknownError)):
        await sandbox.exec("true")
    proxy.refuse(False)


@real
async def test_the_error_of_a_shell_whose_session_is_lost_names_the_call_that_finds_it(proxy: FaultProxy, impatient: Any) -> None:
    shell = await impatient.shell()
    await shell.run("cd /usr; N=41")
    await _outage(proxy, impatient)
    for _ in range(2):
        with pytest.raises(SessionLostError) as lost:
            await shell.run("true")
        assert (lost.value.retryable, lost.value.fault) == (False, "infrastructure")
    assert f"sandbox.shell({shell.name!r})" in lost.value.hint
    again = await impatient.shell(shell.name)
    assert not again.created
    assert (await again.run("echo $((N + 1)) $PWD")).stdout == "42 /usr\n"


@real
async def test_the_error_of_a_process_whose_session_is_lost_names_the_call_that_finds_it(proxy: FaultProxy, impatient: Any) -> None:
    process = await impatient.start("read word; echo got $word")
    await _outage(proxy, impatient)
    for use in (process.wait, process.read, lambda: process.write("x\n"), lambda: process.signal("TERM")):
        with pytest.raises(SessionLostError) as lost:
            await use()
        assert lost.value.retryable is False
        assert lost.value.command_id == process.command_id
    assert f"sandbox.follow({process.command_id!r})" in lost.value.hint
    again = await impatient.follow(process.command_id)
    await again.write("hello\n")
    assert (await again.wait()).stdout == "got hello\n"


@real
async def test_an_outcome_unknown_error_names_the_command_id(proxy: FaultProxy, impatient: Any) -> None:
    for runner in ("shell", "exec"):
        run = (await impatient.shell()).run if runner == "shell" else impatient.exec
        started, go = f"{runner}.started", f"{runner}.go"
        running = asyncio.create_task(run(f"touch {started}; echo a; until [ -e {go} ]; do sleep 0.01; done; echo b"))
        await impatient.exec(f"until [ -e {started} ]; do sleep 0.01; done")
        proxy.refuse(True)
        proxy.cut_all()
        with pytest.raises(OutcomeUnknownError) as unknown:
            await running
        proxy.refuse(False)
        assert f"sandbox.follow({unknown.value.command_id!r})" in unknown.value.hint
        again = await impatient.follow(unknown.value.command_id)
        await impatient.exec(f"touch {go}")
        assert (await again.wait()).stdout == "a\nb\n"


async def test_a_connection_attempt_to_a_silent_service_ends_with_the_resume_timeout(agent: FakeAgent, face: Any) -> None:
    """A connection attempt used to last ``connect_timeout_s``, even when less of ``resume_timeout_s`` was left."""
    with FaultProxy(agent.url) as proxy, socket.create_server(("127.0.0.1", 0)) as silent:
        sandbox = face.client(proxy.url, "k", resume_timeout_s=1.0, connect_timeout_s=30.0).get_sandbox("sb")
        running = asyncio.create_task(sandbox.exec("hang", command_id="h"))
        await eventually(lambda: agent.ran == ["h"], "the command to start")
        proxy.retarget(f"http://127.0.0.1:{silent.getsockname()[1]}")
        proxy.cut_all()
        with Stopwatch() as watch:
            with pytest.raises(HoldfastError):
                await running
            assert watch.elapsed_s < 15
        await sandbox.close()


async def test_the_first_session_that_attaches_wakes_the_others(proxy: FaultProxy, stack: Stack, face: Any) -> None:
    """The pauses of all others would last longer than an outage may."""
    client = face.client(proxy.url, stack.key)
    sandboxes = [await client.create_sandbox("host") for _ in range(12)]
    await asyncio.gather(*(sandbox.exec("true") for sandbox in sandboxes))
    drivers = [getattr(sandbox, "inner", sandbox)._driver for sandbox in sandboxes]
    paused: set[int] = set()

    def long_pause(number: int, usual: Callable[[float], float], at_least_s: float = 0.0) -> float:
        if number in paused:
            return usual(at_least_s)
        paused.add(number)
        return 3600.0

    for number, driver in enumerate(drivers[1:]):
        backoff = driver.engine._backoff
        backoff.delay_s = partial(long_pause, number, backoff.delay_s)
    proxy.refuse(True)
    proxy.cut_all()
    await eventually(lambda: len(paused) == 11, "eleven of the twelve to pause")
    proxy.refuse(False)
    await asyncio.gather(*(sandbox.exec("true") for sandbox in sandboxes))
    await asyncio.gather(*(sandbox.delete() for sandbox in sandboxes))
    await client.close()


async def test_the_log_has_each_state_of_a_session(agent: FakeAgent, face: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="holdfast")
    sandbox = face.client(agent.url, "k", resume_timeout_s=3.0).get_sandbox("sb-7")
    await sandbox.exec("true")
    agent.cut()
    await sandbox.exec("true")
    agent.refuse_with("placement_unavailable", 1000)
    agent.cut()
    with pytest.raises(HoldfastError):
        await sandbox.exec("true")
    logged = "\n".join(record.getMessage() for record in caplog.records if record.name == "holdfast")
    for phrase in ("sandbox sb-7: attached", "connection lost: ", "resuming in ", "resumed after ", "gave up after "):
        assert phrase in logged, logged
    assert "k" not in logged.split(), "no key"
    await sandbox.close()


def test_the_log_is_quiet_by_default(agent: FakeAgent) -> None:
    script = (
        "import sys, holdfast\n"
        "client = holdfast.SandboxClient(sys.argv[1], 'k', resume_timeout_s=0)\n"
        "sandbox = client.get_sandbox('sb')\n"
        "sandbox.exec('true')\n"
        "sandbox._driver._socket.shutdown(2)\n"
        "try:\n    sandbox.exec('true')\nexcept holdfast.HoldfastError:\n    pass\n"
        "client.close()\n"
    )
    ended = subprocess.run([sys.executable, "-c", script, agent.url], capture_output=True, text=True, timeout=60, check=True)
    assert (ended.stdout, ended.stderr) == ("", "")
