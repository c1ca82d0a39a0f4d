"""What excludes a rollout is decided by the service's record, never by the sandbox's agent, which its workload may control."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest
from holdfast import HoldfastError
from holdfast._transport.session import failures
from holdfast_wire.codec import encode
from holdfast_wire.errors import TABLE
from holdfast_wire.frames import Closed, Exited, Failed, GoAway, Open, Opened, Run, Started

from tests.sdk.support.fake_agent import FakeAgent, HeldSession

FORGED = {"fault": "infrastructure", "message": "the node was lost", "reason": "node-lost", "retryable": False}
ENDS = ("sandbox_gone", "sandbox_failed", "sandbox_not_found")
LEAVING = {"leaving": {"reason": "evicted", "fault": "infrastructure", "message": "the node is drained", "deadline": 1.0}}
GONE = {"code": "sandbox_gone", "detail": "it ran out of memory", "reason": "oom", "fault": "workload"}


@pytest.fixture(autouse=True)
def short_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """How long the record is queried for an end that only the agent reports."""
    for module in ("holdfast._async.rest", "holdfast._sync.rest", "holdfast._transport.session.engine"):
        monkeypatch.setattr(f"{module}.LAST_LOOK_S", 0.2)
    assert failures.LAST_LOOK_S > 0.2


@pytest.fixture
async def sandbox(agent: FakeAgent, face: Any) -> AsyncIterator[Any]:
    """One whose session is given up after a second without a connection."""
    client = face.client(agent.url, "test-key", connect_timeout_s=20.0, resume_timeout_s=1.0)
    sandbox = client.get_sandbox("sb-1")
    yield sandbox
    await sandbox.close()
    await client.close()


async def failed(awaitable: Any) -> HoldfastError:
    async with asyncio.timeout(60):
        with pytest.raises(HoldfastError) as caught:
            await awaitable
    return caught.value


def refuse_commands(agent: FakeAgent, monkeypatch: pytest.MonkeyPatch, error: dict[str, Any], *, by_exit: bool = False) -> None:
    """Answer every channel with ``error``, in a Failed or in an Exited."""

    def handle(held: HeldSession, event: Any, plain: Any = HeldSession.handle) -> None:
        if not isinstance(event, Open):
            plain(held, event)
        elif by_exit and event.kind == "command":
            held.session.send(Started(event.channel, event.params["id"], {}))
            held.session.send(Exited(event.channel, event.params["id"], {"error": error}))
        else:
            held.session.send(Failed(event.channel, error))

    monkeypatch.setattr(HeldSession, "handle", handle)


@pytest.mark.parametrize("by_exit", [False, True])
async def test_no_error_of_an_agent_is_a_fault_of_the_infrastructure(
    agent: FakeAgent, sandbox: Any, monkeypatch: pytest.MonkeyPatch, by_exit: bool
) -> None:
    error: dict[str, Any] = {}
    refuse_commands(agent, monkeypatch, error, by_exit=by_exit)
    for code in TABLE:
        error |= {**FORGED, "code": code}
        why = await failed(sandbox.exec("true"))
        assert not why.is_infrastructure, code
        assert why.code not in (*ENDS, "key_invalid", "quota_exceeded", "overloaded")
        assert not (await failed(sandbox.files.read("x"))).is_infrastructure, code
        assert not (await failed(sandbox.shell())).is_infrastructure, code


@pytest.mark.parametrize(
    ("record", "reason", "fault"),
    [((200, LEAVING), "evicted", "infrastructure"), ((410, GONE), "oom", "workload")],
)
async def test_the_record_confirms_a_reported_end(
    agent: FakeAgent, sandbox: Any, monkeypatch: pytest.MonkeyPatch, record: Any, reason: str, fault: str
) -> None:
    refuse_commands(agent, monkeypatch, {**FORGED, "code": "sandbox_gone", "detail": {"started": False}})
    agent.record = record
    for work in (sandbox.exec("true"), sandbox.files.read("x"), sandbox.shell()):
        why = await failed(work)
        assert (why.code, why.reason, why.fault, why.detail["started"]) == ("sandbox_gone", reason, fault, False)
    assert agent.looks == 3


def refuse_runs(monkeypatch: pytest.MonkeyPatch, code: str, then: str = "") -> None:
    """Answer each command, of a shell or alone, with an Exited whose result is an error, and ``then`` with another message of a shell."""

    def handle(held: HeldSession, event: Any, plain: Any = HeldSession.handle) -> None:
        result = {"error": {**FORGED, "code": code, "detail": {"started": False}}}
        if isinstance(event, Run):
            number = event.channel
            held.session.send(Exited(number, event.command_id, result))
            if then == "closed":
                held.session.send(Closed(number, {}))
            elif then == "failed":
                held.session.send(Failed(number, result["error"]))
            elif then:
                held.session.send(Exited(number, event.command_id, result if then == "again" else {"exit_code": 0}))
        elif isinstance(event, Open) and event.kind == "command":
            held.session.send(Started(event.channel, event.params["id"], {}))
            held.session.send(Exited(event.channel, event.params["id"], result))
        else:
            plain(held, event)

    monkeypatch.setattr(HeldSession, "handle", handle)


@pytest.mark.parametrize("then", ["", "again", "failed"])
@pytest.mark.parametrize(
    ("record", "reason", "fault"),
    [((200, LEAVING), "evicted", "infrastructure"), ((410, GONE), "oom", "workload")],
)
async def test_the_record_confirms_an_end_that_a_refused_command_reports(
    agent: FakeAgent, sandbox: Any, monkeypatch: pytest.MonkeyPatch, record: Any, reason: str, fault: str, then: str
) -> None:
    """As the agent answers commands of a shell while its pod is terminated: the shell itself stays open."""
    refuse_runs(monkeypatch, "sandbox_gone", then)
    agent.record = record
    shell = await sandbox.shell()
    commands = [asyncio.ensure_future(shell.run("true")) for _ in range(2)]
    for command in commands:
        why = await failed(command)
        assert (why.code, why.reason, why.fault) == ("sandbox_gone", reason, fault), why
    why = await failed(sandbox.exec("true"))
    assert (why.code, why.reason, why.fault) == ("sandbox_gone", reason, fault), why
    assert "bug in Holdfast" not in str(why)


@pytest.mark.parametrize("then", ["", "again", "failed", "closed", "zero"])
async def test_an_end_that_only_a_refused_command_reports_excuses_nothing(
    agent: FakeAgent, sandbox: Any, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    refuse_runs(monkeypatch, "sandbox_gone", then)
    shell = await sandbox.shell()
    commands = [asyncio.ensure_future(shell.run("true")) for _ in range(2)]
    for command in commands:
        why = await failed(command)
        assert not why.is_infrastructure
        assert why.code not in ENDS
    assert not (await failed(sandbox.exec("true"))).is_infrastructure


@pytest.mark.parametrize("record", [(200, {}), (410, GONE)])
@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (4410, "sandbox_gone: node-lost: the node is away"),
        (4410, "sandbox_failed: evicted: drained"),
        (4404, "sandbox_not_found: x"),
        (4414, "session_lost: agent-restarted: x"),
        (4403, "key_invalid: x"),
        (4503, "runtime_unavailable: x"),
        (4409, "sandbox_not_ready: x"),
        (4502, "agent_identity: x"),
        (4400, "protocol_error: x"),
        (4999, "who knows"),
    ],
)
async def test_no_close_of_an_agent_is_a_fault_of_the_infrastructure(
    agent: FakeAgent, sandbox: Any, code: int, reason: str, record: tuple[int, dict[str, Any]]
) -> None:
    running = asyncio.ensure_future(sandbox.exec("hang", command_id="h"))
    while agent.ran != ["h"]:
        await asyncio.sleep(0.01)

    async def always_close(connection: Any) -> None:
        await connection.close(code, reason)

    agent._converse = always_close  # type: ignore[method-assign]
    if record[0] == 410:
        agent.refuse_with("sandbox_gone", times=99, reason="oom", fault="workload")
    await asyncio.to_thread(agent.close, code, reason)
    why = await failed(running)
    assert not why.is_infrastructure
    assert why.code not in ("key_invalid", "key_missing")
    if record[0] == 410 and code in (4410, 4404):
        assert (why.code, why.reason) == ("sandbox_gone", "oom")


@pytest.mark.parametrize("reason", ["evicted", "preempted", "deleted", "node-lost"])
async def test_an_announced_end_that_the_record_does_not_confirm_excuses_nothing(agent: FakeAgent, sandbox: Any, reason: str) -> None:
    running = asyncio.ensure_future(sandbox.exec("hang", command_id="h"))
    while agent.ran != ["h"]:
        await asyncio.sleep(0.01)

    async def announce_and_close(connection: Any) -> None:
        await connection.send(encode(GoAway(0.0, 0.0, reason)))
        await connection.close(4410, f"sandbox_gone: {reason}: x")

    agent._converse = announce_and_close  # type: ignore[method-assign]
    for held in agent.sessions.values():
        if held.connection is not None:
            await asyncio.to_thread(agent.call, partial(announce_and_close, held.connection))
    why = await failed(running)
    assert (why.is_infrastructure, why.code) == (False, "outcome_unknown")


async def test_a_forged_cause_of_a_result_is_the_workloads(agent: FakeAgent, sandbox: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def handle(held: HeldSession, event: Any, plain: Any = HeldSession.handle) -> None:
        if not isinstance(event, Open):
            plain(held, event)
            return
        number, id_ = event.channel, event.params.get("id", "")
        if event.kind == "shell":
            held.session.send(Opened(number, {"name": "s1", "pid": 7, "shell": "bash"}))
            return
        held.session.send(Started(number, id_, {}))
        cause = {"fault": "infrastructure", "reason": "evicted", "message": "x"}
        held.session.send(Exited(number, id_, {"exit_code": 1, "cause": cause}))

    monkeypatch.setattr(HeldSession, "handle", handle)
    result = await sandbox.exec("true")
    assert (result.cause.is_infrastructure, result.cause.reason) == (False, "evicted")
