"""A failed create leaves nothing in the cluster, and in Redis only its reason for a limited time, through the whole service."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from gateway.controller.loop import Controller
from gateway.model.records import Quota, Record, Tombstone
from gateway.placement.store import PlacementStore
from gateway.runtimes.kubernetes.runtime import KubernetesRuntime
from gateway.settings import AdmissionSettings, ControllerSettings
from tests.gateway.controllers import at_work
from tests.gateway.harness import Served, serve
from tests.kubernetes.conftest import QUICK, settings_for
from tests.support.kube.kubelet import Kubelet, ProcessAgent
from tests.support.kube.server import FakeApi
from tests.support.requires import requires
from tests.support.until import until_async

pytestmark = requires("redis")

SOON_S = 30.0
CONTROLLER = ControllerSettings(reconcile_interval_s=0.2, expiry_interval_s=0.1, grace_s=0.5)
CASES: list[tuple[dict[str, Any], str]] = [
    ({"image": "unknown-image"}, "image-pull"),
    ({"image": "slow-registry"}, "image-pull"),
    ({"image": "needs-secret"}, "config"),
    ({"cpu": 1000}, "unschedulable"),
    ({"labels": {"unseen": "yes"}, "timeout": 1.0}, "timeout"),  # as the creating gateway reports it; the controller says "ready-timeout"
    ({"env": {"PYTHONHOME": "/nowhere"}}, "exited"),
    ({"priority_class": "system-node-critical"}, "unsupported"),
    ({"network": {"domains": ["pypi.org"]}}, "unsupported"),
]


@pytest_asyncio.fixture
async def served(redis_url: str, api: FakeApi, kubelet: Kubelet, tmp_path: Path) -> AsyncIterator[Served]:
    """A gateway and a controller over the fake cluster, with a quota, so that usage is counted."""
    settings = settings_for(api, tmp_path, unschedulable_patience_s=0.4, pull_patience_s=0.3, enforcement="policy", nodes_grow=True)
    runtime = KubernetesRuntime(settings, "replica-1", QUICK)
    admission = AdmissionSettings(owner_quota=Quota(5, None, None))
    async with serve(redis_url, tmp_path, admission=admission) as served:
        served.gateway.runtime = runtime
        try:
            async with at_work(Controller(served.store, runtime, "c1", CONTROLLER, admission=admission)):
                yield served
        finally:
            await runtime.aclose()


def sandboxes(api: FakeApi) -> list[str]:
    return [name for name in api.pods.names() if not name.startswith("hf-canary")]


def egress_policies(api: FakeApi) -> list[str]:
    return [name for name in api.stores["networkpolicies"].names() if name.startswith("hf-egress")]


@pytest.mark.parametrize("resources", [{"cpu": 1000}, {"memory": "500Ti"}])
async def test_more_than_any_node_has_is_refused_at_once(
    redis_url: str, api: FakeApi, kubelet: Kubelet, tmp_path: Path, resources: dict[str, Any]
) -> None:
    runtime = KubernetesRuntime(settings_for(api, tmp_path, enforcement="policy"), "replica-1", QUICK)
    async with serve(redis_url, tmp_path) as served, served.client() as client:
        served.gateway.runtime = runtime
        answer = await client.post("/sandboxes", json={"image": "host", "sandbox_id": "sb-1", **resources})
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_quantity")
        assert "more than any machine here has" in answer.json()["detail"]
        assert await served.store.get("sb-1") is None
        await runtime.aclose()


class SlowAgent(ProcessAgent):
    """Its container runs for many passes of the controller before the agent listens or ends."""

    async def start(self) -> None:
        await self.spawn("sh", "-c", 'sleep 1; exec "$0" -m session_agent', sys.executable)


@pytest.mark.parametrize(("env", "status"), [({}, "ready"), ({"PYTHONHOME": "/nowhere"}, "failed")])
async def test_a_running_container_is_not_ready_before_its_agent_listens(
    served: Served, kubelet: Kubelet, env: dict[str, str], status: str
) -> None:
    kubelet.agent = SlowAgent
    async with served.client() as client:
        await client.post("/sandboxes", json={"image": "host", "cpu": 1, "memory": "64Mi", "sandbox_id": "sb-1", "env": env})
        assert (await client.get("/sandboxes/sb-1/wait")).json()["status"] == status
        await client.delete("/sandboxes/sb-1")


class DeafAgent(ProcessAgent):
    """Its container runs, and nothing listens in it."""

    async def start(self) -> None:
        await self.spawn("sleep", "1000")


async def test_a_create_that_is_late_is_not_made_again_and_leaves_nothing(served: Served, kubelet: Kubelet, api: FakeApi) -> None:
    """Its client has no time left for another attempt: one that is sent anyway gets the same answer, not a second pod."""
    kubelet.agent = DeafAgent
    made: list[str] = []
    api.pods.on_write.append(lambda entry: made.append(entry.object["metadata"]["name"]) if entry.kind == "ADDED" else None)
    headers, body = {"Idempotency-Key": "k1"}, {"image": "host", "cpu": 1, "memory": "64Mi", "timeout": 2.0, "wait": True}
    async with served.client() as client:
        for _ in range(2):
            answer = await client.post("/sandboxes", json=body, headers=headers)
            problem = answer.json()
            assert (answer.status_code, problem["code"], problem["retryable"]) == (504, "create_timeout", False), problem
            assert problem["fault"] == "infrastructure"
        assert len([name for name in made if not name.startswith("hf-canary")]) == 1
        await until_async(lambda: not sandboxes(api), deadline_s=60, what="the pod to be removed")


def _delay_the_gateway(store: PlacementStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The creating gateway records the failure late, so that the controller runs two passes before that."""
    mark_failed = store.mark_failed

    async def late(*arguments: Any, term: int | None = None, **more: Any) -> Any:
        if term is None:
            await asyncio.sleep(0.5)
        return await mark_failed(*arguments, term=term, **more)

    monkeypatch.setattr(store, "mark_failed", late)


