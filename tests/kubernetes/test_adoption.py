"""A waiting pod that becomes a sandbox, with others at work between any two steps of that: the controller, a second replica, nobody."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from gateway.agents.adoption import adopt_agent
from gateway.agents.dial import DialError, dial
from gateway.controller.plan import CREATE_LOST, MarkFailed
from gateway.controller.pool_refill import PoolRefill
from gateway.controller.reconciler import Reconciler
from gateway.metrics import Metrics
from gateway.model.labels import KEY_LABEL, POOL_LABEL
from gateway.model.options import Egress
from gateway.model.records import Record
from gateway.placement.errors import PlacementUnavailableError
from gateway.pools import PoolsFile
from gateway.runtimes.kubernetes.pods import adoption
from gateway.runtimes.kubernetes.pods.creation import PodCreation
from gateway.runtimes.kubernetes.runtime import KubernetesRuntime
from gateway.settings import ControllerSettings
from tests.conformance.runtimes import order
from tests.gateway.harness import SECRET, Served, serve
from tests.gateway.test_controller_plan import GRACE, NOW, present, twice
from tests.gateway.test_controller_plan import record as a_record
from tests.support.kube.kubelet import Kubelet
from tests.support.requires import requires
from tests.support.until import until_async

pytestmark = requires("redis")

GRACE_S = 0.01
BODY = {"image": "host", "cpu": 1, "memory": "256Mi", "sandbox_id": "sb-1", "wait": True}


@pytest_asyncio.fixture
async def served(redis_url: str, tmp_path: Path, runtime: KubernetesRuntime) -> AsyncIterator[Served]:
    """A gateway over pods of the fake cluster, and one spare that waits. No controller is at work but the test's own."""
    path = tmp_path / "pools.yaml"
    path.write_text("[{name: warm, image: host, cpu: 1, memory: 256Mi, size: 1}]")
    async with serve(redis_url, tmp_path) as served:
        served.gateway.runtime = runtime
        served.gateway.pools = PoolsFile(path)
        pool_refill = PoolRefill(served.store, runtime, PoolsFile(path).read, SECRET, ControllerSettings(), Metrics())
        term = await served.store.lead("c1", 60)
        assert term is not None
        async with asyncio.TaskGroup() as makers:
            await pool_refill.refill(term, lambda work, name: makers.create_task(work, name=name))
        yield served


async def looks(served: Served) -> Reconciler:
    """A controller's, twice: what it would do on evidence it has done."""
    term = await served.store.lead("c1", 60)
    assert term is not None
    reconciler = Reconciler(served.store, served.gateway.runtime, 60.0)
    for _ in range(2):
        await reconciler.run_once(term)
    return reconciler


async def record(served: Served) -> Record:
    entry = await served.store.get("sb-1")
    assert isinstance(entry, Record)
    return entry


def create(client: httpx.AsyncClient) -> asyncio.Task[httpx.Response]:
    return asyncio.create_task(client.post("/sandboxes", json=BODY))


async def answers(served: Served) -> None:
    """Its agent is where the record says, and knows whose it is."""
    found = await record(served)
    (await dial(found.endpoint, (SECRET,), "sb-1", found.incarnation, 5.0)).transport.abort()


