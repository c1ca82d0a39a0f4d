"""P4t, P4f, P5t, P5f: one-offs on the path that clusters use, beside the same on one machine's Unix sockets.

Owns that path: SDK or HTTP client → proxy → gateway → proxy → agent, every arrow a TCP connection between processes of their own. The
agent is started as in a pod, not forked. The bench's own stack has a Unix socket before its agents, on which a small write that waits for a
delayed acknowledgement (40 ms) never shows.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.client
import secrets
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path

import httpx
from holdfast import AsyncSandbox, AsyncSandboxClient
from holdfast_server.embed import free_port
from holdfast_server.layout import TOP
from holdfast_wire.proof import agent_token

from gateway.model.records import SandboxSpec
from gateway.placement.redis_store import RedisStore
from gateway.settings import PlacementSettings
from tests.bench.figures import Figure
from tests.bench.latency import in_turn
from tests.support.redis_server import RedisServer

NAMES = ("P4T", "P4F", "P5T", "P5F")
BUDGET_MS = 3.0
_SLOW_DAY = 1.5
"""Where the same over Unix sockets takes longer than the budget, the machine is slow: then this ratio to it is the budget."""
_INCARNATION = "1" * 16
_SANDBOX = "sb-bench"
_CONTENT = b"x" * 4096
_READY_S = 30.0

Step = Callable[[AsyncSandbox, httpx.AsyncClient], Awaitable[None]]


@contextlib.asynccontextmanager
async def pod_path(folder: Path) -> AsyncIterator[tuple[str, str]]:
    """Address and key of a gateway behind a proxy, whose only sandbox ``sb-bench`` is an agent behind another."""
    key, secret = f"hf_{secrets.token_hex(16)}", secrets.token_hex(32)
    (folder / "keys").write_text(f"bench {hashlib.sha256(key.encode()).hexdigest()}\n")
    (folder / "secret").write_text(secret)
    (folder / "secret").chmod(0o600)
    redis = RedisServer(folder)
    redis.start()
    store = RedisStore(PlacementSettings(redis_url=redis.url))
    agent_port, gateway_port = free_port(), free_port()
    agent = {
        "HOLDFAST_AGENT_LISTEN": f"tcp://127.0.0.1:{agent_port}",
        "HOLDFAST_AGENT_TOKEN": agent_token(secret, _SANDBOX, _INCARNATION),
        "HOLDFAST_AGENT_SANDBOX_ID": _SANDBOX,
        "HOLDFAST_AGENT_INCARNATION": _INCARNATION,
    }
    gateway = {"HOLDFAST_DATA": str(folder), "HOLDFAST_REDIS_URL": redis.url, "PORT": str(gateway_port)}
    try:
        await store.mark_generation("bench", term=1)
        with _process("session_agent", agent), _process("gateway", gateway):
            for port in (agent_port, gateway_port):
                _wait_healthy(port)
            with _proxy(agent_port) as behind, _proxy(gateway_port) as before:
                spec = SandboxSpec(sandbox_id=_SANDBOX, owner="bench", incarnation=_INCARNATION, image="host")
                await store.create(spec, fingerprint=_SANDBOX)
                await store.mark_ready(_SANDBOX, _INCARNATION, f"tcp://127.0.0.1:{behind}", "epoch")
                yield f"http://127.0.0.1:{before}", key
    finally:
        await store.aclose()
        redis.stop()


async def figures(folder: Path, near: AsyncSandbox, url: str, key: str, wanted: set[str], count: int = 300) -> AsyncIterator[Figure]:
    """``near``, ``url`` and ``key`` are of the bench's own stack, which the floors are taken on."""
    async with pod_path(folder) as (far_url, far_key), AsyncSandboxClient(far_url, far_key) as client:
        far = client.get_sandbox(_SANDBOX)
        async with _http(url, key) as near_http, _http(far_url, far_key) as far_http:
            for name, title, steps in _FIGURES:
                if name.upper() not in wanted:
                    continue
                slowest: tuple[float, float, str, tuple[float, float]] | None = None
                for what, step in steps:
                    floor_step, step_far = partial(_timed, step, near, near_http), partial(step, far, far_http)
                    samples = await in_turn(count, floor_step, step_far)
                    taken = (samples.p50 * 1e3, samples.floor_p50 * 1e3, what, samples.spread(1e3))
                    slowest = taken if slowest is None or taken > slowest else slowest
                assert slowest is not None
                value, floor, what, spread = slowest
                ok = value <= BUDGET_MS or value <= _SLOW_DAY * floor
                how = (
                    f"p50 of {count} (the slowest of {', '.join(one for one, _ in steps)}: {what}) over TCP between client, proxy, "
                    "gateway, proxy and agent, in turn with the same in the bench's own stack, which counts where the machine is slow"
                )
                yield Figure(name, title, value, "ms", floor, value / floor, f"≤ {BUDGET_MS:g} ms or {_SLOW_DAY:g}×", "", ok, how, spread)


