"""Connections to agents that REST requests share: how many there are, and that a broken one changes no response."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import httpx
import pytest
from holdfast_server.embed import free_port
from holdfast_wire.codec import decode, encode
from holdfast_wire.frames import Closed, Exited, Hello, Opened, Output, Started, Welcome
from holdfast_wire.proof import agent_token
from holdfast_wire.websocket_frames import BINARY, server_frame

from gateway.agents import agent_connection, kept_connections
from gateway.agents.kept_connections import KeptConnections
from gateway.model.records import Cause
from tests.gateway.agent_peer import RESULT, AgentPeer
from tests.gateway.harness import SECRET, Connection, ScriptedAgent, Served, serve
from tests.support.kube.kubelet import ProcessAgent
from tests.support.requires import requires
from tests.support.until import until_async

pytestmark = requires("redis", "bash")

INCARNATION = "1" * 16


@dataclass
class Wire:
    """A TCP proxy in front of the agent that drops data when a test asks for it."""

    port: int
    dialled: int = 0
    open: int = 0
    """The number of open connections."""
    swallow: bool = False
    """Drop everything that is sent on the existing connections."""
    swallowed_bytes: int = 0
    cut_at_next: Literal["", "lost", "delivered"] = ""
    """Cut every connection at the client's next data: the agent does not receive that data ("lost") or does ("delivered")."""
    writers: list[asyncio.StreamWriter] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.dialled += 1
        self.open += 1
        swallow, self.swallow = False, False
        number = self.dialled
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            writer.close()
            self.open -= 1
            return
        self.writers += [writer, far_writer]

        async def pump(source: asyncio.StreamReader, target: asyncio.StreamWriter, *, from_client: bool) -> None:
            nonlocal swallow
            with contextlib.suppress(ConnectionError):
                while data := await source.read(65536):
                    swallow = swallow or (self.swallow and number == self.dialled)
                    if swallow:
                        self.swallowed_bytes += len(data) if from_client else 0
                        continue
                    cut, self.cut_at_next = (self.cut_at_next, "") if from_client else ("", self.cut_at_next)
                    if cut != "lost":
                        target.write(data)
                        await target.drain()
                    if cut:
                        await self.cut(abort=cut == "lost")
            target.close()

        await asyncio.gather(pump(reader, far_writer, from_client=True), pump(far_reader, writer, from_client=False))
        self.open -= 1

    async def cut(self, *, abort: bool = True) -> None:
        """Break every connection: at once, or after the data that is already written."""
        for writer in self.writers:
            if abort:
                writer.transport.abort()
            else:
                writer.close()
        self.writers.clear()


@dataclass
class Deployment:
    served: Served
    client: httpx.AsyncClient
    wire: Wire
    agent: ProcessAgent

    @property
    def kept(self) -> KeptConnections:
        kept = self.served.gateway.agents
        assert isinstance(kept, KeptConnections)
        return kept

    async def post(self, command: str, **body: Any) -> dict[str, Any]:
        answer = await self.client.post("/sandboxes/sb-1/exec", json={"command": command, "wait": True, **body})
        return {"status_code": answer.status_code, **answer.json()}

    async def execute(self, command: str) -> str:
        job = await self.post(command)
        assert job["status_code"] == 200, job
        return str(job["stdout"])

    async def write(self, place: Path, content: bytes) -> None:
        answer = await self.client.post("/sandboxes/sb-1/files", json={"path": str(place), "content": base64.b64encode(content).decode()})
        assert answer.is_success, answer.text

    async def read(self, place: Path) -> bytes:
        answer = await self.client.get("/sandboxes/sb-1/files", params={"path": str(place)})
        assert answer.is_success, answer.text
        return base64.b64decode(answer.json()["content"])


@contextlib.asynccontextmanager
async def one_sandbox(redis_url: str, folder: Path) -> AsyncIterator[Deployment]:
    wire = Wire(free_port())
    agent = ProcessAgent(
        {
            "HOLDFAST_AGENT_LISTEN": f"tcp://127.0.0.1:{wire.port}",
            "HOLDFAST_AGENT_TOKEN": agent_token(SECRET, "sb-1", INCARNATION),
            "HOLDFAST_AGENT_SANDBOX_ID": "sb-1",
            "HOLDFAST_AGENT_INCARNATION": INCARNATION,
        }
    )
    await agent.start()
    server = await asyncio.start_server(wire.serve, "127.0.0.1", 0)
    try:
        async with (
            server,
            serve(redis_url, folder) as served,
            served.client() as client,
            httpx.AsyncClient(trust_env=False, verify=False) as direct,
        ):

            async def listens() -> bool:
                with contextlib.suppress(httpx.TransportError):
                    return (await direct.get(f"http://127.0.0.1:{wire.port}/healthz")).status_code == 200
                return False

            await until_async(listens, deadline_s=60, what="the agent to listen")
            await served.place("sb-1", f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}")
            yield Deployment(served, client, wire, agent)
            await wire.cut()
    finally:
        agent.kill()
        await agent.ended()


