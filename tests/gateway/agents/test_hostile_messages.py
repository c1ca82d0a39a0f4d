"""An agent that breaks every rule, behind the REST routes: each request is answered in bounded time, as openapi.yaml says, and no answer
blames the infrastructure.

The same agent as behind the SDK's sessions (``tests.support.hostile_agent``). A sample runs in `make test`, the rest in `make soak`, and
`make fuzz` draws new seeds.
"""

from __future__ import annotations

import asyncio
import base64
import os
import time
from collections.abc import Callable
from typing import Any, Self

import pytest
from holdfast_wire.errors import TABLE
from holdfast_wire.websocket_frames import BINARY, CLOSE, server_frame
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.use_cases import agent_channel, execute, files
from tests.gateway.checked import Checked
from tests.gateway.harness import Connection, ScriptedAgent, Served
from tests.support.hostile_agent import GREETINGS, SCRIPTS, Peer, Script, at_random, converse, no_welcome, silence
from tests.support.requires import requires

pytestmark = requires("redis")

LIMIT_S = 30.0
_TEXT = 0x81
REQUESTS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "exec": ("POST", "/sandboxes/sb-1/exec", {"json": {"command": "true", "timeout_seconds": 0.2}}),
    "exec and wait": ("POST", "/sandboxes/sb-1/exec", {"json": {"command": "true", "timeout_seconds": 0.2, "wait": True}}),
    "exec with input": ("POST", "/sandboxes/sb-1/exec", {"json": {"command": "x" * 300_000, "timeout_seconds": 0.2, "wait": True}}),
    "job": ("GET", "/jobs/sb-1.abc", {}),
    "wait for a job": ("GET", "/jobs/sb-1.abc/wait", {"params": {"timeout": 0.3}}),
    "read": ("GET", "/sandboxes/sb-1/files", {"params": {"path": "/x"}}),
    "write": ("POST", "/sandboxes/sb-1/files", {"json": {"path": "/x", "content": base64.b64encode(b"y" * 300_000).decode()}}),
    "list": ("GET", "/sandboxes/sb-1/files/list", {"params": {"path": "/"}}),
    "patch": ("POST", "/sandboxes/sb-1/apply_patch", {"json": {"patch": "--- a\n+++ b\n", "timeout_seconds": 0.3}}),
}


class Socket:
    """The agent's side of a connection as the scripts use it, which is that of ``websockets``."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.transport = connection.writer.transport

    async def recv(self) -> bytes:
        return await self._connection.message()

    async def send(self, data: bytes | str) -> None:
        frame = server_frame(_TEXT, data.encode()) if isinstance(data, str) else server_frame(BINARY, data)
        await self._connection.send(frame)

    async def close(self, code: int, reason: str) -> None:
        await self._connection.send(server_frame(CLOSE, code.to_bytes(2, "big") + reason.encode()))
        self._connection.writer.close()


class Agent:
    """A hostile agent behind a gateway."""

    def __init__(self, served: Served, sandbox_id: str = "sb-1") -> None:
        self.served = served
        self._id = sandbox_id
        self.script: Script = silence
        self.greets: Callable[[Peer], Any] = lambda peer: peer.welcome()
        self._agent = ScriptedAgent(self._behave, sandbox_id)

    async def _behave(self, connection: Connection) -> None:
        await converse(Socket(connection), self.greets, lambda: self.script)

    async def __aenter__(self) -> Self:
        await self._agent.__aenter__()
        await self.served.place(self._id, self._agent.endpoint)
        return self

    async def __aexit__(self, *args: object) -> None:
        await self._agent.__aexit__(*args)

    async def ask(self, method: str, path: str, more: dict[str, Any]) -> Any:
        """The answer to a request, with the checks that hold for every answer."""
        begun = time.monotonic()
        async with asyncio.timeout(LIMIT_S), self.served.client() as client:
            answer = await Checked(client)(method, path.replace("sb-1", self._id), **more)
        assert time.monotonic() - begun < LIMIT_S
        body = answer.json()
        if answer.status_code >= 400:
            assert body["fault"] != "infrastructure", body
            assert body["code"] not in ("key_invalid", "quota_exceeded", "sandbox_gone"), body
        return answer


@pytest.fixture(autouse=True)
def short_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (agent_channel, execute):
        monkeypatch.setattr(module, "CALL_S", 0.3)
        monkeypatch.setattr(module, "REASON_S", 0.1)
    monkeypatch.setattr(execute, "_WAIT_MORE_S", 0.3)
    monkeypatch.setattr(files, "_LISTING_BYTES", 1_000_000)


@pytest.mark.parametrize("script", ["silence", "go_away", "output_without_end"])
@pytest.mark.parametrize("name", ["exec and wait", "read"])
async def test_a_sample_of_requests_is_answered(served: Served, name: str, script: str) -> None:
    async with Agent(served) as agent:
        agent.script = SCRIPTS[script]
        await agent.ask(*REQUESTS[name])


@pytest.mark.soak
@pytest.mark.parametrize("script", SCRIPTS)
async def test_every_request_is_answered(served: Served, script: str) -> None:
    async with Agent(served) as agent:
        agent.script = SCRIPTS[script]
        for request in REQUESTS.values():
            await agent.ask(*request)


@pytest.mark.parametrize("changed", GREETINGS.values(), ids=GREETINGS)
async def test_a_wrong_welcome_is_answered(served: Served, changed: dict[str, Any]) -> None:
    async def greet(peer: Peer) -> None:
        await peer.welcome(**changed)

    async with Agent(served) as agent:
        agent.greets = greet
        await agent.ask(*REQUESTS["exec and wait"])


@pytest.mark.soak
async def test_an_agent_without_a_welcome_is_answered(served: Served) -> None:
    async with Agent(served) as agent:
        agent.greets = no_welcome
        assert (await agent.ask(*REQUESTS["exec and wait"])).status_code >= 400


@pytest.mark.parametrize("code", ["sandbox_gone", "draining", "session_limit", "node-lost"])
async def test_a_close_code_of_an_agent_is_no_fault_of_the_infrastructure(served: Served, code: str) -> None:
    async def script(peer: Peer, frame: Any) -> None:
        await peer.connection.close(TABLE[code].close_code if code in TABLE else 4410, f"{code}: x")

    async with Agent(served) as agent:
        agent.script = script
        for name in ("exec and wait", "job", "read"):
            await agent.ask(*REQUESTS[name])


@pytest.mark.parametrize("seed", range(int(os.environ.get("HOLDFAST_HOSTILE_SEEDS", "2"))))
async def test_random_messages(served: Served, seed: int) -> None:
    async with Agent(served) as agent:
        for number, request in enumerate(REQUESTS.values()):
            agent.script = at_random(seed * 1000 + number)
            await agent.ask(*request)


@pytest.mark.slow
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32))
async def test_random_messages_of_any_seed(served: Served, seed: int) -> None:
    async with Agent(served, f"sb-{os.urandom(8).hex()}") as agent:
        for number, request in enumerate(REQUESTS.values()):
            agent.script = at_random(seed + number)
            if number % 3 == seed % 3:
                await agent.ask(*request)