async def _exec(sandbox: AsyncSandbox, _: httpx.AsyncClient) -> None:
    result = await sandbox.exec(["true"])
    assert result.exit_code == 0, result


async def _write(sandbox: AsyncSandbox, _: httpx.AsyncClient) -> None:
    await sandbox.files.write("/tmp/holdfast-bench", _CONTENT)


async def _read(sandbox: AsyncSandbox, _: httpx.AsyncClient) -> None:
    assert await sandbox.files.read("/tmp/holdfast-bench") == _CONTENT


async def _rest_exec(sandbox: AsyncSandbox, client: httpx.AsyncClient) -> None:
    answer = await client.post(f"/sandboxes/{sandbox.id}/exec", json={"command": ["true"], "wait": True})
    assert answer.is_success, answer.text
    assert answer.json()["exit_code"] == 0, answer.text


async def _rest_write(sandbox: AsyncSandbox, client: httpx.AsyncClient) -> None:
    body = {"path": "/tmp/holdfast-bench", "content": base64.b64encode(_CONTENT).decode()}
    answer = await client.post(f"/sandboxes/{sandbox.id}/files", json=body)
    assert answer.is_success, answer.text
    assert answer.json()["size"] == len(_CONTENT), answer.text


async def _rest_read(sandbox: AsyncSandbox, client: httpx.AsyncClient) -> None:
    answer = await client.get(f"/sandboxes/{sandbox.id}/files", params={"path": "/tmp/holdfast-bench"})
    assert answer.is_success, answer.text
    assert answer.json()["size"] == len(_CONTENT), answer.text


_FIGURES: tuple[tuple[str, str, tuple[tuple[str, Step], ...]], ...] = (
    ("P4t", "one-off `true`, TCP through proxies, p50", (("exec", _exec),)),
    ("P4f", "4 KiB file, TCP through proxies, p50", (("write", _write), ("read", _read))),
    ("P5t", "one-off over REST, TCP through proxies, p50", (("exec", _rest_exec),)),
    ("P5f", "4 KiB file over REST, TCP through proxies, p50", (("write", _rest_write), ("read", _rest_read))),
)


async def _timed(step: Step, sandbox: AsyncSandbox, client: httpx.AsyncClient) -> float:
    began = time.perf_counter()
    await step(sandbox, client)
    return time.perf_counter() - began


def _http(url: str, key: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=url, headers={"X-API-Key": key}, trust_env=False)


@contextlib.contextmanager
def _process(module: str, environment: dict[str, str], *arguments: str) -> Iterator[subprocess.Popen[str]]:
    kept = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/tmp", "PYTHONPATH": f"{TOP}:{TOP / 'schemas'}", **environment}
    command = [sys.executable, "-m", module, *arguments]
    with subprocess.Popen(
        command, env=kept, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            yield process
        finally:
            process.terminate()


@contextlib.contextmanager
def _proxy(port: int) -> Iterator[int]:
    with _process("tests.bench.tcp_proxy", {}, "127.0.0.1", str(port)) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())


def _wait_healthy(port: int) -> None:
    end = time.monotonic() + _READY_S
    while True:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
        try:
            connection.request("GET", "/healthz")
            if connection.getresponse().status == 200:
                return
        except (OSError, http.client.HTTPException):
            pass
        finally:
            connection.close()
        assert time.monotonic() < end, f"nothing answers on port {port}"
        time.sleep(0.02)