@pytest.fixture(autouse=True)
def kept_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep connections for long, so that they do not expire on a slow machine."""
    monkeypatch.setattr(kept_connections, "KEEP_S", 600.0)
    monkeypatch.setattr(agent_connection, "_HEARD_S", 600.0)


async def test_sequential_requests_share_a_connection(redis_url: str, tmp_path: Path) -> None:
    place, content = tmp_path / "file", secrets.token_bytes(3_000_000)
    async with one_sandbox(redis_url, tmp_path) as here:
        for n in range(5):
            assert await here.execute(f"echo {n}") == f"{n}\n"
            await here.write(place, content)
            assert await here.read(place) == content
        assert len(await here.execute("head -c 4000000 /dev/zero | tr '\\0' x")) == 4_000_000
        listing = await here.client.get("/sandboxes/sb-1/files/list", params={"path": str(tmp_path)})
        assert "file" in [entry["name"] for entry in listing.json()["files"]]
        missing = await here.client.get("/sandboxes/sb-1/files", params={"path": str(tmp_path / "none")})
        assert missing.status_code == 404
        assert (await here.post("true", user="nobody-of-this-name"))["status_code"] >= 400
        assert await here.execute("echo still") == "still\n"
        assert here.wire.dialled == 1


async def test_concurrent_requests_share_a_connection(redis_url: str, tmp_path: Path) -> None:
    async with one_sandbox(redis_url, tmp_path) as here:
        await here.execute("true")
        long = asyncio.create_task(here.execute(f"while [ ! -e {tmp_path}/go ]; do sleep 0.05; done; echo long"))
        assert await asyncio.gather(*(here.execute(f"echo {n}") for n in range(20))) == [f"{n}\n" for n in range(20)]
        (tmp_path / "go").touch()
        assert await long == "long\n"
        assert here.wire.dialled == 1


async def test_jobs_share_the_connection_until_one_of_them_has_ended(redis_url: str, tmp_path: Path) -> None:
    """Requests after the end of a job do not acknowledge it, so its output can be queried again."""
    async with one_sandbox(redis_url, tmp_path) as here:
        queued = await here.post(f"while [ ! -e {tmp_path}/go ]; do sleep 0.05; done; head -c 300000 /dev/zero | tr '\\0' x", wait=False)
        for _ in range(3):
            assert (await here.client.get(f"/jobs/{queued['job_id']}")).json()["status"] == "running"
        assert here.wire.dialled == 1
        (tmp_path / "go").touch()
        for _ in range(3):
            ended = await here.client.get(f"/jobs/{queued['job_id']}/wait", params={"timeout": 60})
            assert len(ended.json()["stdout"]) == 300_000
        assert await here.execute("echo next") == "next\n"


@pytest.mark.parametrize("how", ["idle", "lost", "delivered"])
async def test_a_cut_connection_changes_no_response(redis_url: str, tmp_path: Path, how: Any) -> None:
    """The connection breaks before a request, while the request is sent, or after the agent received it."""
    counter = tmp_path / "counter"
    async with one_sandbox(redis_url, tmp_path) as here:

        async def fault() -> None:
            await here.execute("true")
            if how == "idle":
                await here.wire.cut()
            else:
                here.wire.cut_at_next = how

        for n in range(1, 6):
            await fault()
            assert await here.execute(f"echo {n} >> {counter}; echo {n}") == f"{n}\n"
            await fault()
            await here.write(tmp_path / "file", b"%d" % n)
            await fault()
            assert await here.read(tmp_path / "file") == b"%d" % n
        assert counter.read_text() == "1\n2\n3\n4\n5\n"
        assert here.wire.dialled > 10


async def test_a_cut_during_commands_loses_nothing(redis_url: str, tmp_path: Path) -> None:
    counter = tmp_path / "counter"
    async with one_sandbox(redis_url, tmp_path) as here:
        await here.execute("true")
        wait = f"while [ ! -e {tmp_path}/go ]; do sleep 0.05; done"
        running = [asyncio.create_task(here.execute(f"echo {n} >> {counter}; {wait}; echo {n}")) for n in range(8)]
        await until_async(lambda: counter.exists() and len(counter.read_text().split()) == 8, deadline_s=60, what="all commands to run")
        await here.wire.cut()
        (tmp_path / "go").touch()
        assert await asyncio.gather(*running) == [f"{n}\n" for n in range(8)]
        assert sorted(counter.read_text().split()) == [str(n) for n in range(8)]
        assert here.wire.dialled == 2
        assert await here.execute("echo next") == "next\n"


async def test_a_connection_that_drops_everything_is_replaced(redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the agent's silence shows it, so an agent that has not sent anything for a moment is pinged before a request."""
    monkeypatch.setattr(agent_connection, "_HEARD_S", 0.0)
    monkeypatch.setattr(agent_connection, "_PONG_S", 0.3)
    counter = tmp_path / "counter"
    async with one_sandbox(redis_url, tmp_path) as here:
        await here.execute(f"echo 1 >> {counter}")
        here.wire.swallow = True
        assert await here.execute(f"echo 2 >> {counter}; echo done") == "done\n"
        assert counter.read_text() == "1\n2\n"
        assert here.wire.dialled == 2
        assert 0 < here.wire.swallowed_bytes < 60, "a Ping and a Close; the command was not sent there"


