"""Cancelling a local wait cancels the remote command, waits a bounded time, and re-raises."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from holdfast import AsyncSandboxClient, SandboxClient, SessionLostError
from holdfast_wire.codec import encode
from holdfast_wire.frames import Ping

from tests.sdk.support.fake_agent import FakeAgent, HeldSession
from tests.support.until import until


async def _begin(sandbox: Any, agent: FakeAgent, how: str) -> asyncio.Task[Any]:
    if how == "exec":
        work = sandbox.exec("hang", command_id="h")
    elif how == "run":
        work = (await sandbox.shell()).run("hang", command_id="h")
    else:
        stream = (await sandbox.shell()).stream("hang", command_id="h")
        work = stream.wait()
    task = asyncio.create_task(work)
    await asyncio.to_thread(until, lambda: agent.ran == ["h"], deadline_s=60, what="the command to start")
    return task


@pytest.mark.parametrize("how", ["exec", "run", "stream"])
async def test_task_cancellation_ends_the_remote_command(agent: FakeAgent, how: str) -> None:
    sandbox = AsyncSandboxClient(agent.url, "k").get_sandbox("sb")
    task = await _begin(sandbox, agent, how)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert "h" in agent.records, "the client waited for its end"
    assert agent.signals == ([] if how == "exec" else ["INT"])
    assert (await sandbox.exec("echo on")).stdout == "on\n"
    await sandbox.close()


async def test_a_command_that_ignores_the_interrupt_is_killed(agent: FakeAgent) -> None:
    agent.ignored_signals = {"INT"}
    sandbox = AsyncSandboxClient(agent.url, "k").get_sandbox("sb")
    sandbox._options = replace(sandbox._options, cancel_timeout_s=0.2)
    task = await _begin(sandbox, agent, "run")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.to_thread(until, lambda: agent.signals == ["INT", "KILL"], deadline_s=60, what="the kill")  # the wait is bounded
    await sandbox.close()


async def test_the_wait_for_a_command_that_cannot_be_killed_is_bounded(agent: FakeAgent) -> None:
    agent.ignored_signals = {"INT", "KILL"}
    sandbox = AsyncSandboxClient(agent.url, "k").get_sandbox("sb")
    sandbox._options = replace(sandbox._options, cancel_timeout_s=0.2)
    task = await _begin(sandbox, agent, "run")
    task.cancel()
    async with asyncio.timeout(60):
        with pytest.raises(asyncio.CancelledError):
            await task
    await sandbox.close()


async def test_cancelling_a_queued_command_does_not_affect_the_running_one(agent: FakeAgent) -> None:
    sandbox = AsyncSandboxClient(agent.url, "k").get_sandbox("sb")
    shell = await sandbox.shell()
    first = asyncio.create_task(shell.run("hang", command_id="first"))
    await asyncio.to_thread(until, lambda: agent.ran == ["first"], deadline_s=60, what="the command to start")
    second = asyncio.create_task(shell.run("echo", command_id="second"))
    await asyncio.sleep(0)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    assert agent.signals == []
    agent.finish("first", 3)
    assert (await first).exit_code == 3
    assert agent.ran == ["first"]
    await sandbox.close()


async def test_a_stream_whose_loop_is_left_is_cancelled(agent: FakeAgent) -> None:
    sandbox = AsyncSandboxClient(agent.url, "k").get_sandbox("sb")
    shell = await sandbox.shell()
    async for _ in shell.stream("flood 50000000", command_id="f"):
        break
    assert (await shell.run("echo next")).stdout == "next\n"
    assert agent.signals == ["INT"]
    await sandbox.close()


def test_a_stream_whose_loop_is_left_is_cancelled_in_the_synchronous_api(agent: FakeAgent) -> None:
    sandbox = SandboxClient(agent.url, "k").get_sandbox("sb")
    shell = sandbox.shell()
    for _ in shell.stream("flood 50000000", command_id="f"):
        break
    assert shell.run("echo next").stdout == "next\n"
    assert agent.signals == ["INT"]
    sandbox.close()


async def test_a_referenced_stream_is_cancelled_when_its_loop_is_left(agent: FakeAgent) -> None:
    """A caller that wants the result keeps the stream in a variable: the next command must not wait for endless output."""
    sandbox = AsyncSandboxClient(agent.url, "k").get_sandbox("sb")
    shell = await sandbox.shell()
    stream = shell.stream("flood 50000000", command_id="f")
    async for _ in stream:
        break
    assert (await shell.run("echo next")).stdout == "next\n"
    assert (await stream.wait()).truncated
    assert agent.signals == ["INT"]
    await sandbox.close()


def test_a_referenced_stream_is_cancelled_in_the_synchronous_api(agent: FakeAgent) -> None:
    sandbox = SandboxClient(agent.url, "k").get_sandbox("sb")
    shell = sandbox.shell()
    stream = shell.stream("flood 50000000", command_id="f")
    for _ in stream:
        break
    assert shell.run("echo next").stdout == "next\n"
    assert stream.wait().truncated
    assert agent.signals == ["INT"]
    sandbox.close()


_INTERRUPTED = """
import sys
from holdfast import SandboxClient
sandbox = SandboxClient(sys.argv[1], "k").get_sandbox("sb")
shell = sandbox.shell()
try:
    (shell.run if sys.argv[2] == "run" else sandbox.exec)("hang", command_id="h")
