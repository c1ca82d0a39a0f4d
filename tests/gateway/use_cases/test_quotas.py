"""Quotas of owners: what a sandbox counts, when it stops counting, and how the counts are reconciled with the records."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from gateway.controller.metrics_server import serve_metrics
from gateway.controller.quota_counts import QuotaCounts
from gateway.metrics import Metrics
from gateway.model.records import Cause, Quota, Record, SandboxSpec
from gateway.placement.errors import FencedError
from gateway.placement.store import PlacementStore
from gateway.settings import AdmissionSettings, from_environment
from gateway.use_cases.admission import ALL_OWNERS, Admission, Quotas
from tests.gateway.checked import check
from tests.gateway.harness import ADA, BOB, serve
from tests.support.requires import requires

pytestmark = requires("redis")


def spec(id_: str, owner: str = "ada", cores: float = 1.5, memory: int = 2**30) -> SandboxSpec:
    return SandboxSpec(id_, owner, "i1", "host", cores=cores, memory_bytes=memory)


async def test_a_sandbox_counts_once_and_its_release_frees_the_quota(store: PlacementStore) -> None:
    quota = Quota(sandboxes=3, cores=4.0, memory_bytes=5 * 2**30)
    outcomes = [(await store.reserve("ada", spec(id_), quota)).outcome for id_ in ("sb-1", "sb-1", "sb-2", "sb-3")]
    assert outcomes == ["fresh", "known", "fresh", "over"]
    over = await store.reserve("ada", spec("sb-3"), quota)
    assert (over.sandboxes, over.cores, over.memory_bytes) == (3, 4.5, 3 * 2**30)
    assert (await store.reserve("ada", spec("sb-3", cores=1.0), quota)).outcome == "fresh"
    assert (await store.reserve("ada", spec("sb-4", cores=0.001), Quota(sandboxes=3))).outcome == "over"
    assert (await store.reserve("bob", spec("sb-5", "bob"), quota)).outcome == "fresh"
    since = await store.usage_entries("ada")
    await store.release("ada", "sb-1", str(int(since["sb-1"]) - 1))
    assert set(await store.usage_entries("ada")) == {"sb-1", "sb-2", "sb-3"}
    for id_ in ("sb-1", "sb-1", "sb-2", "sb-3", "nobody"):
        await store.release("ada", id_)
    assert await store.usage_owners() == {"bob"}
    await store.fence(7)
    with pytest.raises(FencedError):
        await store.release("bob", "sb-5", term=6)
    await store.release("bob", "sb-5", term=7)
    assert await store.usage_owners() == set()


async def test_five_hundred_reservations_at_once_do_not_exceed_a_quota(store: PlacementStore) -> None:
    usages = await asyncio.gather(*(store.reserve("ada", spec(f"sb-{n}"), Quota(sandboxes=100)) for n in range(500)))
    assert Counter(usage.outcome for usage in usages) == {"fresh": 100, "over": 400}


async def test_usage_counts_are_reconciled_with_the_records(store: PlacementStore) -> None:
    """One gateway was killed after it counted a sandbox and before it created it; another created without counting (it had no quota)."""
    limits = AdmissionSettings(owner_quota=Quota(sandboxes=9), quota=Quota(sandboxes=99))
    term = await store.lead("c1", 60)
    assert term is not None
    await store.reserve("ada", spec("never-made"), limits.owner_quota)
    await store.reserve("eve", spec("gone", "eve"), limits.owner_quota)
    records = {}
    for id_, owner in (("sb-1", "ada"), ("sb-2", "bob"), ("failed", "bob")):
        created = await store.create(spec(id_, owner), fingerprint="f")
        assert isinstance(created.entry, Record)
        records[id_] = created.entry
    failed = await store.mark_failed("failed", "i1", Cause("oom", "workload"))
    assert isinstance(failed, Record)
    records["failed"] = failed
    await QuotaCounts(store, AdmissionSettings(), unmade_s=0.0).reconcile(records, term)
    assert await store.usage_owners() == {"ada", "eve"}
    await QuotaCounts(store, limits).reconcile(records, term)
    assert set(await store.usage_entries("ada")) == {"never-made", "sb-1"}, "its creation may still be running"
    await QuotaCounts(store, limits, unmade_s=-1.0).reconcile(records, term)
    found = {owner: set(await store.usage_entries(owner)) for owner in await store.usage_owners()}
    assert found == {"ada": {"sb-1"}, "bob": {"sb-2"}, ALL_OWNERS: {"sb-1", "sb-2"}}


async def test_a_sandbox_that_failed_during_the_pass_is_not_counted_again(store: PlacementStore) -> None:
    limits = AdmissionSettings(owner_quota=Quota(sandboxes=9))
    term = await store.lead("c1", 60)
    assert term is not None
    created = await store.create(spec("sb-1"), fingerprint="f")
    assert isinstance(created.entry, Record)
    await store.mark_failed("sb-1", "i1", Cause("image-pull", "caller"))  # and the gateway that created it released its count
    await QuotaCounts(store, limits).reconcile({"sb-1": created.entry}, term)
    assert await store.usage_entries("ada") == {}


async def test_quotas_over_rest(redis_url: str, tmp_path: Path) -> None:
    limits = AdmissionSettings(owner_quota=Quota(sandboxes=2, cores=3.0), quota=Quota(sandboxes=3))
    async with (
        serve(redis_url, tmp_path, admission=limits) as served,
        served.client(ADA) as ada,
        served.client(BOB) as bob,
    ):

        async def create(client: Any, **more: Any) -> Any:
            return check(await client.post("/sandboxes", json={"image": "host", "cpu": 1, "wait": True, **more}))

        first = (await create(ada)).json()
        answer = await create(ada, cpu=2.5)
        assert (answer.status_code, answer.json()["code"]) == (429, "quota_exceeded")
        assert "3.5 cores" in answer.json()["detail"]
        await create(ada)
        answer = await create(ada)
        assert (answer.status_code, answer.json()["fault"]) == (429, "caller")
        await create(bob)
        answer = await create(bob)
        assert (answer.status_code, answer.json()["code"]) == (503, "no_capacity")
        assert (await create(ada, image="unknown-image")).status_code == 429
        await ada.delete(f"/sandboxes/{first['sandbox_id']}")
        assert (await create(ada, image="unknown-image")).status_code == 404, "a failed create releases its share of the quota"
        key = {"Idempotency-Key": "k"}
        again = await asyncio.gather(*(ada.post("/sandboxes", json={"image": "host", "cpu": 1}, headers=key) for _ in range(5)))
        assert {one.status_code for one in again} == {200}, "repeated requests give one sandbox"


async def test_without_a_quota_nothing_is_counted(store: PlacementStore) -> None:
    quotas = Quotas(AdmissionSettings(), store, Admission(AdmissionSettings(), Metrics()))
    assert await quotas.reserve(spec("sb-1")) == []
    assert await store.usage_owners() == set()


def test_limits_come_from_the_environment() -> None:
    env = {"HOLDFAST_CONCURRENT_CREATES": "8", "HOLDFAST_CREATE_QUEUE": "40", "HOLDFAST_QUOTA_CPU": "1500m", "HOLDFAST_MAX_MEMORY": "4Gi"}
    limits = from_environment(env).admission
    assert (limits.concurrent_creates, limits.owner_concurrent_creates, limits.queue, limits.owner_queue) == (8, 6, 40, 30)
    assert (limits.owner_quota, limits.quota) == (Quota(cores=1.5), Quota(memory_bytes=2**32))
    wrong = {"QUOTA_SANDBOXES": "many", "MAX_SANDBOXES": "-1", "QUOTA_CPU": "0", "MAX_MEMORY": "much"}
    for name, value in wrong.items():
        with pytest.raises(ValueError, match=f"^HOLDFAST_{name}"):
            from_environment({f"HOLDFAST_{name}": value})
    with pytest.raises(ValueError, match="HOLDFAST_POOLS_FILE"):
        from_environment({"HOLDFAST_POOLS_FILE": "/x"})


async def test_a_controller_serves_its_metrics() -> None:
    metrics = Metrics()
    metrics.gauge("pool_spares", 3, pool="warm")
    async with serve_metrics("127.0.0.1", 0, metrics.render) as port:

        async def ask(request: bytes) -> bytes:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(request)
            answer = await reader.read()
            writer.close()
            return answer

        assert b'holdfast_pool_spares{pool="warm"} 3' in await ask(b"GET /metrics HTTP/1.1\r\n\r\n")
        assert (await ask(b"GET /healthz HTTP/1.1\r\n\r\n")).endswith(b"ok\n")
        assert (await ask(b"GET /secret HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 404")
        assert (await ask(b"nonsense\r\n\r\n")).startswith(b"HTTP/1.1 400")


async def test_an_ended_sandbox_is_released_in_the_next_pass(store: PlacementStore) -> None:
    """An expired sandbox counts only until the next pass; one that is created again under the same id continues to count."""
    limits = AdmissionSettings(owner_quota=Quota(sandboxes=9), quota=Quota(sandboxes=99))
    term = await store.lead("c1", 60)
    assert term is not None
    for id_ in ("expired", "failed", "again"):
        for whose in ("ada", ALL_OWNERS):
            await store.reserve(whose, spec(id_), Quota())
        await store.create(spec(id_), fingerprint="f")
    await store.mark_failed("failed", "i1", Cause("oom", "workload"))
    for id_ in ("expired", "again"):
        await store.delete(id_, Cause("ttl", "caller"), owner="ada", term=term)
    ended_ms = time.time_ns() // 1_000_000
    while time.time_ns() // 1_000_000 <= ended_ms:
        await asyncio.sleep(0)  # if it were counted in the millisecond of the end, it would look like the same sandbox
    await store.release("ada", "again")
    await store.reserve("ada", spec("again"), Quota())  # its record is about to be written
    await QuotaCounts(store, limits).reconcile({}, term)
    assert set(await store.usage_entries("ada")) == {"again"}
    assert await store.usage_entries(ALL_OWNERS) == {}
