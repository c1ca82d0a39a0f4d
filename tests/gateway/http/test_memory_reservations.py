"""Many large requests and responses at once stay within the memory that a replica reserves for them."""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from holdfast_wire.errors import HoldfastError
from holdfast_wire.frames import Closed, Exited, Opened, Output, Started
from holdfast_wire.limits import PARAMS_BYTES, PARAMS_ITEMS

from gateway.http.bounded_protocol import BoundedHttpProtocol
from gateway.http.request_fields import Fields
from gateway.memory_reservation import MemoryReservations, RequestReservation
from gateway.settings import RestSettings
from tests.gateway.agent_peer import RESULT, AgentPeer, ask, scripted
from tests.gateway.harness import ADA, DEADLINE_S, ScriptedAgent, Served, serve
from tests.support.requires import requires

pytestmark = requires("redis")

PIECE = os.urandom(100_000)


@pytest_asyncio.fixture
async def served(redis_url: str, tmp_path: Path) -> AsyncIterator[Served]:
    async with serve(redis_url, tmp_path, rest=RestSettings(reserved_bytes=1_000_000)) as running:
        yield running


def test_one_owner_can_reserve_at_most_three_quarters() -> None:
    memory = MemoryReservations(1_000_000)
    ada, bob = RequestReservation(memory), RequestReservation(memory)
    ada.owner, bob.owner = "ada", "bob"
    ada.add(700_000)
    with pytest.raises(HoldfastError, match="under way") as refused:
        ada.add(100_000)
    assert (refused.value.code, refused.value.retryable) == ("overloaded", True)
    bob.add(250_000)
    with pytest.raises(HoldfastError, match="under way"):
        bob.add(100_000)
    ada.release()
    bob.add(100_000)
    bob.release()
    assert memory.reserved_bytes == 0


@pytest.mark.parametrize("path", ["/files", "/exec"])
@pytest.mark.parametrize("pieces", [3, 9])
async def test_data_from_an_agent_is_counted(served: Served, path: str, pieces: int) -> None:
    async def script(peer: AgentPeer) -> None:
        await peer.send(*([Opened(1, {})] if path == "/files" else [Started(1, "x", {})]))
        await peer.send(*[Output(1, 1, PIECE) for _ in range(pieces)])
        await peer.send(Closed(1, {}) if path == "/files" else Exited(1, "x", RESULT))

    more: dict[str, Any] = {"params": {"path": "/x"}} if path == "/files" else {"json": {"command": "true", "wait": True}}
    answer = await ask(served, scripted(script), "GET" if path == "/files" else "POST", path, **more)
    if pieces == 3:
        body = answer.json()
        if path == "/files":
            assert base64.b64decode(body["content"]) == PIECE * pieces
            assert (body["path"], body["size"]) == ("/x", len(PIECE) * pieces)
        else:
            assert body["stdout"] == (PIECE * pieces).decode(errors="replace")
    else:
        assert (answer.status_code, answer.json()["code"], answer.headers["Retry-After"]) == (503, "overloaded", "1")
    assert served.gateway.memory.reserved_bytes == 0


async def test_request_bodies_are_counted(served: Served) -> None:
    async with served.client(ADA) as client:
        answer = await client.post("/sandboxes", content=b'{"image": "host", "x": "' + b"a" * 900_000 + b'"}')
    assert (answer.status_code, answer.json()["code"]) == (503, "overloaded")
    assert served.gateway.memory.reserved_bytes == 0


@pytest.mark.parametrize("size", range(5))
async def test_files_of_any_length_are_encoded_completely(served: Served, size: int) -> None:
    async def script(peer: AgentPeer) -> None:
        await peer.send(Opened(1, {}), Output(1, 1, PIECE[:size]), Closed(1, {}))

    async with ScriptedAgent(scripted(script)) as agent, served.client() as client:
        await served.place("sb-1", agent.endpoint)
        body = (await client.get("/sandboxes/sb-1/files", params={"path": '/"\\\n'})).json()
    assert (base64.b64decode(body["content"]), body["size"], body["path"]) == (PIECE[:size], size, '/"\\\n')


def test_more_arguments_than_a_request_may_have_are_refused() -> None:
    with pytest.raises(HoldfastError) as refused:
        Fields({"command": ["x"] * (PARAMS_ITEMS + 1)}).command()
    assert refused.value.code == "arguments_too_long"
    for env in ({f"A{n}": "" for n in range(PARAMS_ITEMS + 1)}, {"A": "x" * PARAMS_BYTES}):
        with pytest.raises(HoldfastError) as refused:
            Fields({"env": env}).environment(most_bytes=PARAMS_BYTES, most=PARAMS_ITEMS, code="arguments_too_long")
        assert refused.value.code == "arguments_too_long"


class ObservedReservations(MemoryReservations):
    """Sets one event when ``much_bytes`` are reserved, and another when all of it has been released after that."""

    def __init__(self, much_bytes: int) -> None:
        super().__init__(RestSettings().reserved_bytes)
        self._much_bytes = much_bytes
        self.much_reserved, self.all_released = asyncio.Event(), asyncio.Event()

    def change(self, owner: str, size: int) -> None:
        super().change(owner, size)
        if self.reserved_bytes >= self._much_bytes:
            self.much_reserved.set()
        if not self.reserved_bytes and self.much_reserved.is_set():
            self.all_released.set()


async def test_a_client_that_does_not_read_the_response_releases_its_memory(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BoundedHttpProtocol, "stall_s", 0.1)

    async def script(peer: AgentPeer) -> None:
        await peer.send(Opened(1, {}))
        for _ in range(200):
            await peer.send(Output(1, 1, PIECE))
        await peer.send(Closed(1, {}))

    async with serve(redis_url, tmp_path) as served, ScriptedAgent(scripted(script)) as agent, asyncio.timeout(DEADLINE_S):
        await served.place("sb-1", agent.endpoint)
        memory = served.gateway.memory = ObservedReservations(10_000_000)
        _, writer = await asyncio.open_connection("127.0.0.1", int(served.url.rpartition(":")[2]), limit=1024)
        writer.write(f"GET /sandboxes/sb-1/files?path=/x HTTP/1.1\r\nHost: x\r\nX-API-Key: {ADA}\r\n\r\n".encode())
        await memory.much_reserved.wait()
        await memory.all_released.wait()
        writer.transport.abort()
