"""One-off requests against agents that send wrong data, flood, stall or disappear: typed errors, bounded memory, no invented results."""

from __future__ import annotations

import asyncio
import base64
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgpack
import pytest
import pytest_asyncio
from holdfast_wire.codec import decode, encode, encode_item
from holdfast_wire.frames import Ack, Closed, Credit, Exited, Failed, Opened, Output, Ping, Pong, Started, Write
from holdfast_wire.limits import DATA_BYTES, ITEM_BYTES, WINDOW_BYTES, Timing
from holdfast_wire.proof import agent_token
from holdfast_wire.websocket_frames import BINARY, CLOSE, PING, server_frame

from gateway.agents.agent_call import AgentCall
from gateway.agents.agent_connection import AgentConnection
from gateway.agents.agent_socket import AgentSocket
from gateway.agents.dial import Dialled, dial_agent
from gateway.settings import RelaySettings, RestSettings
from session_agent.agent.settings import AgentSettings
from session_agent.agent.startup.server import AgentServer, listening_socket
from tests.gateway.agent_peer import RESULT, AgentPeer, ask, execute, scripted
from tests.gateway.harness import Connection, ScriptedAgent, Served, serve
from tests.support.redis_server import RedisServer
from tests.support.requires import requires

pytestmark = requires("redis")


@pytest_asyncio.fixture
async def served(redis_url: str, tmp_path: Any) -> AsyncIterator[Served]:
    async with serve(redis_url, tmp_path, rest=RestSettings(output_bytes=100_000)) as running:
        yield running


async def test_a_correct_agent_gives_the_result(served: Served) -> None:
    async def script(peer: AgentPeer) -> None:
        assert peer.opened is not None
        assert peer.opened.params["script"] == "true"
        await peer.send_raw(encode(Ping(7)))
        await peer.connection.send(server_frame(PING, b"hi"))
        await peer.send(Started(1, "j", {}), Output(1, 1, b"o"), Output(1, 2, b"e"), Exited(1, "j", RESULT))

    answer = await execute(served, script)
    assert (answer.json()["status"], answer.json()["stdout"], answer.json()["stderr"]) == ("succeeded", "o", "e")


async def test_pings_are_answered(served: Served) -> None:
    async def script(peer: AgentPeer) -> None:
        await peer.send_raw(encode(Ping(7)))
        assert await peer.receive() == Pong(7)
        await peer.send(Started(1, "j", {}), Exited(1, "j", RESULT))

    assert (await execute(served, script)).json()["exit_code"] == 0


async def test_pings_are_answered_while_no_one_reads_the_output(served: Served) -> None:
    """A client that stops reading its terminal for longer than the agent's silence limit keeps the terminal."""
    answered = asyncio.Event()

    async def script(peer: AgentPeer) -> None:
        await peer.send(Started(1, "j", {}), Output(1, 1, b"o"))
        await peer.send_raw(encode(Ping(7)))
        assert await peer.receive() == Pong(7)
        answered.set()

    async with ScriptedAgent(scripted(script)) as agent:
        record = await served.place("sb-1", agent.endpoint)
        async with served.gateway.agents.call(record) as call:
            call.open("terminal", {})
            async with asyncio.timeout(60):
                await answered.wait()


async def test_output_is_credited_and_cut_at_its_limit(served: Served) -> None:
    pieces = 3 * WINDOW_BYTES // DATA_BYTES

    async def script(peer: AgentPeer) -> None:
        limit, sent = WINDOW_BYTES, 0
        await peer.send(Started(1, "j", {}))
        for _ in range(pieces):
            while peer.offset + DATA_BYTES > limit:
                frame = await peer.receive()
                if isinstance(frame, Credit):
                    limit = frame.limit
            await peer.send(Output(1, 1, b"x" * DATA_BYTES))
            sent += DATA_BYTES
        await peer.send(Exited(1, "j", RESULT))

    job = (await execute(served, script)).json()
    assert (len(job["stdout"]), job["truncated"], job["exit_code"]) == (100_000, True, 0)