async def test_a_killed_agent_is_reported_and_its_connections_are_closed(redis_url: str, tmp_path: Path) -> None:
    async with one_sandbox(redis_url, tmp_path) as here:
        await here.execute("true")
        running = asyncio.create_task(here.post(f"touch {tmp_path}/runs; sleep 600"))
        await until_async((tmp_path / "runs").exists, deadline_s=60, what="the command to run")
        here.agent.kill()
        await here.agent.ended()
        await here.served.store.mark_failed("sb-1", INCARNATION, Cause("oom", "workload"))
        lost, after = await running, await here.post("true")
        assert (lost["code"], lost["reason"], lost["context"]["started"]) == ("sandbox_gone", "oom", True)
        assert (after["code"], after["reason"]) == ("sandbox_gone", "oom")
        await until_async(lambda: here.wire.open == 0, deadline_s=60, what="its connections to be closed")


async def test_an_agent_that_stays_down_is_unreachable(redis_url: str, tmp_path: Path) -> None:
    async with one_sandbox(redis_url, tmp_path) as here:
        await here.execute("true")
        here.agent.kill()
        await here.agent.ended()
        assert (await here.post("true"))["code"] in ("agent_unreachable", "outcome_unknown")
        assert (await here.post("true"))["code"] == "agent_unreachable", "the same answer as without a kept connection"


async def test_a_new_incarnation_does_not_use_the_connection_of_the_old_one(redis_url: str, tmp_path: Path) -> None:
    async with one_sandbox(redis_url, tmp_path) as here:
        await here.execute("true")
        await here.served.store.delete("sb-1", Cause("deleted", "caller"), owner="ada", forget=True)
        assert (await here.post("true"))["status_code"] == 404
        await here.served.place("sb-1", f"tcp://127.0.0.1:{here.wire.port}", incarnation="2" * 16)
        assert (await here.post("true"))["code"] == "agent_identity", "the agent that still runs is not this sandbox's"


async def test_an_unused_connection_is_closed_after_a_while(redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_connections, "KEEP_S", 0.2)
    async with one_sandbox(redis_url, tmp_path) as here:
        await here.execute("true")
        await until_async(lambda: len(here.kept) == 0 and here.wire.open == 0, deadline_s=60, what="the connection to be closed")
        assert await here.execute("echo again") == "again\n"
        assert here.wire.dialled == 2


async def test_a_stopping_gateway_closes_kept_connections(redis_url: str, tmp_path: Path) -> None:
    async with one_sandbox(redis_url, tmp_path) as here:
        running = asyncio.create_task(here.execute(f"touch {tmp_path}/runs; while [ ! -e {tmp_path}/go ]; do sleep 0.05; done; echo done"))
        await until_async((tmp_path / "runs").exists, deadline_s=60, what="the command to run")
        await here.execute("true")
        here.kept.close()
        (tmp_path / "go").touch()
        assert await running == "done\n"
        assert len(here.kept) == 0
        await here.execute("true")
        await until_async(lambda: here.wire.open == 0, deadline_s=60, what="all connections to be closed")
        assert len(here.kept) == 0


# Scripted agents ------------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def scripted(
    redis_url: str, folder: Path, behave: Callable[[Connection], Awaitable[None]]
) -> AsyncIterator[tuple[Served, ScriptedAgent]]:
    async with ScriptedAgent(behave) as agent, serve(redis_url, folder) as served:
        await served.place("sb-1", agent.endpoint)
        yield served, agent


async def post(served: Served) -> httpx.Response:
    async with served.client() as client:
        return await client.post("/sandboxes/sb-1/exec", json={"command": "true", "wait": True})


