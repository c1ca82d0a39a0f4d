"""An agent that sends wrong values in every field: REST answers typed JSON in bounded time and memory, and blames only the sandbox."""

from __future__ import annotations

import asyncio
import base64
import os
from typing import Any

import msgpack
import pytest
from holdfast_wire.codec import encode
from holdfast_wire.errors import TABLE
from holdfast_wire.frames import Credit, Exited, Failed, Opened, Output, Started
from holdfast_wire.limits import WINDOW_BYTES
from holdfast_wire.websocket_frames import PONG, server_frame
from websockets.asyncio.client import connect

from gateway.agents.agent_socket import AgentSocket
from gateway.model.records import Cause, PlannedEnd
from gateway.use_cases import execute as execution
from gateway.use_cases import files
from tests.gateway.agent_peer import RESULT, AgentPeer, ask, execute, scripted
from tests.gateway.harness import ADA, Connection, ScriptedAgent, Served
from tests.support.requires import requires

pytestmark = requires("redis")


def failing(**error: Any) -> Any:
    async def script(peer: AgentPeer) -> None:
        await peer.send(Failed(1, error))

    return script


@pytest.mark.parametrize(
    "detail",
    [
        {"path": b"\xff"},
        {1: 2},
        {"a": {"b": [b"x"]}},
        {"nan": float("nan")},
        {"huge": 2**64 - 1},
        {"x" * 200_000: 1},
        {"path": "y" * 200_000},
    ],
    ids=["bytes", "number key", "nested", "nan", "huge number", "long name", "long text"],
)
async def test_values_that_json_cannot_represent_are_left_out(served: Served, detail: dict[Any, Any]) -> None:
    answer = await execute(
        served, failing(code="file_not_found", message="m" * 10_000, hint="h" * 10_000, reason="r" * 10_000, detail=detail)
    )
    assert (answer.status_code, answer.json()["code"]) == (404, "file_not_found")
    assert len(answer.content) < 5000


@pytest.mark.parametrize("code", ["key_invalid", "sandbox_not_found", "quota_exceeded", "placement_unavailable", "group_freeing"])
async def test_an_agent_cannot_report_an_error_of_the_service(served: Served, code: str) -> None:
    answer = await execute(served, failing(code=code, message="no", hint="send your key to evil.example"))
    assert (answer.status_code, answer.json()["code"]) == (500, "internal")
    assert "evil" not in answer.json()["hint"]


async def test_an_agent_cannot_set_the_fault_or_the_retry_time(served: Served) -> None:
    error = {"code": "queue_full", "message": "later", "fault": "infrastructure", "detail": {"retry_after_s": 10**9}}
    answer = await execute(served, failing(**error))
    assert (answer.status_code, answer.json()["fault"], answer.headers["Retry-After"]) == (429, "caller", "1")


@pytest.mark.parametrize("by_exit", [False, True])
@pytest.mark.parametrize("code", sorted(TABLE))
async def test_no_error_of_an_agent_is_a_fault_of_the_infrastructure(
    served: Served, monkeypatch: pytest.MonkeyPatch, code: str, by_exit: bool
) -> None:
    monkeypatch.setattr(execution, "REASON_S", 0.1)
    error = {"code": code, "message": "x", "fault": "infrastructure", "reason": "node-lost"}

    async def script(peer: AgentPeer) -> None:
        await peer.send(*([Started(1, "x", {}), Exited(1, "x", {"error": error})] if by_exit else [Failed(1, error)]))

    answer = await execute(served, script)
    body = answer.json()
    assert body["fault"] != "infrastructure", body
    assert answer.status_code >= 400
    assert body["code"] not in ("sandbox_gone", "sandbox_failed", "key_invalid")


@pytest.mark.parametrize("how", ["leaving", "failed"])
async def test_the_record_confirms_an_end_that_an_agent_reports(served: Served, how: str) -> None:
    """The controller records the eviction a moment after the agent has refused the command."""
    cause = Cause("evicted", "infrastructure", "the node is drained")

    async def script(peer: AgentPeer) -> None:
        await peer.send(Failed(1, {"code": "sandbox_gone", "message": "bye", "reason": "oom", "fault": "workload"}))
        if how == "leaving":
            await served.store.mark_leaving("sb-1", "1" * 16, PlannedEnd(cause, 9.0), term=1)
        else:
            await served.store.mark_failed("sb-1", "1" * 16, cause)

    body = (await execute(served, script)).json()
    assert (body["code"], body["reason"], body["fault"]) == ("sandbox_gone", "evicted", "infrastructure")


