"""A warm pool end to end on the fake cluster: real agents wait in pods, a create adopts one, the controller creates another."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest_asyncio
from holdfast import AsyncSandbox, AsyncSandboxClient

from gateway.controller.loop import Controller
from gateway.controller.pool_refill import PoolRefill, is_spare
from gateway.metrics import Metrics
from gateway.pools import PoolsFile
from gateway.runtimes.kubernetes.runtime import KubernetesRuntime
from gateway.settings import ControllerSettings
from tests.gateway.controllers import at_work
from tests.gateway.harness import ADA, SECRET, Served, serve
from tests.support.kube.kubelet import Kubelet
from tests.support.kube.server import FakeApi
from tests.support.requires import requires
from tests.support.until import until_async

pytestmark = requires("redis", "bash")

POOLS = "[{name: warm, image: host, cpu: 1, memory: 256Mi, size: 2, refill_per_s: 50}]"
QUICK = ControllerSettings(reconcile_interval_s=0.5, refill_interval_s=0.05, expiry_interval_s=0.1)


@pytest_asyncio.fixture
async def served(redis_url: str, tmp_path: Path, runtime: KubernetesRuntime) -> AsyncIterator[Served]:
    """A gateway and a controller over pods of the fake cluster, with one pool."""
    path = tmp_path / "pools.yaml"
    path.write_text(POOLS)
    async with serve(redis_url, tmp_path) as served:
        served.gateway.runtime = runtime
        served.gateway.pools = PoolsFile(path)
        pool_refill = PoolRefill(served.store, runtime, PoolsFile(path).read, SECRET, QUICK, Metrics())
        async with at_work(Controller(served.store, runtime, "c1", QUICK, pool_refill)):
            yield served


async def until_filled(served: Served, runtime: KubernetesRuntime, *, alone: bool = False) -> set[str]:
    """Wait until the pool is full, and with ``alone`` until there is no other pod."""
    (pool,) = served.gateway.pools.read().values()
    found: set[str] = set()

    async def exact() -> bool:
        present = await runtime.list_all()
        found.clear()
        found.update(one.sandbox_id for one in present if is_spare(one))
        others = len(present) - len(found) if alone else 0
        return len(found) == pool.size and not others and set(await served.store.spares(pool.key) or ()) == found

    await until_async(exact, deadline_s=60, what="two spares, both registered in the store")
    return found


async def test_a_create_adopts_a_spare_pod(served: Served, runtime: KubernetesRuntime, api: FakeApi, kubelet: Kubelet) -> None:
    spares = await until_filled(served, runtime)
    async with AsyncSandboxClient(served.url, ADA) as client:
        begun = time.monotonic()
        sandbox = await client.create_sandbox("host", cpu=1, memory="256Mi", env={"WHO": "adopted"}, labels={"run": "7"})
        took_s = time.monotonic() - begun
        assert (await sandbox.exec("echo $WHO")).stdout == "adopted\n"
        shell = await sandbox.shell()
        assert (await shell.run("cd /tmp && pwd")).stdout == "/tmp\n"
        (present,) = [one for one in await runtime.list_all() if one.spec.name == sandbox.id]
        assert (present.spec.owner, present.spec.labels["run"], is_spare(present)) == ("ada", "7", False)
        assert 'holdfast_pool_claims_total{outcome="warm"} 1' in served.gateway.metrics.render()
        now = await until_filled(served, runtime)
        assert len(now & spares) == 1, "one was adopted and is created again"
        print(f"\na create that takes a spare: {1000 * took_s:.0f} ms")
        await sandbox.delete()

        async def gone(*deleted: AsyncSandbox) -> bool:  # the answer to the delete does not wait for the cluster
            return not {one.id for one in deleted} & {one.spec.name for one in await runtime.list_all()}

        await until_async(partial(gone, sandbox), deadline_s=60, what="the deleted sandbox's pod to go")
        sandboxes = await asyncio.gather(*(client.create_sandbox("host", cpu=1, memory="256Mi") for _ in range(6)))
        assert [(await one.exec("echo up")).stdout for one in sandboxes] == ["up\n"] * 6
        claims = re.findall(r'holdfast_pool_claims_total{outcome="(\w+)"} (\d+)', served.gateway.metrics.render())
        counts = {outcome: int(count) for outcome, count in claims}
        assert counts["warm"] >= 3, "the first one, and both of the refilled pool"
        assert sum(counts.values()) == 7
        await asyncio.gather(*(one.delete() for one in sandboxes))
        await until_async(partial(gone, *sandboxes), deadline_s=60, what="the pods of the deleted sandboxes to go")
        await until_filled(served, runtime, alone=True)
