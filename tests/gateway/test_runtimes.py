"""Runtimes: the conformance suite on a real node and on the runtime in memory; a node that is down, sends wrong data or returns."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from holdfast_wire.errors import HoldfastError
from holdfast_wire.frames import Failed, Output
from holdfast_wire.proof import agent_token

from gateway.agents.agent_call import AgentCall
from gateway.agents.agent_connection import AgentConnection
from gateway.agents.dial import dial
from gateway.runtimes import local
from gateway.runtimes.base import Runtime, RuntimeUnavailableError, Synced
from gateway.runtimes.local import LocalRuntime
from tests.conformance.runtimes import CREATE_S, EgressConformance, RuntimeConformance, SnapshotsConformance, next_of, order
from tests.gateway.harness import SECRET, MemoryRuntime
from tests.node.harness import Node, node
from tests.support.requires import requires


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def real_node(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Node]:
    async with node(
        tmp_path_factory.mktemp("node") / "data", HOLDFAST_AGENT_ENTRY="session_agent.agent.startup.server:serve_forked"
    ) as made:
        yield made


@pytest.mark.asyncio(loop_scope="module")
@requires("namespaces")
class TestLocalRuntime(RuntimeConformance):
    """The complete contract, on a real node."""

    @pytest_asyncio.fixture(loop_scope="module")
    async def runtime(self, real_node: Node) -> AsyncIterator[LocalRuntime]:
        made = LocalRuntime(Path(real_node.socket))
        yield made
        for present in await made.list_all():
            await made.delete(present.sandbox_id)
        await made.aclose()

    async def test_the_agent_proves_itself(self, runtime: LocalRuntime) -> None:
        request = order("sb-1")
        token = agent_token(SECRET, "sb-1", request.spec.incarnation)
        made = await runtime.create(
            type(request)(**{name: getattr(request, name) for name in type(request).__dataclass_fields__} | {"token": token}), CREATE_S
        )
        dialled = await dial(made, (SECRET,), "sb-1", request.spec.incarnation, 60.0)
        dialled.transport.abort()
        with pytest.raises(HoldfastError) as caught:
            await dial(made, (SECRET,), "sb-1", "0" * 16, 60.0)
        assert caught.value.code == "agent_identity"


@pytest.mark.asyncio(loop_scope="module")
@requires("namespaces", "root")
class TestLocalSnapshots(SnapshotsConformance):
    """The contract of snapshots, on a real node."""

    @pytest_asyncio.fixture(loop_scope="module")
    async def runtime(self, real_node: Node) -> AsyncIterator[LocalRuntime]:
        made = LocalRuntime(Path(real_node.socket))
        yield made
        for present in await made.list_all():
            await made.delete(present.sandbox_id)
        for image in await made.images.list_all("ada"):
            if not image.shared:
                await made.images.remove(image.name, "ada")
        await made.aclose()

    async def made(self, runtime: Runtime, sandbox_id: str, **more: Any) -> str:
        incarnation = more.setdefault("incarnation", secrets.token_hex(8))
        return await super().made(runtime, sandbox_id, token=agent_token(SECRET, sandbox_id, incarnation), **more)

    async def write(self, runtime: Runtime, sandbox_id: str, text: str) -> None:
        await self._call(runtime, sandbox_id, "write", {"path": "/tmp/conformance"}, text.encode())

    async def read(self, runtime: Runtime, sandbox_id: str) -> str:
        return await self._call(runtime, sandbox_id, "read", {"path": "/tmp/conformance"}, None)

    async def _call(self, runtime: Runtime, sandbox_id: str, kind: str, params: dict[str, Any], data: bytes | None) -> str:
        (status,) = await runtime.get(sandbox_id)
        connection = AgentConnection(lambda: dial(status.endpoint, (SECRET,), sandbox_id, status.incarnation, 60.0), 60.0)
        await connection.connect()
        call, found = AgentCall(connection), bytearray()
        try:
            call.open(kind, params)
            if data is not None:
                await call.write(data, eof=True)
            async for fact in call.facts():
                assert not isinstance(fact, Failed), fact
                if isinstance(fact, Output):
                    found += fact.data
        finally:
            call.leave()
            connection.close()
        return found.decode()


class TestMemoryRuntime(RuntimeConformance, EgressConformance):
    """The tests' own runtime also fulfils the contract, so that tests which use it are valid."""

    @pytest.fixture
    def runtime(self) -> MemoryRuntime:
        return MemoryRuntime()