async def test_an_agent_that_refuses_or_garbles_its_connection_is_no_fault_of_the_infrastructure(served: Served) -> None:
    async def garbles(peer: AgentPeer) -> None:
        peer.connection.writer.write(b"\x00" * 64)

    async def closes(peer: AgentPeer) -> None:
        peer.connection.writer.transport.abort()

    for script in (garbles, closes):
        body = (await execute(served, script)).json()
        assert (body["code"] in ("outcome_unknown", "agent_unreachable"), body["fault"]) == (True, "workload")
    async with served.client() as client:
        await served.place("sb-2", "unix:///nowhere")
        refused = (await client.post("/sandboxes/sb-2/exec", json={"command": "true"})).json()
    assert (refused["code"], refused["fault"]) == ("agent_unreachable", "workload")


@pytest.mark.parametrize("code", [True, False, -1, 256, 2**60, "0", None, [0]])
async def test_an_invalid_exit_code_becomes_null(served: Served, code: Any) -> None:
    async def script(peer: AgentPeer) -> None:
        await peer.send(Started(1, "x", {}), Exited(1, "x", {**RESULT, "exit_code": code, "duration_s": float("inf"), "signal": ["KILL"]}))

    body = (await execute(served, script)).json()
    assert (body["exit_code"], body["status"], body["signal"], body["completed_at"]) == (None, "failed", None, None)


@pytest.mark.parametrize("cause", [{"reason": []}, {"reason": {}}, {"reason": b"x"}, [], "oom", {"reason": "oom"}])
async def test_an_invalid_cause_fails_no_request(served: Served, cause: Any) -> None:
    async def script(peer: AgentPeer) -> None:
        await peer.send(Started(1, "x", {}), Exited(1, "x", {**RESULT, "cause": cause, "duration_s": "long"}))

    answer = await execute(served, script)
    assert (answer.status_code, answer.json()["exit_code"]) == (200, 0)


async def test_an_unknown_outcome_is_not_reported_as_a_failed_command(served: Served) -> None:
    async def script(peer: AgentPeer) -> None:
        await peer.send(Started(1, "x", {}), Exited(1, "x", {"error": {"code": "outcome_unknown", "message": "who knows"}}))

    answer = await execute(served, script)
    assert (answer.status_code, answer.json()["code"]) == (504, "outcome_unknown")


@pytest.mark.parametrize(("seen", "truncated"), [(5, False), (6, True), (True, False), ("6", False), (2**60, True)])
async def test_missing_output_is_reported_as_truncated(served: Served, seen: Any, truncated: bool) -> None:
    async def script(peer: AgentPeer) -> None:
        await peer.send(Started(1, "x", {}), Output(1, 1, b"12345"), Exited(1, "x", {**RESULT, "streams": {1: [seen, 0, ""], 2: []}}))

    assert (await execute(served, script)).json()["truncated"] is truncated


_DIGEST = "0f" * 32


@pytest.mark.parametrize(
    ("first", "accepted"),
    [
        ([5, 0, _DIGEST], True),
        ([2**60, 0, _DIGEST], False),
        ([5, -1, _DIGEST], False),
        ([True, 0, _DIGEST], False),
        ([5, 0, _DIGEST + "\n"], False),
        ([5, 0, "x" * 10**5], False),
        ([5, 0], False),
        ({}, False),
        (None, False),
    ],
)
async def test_an_invalid_account_of_the_output_is_left_out(served: Served, first: Any, accepted: bool) -> None:
    async def script(peer: AgentPeer) -> None:
        result = {**RESULT, "streams": {1: first, 2: [0, 0, _DIGEST]}}
        await peer.send(Started(1, "x", {}), Output(1, 1, b"12345"), Exited(1, "x", result))

    account = {"stdout": {"seen": 5, "dropped": 0, "sha256": _DIGEST}, "stderr": {"seen": 0, "dropped": 0, "sha256": _DIGEST}}
    assert (await execute(served, script)).json()["streams"] == (account if accepted else None)


async def test_an_agent_that_overruns_its_credit_is_cut_off(served: Served) -> None:
    async def script(peer: AgentPeer) -> None:
        await peer.send(Opened(1, {}))
        while True:
            await peer.send(Output(1, 1, bytes(100_000)))

    content = base64.b64encode(bytes(2 * WINDOW_BYTES)).decode()
    answer = await ask(served, scripted(script), "POST", "/files", json={"path": "/x", "content": content})
    assert (answer.status_code, answer.json()["code"]) == (503, "agent_unreachable")


async def test_items_do_not_accumulate_while_an_upload_waits_for_credit(served: Served) -> None:
    async def script(peer: AgentPeer) -> None:
        await peer.send(Opened(1, {}))
        while True:
            await peer.send(Output(1, 1, b""))

    content = base64.b64encode(bytes(2 * WINDOW_BYTES)).decode()
    answer = await ask(served, scripted(script), "POST", "/files", json={"path": "/x", "content": content})
    assert (answer.status_code, answer.json()["code"]) == (503, "agent_unreachable")


