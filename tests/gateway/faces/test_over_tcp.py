"""One-offs and files with an agent over TCP, as in a pod: no small write waits for a delayed acknowledgement."""

from __future__ import annotations

import base64
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from holdfast_server.embed import free_port
from holdfast_wire.proof import agent_token

from tests.gateway.harness import SECRET, serve
from tests.support.kube.kubelet import ProcessAgent
from tests.support.requires import requires
from tests.support.until import until_async

pytestmark = requires("redis", "bash")

DELAYED_ACK_S = 0.040
"""The shortest delay in Linux (TCP_DELACK_MIN). A request that waits for one is never faster."""
BOUND_S = DELAYED_ACK_S * 0.9
INCARNATION = "1" * 16
_CONTENT = base64.b64encode(b"x" * 3000).decode()


@contextlib.asynccontextmanager
async def call_over_tcp(redis_url: str, folder: Path) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a gateway whose only sandbox, ``sb-1``, is an agent on a TCP port."""
    port = free_port()
    agent = ProcessAgent(
        {
            "HOLDFAST_AGENT_LISTEN": f"tcp://127.0.0.1:{port}",
            "HOLDFAST_AGENT_TOKEN": agent_token(SECRET, "sb-1", INCARNATION),
            "HOLDFAST_AGENT_SANDBOX_ID": "sb-1",
            "HOLDFAST_AGENT_INCARNATION": INCARNATION,
        }
    )
    await agent.start()
    try:
        async with (
            serve(redis_url, folder) as served,
            served.client() as client,
            httpx.AsyncClient(trust_env=False, verify=False) as direct,
        ):

            async def listens() -> bool:
                with contextlib.suppress(httpx.TransportError):
                    return (await direct.get(f"http://127.0.0.1:{port}/healthz")).status_code == 200
                return False

            await until_async(listens, deadline_s=60, what="the agent to listen")
            await served.place("sb-1", f"tcp://127.0.0.1:{port}")
            yield client
    finally:
        agent.kill()
        await agent.ended()


async def fastest_s(client: httpx.AsyncClient, method: str, path: str, **request: object) -> float:
    """The fastest of many requests in sequence: a busy machine slows most of them, a delayed acknowledgement slows all."""
    times: list[float] = []
    while len(times) < 150 and (len(times) < 5 or min(times) >= BOUND_S):
        began = time.perf_counter()
        answer = await client.request(method, path, **request)  # type: ignore[arg-type]
        times.append(time.perf_counter() - began)
        assert answer.is_success, answer.text
    return min(times)


@pytest.mark.alone
async def test_one_offs_do_not_wait_for_a_delayed_acknowledgement(redis_url: str, tmp_path: Path) -> None:
    place = f"{tmp_path}/file"
    async with call_over_tcp(redis_url, tmp_path) as client:
        took_s = {
            "exec": await fastest_s(client, "POST", "/sandboxes/sb-1/exec", json={"command": ["true"], "wait": True}),
            "write": await fastest_s(client, "POST", "/sandboxes/sb-1/files", json={"path": place, "content": _CONTENT}),
            "read": await fastest_s(client, "GET", "/sandboxes/sb-1/files", params={"path": place}),
        }
    assert {name: value for name, value in took_s.items() if value >= BOUND_S} == {}
