"""P4t, P4f, P5t, P5f: one-offs on the path that clusters use, over a session and over REST with the SDK's client.

Owns that path: client → proxy → gateway → proxy → agent, five processes connected by TCP. The
agent is started as in a pod, not forked. The bench's own stack reaches its agents over Unix sockets, on which a small write never waits for
a delayed acknowledgement (40 ms).
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
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import httpx
from holdfast import AsyncSandbox, AsyncSandboxClient
from holdfast_server.embed import free_port
from holdfast_server.layout import TOP
from holdfast_wire.proof import agent_token

from gateway.model.names import id_of
from gateway.model.records import SandboxSpec
from gateway.placement.store import PlacementStore
from gateway.settings import PlacementSettings
from tests.bench.figures import Figure
from tests.bench.latency import Samples, in_turn, joined
from tests.support.redis_server import RedisServer

NAMES = ("P4T", "P4F", "P5T", "P5F")
BUDGET_MS = 3.0
_INCARNATION = "1" * 16
_SANDBOX = "sb-bench"
_ID = id_of("bench", _SANDBOX)
_PATH = "/tmp/holdfast-bench"
_CONTENT = b"x" * 4096
_READY_S = 30.0
_PASSES = 6
"""How often all rows are measured in turn, so that each is the median over about ten seconds of the machine and not over one."""

Action = Callable[[], Awaitable[object]]


@contextlib.asynccontextmanager
async def pod_path(folder: Path) -> AsyncIterator[tuple[str, str]]:
    """Address and key of a gateway behind a proxy, whose only sandbox ``sb-bench`` is an agent behind another proxy."""
    key, secret = f"hf_{secrets.token_hex(16)}", secrets.token_hex(32)
    (folder / "keys").write_text(f"bench {hashlib.sha256(key.encode()).hexdigest()}\n")
    (folder / "secret").write_text(secret)
    (folder / "secret").chmod(0o600)
    redis = RedisServer(folder)
    redis.start()
    store = PlacementStore(PlacementSettings(redis_url=redis.url))
    agent_port, gateway_port = free_port(), free_port()
    agent = {
        "HOLDFAST_AGENT_LISTEN": f"tcp://127.0.0.1:{agent_port}",
        "HOLDFAST_AGENT_TOKEN": agent_token(secret, _ID, _INCARNATION),
        "HOLDFAST_AGENT_SANDBOX_ID": _SANDBOX,
        "HOLDFAST_AGENT_INCARNATION": _INCARNATION,
    }
    gateway = {"HOLDFAST_DATA": str(folder), "HOLDFAST_REDIS_URL": redis.url, "PORT": str(gateway_port)}
    try:
        await store.set_marker("bench", term=1)
        with _process("session_agent", agent), _process("gateway", gateway):
            for port in (agent_port, gateway_port):
                _wait_healthy(port)
            with _proxy(agent_port) as behind, _proxy(gateway_port) as before:
                spec = SandboxSpec(sandbox_id=_ID, owner="bench", incarnation=_INCARNATION, image="host")
                await store.create(spec, fingerprint=_SANDBOX)
                await store.mark_ready(_ID, _INCARNATION, f"tcp://127.0.0.1:{behind}")
                yield f"http://127.0.0.1:{before}", key
    finally:
        await store.aclose()
        redis.stop()


async def figures(folder: Path, near: AsyncSandbox, wanted: set[str], count: int = 300) -> AsyncIterator[Figure]:
    """``near`` is a sandbox of the bench's own stack. The rows of another HTTP client, whose ids end in ``h``, have no budget."""
    async with (
        pod_path(folder) as (url, key),
        AsyncSandboxClient(url, key) as client,
        AsyncSandboxClient(url, key, transport="rest") as rest,
        httpx.AsyncClient(base_url=url, headers={"X-API-Key": key}, trust_env=False) as plain,
    ):
        far, over_rest = client.get_sandbox(_SANDBOX), rest.get_sandbox(_SANDBOX)
        same = [(what, partial(step, near), partial(step, far)) for what, step in _STEPS]
        health = partial(rest._rest.request, "GET", "/health")
        sdk = [(what, health, partial(step, over_rest)) for what, step in _STEPS]
        library = [(what, partial(_plain_health, plain), partial(step, plain)) for what, step in _PLAIN_STEPS]
        rows: list[tuple[str, str, Sequence[tuple[str, Action, Action]], str]] = [
            ("P4t", "one-off `true`, TCP through proxies, p50", same[:1], _STACK),
            ("P4f", "4 KiB file, TCP through proxies, p50", same[1:], _STACK),
            ("P5t", "one-off over REST, TCP through proxies, p50", sdk[:1], _HEALTH),
            ("P5th", "the same with httpx", library[:1], _HEALTH),
            ("P5f", "4 KiB file over REST, TCP through proxies, p50", sdk[1:], _HEALTH),
            ("P5fh", "the same with httpx", library[1:], _HEALTH),
        ]
        rows = [row for row in rows if row[0][:3].upper() in wanted]
        passes = [[await _pass(pairs, count // _PASSES) for _, _, pairs, _ in rows] for _ in range(_PASSES)]
        for (name, title, pairs, floor), samples in zip(rows, zip(*passes, strict=True), strict=True):
            yield _slowest(name, title, [what for what, _, _ in pairs], floor, list(map(joined, zip(*samples, strict=True))))


async def _pass(pairs: Sequence[tuple[str, Action, Action]], count: int) -> list[Samples]:
    return [await in_turn(count, partial(_timed, floor), action) for _, floor, action in pairs]


def _slowest(name: str, title: str, actions: Sequence[str], under: str, samples: Sequence[Samples]) -> Figure:
    """The figure of the slowest of several actions, each beside its floor."""
    taken = [(each.p50 * 1e3, each.floor_p50 * 1e3, what, each.spread(1e3)) for what, each in zip(actions, samples, strict=True)]
    value, floor_ms, slowest, spread = max(taken)
    budget, ok = ("", True) if name.endswith("h") else (f"≤ {BUDGET_MS:g} ms", value <= BUDGET_MS)
    how = (
        f"p50 of {len(samples[0].figure)} in {_PASSES} passes over P4t to P5f (the slowest of {', '.join(actions)}: {slowest}) over TCP "
        f"between client, proxy, gateway, proxy and agent; floor, in turn: {under}"
    )
    return Figure(name, title, value, "ms", floor_ms, value / floor_ms, budget, "", ok, how, spread)


async def _exec(sandbox: AsyncSandbox) -> None:
    result = await sandbox.exec(["true"])
    assert result.exit_code == 0, result


async def _write(sandbox: AsyncSandbox) -> None:
    await sandbox.files.write(_PATH, _CONTENT)


async def _read(sandbox: AsyncSandbox) -> None:
    assert await sandbox.files.read(_PATH) == _CONTENT


async def _plain_health(client: httpx.AsyncClient) -> None:
    answer = await client.get("/health")
    assert answer.is_success, answer.text


async def _plain_exec(client: httpx.AsyncClient) -> None:
    answer = await client.post(f"/sandboxes/{_SANDBOX}/exec", json={"command": ["true"], "wait": True})
    assert answer.is_success, answer.text
    assert answer.json()["exit_code"] == 0, answer.text


async def _plain_write(client: httpx.AsyncClient) -> None:
    body = {"path": _PATH, "content": base64.b64encode(_CONTENT).decode()}
    answer = await client.post(f"/sandboxes/{_SANDBOX}/files", json=body)
    assert answer.is_success, answer.text
    assert answer.json()["size"] == len(_CONTENT), answer.text


async def _plain_read(client: httpx.AsyncClient) -> None:
    answer = await client.get(f"/sandboxes/{_SANDBOX}/files", params={"path": _PATH})
    assert answer.is_success, answer.text
    assert answer.json()["size"] == len(_CONTENT), answer.text


_STEPS = (("exec", _exec), ("write", _write), ("read", _read))
_PLAIN_STEPS = (("exec", _plain_exec), ("write", _plain_write), ("read", _plain_read))
_STACK = "the same in the bench's own stack, over Unix sockets"
_HEALTH = "GET /health with the same client through the same proxy, which is what client, proxy and HTTP alone take"


async def _timed(action: Action) -> float:
    began = time.perf_counter()
    await action()
    return time.perf_counter() - began


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
