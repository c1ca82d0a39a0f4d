"""One-off requests against agents that lie, flood, stall and vanish: typed errors, bounded memory, nothing made up."""

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
from holdfast_wire.frames import Ack, Closed, Credit, Exited, Failed, Hello, Open, Opened, Output, Ping, Pong, Started, Welcome, Write
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
from tests.gateway.checked import Checked
from tests.gateway.harness import Connection, ScriptedAgent, Served, serve
from tests.support.redis_server import RedisServer
from tests.support.requires import requires

pytestmark = requires("redis")

RESULT: dict[str, Any] = {
    "exit_code": 0,
    "signal": None,
    "timed_out": False,
    "cause": None,
    "duration_s": 0.1,
    "streams": {},
    "truncated": False,
}


@pytest_asyncio.fixture
async def served(redis_url: str, tmp_path: Any) -> AsyncIterator[Served]:
    quick = RelaySettings(dial_timeout_s=0.5)
    async with serve(redis_url, tmp_path, quick, RestSettings(output_bytes=100_000)) as running:
        yield running


class Talk:
    """The agent's side of one call, after the greeting and the Open."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.offset = 0
        self.opened: Open | None = None

    async def greet(self) -> None:
        hello, _ = decode(await self.connection.message())
        assert isinstance(hello, Hello)
        await self.raw(encode(Welcome(hello.version, "e1", 1, False, {}, {})))
        opened, _ = decode(await self.connection.message())
        assert isinstance(opened, Open)
        self.opened = opened

    async def raw(self, message: bytes) -> None:
        await self.connection.send(server_frame(BINARY, message))

    async def say(self, *facts: Any) -> None:
        for fact in facts:
            await self.raw(encode_item(fact, self.offset))
            self.offset += fact.length

    async def next(self) -> Any:
        return decode(await self.connection.message())[0]


def scripted(script: Callable[[Talk], Awaitable[None]]) -> Callable[[Connection], Awaitable[None]]:
    async def behave(connection: Connection) -> None:
        talk = Talk(connection)
        await talk.greet()
        await script(talk)
        while True:  # whatever else is said: the client hangs up
            await connection.message()

    return behave


async def ask(served: Served, behave: Callable[[Connection], Awaitable[None]], method: str, path: str, **more: Any) -> Any:
    async with ScriptedAgent(behave) as agent, served.client() as client:
        await served.place("sb-1", agent.endpoint)
        async with asyncio.timeout(15):
            return await Checked(client)(method, f"/sandboxes/sb-1{path}", **more)


async def execute(served: Served, script: Callable[[Talk], Awaitable[None]], **body: Any) -> Any:
    return await ask(served, scripted(script), "POST", "/exec", json={"command": "true", "wait": True, **body})


async def test_a_good_agent_is_understood(served: Served) -> None:
    async def script(talk: Talk) -> None:
        assert talk.opened is not None
        assert talk.opened.params["script"] == "true"
        await talk.raw(encode(Ping(7)))
        await talk.connection.send(server_frame(PING, b"hi"))
        await talk.say(Started(1, "j", {}), Output(1, 1, b"o"), Output(1, 2, b"e"), Exited(1, "j", RESULT))

    answer = await execute(served, script)
    assert (answer.json()["status"], answer.json()["stdout"], answer.json()["stderr"]) == ("succeeded", "o", "e")


async def test_pings_are_answered(served: Served) -> None:
    async def script(talk: Talk) -> None:
        await talk.raw(encode(Ping(7)))
        assert await talk.next() == Pong(7)
        await talk.say(Started(1, "j", {}), Exited(1, "j", RESULT))

    assert (await execute(served, script)).json()["exit_code"] == 0


async def test_pings_are_answered_while_nobody_takes_what_comes(served: Served) -> None:
    """A terminal's client that stops reading for longer than the agent's patience keeps its terminal."""
    answered = asyncio.Event()

    async def script(talk: Talk) -> None:
        await talk.say(Started(1, "j", {}), Output(1, 1, b"o"))
        await talk.raw(encode(Ping(7)))
        assert await talk.next() == Pong(7)
        answered.set()

    async with ScriptedAgent(scripted(script)) as agent:
        record = await served.place("sb-1", agent.endpoint)
        async with served.gateway.agents.call(record) as call:
            call.open("terminal", {})
            async with asyncio.timeout(15):
                await answered.wait()


async def test_output_is_credited_and_kept_within_bounds(served: Served) -> None:
    pieces = 3 * WINDOW_BYTES // DATA_BYTES

    async def script(talk: Talk) -> None:
        limit, sent = WINDOW_BYTES, 0
        await talk.say(Started(1, "j", {}))
        for _ in range(pieces):
            while talk.offset + DATA_BYTES > limit:
                frame = await talk.next()
                if isinstance(frame, Credit):
                    limit = frame.limit
            await talk.say(Output(1, 1, b"x" * DATA_BYTES))
            sent += DATA_BYTES
        await talk.say(Exited(1, "j", RESULT))

    job = (await execute(served, script)).json()
    assert (len(job["stdout"]), job["truncated"], job["exit_code"]) == (100_000, True, 0)


async def test_many_small_pieces_are_acknowledged_as_they_come(served: Served) -> None:
    """The agent keeps each until then, and sends only so many."""

    async def script(talk: Talk) -> None:
        pieces = Timing().ack_bytes // ITEM_BYTES
        await talk.say(Started(1, "j", {}), *[Output(1, 1, b"x")] * pieces)
        frame = await talk.next()
        assert isinstance(frame, Ack)
        assert pieces // 2 < frame.offset <= talk.offset
        await talk.say(Exited(1, "j", RESULT))

    assert (await execute(served, script)).json()["exit_code"] == 0


async def test_an_agent_that_is_full_of_what_others_leave_still_answers(tmp_path: Path) -> None:
    """Each session may then have only so much on its way: less than half a window."""
    data = secrets.token_bytes(2 * WINDOW_BYTES)
    (tmp_path / "data").write_bytes(data)
    endpoint, token = f"unix://{tmp_path}/agent.sock", agent_token("deployment", "sb-1", "1")
    server = AgentServer(AgentSettings("sb-1", token, "1", workdir="/", memory_bytes=1))
    await server.start(listening_socket(endpoint))
    try:
        connection = AgentConnection(lambda: dial_agent(endpoint, token, 5.0), 5.0)
        async with asyncio.timeout(10):
            await connection.connect()
            call = AgentCall(connection)
            call.open("read", {"path": str(tmp_path / "data")})
            read = b"".join([fact.data async for fact in call.facts() if isinstance(fact, Output)])
        connection.close()
        assert read == data
    finally:
        await server.stop()


async def test_a_failure_of_the_agent_is_the_answer(served: Served) -> None:
    async def script(talk: Talk) -> None:
        await talk.say(Failed(1, {"code": "user_not_found", "message": "who?", "fault": "caller"}))

    answer = await execute(served, script)
    assert (answer.status_code, answer.json()["code"]) == (422, "user_not_found")


@pytest.mark.parametrize("error", [{}, {"code": "no-such-code", "message": 7}, {"code": 1, "fault": [], "hint": {}}])
async def test_a_made_up_failure_is_internal(served: Served, error: dict[str, Any]) -> None:
    async def script(talk: Talk) -> None:
        await talk.say(Failed(1, error))

    answer = await execute(served, script)
    assert (answer.status_code, answer.json()["code"]) == (500, "internal")


async def test_made_up_results_harm_nobody(served: Served) -> None:
    async def script(talk: Talk) -> None:
        await talk.say(Started(1, "j", {}))
        await talk.say(Exited(1, "j", {"exit_code": "x", "cause": 7, "duration_s": "soon", "signal": [], "truncated": 3, "timed_out": {}}))

    job = (await execute(served, script)).json()
    assert (job["status"], job["exit_code"], job["signal"], job["completed_at"]) == ("failed", None, None, None)


async def _garbage(talk: Talk) -> None:
    await talk.raw(b"\xc1")


async def _out_of_order(talk: Talk) -> None:
    await talk.raw(encode_item(Started(1, "j", {}), 5))


async def _wrong_channel(talk: Talk) -> None:
    await talk.raw(encode_item(Started(2, "j", {}), 0))


async def _started_twice(talk: Talk) -> None:
    await talk.connection.send(
        server_frame(BINARY, encode_item(Started(1, "j", {}), 0)) + server_frame(BINARY, encode_item(Started(1, "j", {}), 1))
    )


async def _ended_before_it_started(talk: Talk) -> None:
    await talk.raw(encode_item(Exited(1, "j", RESULT), 0))


async def _text(talk: Talk) -> None:
    await talk.connection.send(server_frame(0x81, b"text"))


async def _huge(talk: Talk) -> None:
    await talk.connection.send(bytes((BINARY, 127)) + (2**40).to_bytes(8, "big"))


async def _masked(talk: Talk) -> None:
    await talk.connection.send(bytes((BINARY, 0x81, 1, 2, 3, 4, 5)))


async def _vanishes(talk: Talk) -> None:
    talk.connection.writer.transport.abort()


async def _closes(talk: Talk) -> None:
    await talk.connection.send(server_frame(CLOSE, b"\x03\xe8"))


@pytest.mark.parametrize(
    "script", [_garbage, _out_of_order, _wrong_channel, _started_twice, _ended_before_it_started, _text, _huge, _masked, _vanishes, _closes]
)
async def test_a_broken_agent_leaves_an_outcome_unknown(served: Served, script: Callable[[Talk], Awaitable[None]]) -> None:
    answer = await execute(served, script)
    assert (answer.status_code, answer.json()["code"]) == (504, "outcome_unknown")


async def test_when_the_sandbox_went_that_is_the_answer(served: Served) -> None:
    from gateway.model.records import Cause

    async def script(talk: Talk) -> None:
        await served.store.mark_failed("sb-1", "1" * 16, Cause("oom", "workload"))
        await _vanishes(talk)

    answer = await execute(served, script)
    assert (answer.status_code, answer.json()["code"], answer.json()["reason"]) == (410, "sandbox_gone", "oom")


async def test_an_agent_that_pings_and_never_reads_costs_nothing(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its pongs would pile up in the gateway for as long as the request may take."""
    highest = 0
    original = AgentSocket.data_received

    def data_received(self: AgentSocket, data: bytes) -> None:
        nonlocal highest
        original(self, data)
        highest = max(highest, self._transport.get_write_buffer_size())

    monkeypatch.setattr(AgentSocket, "data_received", data_received)

    async def pings(talk: Talk) -> None:
        talk.connection.reader._transport.pause_reading()  # type: ignore[attr-defined]
        for _ in range(300):
            await talk.connection.send(server_frame(PING, bytes(125)) * 100)
        await _vanishes(talk)

    answer = await execute(served, pings)
    assert answer.json()["code"] == "outcome_unknown"
    assert 0 < highest < 256 * 1024, f"{highest} bytes waited"