except KeyboardInterrupt:
    assert sandbox.exec("echo on").stdout == "on\\n"
    print("interrupted")
"""


@pytest.mark.parametrize("how", ["run", "exec"])
def test_ctrl_c_ends_the_remote_command(agent: FakeAgent, how: str) -> None:
    command = [sys.executable, "-c", textwrap.dedent(_INTERRUPTED), agent.url, how]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        until(lambda: agent.ran == ["h"], deadline_s=60, what="the command to start")
        until(lambda: process.poll() is not None or _sleeping(process.pid), deadline_s=60, what="the client to block")
        os.kill(process.pid, signal.SIGINT)
        out, _ = process.communicate(timeout=60)
    assert out == "interrupted\n"
    assert "h" in agent.records
    # A second SIGINT follows if the start was not reported yet: the first may have reached another client's command.
    assert agent.signals in ([["INT"], ["INT", "INT"]] if how == "run" else [[]])


_INTERRUPTED_FLOOD = """
import sys, signal
from holdfast import SandboxClient
sandbox = SandboxClient(sys.argv[1], "k").get_sandbox("sb")
sandbox.exec("echo attached")
for number in range(8):
    signal.setitimer(signal.ITIMER_REAL, 0.02 + number * 0.011)
    signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        if number % 2:
            sandbox.exec("flood 100000000000", command_id=f"f{number}", max_output_bytes=0)
        else:
            for _ in sandbox.start("flood 100000000000", command_id=f"f{number}", max_output_bytes=0): pass
    except KeyboardInterrupt:
        pass
    else:
        raise SystemExit("not interrupted")
    assert sandbox.exec("echo on").stdout == "on\\n"
print("whole")
"""


def test_ctrl_c_during_endless_output_leaves_the_session_usable(agent: FakeAgent) -> None:
    """Both threads are nearly always inside a step of the engine here: the interrupt must wait for the end of that step."""
    command = [sys.executable, "-c", textwrap.dedent(_INTERRUPTED_FLOOD), agent.url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr) == ("whole\n", "")
    assert agent.attaches == 1, "one session served all commands"
    assert {f"f{n}" for n in range(1, 8, 2)} <= agent.records.keys(), "commands that the client waited for have ended"


_INTERRUPTED_START = """
import signal, sys
from holdfast import SandboxClient
sandbox = SandboxClient(sys.argv[1], "k").get_sandbox("sb")
shell = sandbox.shell()
engine = sandbox._driver.engine
outgoing = engine.outgoing
def interrupted():
    engine.outgoing = outgoing
    signal.raise_signal(signal.SIGINT)
    return outgoing()
for number, run in enumerate([shell.run, sandbox.exec]):
    engine.outgoing = interrupted
    try:
        run("hang", command_id=f"h{number}")
    except KeyboardInterrupt:
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert shell.run("echo on").stdout == "on\\n"
    else:
        raise SystemExit("not interrupted")
print("ended")
"""


def test_ctrl_c_while_a_command_is_sent_ends_the_command(agent: FakeAgent) -> None:
    """The step that sends the command is completed, so that there is a command to cancel; the wait for its outcome is interrupted."""
    done = subprocess.run([sys.executable, "-c", _INTERRUPTED_START, agent.url], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("ended\n", "")
    assert {"h0", "h1"} <= agent.records.keys()


_INHERITED = """
import os, signal, sys
from holdfast._transport.threads.signals import Uninterrupted
with Uninterrupted():
    if child := os.fork():
        assert os.waitpid(child, 0)[1] == 0
    else:
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            os._exit(0 if signal.getsignal(signal.SIGINT) is signal.default_int_handler else 2)
        os._exit(1)
print("raised")
"""


def test_a_process_forked_during_a_step_is_interrupted_at_once() -> None:
    done = subprocess.run([sys.executable, "-c", _INHERITED], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("raised\n", "")


_INTERRUPTED_ANYWHERE = """
import signal, sys
from holdfast import SandboxClient
sandbox = SandboxClient(sys.argv[1], "k").get_sandbox("sb")
shell = sandbox.shell()
left = 0
def trace(frame, event, argument):
    global left
    if "holdfast" not in frame.f_code.co_filename:
        return None
    if event == "line":
        left -= 1
        if left == 0:
            sys.settrace(None)
            signal.raise_signal(signal.SIGINT)
    return trace
def stream(command, command_id):
    for _ in shell.stream(command, command_id=command_id): pass
for name, run in {"run": shell.run, "exec": sandbox.exec, "stream": stream}.items():
    interrupted, line = True, 0
    while interrupted:
        line += 1
        left = line
        sys.settrace(trace)
        try:
            run("echo text", command_id=f"{name}{line}")
            interrupted = False
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)
        if line % 8 == 0:
            assert shell.run("echo on").stdout == sandbox.exec("echo on").stdout == "on\\n"
    assert line > 40, line
