"""Adoption of a spare while the controller or a second replica acts between its steps, or after the replica that began it was killed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from gateway.agents.dial import DialError, adopt_agent, dial
from gateway.controller.plan import CREATE_LOST, MarkFailed
from gateway.controller.pool_refill import PoolRefill
from gateway.controller.reconciler import Reconciler
from gateway.metrics import Metrics
from gateway.model.labels import KEY_LABEL, POOL_LABEL
from gateway.model.options import Egress
from gateway.model.records import Record
from gateway.placement.errors import PlacementUnavailableError
from gateway.pools import PoolsFile
from gateway.runtimes.kubernetes.pods import creation
from gateway.runtimes.kubernetes.pods.creation import PodCreation
from gateway.runtimes.kubernetes.runtime import KubernetesRuntime
from gateway.settings import ControllerSettings
from tests.conformance.runtimes import order
from tests.gateway.controller.test_controller_plan import GRACE, NOW, present, twice
from tests.gateway.controller.test_controller_plan import record as a_record
from tests.gateway.harness import SECRET, Served, id_of_adas, serve
from tests.support.kube.kubelet import Kubelet
from tests.support.requires import requires
from tests.support.until import until_async

pytestmark = requires("redis")

GRACE_S = 0.01
BODY = {"image": "host", "cpu": 1, "memory": "256Mi", "sandbox_id": "sb-1", "wait": True}


@pytest_asyncio.fixture
async def served(redis_url: str, tmp_path: Path, runtime: KubernetesRuntime) -> AsyncIterator[Served]:
    """A gateway over pods of the fake cluster, and one spare. No controller runs except the one that a test starts."""
    path = tmp_path / "pools.yaml"
    path.write_text("[{name: warm, image: host, cpu: 1, memory: 256Mi, size: 1}]")
    async with serve(redis_url, tmp_path) as served:
        served.gateway.runtime = runtime
        served.gateway.pools = PoolsFile(path)
        pool_refill = PoolRefill(served.store, runtime, PoolsFile(path).read, SECRET, ControllerSettings(), Metrics())
        term = await served.store.lead("c1", 60)
        assert term is not None
        async with asyncio.TaskGroup() as tasks:
            await pool_refill.refill(term, lambda work, name: tasks.create_task(work, name=name))
        yield served


async def reconcile_twice(served: Served) -> Reconciler:
    """Run two passes, after which a controller has acted on everything that it needs to see twice."""
    term = await served.store.lead("c1", 60)
    assert term is not None
    reconciler = Reconciler(served.store, served.gateway.runtime, 60.0)
    for _ in range(2):
        await reconciler.run_once(term)
    return reconciler


async def record(served: Served) -> Record:
    entry = await served.store.get(id_of_adas("sb-1"))
    assert isinstance(entry, Record)
    return entry


def create(client: httpx.AsyncClient) -> asyncio.Task[httpx.Response]:
    return asyncio.create_task(client.post("/sandboxes", json=BODY))


async def assert_agent_answers(served: Served) -> None:
    """The agent listens at the endpoint of the record and has the record's identity."""
    found = await record(served)
    (await dial(found.endpoint, (SECRET,), found.sandbox_id, found.incarnation, 60.0)).transport.abort()