async def test_a_spare_is_not_called_ready_before_its_agent_knows(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent never answers, so the sandbox is made cold in the end, and is where its record says."""
    told, go_on = asyncio.Event(), asyncio.Event()

    async def unreachable(*_: Any) -> None:
        told.set()
        await go_on.wait()
        raise DialError("agent_unreachable", "the waiting agent does not answer")

    monkeypatch.setattr(adoption, "adopt_agent", unreachable)
    async with served.client() as client:
        making = create(client)
        await told.wait()
        await looks(served)
        assert (await record(served)).status == "pending"
        go_on.set()
        assert (await making).json()["status"] == "ready"
    await answers(served)


@pytest.mark.parametrize("told", [False, True])
async def test_what_a_replica_that_is_gone_had_begun_is_finished_by_the_next(
    served: Served, runtime: KubernetesRuntime, monkeypatch: pytest.MonkeyPatch, told: bool
) -> None:
    """It was killed after its claim, before or after the agent heard of it."""
    reached = asyncio.Event()

    async def killed(*arguments: Any) -> None:
        if told:
            await adopt_agent(*arguments)
        reached.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(adoption, "adopt_agent", killed)
    monkeypatch.setattr(PodCreation, "tidy", lambda *_: asyncio.sleep(0))  # who is killed does not
    async with served.client() as client:
        first = create(client)
        await reached.wait()
        (making,) = served.gateway.creations.values()
        making.cancel()
        await asyncio.gather(first, return_exceptions=True)
        monkeypatch.undo()
        assert (await client.post("/sandboxes", json=BODY)).json()["status"] == "ready"
        assert [(one.sandbox_id, one.adopted) for one in await runtime.list_all()] == [("sb-1", True)]
    await answers(served)


async def test_a_store_that_is_away_hears_later_that_a_spare_was_taken(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """The controller cannot say it in the maker's stead."""
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
        await looks(served)

        async def ready() -> bool:
            return (await record(served)).status == "ready"

        await until_async(ready, deadline_s=60, what="the store to hear of it")
    await answers(served)


def test_what_became_of_a_claim_that_nobody_notes_is_not_guessed() -> None:
    pending, claimed = a_record(status="pending", age=5 * GRACE + 1), present(adopted=True)
    assert twice([pending], [claimed]) == [MarkFailed("sb-1", "i1", CREATE_LOST)]
    assert twice([replace(pending, active_at=NOW)], [claimed]) == []
    assert twice([a_record()], [claimed]) == []


async def test_a_spare_that_is_taken_while_it_is_being_removed_stays(runtime: KubernetesRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who took it was stopped for so long that it was given up, and went on between the look and the removal."""
    labels = {POOL_LABEL: "warm", KEY_LABEL: "k"}
    spare, asked = order("pool-1", owner="", token="0d" * 32, labels=labels), order("sb-1")
    await runtime.create(spare, 60.0)
    delete, takers = runtime.api.delete, [asked]

    async def taken_before(path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        if takers:
            await runtime.adopt("pool-1", takers.pop(), 60.0)
        return await delete(path, body)

    monkeypatch.setattr(runtime.api, "delete", taken_before)
    assert not await runtime.delete("pool-1", spare.incarnation)
    assert [one.sandbox_id for one in await runtime.list_all()] == ["sb-1"]
    assert await runtime.delete("sb-1", asked.incarnation)
    assert await runtime.list_all() == []


async def test_what_is_left_of_a_former_holder_is_found_beside_the_next(runtime: KubernetesRuntime) -> None:
    """The next pod bears the id as its name, the one that was a spare only as its label."""
    spare, former, later = order("pool-1", owner="", token="0d" * 32, labels={POOL_LABEL: "warm", KEY_LABEL: "k"}), order("a"), order("a")
    await runtime.create(spare, 60.0)
    await runtime.adopt("pool-1", former, 60.0)
    await runtime.create(later, 60.0)
    assert len(await runtime.list_all()) == 2
    await runtime.allow("a", former.incarnation, Egress("internet"))
    assert await runtime.delete("a", former.incarnation)
    assert [one.incarnation for one in await runtime.list_all()] == [later.incarnation]


async def test_a_pod_that_is_being_made_is_not_lost_with_its_maker(
    served: Served, kubelet: Kubelet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its image takes longer to be pulled than a gateway lives: the cluster is at it, so it comes up, and the controller says so."""
    live, pulled = kubelet._live, asyncio.Event()

    async def slowly(pod: dict[str, Any]) -> None:
        await pulled.wait()
        await live(pod)

    monkeypatch.setattr(kubelet, "_live", slowly)
    term = await served.store.lead("c1", 60)
    assert term is not None
    reconciler = Reconciler(served.store, served.gateway.runtime, GRACE_S)
    async with served.client() as client:
        await client.post("/sandboxes", json={**BODY, "cpu": 2, "wait": False})  # which fits no pool
        await until_async(lambda: "hf-sb-1" in kubelet.api.pods.names(), deadline_s=60, what="the pod")
        for making in served.gateway.creations.values():
            making.cancel()
        end = asyncio.get_running_loop().time() + 20 * GRACE_S

        async def over() -> bool:
            await reconciler.run_once(term)
            return asyncio.get_running_loop().time() > end

        await until_async(over, deadline_s=60, what="twenty graces")
        assert (await record(served)).status == "pending"
        pulled.set()

        async def ready() -> bool:
            await reconciler.run_once(term)
            return (await record(served)).status == "ready"

        await until_async(ready, deadline_s=60, what="it to come up")
    await answers(served)