assert shell.run("echo on").stdout == sandbox.exec("echo on").stdout == "on\\n"
print("whole")
"""


def test_ctrl_c_at_any_line_leaves_the_session_usable(agent: FakeAgent) -> None:
    """An interrupt during a step is raised after the step; everywhere else it is raised at once."""
    done = subprocess.run([sys.executable, "-c", _INTERRUPTED_ANYWHERE, agent.url], capture_output=True, text=True, timeout=120)
    assert done.stdout == "whole\n", done.stderr  # an interrupt in a finalizer is printed, not raised
    assert agent.attaches == 1, "one session served all commands"


_TIMED_OUT_ANYWHERE = """
import signal, sys
from holdfast import SandboxClient, SessionLostError
sandbox = SandboxClient(sys.argv[1], "k").get_sandbox("sb")
sandbox.exec("echo attached")
armed, raised, lost = False, 0, 0
def on_alarm(number, frame):
    if armed:
        raise TimeoutError
signal.signal(signal.SIGALRM, on_alarm)
for number in range(600):
    shell = sandbox.shell()
    try:
        armed = True
        signal.setitimer(signal.ITIMER_REAL, 1e-6 + number % 60 * 2e-5)
        shell.run("echo text", command_id=f"c{number}")
    except TimeoutError:
        raised += 1
    except SessionLostError as why:
        assert why.reason == "interrupted"
    finally:
        armed = False
    for attempt in range(2):
        try:
            assert sandbox.exec("echo on").stdout == "on\\n"
            break
        except SessionLostError as why:
            assert why.reason == "interrupted" and not attempt
            lost += 1
assert raised > 100, raised
print("whole")
"""


def test_an_exception_of_a_signal_handler_at_worst_ends_the_session(agent: FakeAgent) -> None:
    """A session is not used after an incomplete step: it ends with a typed error, and the next call opens another session."""
    done = subprocess.run([sys.executable, "-c", _TIMED_OUT_ANYWHERE, agent.url], capture_output=True, text=True, timeout=120)
    assert done.stdout == "whole\n", done.stderr


class _Alarmed:
    """A socket in whose ``send`` a signal handler raises, after part of the frame was sent."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.armed = True

    def send(self, data: bytes) -> int:
        if self.armed:
            self.armed = False
            self._inner.send(data[:3])
            raise TimeoutError("the program's own alarm")
        return int(self._inner.send(data))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def test_a_timeout_error_of_the_program_in_a_write_is_not_taken_for_the_sockets(agent: FakeAgent) -> None:
    sandbox = SandboxClient(agent.url, "k").get_sandbox("sb")
    assert sandbox.exec("echo on").stdout == "on\n"
    driver: Any = sandbox._driver
    driver._socket = _Alarmed(driver._socket)
    with pytest.raises(TimeoutError, match="the program's own alarm"):
        sandbox.exec("echo lost")
    with pytest.raises(SessionLostError) as lost:
        sandbox.exec("echo on")
    assert lost.value.reason == "interrupted"
    assert sandbox.exec("echo on").stdout == "on\n"


def _sleeping(pid: int) -> bool:
    with open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()[0] == b"S"


def _received_since(held: HeldSession, before: float) -> bool:
    return held.session._heard > before


def test_threads_share_a_sandbox_while_its_connection_is_cut(agent: FakeAgent) -> None:
    """Many threads wait on one connection that is cut again and again, and each gets its own result."""
    sandbox = SandboxClient(agent.url, "k").get_sandbox("sb")
    wrong_answers: list[str] = []

    def work(number: int) -> None:
        shell = sandbox.shell(f"s{number}")
        for turn in range(60):
            text = f"{number}-{turn}"
            if shell.run(f"echo {text}").stdout != text + "\n":
                wrong_answers.append(text)
        done.append(number)

    done: list[int] = []
    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        ran = len(agent.ran)
        agent.cut()
        until(lambda ran=ran: len(agent.ran) > ran or len(done) == 8, deadline_s=60, what="a command to be executed")  # type: ignore[misc]
    for thread in threads:
        thread.join(60)
    assert wrong_answers == []
    assert sorted(done) == list(range(8))
    assert len(agent.ran) == len(set(agent.ran)) == 8 * 60
    sandbox.close()


def test_an_idle_connection_answers_pings(agent: FakeAgent) -> None:
    """While no caller waits, the driver's thread serves the socket, so that the next call can use it."""
    sandbox = SandboxClient(agent.url, "k").get_sandbox("sb")
    assert sandbox.exec("true").ok
    (held,) = agent.sessions.values()
    assert held.connection is not None
    for number in (7, 8):
        before = held.session._heard
        agent.call(partial(held.connection.send, encode(Ping(number))))
        until(partial(_received_since, held, before), deadline_s=60, what="a pong")
    assert agent.attaches == 1
    assert sandbox.exec("echo x").stdout == "x\n"
    sandbox.close()
