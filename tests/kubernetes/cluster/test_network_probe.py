"""A controller that becomes leader probes at once what the network of the cluster enforces, not minutes later."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest
from holdfast_wire.errors import HoldfastError

from gateway.controller.loop import Controller
from gateway.placement.store import PlacementStore
from gateway.runtimes.kubernetes.cluster import network_probe
from gateway.runtimes.kubernetes.runtime import KubernetesRuntime
from gateway.settings import ControllerSettings, PlacementSettings
from tests.conformance.runtimes import CREATE_S, order
from tests.support.kube.probe_pods import ProbePods
from tests.support.kube.server import FakeApi
from tests.support.requires import requires
from tests.support.until import until_async

pytestmark = requires("redis")

LABELS = {"app.kubernetes.io/managed-by": "holdfast", "app.kubernetes.io/component": "canary"}


@pytest.mark.parametrize("enforced", [True, False])
async def test_the_first_leader_probes_at_once(
    redis_url: str, runtime: KubernetesRuntime, api: FakeApi, enforced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network_probe, "_REMEMBERED_S", 0.0)
    api.probed = False
    stale_pod: dict[str, Any] = {"kind": "Pod", "metadata": {"name": "hf-canary-left", "labels": LABELS}, "spec": {}, "status": {}}
    api.pods.create(stale_pod)
    api.pods.update("hf-canary-left", lambda pod: pod["metadata"].update(creationTimestamp="2020-01-01T00:00:00Z"))
    store = PlacementStore(PlacementSettings(redis_url=redis_url, step_timeout_s=60.0, connect_timeout_s=60.0))
    with ProbePods(api, enforced=enforced).run() as probe_pods:
        assert (await network_check(runtime))["detail"].endswith("not probed yet")
        task = asyncio.create_task(Controller(store, runtime, "c1", ControllerSettings()).run(), name="controller")

        async def probed() -> bool:
            return "not probed" not in (await network_check(runtime))["detail"]

        await until_async(probed, deadline_s=60, what="the first probe")
        await until_async(lambda: not api.pods.names(), deadline_s=60, what="its pods, and those of a killed probe, to be gone")
        assert (await network_check(runtime))["ok"] is enforced
        await until_async(lambda: probe_pods.played == (1 if enforced else 2), deadline_s=60, what="a second probe after a leak")
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    with contextlib.nullcontext() if enforced else pytest.raises(HoldfastError, match="cannot be isolated from the network"):
        await runtime.create(order("sb-1"), CREATE_S)
    await store.aclose()


async def network_check(runtime: KubernetesRuntime) -> dict[str, Any]:
    return next(check for check in await runtime.doctor() if check["name"] == "network enforcement")