async def test_an_agent_that_falls_silent_is_given_up(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that lost its power closes no connection: only its silence tells, long before the command's time is over."""
    from gateway.model.records import Cause

    original = AgentConnection.__init__

    def impatient(self: AgentConnection, dial: Callable[[], Awaitable[Dialled]], timeout_s: float) -> None:
        original(self, dial, timeout_s, Timing(ping_interval_s=0.05, silence_limit_s=0.2))

    monkeypatch.setattr(AgentConnection, "__init__", impatient)
    pings: list[Any] = []

    async def silent(talk: Talk) -> None:
        await talk.raw(encode_item(Started(1, "j", {}), 0))
        pings.extend([await talk.next() for _ in range(3)])
        await talk.connection.reader.read()

    answer = (await execute(served, silent)).json()
    assert (answer["code"], answer["context"]) == ("outcome_unknown", {"accepted": True, "started": True})
    assert [type(ping) for ping in pings] == [Ping] * 3

    async def slow(talk: Talk) -> None:
        for _ in range(10):
            ping = await talk.next()
            await talk.raw(encode(Pong(ping.number)))
        await talk.say(Started(1, talk.opened.params["id"], {}), Exited(1, talk.opened.params["id"], RESULT))  # type: ignore[union-attr]
        await talk.connection.reader.read()

    await served.store.delete("sb-1", Cause("deleted", "caller"), owner="ada", forget=True)
    assert (await execute(served, slow)).json()["exit_code"] == 0, "an agent that answers may take its time"


async def test_an_answer_after_the_command_was_asked_for_says_how_far_it_got(served: Served, redis_server: RedisServer) -> None:
    """Also while placement is away: an answer that it is away would say that nothing was done."""
    from gateway.model.records import Cause

    async def runs_and_goes(talk: Talk) -> None:
        await talk.raw(encode_item(Started(1, "j", {}), 0))
        await served.store.mark_failed("sb-1", "1" * 16, Cause("oom", "workload"))
        await _vanishes(talk)

    async def redis_goes_too(talk: Talk) -> None:
        redis_server.kill()
        await _vanishes(talk)

    answer = (await execute(served, runs_and_goes)).json()
    assert (answer["code"], answer["reason"], answer["context"]) == ("sandbox_gone", "oom", {"accepted": True, "started": True})
    await served.store.delete("sb-1", Cause("deleted", "caller"), owner="ada", forget=True)
    try:
        answer = (await execute(served, redis_goes_too)).json()
        assert (answer["code"], answer["context"]) == ("outcome_unknown", {"accepted": None, "started": None})
    finally:
        redis_server.start()


async def test_an_agent_that_does_not_greet_is_unreachable(served: Served) -> None:
    async def silent(connection: Connection) -> None:
        await connection.message()
        await connection.message()

    answer = await ask(served, silent, "POST", "/exec", json={"command": "true", "wait": True})
    assert (answer.status_code, answer.json()["code"]) == (503, "agent_unreachable")


async def test_an_agent_that_is_full_says_so(served: Served) -> None:
    async def full(connection: Connection) -> None:
        await connection.message()
        await connection.send(server_frame(CLOSE, b"\x11\x4dsession_limit: too many"))

    answer = await ask(served, full, "POST", "/exec", json={"command": "true", "wait": True})
    assert (answer.status_code, answer.json()["code"]) == (429, "session_limit")


async def test_uploads_keep_to_the_agents_credit(served: Served) -> None:
    content = bytes(2 * WINDOW_BYTES)
    got = bytearray()

    async def script(talk: Talk) -> None:
        await talk.say(Opened(1, {}))
        limit = WINDOW_BYTES
        while True:
            frame, offset = decode(await talk.connection.message())
            if isinstance(frame, Ack):
                continue
            assert isinstance(frame, Write)
            got.extend(frame.data)
            assert offset + len(frame.data) <= limit
            if frame.eof:
                break
            if offset + len(frame.data) == limit:
                limit += DATA_BYTES * 4
                await talk.raw(encode(Credit(1, limit)))
        await talk.say(Closed(1, {"size": len(got)}))

    body = {"path": "/a", "content": base64.b64encode(content).decode()}
    answer = await ask(served, scripted(script), "POST", "/files", json=body)
    assert answer.status_code == 200
    assert len(got) == len(content)


@pytest.mark.parametrize(
    "junk",
    [b"\xc1", b"\x93\x01", msgpack.packb({"name": {"a": 1}, "size": "x", "mtime": float("nan")}), b"\xdf\xff\xff\xff\xff"],
)
async def test_a_listing_of_junk(served: Served, junk: bytes) -> None:
    async def script(talk: Talk) -> None:
        await talk.say(Opened(1, {}), Output(1, 1, junk), Closed(1, {}))

    answer = await ask(served, scripted(script), "GET", "/files/list")
    assert answer.status_code in (200, 503)


async def test_a_file_that_is_too_large_is_refused_while_it_is_read(redis_url: str, tmp_path: Any) -> None:
    async def script(talk: Talk) -> None:
        await talk.say(Opened(1, {}), Output(1, 1, bytes(2000)))

    async with serve(redis_url, tmp_path, None, RestSettings(file_bytes=1000)) as served:
        answer = await ask(served, scripted(script), "GET", "/files", params={"path": "/a"})
    assert (answer.status_code, answer.json()["code"]) == (413, "request_too_large")