async def test_many_small_items_are_acknowledged_as_they_arrive(served: Served) -> None:
    """The agent stores each item until it is acknowledged, and sends only a limited number of them."""

    async def script(peer: AgentPeer) -> None:
        pieces = Timing().ack_bytes // ITEM_BYTES
        await peer.send(Started(1, "j", {}), *[Output(1, 1, b"x")] * pieces)
        frame = await peer.receive()
        assert isinstance(frame, Ack)
        assert pieces // 2 < frame.offset <= peer.offset
        await peer.send(Exited(1, "j", RESULT))

    assert (await execute(served, script)).json()["exit_code"] == 0


async def test_an_agent_whose_memory_is_full_still_answers(tmp_path: Path) -> None:
    """Each session may then have less than half a window unacknowledged."""
    data = secrets.token_bytes(2 * WINDOW_BYTES)
    (tmp_path / "data").write_bytes(data)
    endpoint, token = f"unix://{tmp_path}/agent.sock", agent_token("deployment", "sb-1", "1")
    server = AgentServer(AgentSettings("sb-1", token, "1", workdir="/", memory_bytes=1, grace_s=0))
    await server.start(listening_socket(endpoint))
    try:
        connection = AgentConnection(lambda: dial_agent(endpoint, token, 60.0), 60.0)
        async with asyncio.timeout(60):
            await connection.connect()
            call = AgentCall(connection)
            call.open("read", {"path": str(tmp_path / "data")})
            read = b"".join([fact.data async for fact in call.facts() if isinstance(fact, Output)])
        connection.close()
        assert read == data
    finally:
        await server.leave()


async def test_a_failure_from_the_agent_is_passed_on(served: Served) -> None:
    async def script(peer: AgentPeer) -> None:
        await peer.send(Failed(1, {"code": "user_not_found", "message": "who?", "fault": "caller"}))

    answer = await execute(served, script)
    assert (answer.status_code, answer.json()["code"]) == (422, "user_not_found")


@pytest.mark.parametrize("error", [{}, {"code": "no-such-code", "message": 7}, {"code": 1, "fault": [], "hint": {}}])
async def test_an_invalid_failure_is_reported_as_internal(served: Served, error: dict[str, Any]) -> None:
    async def script(peer: AgentPeer) -> None:
        await peer.send(Failed(1, error))

    answer = await execute(served, script)
    assert (answer.status_code, answer.json()["code"]) == (500, "internal")


async def test_invalid_result_fields_are_left_out(served: Served) -> None:
    async def script(peer: AgentPeer) -> None:
        await peer.send(Started(1, "j", {}))
        await peer.send(Exited(1, "j", {"exit_code": "x", "cause": 7, "duration_s": "soon", "signal": [], "truncated": 3, "timed_out": {}}))

    job = (await execute(served, script)).json()
    assert (job["status"], job["exit_code"], job["signal"], job["completed_at"]) == ("failed", None, None, None)


async def _garbage(peer: AgentPeer) -> None:
    await peer.send_raw(b"\xc1")


async def _out_of_order(peer: AgentPeer) -> None:
    await peer.send_raw(encode_item(Started(1, "j", {}), 5))


async def _wrong_channel(peer: AgentPeer) -> None:
    await peer.send_raw(encode_item(Started(2, "j", {}), 0))


async def _started_twice(peer: AgentPeer) -> None:
    await peer.connection.send(
        server_frame(BINARY, encode_item(Started(1, "j", {}), 0)) + server_frame(BINARY, encode_item(Started(1, "j", {}), 1))
    )


async def _ended_before_it_started(peer: AgentPeer) -> None:
    await peer.send_raw(encode_item(Exited(1, "j", RESULT), 0))


async def _text(peer: AgentPeer) -> None:
    await peer.connection.send(server_frame(0x81, b"text"))


async def _huge(peer: AgentPeer) -> None:
    await peer.connection.send(bytes((BINARY, 127)) + (2**40).to_bytes(8, "big"))


async def _masked(peer: AgentPeer) -> None:
    await peer.connection.send(bytes((BINARY, 0x81, 1, 2, 3, 4, 5)))


async def _vanishes(peer: AgentPeer) -> None:
    peer.connection.writer.transport.abort()