# The local runtime's connection --------------------------------------------------------------------------------------


async def test_a_missing_node_is_unavailable(tmp_path: Path) -> None:
    runtime = LocalRuntime(tmp_path / "node.sock")
    for call in (runtime.list_all(), runtime.stats(), runtime.delete("sb-1"), runtime.create(order("sb-1"), 5.0)):
        with pytest.raises(RuntimeUnavailableError) as unavailable:
            await call
        assert unavailable.value.made_nothing, "no request was sent, so a create fails at once and is not left pending"
    await runtime.aclose()


async def test_answers_match_their_requests_and_a_lost_connection_fails_the_rest(tmp_path: Path) -> None:
    requests: list[dict[str, object]] = []
    arrived = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            requests.extend([json.loads(await reader.readline()) for _ in range(3)])
            for request in requests[1::-1]:  # out of order
                writer.write(json.dumps({"id": request["id"], "ok": True, "existed": request["sandbox_id"] == "sb-1"}).encode() + b"\n")
            await writer.drain()
            arrived.set()

    server = await asyncio.start_unix_server(serve, tmp_path / "node.sock")
    runtime = LocalRuntime(tmp_path / "node.sock")
    results = await asyncio.gather(*(runtime.delete(f"sb-{number}") for number in (1, 2, 3)), return_exceptions=True)
    assert results[:2] == [True, False]
    assert isinstance(results[2], RuntimeUnavailableError)
    server.close()
    await runtime.aclose()


@pytest.mark.parametrize(
    "answer", [b"garbage\n", b"{}\n", b'{"id": 1}\n', b'{"id": 1, "ok": true}\n', b'{"id": 1, "ok": false, "error": 7}\n']
)
async def test_an_invalid_answer_from_the_node_is_a_typed_error(tmp_path: Path, answer: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(answer)
        writer.close()

    server = await asyncio.start_unix_server(serve, tmp_path / "node.sock")
    runtime = LocalRuntime(tmp_path / "node.sock")
    with pytest.raises(HoldfastError):
        await runtime.create(order("sb-1"), 5.0)
    server.close()
    await runtime.aclose()


async def test_a_broken_watch_restarts_with_a_complete_list(tmp_path: Path) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b'{"id": 1, "event": {"type": "sync", "sandboxes": []}}\n')
        writer.close()

    server = await asyncio.start_unix_server(serve, tmp_path / "node.sock")
    events = LocalRuntime(tmp_path / "node.sock").watch()
    for _ in range(2):
        assert await next_of(events, Synced) == Synced()
    await events.aclose()  # type: ignore[attr-defined]
    server.close()


@pytest.mark.parametrize(
    "answer",
    [
        b'{"id": 1, "ok": false, "error": {"code": "no_capacity", "message": "too many requests at once"}}',
        b'{"id": 1, "event": {"type": "sync", "sandboxes": 7}}',
        b'{"id": 1, "event": {"type": "sync", "sandboxes": [{"sandbox_id": "sb-1", "incarnation": "1", "labels": 7}]}}',
        b'{"id": 1, "event": {"type": "gone"}}',
        b"[]",
        b"7",
        b"garbage",
    ],
)
async def test_a_watch_is_requested_again_after_an_answer_that_is_no_event(
    tmp_path: Path, answer: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node with many requests refuses a watch and leaves the connection open."""
    monkeypatch.setattr(local, "_REFUSED_S", 0.0)
    answers = [answer, b'{"id": 1, "event": {"type": "sync", "sandboxes": []}}']

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            await reader.readline()
            writer.write(answers.pop(0) + b"\n")
            await reader.read()

    server = await asyncio.start_unix_server(serve, tmp_path / "node.sock")
    events = LocalRuntime(tmp_path / "node.sock").watch()
    assert await next_of(events, Synced) == Synced()
    await events.aclose()  # type: ignore[attr-defined]
    server.close()
