"""Which reason a session reports when its pod ends under a command: that of the API server, whatever the agent says on SIGTERM."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from holdfast import AsyncSandboxClient, SandboxLostError

from gateway.controller.loop import Controller
from gateway.runtimes.kubernetes.runtime import KubernetesRuntime
from gateway.settings import ControllerSettings
from tests.gateway.controllers import at_work
from tests.gateway.harness import ADA, DEADLINE_S, Served, id_of_adas, serve
from tests.kubernetes.conftest import QUICK, settings_for
from tests.support.kube.kubelet import Kubelet
from tests.support.kube.probe_pods import ProbePods
from tests.support.kube.server import FakeApi
from tests.support.requires import requires

pytestmark = requires("redis")

FAST = ControllerSettings(lease_ttl_s=2.0, lease_renew_s=0.05, expiry_interval_s=0.5, reconcile_interval_s=0.5, grace_s=60.0)
EVICTED = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI", "message": "Eviction API: evicting"}


@pytest_asyncio.fixture
async def served(api: FakeApi, kubelet: Kubelet, redis_url: str, tmp_path: Path) -> AsyncIterator[Served]:
    runtime = KubernetesRuntime(settings_for(api, tmp_path, grace_s=6), "replica-1", QUICK)
    with ProbePods(api).run():
        async with serve(redis_url, tmp_path) as made:
            made.gateway.runtime = runtime
            async with at_work(Controller(made.store, runtime, "c1", FAST)):
                yield made
            await made.gateway.background.aclose()
    await runtime.aclose()


@pytest.mark.parametrize(("conditions", "reason"), [([], "deleted"), ([EVICTED], "evicted")], ids=["kubectl delete", "kubectl drain"])
async def test_a_command_reports_why_its_pod_was_ended(served: Served, api: FakeApi, conditions: list[dict[str, Any]], reason: str) -> None:
    async with AsyncSandboxClient(served.url, ADA) as client, asyncio.timeout(DEADLINE_S):
        sandbox = await client.create_sandbox("host", block_network=False)
        process = await sandbox.start(["sleep", "1000"])
        name = f"hf-{id_of_adas(sandbox.id)}"
        if conditions:
            api.pods.update(name, lambda body: body["status"]["conditions"].extend(conditions))
        api.pods.delete(name, {"gracePeriodSeconds": 4})
        with pytest.raises(SandboxLostError) as lost:
            await process.wait()
        assert (lost.value.reason, lost.value.fault) == (reason, "infrastructure")
