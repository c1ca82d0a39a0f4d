"""Commands over a session that is cut, refused, fenced, drained and lost: what the caller sees, on both APIs."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from holdfast import (
    AuthenticationError,
    HoldfastError,
    OutcomeUnknownError,
    ProtocolError,
    SandboxLostError,
    SandboxNotFoundError,
    ServiceUnavailableError,
    SessionFencedError,
    SessionLostError,
)
from holdfast._options import Options
from holdfast._transport.session.command_call import Call
from holdfast._transport.session.engine import Engine
from holdfast._transport.session.sinks import ShellSink
from holdfast._transport.threads.events import Event
from holdfast_wire.frames import Exited

from tests.sdk.support.fake_agent import TICKET, FakeAgent
from tests.support.pace import Stopwatch
from tests.support.until import until


async def eventually(condition: Any, what: str) -> None:
    await asyncio.to_thread(until, condition, deadline_s=60, what=what)


async def test_runs_commands_in_a_shell(sandbox: Any) -> None:
    shell = await sandbox.shell()
    result = await shell.run("echo hello")
    assert (result.exit_code, result.stdout, result.stdout_bytes, result.stderr) == (0, "hello\n", b"hello\n", "")
    assert result.cwd == "/tmp"
    assert result.streams[1].seen == 6
    assert not result.truncated
    failed = await shell.run("exit 7")
    assert failed.exit_code == 7
    assert not failed.ok


async def test_runs_argument_lists_and_strings(sandbox: Any, agent: FakeAgent) -> None:
    assert (await sandbox.exec(["echo", "a", "b"])).stdout == "a b\n"
    assert (await sandbox.exec("both", cwd="/x", env={"A": "1"}, timeout=3)).stderr == "err"
    first, second = agent.opened
    assert first.params == {"id": first.params["id"], "argv": ["echo", "a", "b"]}
    assert second.params == {"id": second.params["id"], "script": "both", "cwd": "/x", "env": {"A": "1"}, "timeout_s": 3.0}


async def test_sends_input_and_its_end(sandbox: Any) -> None:
    data = bytes(range(256)) * 10_000
    assert (await sandbox.exec("cat", input=data)).stdout_bytes == data
    assert (await sandbox.exec("cat", input=b"")).stdout_bytes == b""
    shell = await sandbox.shell()
    assert (await shell.run("cat", input="text")).stdout == "text"


async def test_commands_of_one_shell_run_one_after_the_other(sandbox: Any, agent: FakeAgent) -> None:
    shell = await sandbox.shell()
    ids = [f"id-{n}" for n in range(20)]
    results = await asyncio.gather(*[shell.run(f"echo {n}", command_id=n) for n in ids])
    assert [r.stdout.strip() for r in results] == ids
    assert sorted(agent.ran) == sorted(ids)


async def test_a_stream_delivers_chunks_then_the_result(sandbox: Any) -> None:
    shell = await sandbox.shell()
    stream = shell.stream("both")
    chunks = [chunk async for chunk in stream]
    assert [(c.stream, c.data, c.text) for c in chunks] == [(1, b"out", "out"), (2, b"err", "err")]
    assert (stream.result.stdout, stream.result.exit_code) == ("out", 0)


async def test_a_caller_that_does_not_read_blocks_the_command(sandbox: Any, agent: FakeAgent) -> None:
    process = await sandbox.start("flood 5000000")
    await process.read()
    assert (await sandbox.exec("echo beside")).stdout == "beside\n"
    assert len(agent.records) == 1, "the agent could send all output although no caller reads"
    result = await process.wait()
    assert len(result.stdout_bytes) == 5_000_000
    assert result.exit_code == 0


async def test_output_over_the_limit_is_counted_and_cut(sandbox: Any) -> None:
    result = await sandbox.exec("flood 3000000", max_output_bytes=1000)
    assert result.stdout_bytes == b"x" * 1000
    assert result.truncated
    assert result.streams[1].seen == 3_000_000
    assert not (await sandbox.exec("flood 1000", max_output_bytes=1000)).truncated


async def test_processes_take_input_and_signals(sandbox: Any, agent: FakeAgent) -> None:
    async with await sandbox.start("cat") as process:
        assert process.pid == 42
        await process.write(b"one")
        assert (await process.read()).data == b"one"
        await process.close_stdin()
        assert (await process.wait()).stdout == "one"
    process = await sandbox.start("hang")
    await process.signal("SIGTERM")
    assert (await process.wait()).signal == "TERM"
    async with await sandbox.start("hang"):
        pass
    assert agent.closes, "leaving the block ends the process"


@pytest.mark.parametrize("code", [None, 1001, 1006, 1012, 1011, 4503])
async def test_a_lost_connection_is_resumed_without_the_callers_notice(sandbox: Any, agent: FakeAgent, code: int | None) -> None:
    shell = await sandbox.shell()
    running = asyncio.create_task(shell.run("hang", command_id="h"))
    await eventually(lambda: agent.ran == ["h"], "the command to start")
    if code is None or code == 1006:
        agent.cut()
    else:
        agent.close(code)
    await eventually(lambda: agent.attaches == 2, "the session to resume")
    agent.finish("h", 5)
    assert (await running).exit_code == 5
    assert agent.ran == ["h"], "it ran once"
    assert agent.requests[1]["X-Holdfast-Ticket"] == TICKET
    assert agent.requests[1]["X-API-Key"] == "test-key"


@pytest.mark.parametrize("frames", range(1, 9))
async def test_a_cut_between_any_two_frames_runs_each_command_once(sandbox: Any, agent: FakeAgent, frames: int) -> None:
    shell = await sandbox.shell()
    for round_ in range(4):
        agent.cut_after = frames
        result = await shell.run(f"echo {round_}", command_id=f"c{round_}")
        assert result.stdout == f"{round_}\n"
    assert agent.ran == [f"c{n}" for n in range(4)]


async def test_go_away_moves_the_session_without_the_callers_notice(sandbox: Any, agent: FakeAgent) -> None:
    shell = await sandbox.shell()
    running = asyncio.create_task(shell.run("hang", command_id="h"))
    await eventually(lambda: agent.ran == ["h"], "the command to start")
    agent.go_away()
    await eventually(lambda: agent.attaches == 2, "the session to move")
    agent.finish("h")
    assert (await running).exit_code == 0


async def test_no_byte_of_a_large_output_is_lost_through_cuts(sandbox: Any, agent: FakeAgent) -> None:
    running = asyncio.create_task(sandbox.exec("flood 40000000"))
    for attach in range(2, 6):
        agent.cut()
        await eventually(lambda attach=attach: agent.attaches >= attach or running.done(), "a resume")
    result = await running
    assert len(result.stdout_bytes) == 40_000_000
    assert result.streams[1].seen == 40_000_000


async def test_a_lost_sandbox_fails_every_command_with_what_is_known_of_it(sandbox: Any, agent: FakeAgent) -> None:
    shell = await sandbox.shell()
    started = asyncio.create_task(shell.run("hang", command_id="started"))
    process = await sandbox.start("flood 5000000", command_id="flood")
    await eventually(lambda: "started" in agent.ran, "the command to start")
    queued = asyncio.create_task(shell.run("echo x", command_id="queued"))
    quiet = asyncio.create_task(sandbox.exec("quiet", command_id="quiet"))
    await eventually(lambda: len(agent.opened) == 3, "the last command to be requested")
    agent.refuse_with("sandbox_gone", 9, reason="oom", fault="workload")
    agent.cut()
    with pytest.raises(SandboxLostError) as lost:
        await started
    assert (lost.value.reason, lost.value.fault, lost.value.started) == ("oom", "workload", True)
    assert lost.value.command_id == "started"
    with pytest.raises(SandboxLostError) as lost:
        await queued
    assert lost.value.started is False
    with pytest.raises(SandboxLostError) as lost:
        await quiet
    assert lost.value.started is None
    with pytest.raises(SandboxLostError) as lost:
        await process.wait()
    assert 0 <= lost.value.received[1] <= 1024 * 1024, "at most one credit window, as no caller read"
    with pytest.raises(SandboxLostError):
        await sandbox.exec("true")


async def test_a_restarted_agent_makes_the_outcome_unknown(sandbox: Any, agent: FakeAgent) -> None:
    shell = await sandbox.shell()
    running = asyncio.create_task(shell.run("hang", command_id="h"))
    await eventually(lambda: agent.ran == ["h"], "the command to start")
    agent.restart()
    with pytest.raises(OutcomeUnknownError) as unknown:
        await running
    assert unknown.value.started is True
    assert unknown.value.reason == "agent-restarted"
    with pytest.raises(HoldfastError):
        await shell.run("true")
    assert (await sandbox.exec("echo new")).stdout == "new\n", "the sandbox can be used over a new session"
    assert agent.ran.count("h") == 1


async def test_a_service_that_stays_unavailable_is_reported_after_resume_timeout_s(agent: FakeAgent, face: Any) -> None:
    sandbox = face.client(agent.url, "k", resume_timeout_s=2.0).get_sandbox("sb")
    running = asyncio.create_task(sandbox.exec("hang", command_id="h"))
    await eventually(lambda: agent.ran == ["h"], "the command to start")
    agent.refuse_with("placement_unavailable", 1000)
    agent.cut()
    with pytest.raises(OutcomeUnknownError):
        await running
    await sandbox.close()


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("key_invalid", AuthenticationError),
        ("key_missing", AuthenticationError),
        ("sandbox_not_found", SandboxNotFoundError),
        ("sandbox_gone", SandboxLostError),
    ],
)
async def test_refusals_raise_typed_errors(sandbox: Any, agent: FakeAgent, code: str, error: type[Exception]) -> None:
    agent.refuse_with(code)
    with pytest.raises(error) as refused:
        await sandbox.exec("true")
    assert refused.value.code == code  # type: ignore[attr-defined]
    assert "test-key" not in str(refused.value)


async def test_a_busy_service_is_tried_again(sandbox: Any, agent: FakeAgent) -> None:
    agent.refuse_with("placement_unavailable", 2)
    agent.refuse.append((502, {"Content-Type": "text/html"}, b"<h1>bad gateway</h1>"))
    assert (await sandbox.exec("echo x")).stdout == "x\n"
    assert len(agent.requests) == 4


async def test_a_service_that_answers_is_tried_three_times_as_long_as_one_that_cannot_be_reached(face: Any, agent: FakeAgent) -> None:
    limit_s, waited_s = 1.0, []
    agent.refuse_with("placement_unavailable", 1000)
    for url in (agent.url, "http://127.0.0.1:9"):
        sandbox = face.client(url, "k", connect_timeout_s=limit_s, transport="session").get_sandbox("sb")
        started = time.monotonic()
        with Stopwatch() as watch:
            with pytest.raises(ServiceUnavailableError):
                await sandbox.exec("true")
            assert watch.elapsed_s < 3 * limit_s or url == agent.url
        waited_s.append(time.monotonic() - started)
        await sandbox.close()
    assert waited_s[0] >= 3 * limit_s
    assert waited_s[1] >= limit_s


async def test_an_error_where_no_service_listens(face: Any) -> None:
    sandbox = face.client("http://127.0.0.1:9", "k", connect_timeout_s=0.3).get_sandbox("sb")
    with pytest.raises(ServiceUnavailableError, match=r"127\.0\.0\.1:9"):
        await sandbox.exec("true")
    await sandbox.close()


async def test_the_newest_connection_wins(sandbox: Any, agent: FakeAgent) -> None:
    running = asyncio.create_task(sandbox.exec("hang", command_id="h"))
    await eventually(lambda: agent.ran == ["h"], "the command to start")
    agent.close(4411, "session_fenced")
    with pytest.raises(SessionFencedError):
        await running


async def test_a_session_that_expired_is_replaced(sandbox: Any, agent: FakeAgent) -> None:
    assert (await sandbox.exec("true")).ok
    agent.close(4414, "session_lost")
    link = getattr(sandbox, "inner", sandbox)._driver
    await eventually(lambda: link.engine.error is not None, "the client to notice the close")
    assert (await sandbox.exec("echo again")).stdout == "again\n"


@pytest.mark.parametrize("data", [b"\xff\xff", b"\x80" * 70_000, "text", b"\x93\x12\x01\x00", b"\x94\x10\x63\x00\x80"])
async def test_a_protocol_violation_ends_the_session(sandbox: Any, agent: FakeAgent, data: bytes | str) -> None:
    running = asyncio.create_task(sandbox.exec("hang", command_id="h"))
    await eventually(lambda: agent.ran == ["h"], "the command to start")
    agent.send_raw(data)
    with pytest.raises((ProtocolError, OutcomeUnknownError)):
        await running


@pytest.mark.parametrize("script", ["lie", "badtype"])
async def test_inconsistent_results_are_refused(sandbox: Any, script: str) -> None:
    with pytest.raises(ProtocolError):
        await sandbox.exec(script)


def test_a_shell_that_reports_the_end_of_another_command_ends_the_wait_for_this_one() -> None:
    """The breach of the protocol used to end the session, while the call waited for ever."""
    engine = Engine(Options("http://127.0.0.1:1", "k"), "sb", Event)
    sink = ShellSink(engine.session, Event)
    engine.open("shell", {}, sink)
    call = Call(sink, "mine", 0, new_event=Event, collecting=True)
    sink.run(call)
    with pytest.raises(ProtocolError) as breach:
        sink.fact(Exited(sink.number, "another", {"exit_code": 0}))
    engine.fail(breach.value)
    assert call.done


async def test_an_outcome_the_agent_does_not_know_is_an_error(sandbox: Any) -> None:
    with pytest.raises(OutcomeUnknownError):
        await sandbox.exec("unknown")


async def test_closing_fails_waiting_calls(sandbox: Any, agent: FakeAgent) -> None:
    running = asyncio.create_task(sandbox.exec("hang", command_id="h"))
    await eventually(lambda: agent.ran == ["h"], "the command to start")
    await sandbox.close()
    with pytest.raises(SessionLostError) as closed:
        await running
    assert closed.value.reason == "closed"


async def test_many_commands_wait_at_once(sandbox: Any, agent: FakeAgent) -> None:
    waiting = [asyncio.create_task(sandbox.exec("hang", command_id=f"h{n}")) for n in range(30)]
    await eventually(lambda: len(agent.ran) == 30, "all to start")
    for n in range(29, -1, -1):
        agent.finish(f"h{n}", n)
    assert [result.exit_code for result in await asyncio.gather(*waiting)] == list(range(30))


async def test_a_session_that_breaks_each_connection_is_given_up(agent: FakeAgent, face: Any) -> None:
    """A session whose every connection fails must not resume for ever: connections without progress count towards ``resume_timeout_s``."""
    sandbox = face.client(agent.url, "k", resume_timeout_s=2.0).get_sandbox("sb")
    running = asyncio.create_task(sandbox.exec("hang", command_id="h"))
    await eventually(lambda: agent.ran == ["h"], "the command to start")
    agent.cut_always = True
    agent.cut()
    with pytest.raises(OutcomeUnknownError):
        await running
    assert agent.attaches > 1
    await sandbox.close()


async def test_closing_the_client_closes_the_sessions_of_its_sandboxes(agent: FakeAgent, face: Any) -> None:
    client = face.client(agent.url, "k")
    sandboxes = [client.get_sandbox(f"sb-{n}") for n in range(3)]
    for sandbox in sandboxes:
        await sandbox.shell()
    await client.close()
    await eventually(lambda: all(held.connection is None for held in agent.sessions.values()), "all connections to end")
    assert len(agent.sessions) == 3
    assert [close.detach for close in agent.closes] == [False] * 3, "shells without a name end with their client"