@pytest.mark.parametrize(("body", "reason"), CASES, ids=lambda part: part if isinstance(part, str) else str(part)[:40])
@pytest.mark.parametrize("wait", [True, False])
async def test_a_failed_create_leaves_nothing(
    served: Served, api: FakeApi, kubelet: Kubelet, monkeypatch: pytest.MonkeyPatch, body: dict[str, Any], reason: str, wait: bool
) -> None:
    await until_async(lambda: api.watches, deadline_s=SOON_S, what="the controller to watch")
    if wait:
        _delay_the_gateway(served.store, monkeypatch)
    reaches = {"network": {"reaches": [{"cidr": "198.51.100.0/24"}]}}  # needs its own policy, if the create gets that far
    if "labels" in body:  # it is never scheduled
        monkeypatch.setattr(kubelet, "_live", lambda pod: asyncio.sleep(0))
    request = {"image": "host", "cpu": 1, "memory": "64Mi", "sandbox_id": "sb-1", "wait": wait, **reaches, **body}
    async with served.client() as client:
        answer = await client.post("/sandboxes", json=request)
        result = answer.json()
        if wait:
            assert answer.status_code >= 400, result
        else:
            result = (await client.get("/sandboxes/sb-1/wait")).json()
            assert result["status"] == "failed"
        assert any(str(value).endswith(reason) for value in (result.get("reason"), result.get("code"))), result
        await until_async(lambda: not sandboxes(api), deadline_s=SOON_S, what="the pod to be gone")
        entry = await served.store.get("sb-1")
        if isinstance(entry, Record):
            assert entry.status == "failed"
            assert entry.cause is not None
            assert entry.cause.reason.endswith(reason)
        assert (await served.store.usage_entries("ada")) == {}, "it is not counted as usage"
        await client.delete("/sandboxes/sb-1")
        entry = await served.store.get("sb-1")
        assert entry is None or (isinstance(entry, Tombstone) and entry.cause.reason.endswith((reason, "deleted")))
        runtime = served.gateway.runtime
        assert isinstance(runtime, KubernetesRuntime)
        await runtime.policies.collect(time.time() + 3600)
        assert egress_policies(api) == []
        left = [str(key) for key in await served.store._redis.command("KEYS", "*sb-1*")]
        assert all(":tombstone:" in key for key in left), left
