"""Requests of an idle controller pass to the API server and to Redis: their number does not depend on the number of sandboxes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from gateway.controller.pool_refill import PoolRefill
from gateway.controller.reconciler import Reconciler
from gateway.metrics import Metrics
from gateway.model.records import SandboxSpec
from gateway.placement.store import PlacementStore
from gateway.runtimes.base import CreateRequest
from gateway.runtimes.kubernetes.pods.manifest import pod
from gateway.runtimes.kubernetes.runtime import KubernetesRuntime
from gateway.settings import ControllerSettings, PlacementSettings
from tests.gateway.harness import SECRET
from tests.kubernetes.conftest import settings_for
from tests.support.background import in_background
from tests.support.kube.server import FakeApi
from tests.support.requires import requires
from tests.support.until import until_async

pytestmark = requires("redis")

RUNNING: dict[str, Any] = {
    "phase": "Running",
    "podIP": "10.0.0.1",
    "containerStatuses": [{"name": "sandbox", "started": True, "ready": True, "state": {"running": {}}}],
    "conditions": [{"type": "Ready", "status": "True"}],
}
MOST_COMMANDS = 450
"""Redis commands of one idle pass, including each command inside its scripts: 64 shards, at most seven each."""


@pytest_asyncio.fixture
async def store(redis_url: str) -> AsyncIterator[PlacementStore]:
    made = PlacementStore(PlacementSettings(redis_url=redis_url, step_timeout_s=60.0, connect_timeout_s=60.0))
    yield made
    await made.aclose()


async def add(store: PlacementStore, api: FakeApi, runtime: KubernetesRuntime, numbers: range) -> None:
    for number in numbers:
        spec = SandboxSpec(f"sb-{number}", "ada", f"{number:016x}", "host")
        await store.create(spec, fingerprint="f")
        await store.mark_ready(spec.sandbox_id, spec.incarnation, "tcp://10.0.0.1:1#u")
        api.pods.create({**pod(CreateRequest(spec, "t"), runtime.settings, "image", "replica-1"), "status": RUNNING})


async def commands(store: PlacementStore) -> Counter[str]:
    stats = re.findall(r"^cmdstat_(\S+):calls=(\d+)", await store._redis.command("INFO", "commandstats"), re.MULTILINE)
    return Counter({name: int(calls) for name, calls in stats if name != "info"})


@pytest.mark.parametrize("count", [0, 100, 1000])
async def test_an_idle_pass_lists_nothing(store: PlacementStore, api: FakeApi, tmp_path: Path, count: int) -> None:
    runtime, term = KubernetesRuntime(settings_for(api, tmp_path, page=500), "controller-1"), await store.lead("c1", 60)
    assert term is not None
    await add(store, api, runtime, range(count))
    pool_refill = PoolRefill(store, runtime, dict, SECRET, ControllerSettings(), Metrics())
    reconciler, events = Reconciler(store, runtime, 60.0, pool_refill), runtime.watch()
    try:

        async def watch() -> None:
            async for _ in events:
                pass

        async with in_background(watch(), "watch"):

            async def seen() -> bool:
                return bool(api.requests["watch pods"]) and len(await runtime.list_watched()) == count

            await until_async(seen, deadline_s=60, what="the watch to have every pod")
            for _ in range(3):
                await reconciler.run_once(term)
            api.requests.clear()
            before = await commands(store)
            assert await reconciler.run_once(term) == []
            used = await commands(store) - before
            assert dict(api.requests) == {}
            assert used["hgetall"] == 0
            assert sum(used.values()) < MOST_COMMANDS, used
            print(f"\n{count} sandboxes: {sum(used.values())} Redis commands, no request to the API server; {dict(used)}")

            api.requests.clear()
            await add(store, api, runtime, range(count, count + 1))

            async def known() -> bool:
                return len(await runtime.list_watched()) == count + 1

            await until_async(known, deadline_s=60, what="the new pod")
            before = await commands(store)
            await reconciler.run_once(term)
            used = await commands(store) - before
            assert used["hgetall"] <= 1 + (count + 1) // 16, "at most the shard of the change is read"
            assert dict(api.requests) == {}

            api.pods.delete("hf-sb-0", {"gracePeriodSeconds": 0})
            await until_async(lambda: _has(runtime, count), deadline_s=60, what="the pod to be gone")
            watched, listed = ({one.sandbox_id: one for one in found} for found in (await runtime.list_watched(), await runtime.list_all()))
            assert watched == listed
    finally:
        await events.aclose()  # type: ignore[attr-defined]
        await runtime.aclose()


async def _has(runtime: KubernetesRuntime, count: int) -> bool:
    return len(await runtime.list_watched()) == count


async def test_without_a_working_watch_everything_is_listed(store: PlacementStore, api: FakeApi, tmp_path: Path) -> None:
    runtime = KubernetesRuntime(settings_for(api, tmp_path, page=500), "controller-1")
    try:
        await add(store, api, runtime, range(3))
        assert len(await runtime.list_watched()) == 3
        assert api.requests["list pods"] == 1
    finally:
        await runtime.aclose()
