"""Creates from a warm pool: which request gets a spare, what happens to a dead spare, and two replicas at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from holdfast_wire.errors import HoldfastError

from gateway.model.labels import KEY_LABEL
from gateway.model.records import Record, SandboxSpec
from gateway.pools import PoolsFile
from gateway.runtimes.base import CreateRequest
from gateway.use_cases import provision
from tests.gateway.harness import ADA, Served, id_of_adas, serve
from tests.gateway.pool_kit import KEY, TEXT
from tests.support.requires import requires
from tests.support.until import until_async

pytestmark = requires("redis")


BODY = {"image": "host", "cpu": 1, "memory": "1Gi", "wait": True}


@pytest_asyncio.fixture
async def served(redis_url: str, tmp_path: Path) -> AsyncIterator[Served]:
    async with serve(redis_url, tmp_path) as served:
        path = tmp_path / "pools.yaml"
        path.write_text(TEXT)
        served.gateway.pools = PoolsFile(path)
        yield served


async def offer(served: Served, count: int) -> list[str]:
    ids = [f"pool-{number}" for number in range(count)]
    for id_ in ids:
        served.runtime.add(id_, owner="", labels={KEY_LABEL: KEY})
        await served.store.offer_spares(KEY, {id_: float(id_[5:])}, term=1)
    return ids


async def test_a_create_that_fits_gets_a_spare(served: Served) -> None:
    await offer(served, 2)
    async with served.client() as client:
        made = (await client.post("/sandboxes", json={**BODY, "labels": {"a": "b"}, "env": {"A": "1"}})).json()
        assert made["status"] == "ready"
        cold = (await client.post("/sandboxes", json={**BODY, "cpu": 2})).json()
        last = [(await client.post("/sandboxes", json=BODY)).json() for _ in range(2)]
        metrics = (await client.get("/metrics")).text
    assert set(served.runtime.present) == {id_of_adas(one["sandbox_id"]) for one in (made, cold, *last)}
    first = served.runtime.orders[0]
    assert (first.spec.name, first.env, first.spec.labels["a"], KEY_LABEL in first.spec.labels) == (
        made["sandbox_id"],
        {"A": "1"},
        "b",
        False,
    )
    assert 'holdfast_pool_claims_total{outcome="warm"} 2' in metrics
    assert 'holdfast_pool_claims_total{outcome="empty"} 1' in metrics


async def test_dead_spares_are_skipped_and_then_a_cold_start_follows(served: Served) -> None:
    for id_ in await offer(served, 5):
        if id_ != "pool-1":
            del served.runtime.present[id_]
    async with served.client() as client:
        assert (await client.post("/sandboxes", json=BODY)).json()["status"] == "ready"
        assert "pool-1" not in served.runtime.present
        assert (await client.post("/sandboxes", json=BODY)).json()["status"] == "ready"
    assert len(served.runtime.present) == 2


async def test_a_spare_that_fails_during_adoption_is_removed_under_both_ids(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    await offer(served, 1)

    async def half(spare_id: str, order: CreateRequest, timeout_s: float) -> Any:
        served.runtime.present.pop(spare_id)
        served.runtime.add(order.spec.sandbox_id, order.spec.incarnation, owner=order.spec.owner, state="failed")
        raise HoldfastError("agent_unreachable", "it does not answer")

    monkeypatch.setattr(served.runtime, "adopt", half)
    async with served.client() as client:
        made = (await client.post("/sandboxes", json=BODY)).json()
    assert made["status"] == "ready"
    assert [one.state for one in served.runtime.present.values()] == ["ready"]
    assert served.runtime.deleted == ["pool-0", id_of_adas(made["sandbox_id"])]


async def test_two_replicas_turn_one_spare_into_one_sandbox(served: Served, redis_url: str, tmp_path: Path) -> None:
    """The same request reaches two gateways at once: one spare is used, the others stay on offer."""
    await offer(served, 4)
    other_folder = tmp_path / "other"
    other_folder.mkdir()
    async with serve(redis_url, other_folder) as other:
        other.gateway.runtime = served.gateway.runtime
        other.gateway.pools = served.gateway.pools
        async with served.client(ADA) as here, other.client(ADA) as there:
            for number in range(20):
                await offer(served, 4)
                headers = {"Idempotency-Key": f"k{number}"}
                posts = (client.post("/sandboxes", json=BODY, headers=headers) for client in (here, there, here, there, there))
                answers = await asyncio.gather(*posts)
                assert {answer.status_code for answer in answers} == {200}, [answer.text for answer in answers]
                (made,) = {answer.json()["sandbox_id"] for answer in answers}
                present = set(served.runtime.present)
                assert {id_ for id_ in present if not id_.startswith("pool-")} == {id_of_adas(made)}
                await here.delete(f"/sandboxes/{made}")
                waiting = {id_ for id_ in present if id_.startswith("pool-")}
                assert len(waiting) == 3
                await until_async(lambda wanted=waiting: on_offer(served, wanted), deadline_s=60, what="the rest to be on offer")
                await forget_all(served)


async def on_offer(served: Served, wanted: set[str]) -> bool:
    return set(await served.store.spares(KEY) or ()) == wanted


async def forget_all(served: Served) -> None:
    for id_ in await served.store.spares(KEY) or ():
        await served.store.withdraw_spares(KEY, [id_], term=1)
        served.runtime.present.pop(id_, None)


async def test_a_replica_without_a_spare_leaves_the_create_to_one_that_has_one(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise one request would give two sandboxes: the spare that the other replica adopts, and a cold start here."""
    await offer(served, 2)
    monkeypatch.setattr(provision, "_TRIES", 1)

    async def slow(spare_id: str, order: CreateRequest, timeout_s: float) -> Any:
        record = await served.store.get(order.spec.sandbox_id)
        assert isinstance(record, Record)
        found = await served.store.take_spare(KEY)  # the other replica saw this spare fail first and takes the next one
        assert found == await served.store.assign_spare(order.spec.sandbox_id, order.spec.incarnation, str(found), spare_id)
        served.gateway.background.start(adopted(record.incarnation, str(found)), "the other replica")
        raise HoldfastError("sandbox_not_found", "it is gone")

    adopt = served.runtime.adopt

    async def adopted(incarnation: str, spare_id: str) -> None:
        await adopt(spare_id, CreateRequest(SandboxSpec(id_of_adas("sb-1"), "ada", incarnation, "host"), "t"), 1.0)
        await served.store.mark_ready(id_of_adas("sb-1"), incarnation, "unix:///adopted")

    monkeypatch.setattr(served.runtime, "adopt", slow)
    async with served.client() as client:
        made = (await client.post("/sandboxes", json={**BODY, "sandbox_id": "sb-1"})).json()
    assert made["status"] == "ready"
    record = await served.store.get(id_of_adas("sb-1"))
    assert isinstance(record, Record)
    assert record.endpoint == "unix:///adopted"
    assert len(served.runtime.orders) == 1, "only the adoption was ordered"