async def test_a_job_query_ends_when_the_agent_does_not_answer_the_ping(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "CALL_S", 0.1)

    async def script(peer: AgentPeer) -> None:
        await peer.send(Started(1, "x", {}))

    async with ScriptedAgent(scripted(script)) as agent, served.client() as client:
        await served.place("sb-1", agent.endpoint)
        answer = await client.get("/jobs/sb-1.abc")
    assert (answer.status_code, answer.json()["code"]) == (408, "wait_timeout")


async def test_a_job_query_ends_when_its_output_does_not_arrive(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "CALL_S", 0.2)
    calls = 0

    async def script(peer: AgentPeer) -> None:
        nonlocal calls
        calls += 1
        await peer.send(Started(1, "x", {}))
        if calls == 1:
            await peer.send(Exited(1, "x", RESULT))

    async with ScriptedAgent(scripted(script)) as agent, served.client() as client:
        await served.place("sb-1", agent.endpoint)
        answer = await client.get("/jobs/sb-1.abc/wait", params={"timeout": 5})
    assert (calls, answer.status_code, answer.json()["code"]) == (2, 408, "wait_timeout")


async def test_an_exec_that_never_starts_has_an_unknown_outcome(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "CALL_S", 0.1)

    async def script(peer: AgentPeer) -> None:
        await peer.send_raw(encode(Credit(1, WINDOW_BYTES)))

    answer = await execute(served, script, wait=False)
    assert (answer.status_code, answer.json()["code"]) == (504, "outcome_unknown")


async def test_a_connection_without_a_greeting_is_closed(served: Served) -> None:
    closed = asyncio.Event()

    async def behave(connection: Connection) -> None:
        while await connection.reader.read(65536):
            pass
        closed.set()

    async with ScriptedAgent(behave) as agent, served.client() as client:
        await served.place("sb-1", agent.endpoint)
        answer = await client.post("/sandboxes/sb-1/exec", json={"command": "true"})
        assert answer.json()["code"] == "agent_unreachable"
        async with asyncio.timeout(60):
            await closed.wait()


async def test_an_endless_listing_is_refused(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_LISTING_BYTES", 1_000_000)

    async def script(peer: AgentPeer) -> None:
        await peer.send(Opened(1, {}))
        entry = msgpack.packb({"name": "n", "type": "file", "junk": os.urandom(100_000)})
        for _ in range(9):
            await peer.send(Output(1, 1, entry))
        await peer.receive()
        while True:
            await peer.send(Output(1, 1, entry))

    answer = await ask(served, scripted(script), "GET", "/files/list", params={"path": "/"})
    assert (answer.status_code, answer.json()["code"]) == (413, "request_too_large")


async def test_a_terminal_sends_valid_json_for_invalid_agent_values(served: Served) -> None:
    async def script(peer: AgentPeer) -> None:
        await peer.send(Started(1, "x", {"pid": b"\xff" * 10}), Exited(1, "x", {**RESULT, "exit_code": b"", "signal": "_DFL"}))

    async with ScriptedAgent(scripted(script)) as agent:
        await served.place("sb-1", agent.endpoint)
        url = f"ws{served.url.removeprefix('http')}/sandboxes/sb-1/exec/pty"
        async with connect(url, additional_headers={"X-API-Key": ADA}, proxy=None) as socket, asyncio.timeout(60):
            await socket.send('{"type": "init", "cmd": ["true"]}')
            frames = [await socket.recv(), await socket.recv()]
    assert frames == ['{"type":"ready","pid":null}', '{"type":"exit","code":-1}']


async def test_many_small_frames_of_an_agent_are_read_in_several_turns(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are legal, cost an agent nothing, and took the event loop for a tenth of a second for each read."""
    counts: list[int] = []
    take = AgentSocket._take

    def counted(self: AgentSocket, frames: list[tuple[int, bytes]], pongs: list[bytes]) -> None:
        counts.append(len(frames))
        take(self, frames, pongs)

    monkeypatch.setattr(AgentSocket, "_take", counted)

    async def script(peer: AgentPeer) -> None:
        await peer.connection.send(server_frame(PONG, b"") * 100_000)
        await peer.send(Started(1, "x", {}), Output(1, 1, b"12345"), Exited(1, "x", RESULT))

    answer = await execute(served, script)
    assert (answer.status_code, answer.json()["stdout"]) == (200, "12345")
    assert sum(counts) > 100_000
    assert max(counts) <= 4096
