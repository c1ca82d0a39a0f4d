"""A thousand pods from create to collection with bounded memory, and commands that send no request to the API server."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import httpx
import pytest
import pytest_asyncio
from holdfast import AsyncSandboxClient

from gateway.controller.loop import Controller
from gateway.runtimes.kubernetes.runtime import KubernetesRuntime
from gateway.runtimes.kubernetes.settings import KubernetesSettings
from gateway.settings import ControllerSettings
from tests.conformance.runtimes import all_ready
from tests.gateway.harness import ADA, Served, id_of_adas, serve
from tests.kubernetes.conftest import settings_for
from tests.support.kube.kubelet import Kubelet
from tests.support.kube.server import FakeApi
from tests.support.requires import requires
from tests.support.until import until_async

pytestmark = requires("redis")

PODS = 1000
AT_ONCE = 40
CANARIES = 5
"""Pods that a controller creates at its start to probe the network and the nodes."""
Requests = Callable[[], Awaitable[dict[str, int]]]
KIB_PER_POD = 24
"""Memory that each of a thousand sandboxes may add to a gateway and a controller in one process, beside what is loaded and buffered once.

Measured: 26 in all, of which the test's own client, lists and answers are a part.
"""
STATUS_KIB = 12 * 1024
"""Allowance for what is not per pod: connections, buffers, code loaded at first use."""


@pytest_asyncio.fixture
async def on_fake(redis_url: str, tmp_path: Path, runtime: KubernetesRuntime) -> AsyncIterator[Served]:
    """A gateway whose sandboxes are pods of the fake cluster."""
    async with serve(redis_url, tmp_path) as served:
        served.gateway.runtime = runtime
        yield served


@requires("bash")
async def test_commands_files_and_shells_send_no_request_to_the_api_server(on_fake: Served, api: FakeApi, kubelet: Kubelet) -> None:
    async with AsyncSandboxClient(on_fake.url, ADA) as client:
        sandboxes = await asyncio.gather(*(client.create_sandbox("host", cpu=1, memory="256Mi") for _ in range(3)))
        await asyncio.gather(*(sandbox.exec("true") for sandbox in sandboxes))
        quiet = Counter(api.requests)
        for sandbox in sandboxes:
            async with await sandbox.shell() as shell:
                for number in range(20):
                    assert (await shell.run(f"echo {number}")).stdout == f"{number}\n"
            await sandbox.files.write("/tmp/hf-scale", b"x" * 10_000)
            assert await sandbox.files.read("/tmp/hf-scale") == b"x" * 10_000
            results = await asyncio.gather(*(sandbox.exec(["echo", str(n)]) for n in range(20)))
            assert [result.stdout for result in results] == [f"{n}\n" for n in range(20)]
        rest = httpx.AsyncClient(base_url=on_fake.url, headers={"X-API-Key": ADA}, trust_env=False)
        async with rest:
            answer = await rest.post(f"/sandboxes/{sandboxes[0].sandbox_id}/exec", json={"command": "echo rest", "wait": True})
            assert answer.status_code == 200, answer.text
        assert Counter(api.requests) == quiet, "the API server received requests while commands ran"
        await asyncio.gather(*(sandbox.delete() for sandbox in sandboxes))


@pytest.mark.timeout(300)
async def test_a_thousand_are_created_found_expired_and_collected(redis_url: str, tmp_path: Path) -> None:
    async with fake_cluster(tmp_path) as (settings, requests), serve(redis_url, tmp_path) as served:
        runtime = KubernetesRuntime(settings, "replica-1")
        controller_runtime = KubernetesRuntime(settings, "controller-1")
        served.gateway.runtime = runtime
        quick = ControllerSettings(expiry_interval_s=0.2, reconcile_interval_s=2.0, grace_s=5.0)
        controller = Controller(served.store, controller_runtime, "c1", quick)
        running = asyncio.create_task(controller.run(), name="controller")
        try:
            async with served.client() as client:
                client.timeout = httpx.Timeout(120)
                await create_sandboxes(client, 50, "warm-up", 10.0)  # loads code and fills pools of connections
                await until_async(lambda: _left(runtime, 0), deadline_s=120, what="the first fifty to be collected")
                before = rss_kib()
                await create_sandboxes(client, PODS, "sb", 3600.0)
                after_create = rss_kib()
                found = await runtime.list_all()
                assert len(found) == PODS
                await all_ready(runtime)
                records = sum([1 async for _ in served.store.scan()])
                assert records == PODS
                counts = await requests()
                assert counts["create pods"] == PODS + 50 + CANARIES
                assert counts.get("get pods", 0) <= 50 * 2 + 5, "a create read its pod although a watch reports it"
                peak = max(after_create, rss_kib())
                del found
                # Their lifetime ends: the controller alone ends every record and removes every pod.
                for number in range(PODS):
                    await served.store._redis.command("HSET", record_key(id_of_adas(f"sb-{number}")), "life", "1")
                    await served.store.touch([id_of_adas(f"sb-{number}")])
                await until_async(lambda: _left(runtime, 0), deadline_s=200, what="all pods to be collected")
                assert sum([1 async for _ in served.store.scan()]) == 0
            growth = peak - before
            gc.collect()
            print(f"\n{PODS} sandboxes: +{growth} KiB at most ({growth / PODS:.1f} KiB each), +{rss_kib() - before} KiB after all had gone")
            assert growth <= PODS * KIB_PER_POD + STATUS_KIB
        finally:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running
            await controller_runtime.aclose()
    await runtime.aclose()


async def create_sandboxes(client: httpx.AsyncClient, count: int, prefix: str, lifetime_s: float) -> None:
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> None:
        body = {"image": "host", "sandbox_id": f"{prefix}-{number}", "wait": True, "lifetime_s": lifetime_s, "cpu": "10m", "memory": "16Mi"}
        async with gate:
            answer = await client.post("/sandboxes", json=body)
        assert answer.status_code == 200, answer.text

    await asyncio.gather(*(one(number) for number in range(count)))


async def _left(runtime: KubernetesRuntime, count: int) -> bool:
    return len(await runtime.list_all()) == count


def record_key(sandbox_id: str) -> str:
    from gateway.placement import keys

    return keys.record(sandbox_id)


def rss_kib() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4


@contextlib.asynccontextmanager
async def fake_cluster(folder: Path) -> AsyncIterator[tuple[KubernetesSettings, Requests]]:
    """The fake cluster in a separate process, so that its memory is not counted, and a function that returns its request counts."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.support.kube", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        api = FakeApi()
        api.url = (await process.stdout.readline()).decode().strip()
        settings = settings_for(api, folder, page=500)

        async def requests() -> dict[str, int]:
            async with httpx.AsyncClient(trust_env=False) as client:
                return json.loads((await client.get(f"{api.url}/requests")).text)  # type: ignore[no-any-return]

        yield settings, requests
    finally:
        process.stdin.close()
        await process.wait()