async def test_a_spare_is_not_ready_before_its_agent_was_adopted(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """The spare's agent never answers, so the sandbox is created from scratch and listens at the endpoint of its record."""
    dialled, go_on = asyncio.Event(), asyncio.Event()

    async def unreachable(*_: Any) -> None:
        dialled.set()
        await go_on.wait()
        raise DialError("agent_unreachable", "the waiting agent does not answer")

    monkeypatch.setattr(creation, "adopt_agent", unreachable)
    async with served.client() as client:
        creating = create(client)
        await dialled.wait()
        await reconcile_twice(served)
        assert (await record(served)).status == "pending"
        go_on.set()
        assert (await creating).json()["status"] == "ready"
    await assert_agent_answers(served)


@pytest.mark.parametrize("agent_adopted", [False, True])
async def test_an_adoption_that_a_killed_replica_began_is_finished_by_the_next(
    served: Served, runtime: KubernetesRuntime, monkeypatch: pytest.MonkeyPatch, agent_adopted: bool
) -> None:
    """The replica was killed after it claimed the spare, before or after the agent was adopted."""
    reached = asyncio.Event()

    async def killed(*arguments: Any) -> None:
        if agent_adopted:
            await adopt_agent(*arguments)
        reached.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(creation, "adopt_agent", killed)
    monkeypatch.setattr(PodCreation, "tidy", lambda *_: asyncio.sleep(0))  # a killed replica does not tidy
    async with served.client() as client:
        first = create(client)
        await reached.wait()
        (creating,) = served.gateway.creations.values()
        creating.cancel()
        await asyncio.gather(first, return_exceptions=True)
        monkeypatch.undo()
        assert (await client.post("/sandboxes", json=BODY)).json()["status"] == "ready"
        assert [(one.spec.name, one.adopted) for one in await runtime.list_all()] == [("sb-1", True)]
    await assert_agent_answers(served)


async def test_a_store_that_was_unavailable_records_the_adoption_later(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the gateway that adopted can record it; the controller cannot."""
    real, tries = served.store.mark_ready, 0

    async def away(*arguments: Any, **more: Any) -> Any:
        nonlocal tries
        tries += 1
        if tries <= 2:
            raise PlacementUnavailableError
        return await real(*arguments, **more)

    monkeypatch.setattr(served.store, "mark_ready", away)
    async with served.client() as client:
        assert (await client.post("/sandboxes", json=BODY)).json()["code"] == "placement_unavailable"
        await reconcile_twice(served)

        async def ready() -> bool:
            return (await record(served)).status == "ready"

        await until_async(ready, deadline_s=60, what="the store to record it")
    await assert_agent_answers(served)


def test_a_claim_that_no_gateway_finishes_fails_after_the_grace() -> None:
    pending, claimed = a_record(status="pending", age=5 * GRACE + 1), present(adopted=True)
    assert twice([pending], [claimed]) == [MarkFailed("sb-1", "i1", CREATE_LOST)]
    assert twice([replace(pending, active_at=NOW)], [claimed]) == []
    assert twice([a_record()], [claimed]) == []


async def test_a_spare_that_is_adopted_during_its_removal_stays(runtime: KubernetesRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    """The adopting process was paused for so long that the spare was given up; it continued between the lookup and the removal."""
    labels = {POOL_LABEL: "warm", KEY_LABEL: "k"}
    spare, adopter = order("pool-1", owner="", token="0d" * 32, labels=labels), order("sb-1")
    await runtime.create(spare, 60.0)
    delete, adopters = runtime.api.delete, [adopter]

    async def adopt_before(path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        if adopters:
            await runtime.adopt("pool-1", adopters.pop(), 60.0)
        return await delete(path, body)

    monkeypatch.setattr(runtime.api, "delete", adopt_before)
    assert not await runtime.delete("pool-1", spare.spec.incarnation)
    assert [one.sandbox_id for one in await runtime.list_all()] == ["sb-1"]
    assert await runtime.delete("sb-1", adopter.spec.incarnation)
    assert await runtime.list_all() == []


async def test_the_pod_of_a_former_incarnation_is_found_beside_the_next(runtime: KubernetesRuntime) -> None:
    """The later pod has the id as its name, the pod that was a spare has it only as a label."""
    spare, former, later = order("pool-1", owner="", token="0d" * 32, labels={POOL_LABEL: "warm", KEY_LABEL: "k"}), order("a"), order("a")
    await runtime.create(spare, 60.0)
    await runtime.adopt("pool-1", former, 60.0)
    await runtime.create(later, 60.0)
    assert len(await runtime.list_all()) == 2
    await runtime.set_egress("a", former.spec.incarnation, Egress("internet"))
    assert await runtime.delete("a", former.spec.incarnation)
    assert [one.incarnation for one in await runtime.list_all()] == [later.spec.incarnation]


async def test_a_pod_in_creation_outlives_the_gateway_that_creates_it(
    served: Served, kubelet: Kubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pulling the image takes longer than the gateway lives. The cluster continues, and the controller marks the sandbox ready."""
    live, pulled = kubelet._live, asyncio.Event()

    async def slowly(pod: dict[str, Any]) -> None:
        await pulled.wait()
        await live(pod)

    monkeypatch.setattr(kubelet, "_live", slowly)
    term = await served.store.lead("c1", 60)
    assert term is not None
    reconciler = Reconciler(served.store, served.gateway.runtime, GRACE_S)
    async with served.client() as client:
        await client.post("/sandboxes", json={**BODY, "cpu": 2, "wait": False})  # no pool has this size
        await until_async(lambda: f"hf-{id_of_adas('sb-1')}" in kubelet.api.pods.names(), deadline_s=60, what="the pod")
        for creating in served.gateway.creations.values():
            creating.cancel()
        end = asyncio.get_running_loop().time() + 20 * GRACE_S

        async def over() -> bool:
            await reconciler.run_once(term)
            return asyncio.get_running_loop().time() > end

        await until_async(over, deadline_s=60, what="twenty grace periods")
        assert (await record(served)).status == "pending"
        pulled.set()

        async def ready() -> bool:
            await reconciler.run_once(term)
            return (await record(served)).status == "ready"

        await until_async(ready, deadline_s=60, what="the sandbox to be ready")
    await assert_agent_answers(served)