async def _closes(peer: AgentPeer) -> None:
    await peer.connection.send(server_frame(CLOSE, b"\x03\xe8"))


@pytest.mark.parametrize(
    "script", [_garbage, _out_of_order, _wrong_channel, _started_twice, _ended_before_it_started, _text, _huge, _masked, _vanishes, _closes]
)
async def test_a_broken_agent_leaves_an_outcome_unknown(served: Served, script: Callable[[AgentPeer], Awaitable[None]]) -> None:
    answer = await execute(served, script)
    assert (answer.status_code, answer.json()["code"]) == (504, "outcome_unknown")


async def test_the_end_of_the_sandbox_is_reported_with_its_cause(served: Served) -> None:
    from gateway.model.records import Cause

    async def script(peer: AgentPeer) -> None:
        await served.store.mark_failed("sb-1", "1" * 16, Cause("oom", "workload"))
        await _vanishes(peer)

    answer = await execute(served, script)
    assert (answer.status_code, answer.json()["code"], answer.json()["reason"]) == (410, "sandbox_gone", "oom")


async def test_an_agent_that_pings_and_never_reads_takes_bounded_memory(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a bound its pongs would accumulate in the gateway for the duration of the request."""
    highest = 0
    original = AgentSocket.data_received

    def data_received(self: AgentSocket, data: bytes) -> None:
        nonlocal highest
        original(self, data)
        highest = max(highest, self._transport.get_write_buffer_size())

    monkeypatch.setattr(AgentSocket, "data_received", data_received)

    async def pings(peer: AgentPeer) -> None:
        peer.connection.reader._transport.pause_reading()  # type: ignore[attr-defined]
        for _ in range(300):
            await peer.connection.send(server_frame(PING, bytes(125)) * 100)
        await _vanishes(peer)

    answer = await execute(served, pings)
    assert answer.json()["code"] == "outcome_unknown"
    assert 0 < highest < 256 * 1024, f"{highest} bytes waited"


async def next_ping(peer: AgentPeer) -> Ping:
    """The next Ping; an acknowledgement may come in between."""
    while not isinstance(frame := await peer.receive(), Ping):
        pass
    return frame


async def test_a_silent_agent_is_given_up(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that loses power closes no connection. The gateway detects its silence long before the command's time limit."""
    from gateway.model.records import Cause

    original = AgentConnection.__init__

    def impatient(self: AgentConnection, dial: Callable[[], Awaitable[Dialled]], timeout_s: float) -> None:
        original(self, dial, timeout_s, Timing(ping_interval_s=0.2, silence_limit_s=2.0))

    monkeypatch.setattr(AgentConnection, "__init__", impatient)
    pings: list[Ping] = []

    async def silent(peer: AgentPeer) -> None:
        await peer.send_raw(encode_item(Started(1, "j", {}), 0))
        pings.extend([await next_ping(peer) for _ in range(3)])
        await peer.connection.reader.read()

    answer = (await execute(served, silent)).json()
    assert (answer["code"], answer["context"]) == ("outcome_unknown", {"accepted": True, "started": True})
    assert len(pings) == 3

    async def slow(peer: AgentPeer) -> None:
        for _ in range(12):
            ping = await next_ping(peer)
            await peer.send_raw(encode(Pong(ping.number)))
        await peer.send(Started(1, peer.opened.params["id"], {}), Exited(1, peer.opened.params["id"], RESULT))  # type: ignore[union-attr]
        await peer.connection.reader.read()

    await served.store.delete("sb-1", Cause("deleted", "caller"), owner="ada", forget=True)
    assert (await execute(served, slow)).json()["exit_code"] == 0, "an agent that answers may take its time"


async def test_an_error_after_the_request_was_sent_reports_how_far_it_got(served: Served, redis_server: RedisServer) -> None:
    """Also while Redis is down: an answer that only reports the outage would imply that the command did not run."""
    from gateway.model.records import Cause

    async def runs_and_goes(peer: AgentPeer) -> None:
        await peer.send_raw(encode_item(Started(1, "j", {}), 0))
        await served.store.mark_failed("sb-1", "1" * 16, Cause("oom", "workload"))
        await _vanishes(peer)

    async def redis_goes_too(peer: AgentPeer) -> None:
        redis_server.kill()
        await _vanishes(peer)

    answer = (await execute(served, runs_and_goes)).json()
    assert (answer["code"], answer["reason"], answer["context"]) == ("sandbox_gone", "oom", {"accepted": True, "started": True})
    await served.store.delete("sb-1", Cause("deleted", "caller"), owner="ada", forget=True)
    try:
        answer = (await execute(served, redis_goes_too)).json()
        assert (answer["code"], answer["context"]) == ("outcome_unknown", {"accepted": None, "started": None})
    finally:
        redis_server.start()


async def test_an_agent_that_does_not_greet_is_unreachable(redis_url: str, tmp_path: Path) -> None:
    async def silent(connection: Connection) -> None:
        await connection.message()
        await connection.message()

    async with serve(redis_url, tmp_path, RelaySettings(dial_timeout_s=0.5)) as impatient:
        answer = await ask(impatient, silent, "POST", "/exec", json={"command": "true", "wait": True})
    assert (answer.status_code, answer.json()["code"]) == (503, "agent_unreachable")


async def test_an_agent_at_its_session_limit_is_reported(served: Served) -> None:
    async def full(connection: Connection) -> None:
        await connection.message()
        await connection.send(server_frame(CLOSE, b"\x11\x4dsession_limit: too many"))

    answer = await ask(served, full, "POST", "/exec", json={"command": "true", "wait": True})
    assert (answer.status_code, answer.json()["code"]) == (429, "session_limit")


async def test_uploads_keep_to_the_agents_credit(served: Served) -> None:
    content = bytes(2 * WINDOW_BYTES)
    received = bytearray()

    async def script(peer: AgentPeer) -> None:
        await peer.send(Opened(1, {}))
        limit = WINDOW_BYTES
        while True:
            frame, offset = decode(await peer.connection.message())
            if isinstance(frame, Ack):
                continue
            assert isinstance(frame, Write)
            received.extend(frame.data)
            assert offset + len(frame.data) <= limit
            if frame.eof:
                break
            if offset + len(frame.data) == limit:
                limit += DATA_BYTES * 4
                await peer.send_raw(encode(Credit(1, limit)))
        await peer.send(Closed(1, {"size": len(received)}))

    body = {"path": "/a", "content": base64.b64encode(content).decode()}
    answer = await ask(served, scripted(script), "POST", "/files", json=body)
    assert answer.status_code == 200
    assert len(received) == len(content)


@pytest.mark.parametrize(
    ("junk", "status", "expected"),
    [
        (b"\xc1", 503, "agent_unreachable"),
        (b"\x93\x01", 200, []),
        (
            msgpack.packb({"name": {"a": 1}, "size": "x", "mtime": float("nan")}),
            200,
            [{"name": "", "type": "file", "size": 0, "modified": None}],
        ),
        (b"\xdf\xff\xff\xff\xff", 503, "agent_unreachable"),
    ],
    ids=["no msgpack", "incomplete array", "wrong types", "endless map"],
)
async def test_an_invalid_listing_gives_a_documented_answer(served: Served, junk: bytes, status: int, expected: Any) -> None:
    async def script(peer: AgentPeer) -> None:
        await peer.send(Opened(1, {}), Output(1, 1, junk), Closed(1, {}))

    answer = await ask(served, scripted(script), "GET", "/files/list")
    assert answer.status_code == status
    assert answer.json()["files" if status == 200 else "code"] == expected


async def test_a_file_that_is_too_large_is_refused_while_it_is_read(redis_url: str, tmp_path: Any) -> None:
    async def script(peer: AgentPeer) -> None:
        await peer.send(Opened(1, {}), Output(1, 1, bytes(2000)))

    async with serve(redis_url, tmp_path, None, RestSettings(file_bytes=1000)) as served:
        answer = await ask(served, scripted(script), "GET", "/files", params={"path": "/a"})
    assert (answer.status_code, answer.json()["code"]) == (413, "request_too_large")