async def answer_all(connection: Connection) -> None:
    """Every channel's command ends with 0."""
    peer = AgentPeer(connection)
    await peer.handshake()
    number = 1
    while True:
        peer.offset = 0
        await peer.send(Started(number, "j", {}), Exited(number, "j", RESULT))
        while type(opened := await peer.receive()).__name__ != "Open":
            pass
        number = opened.channel


async def test_a_replica_keeps_a_limited_number_of_connections(redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_connections, "_MOST", 2)
    async with contextlib.AsyncExitStack() as scope:
        served = await scope.enter_async_context(serve(redis_url, tmp_path))
        agents = []
        for n in range(4):
            agents.append(await scope.enter_async_context(ScriptedAgent(answer_all, sandbox_id=f"sb-{n}")))
            await served.place(f"sb-{n}", agents[-1].endpoint)
        client = await scope.enter_async_context(served.client())
        for n in (0, 1, 0, 2, 3, 0):
            answer = await client.post(f"/sandboxes/sb-{n}/exec", json={"command": "true", "wait": True})
            assert answer.json()["exit_code"] == 0
        kept = served.gateway.agents
        assert isinstance(kept, KeptConnections)
        assert [sandbox_id for sandbox_id, _, _ in kept._kept] == ["sb-3", "sb-0"]
        assert [len(agent.connections) for agent in agents] == [2, 1, 1, 1], "the connection that was unused longest was closed"


async def test_a_protocol_violation_ends_only_its_connection(redis_url: str, tmp_path: Path) -> None:
    async def behave(connection: Connection) -> None:
        if len(agent.connections) == 1:
            peer = AgentPeer(connection)
            await peer.handshake()
            await peer.send(Started(1, "j", {}), Exited(1, "j", RESULT))
            while type(await peer.receive()).__name__ != "Open":
                pass
            peer.offset = 0
            await peer.send(Exited(2, "j", RESULT))
        else:
            await answer_all(connection)

    async with scripted(redis_url, tmp_path, behave) as (served, agent):
        assert (await post(served)).json()["exit_code"] == 0
        assert (await post(served)).json()["code"] == "outcome_unknown"
        assert (await post(served)).json()["exit_code"] == 0
        assert len(agent.connections) == 3, "a violation is not resumed; the second connection only checked that the agent is still there"


async def test_an_agent_that_breaks_every_connection_is_dialled_again_once(redis_url: str, tmp_path: Path) -> None:
    async def behave(connection: Connection) -> None:
        hello, _ = decode(await connection.message())
        assert isinstance(hello, Hello)
        welcome = Welcome(hello.version, "e1", hello.generation + 1, hello.generation > 0, {}, {})
        await connection.send(server_frame(BINARY, encode(welcome)))
        await connection.message()
        connection.writer.transport.abort()

    async with scripted(redis_url, tmp_path, behave) as (served, agent):
        assert (await post(served)).json()["code"] == "outcome_unknown"
        assert len(agent.connections) == 3, "the last connection only checked that the agent is still there"


async def test_channels_that_never_end_do_not_accumulate(redis_url: str, tmp_path: Path) -> None:
    async def behave(connection: Connection) -> None:
        peer = AgentPeer(connection)
        await peer.handshake()
        number = 1
        while True:
            peer.offset = 0
            await peer.send(Started(number, "j", {}), Output(number, 1, b"x"))
            while type(opened := await peer.receive()).__name__ != "Open":
                pass
            number = opened.channel

    async with scripted(redis_url, tmp_path, behave) as (served, agent), served.client() as client:
        for _ in range(40):
            assert (await client.post("/sandboxes/sb-1/exec", json={"command": "true"})).json()["status"] == "queued"
        assert 2 <= len(agent.connections) <= 4


async def test_data_after_an_abandoned_request_is_credited_and_discarded(redis_url: str, tmp_path: Path) -> None:
    """A file that is too large is refused while it is read; other requests on the connection are not affected."""

    async def behave(connection: Connection) -> None:
        peer = AgentPeer(connection)
        await peer.handshake()
        await peer.send(Opened(1, {}))
        with contextlib.suppress(ConnectionError):
            while peer.offset < 900_000:
                await peer.send(Output(1, 1, bytes(100_000)))
            await peer.send(Closed(1, {}))
            await connection.message()

    async with scripted(redis_url, tmp_path, behave) as (served, _), served.client() as client:
        object.__setattr__(served.gateway.settings.rest, "file_bytes", 200_000)
        answer = await client.get("/sandboxes/sb-1/files", params={"path": "/a"})
        assert (answer.status_code, answer.json()["code"]) == (413, "request_too_large")
