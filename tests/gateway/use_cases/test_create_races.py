"""Races with a create that waits: for its turn, for the runtime, or for the store.

Each test blocks one step until another has finished, an order that otherwise occurs only on a slow machine or cluster.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest
from holdfast_wire.errors import HoldfastError

from gateway.controller.groups import Groups
from gateway.controller.loop import Controller
from gateway.controller.quota_counts import QuotaCounts
from gateway.controller.reconciler import Reconciler
from gateway.model.records import Cause, Quota, Record, SandboxSpec
from gateway.placement.keys import group_key
from gateway.runtimes.base import CreateRequest, RuntimeUnavailableError, SandboxStatus
from gateway.settings import AdmissionSettings, ControllerSettings
from gateway.use_cases import background
from tests.gateway.controllers import at_work
from tests.gateway.harness import Served, id_of_adas, serve
from tests.support.requires import requires
from tests.support.until import until_async

pytestmark = requires("redis")

BODY = {"image": "host", "cpu": 1, "memory": "64Mi", "sandbox_id": "sb-1"}


async def ordered(served: Served, count: int) -> None:
    await until_async(lambda: len(served.runtime.orders) == count, deadline_s=60, what=f"{count} orders")


async def test_an_id_is_reused_while_its_deleted_sandbox_is_being_created(served: Served) -> None:
    hold = served.runtime.hold = asyncio.Event()
    async with served.client() as client:
        first = (await client.post("/sandboxes", json=BODY)).json()
        await ordered(served, 1)
        await client.delete("/sandboxes/sb-1")
        again = asyncio.create_task(client.post("/sandboxes", json={**BODY, "wait": True}))
        await ordered(served, 2)
        hold.set()
        answer = await again
        assert answer.status_code == 200, answer.text
        assert answer.json()["incarnation"] != first["incarnation"]
        await until_async(lambda: not served.gateway.creations, deadline_s=60, what="both creations to end")
        assert served.runtime.present[id_of_adas("sb-1")].incarnation == answer.json()["incarnation"]
        assert (await client.get("/sandboxes/sb-1")).json() == answer.json()


async def test_a_sandbox_deleted_before_its_turn_is_not_created(redis_url: str, tmp_path: Path) -> None:
    async with serve(redis_url, tmp_path, admission=AdmissionSettings(concurrent_creates=1, owner_concurrent_creates=1)) as served:
        hold = served.runtime.hold = asyncio.Event()
        async with served.client() as client:
            await client.post("/sandboxes", json={**BODY, "sandbox_id": "before"})
            await ordered(served, 1)
            waiting = asyncio.create_task(client.post("/sandboxes", json={**BODY, "wait": True}))
            await until_async(lambda: served.gateway.admission.waiting, deadline_s=60, what="the second to queue")
            await client.delete("/sandboxes/sb-1")
            hold.set()
            assert (await waiting).json()["code"] == "sandbox_gone"
        assert [order.spec.name for order in served.runtime.orders] == ["before"]


async def test_a_sandbox_deleted_during_its_creation_is_removed_once_the_runtime_is_back(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client learns at once that it was deleted."""
    hold, tries = asyncio.Event(), 0
    served.runtime.hold, remove = hold, served.runtime.delete

    async def away(sandbox_id: str, incarnation: str | None = None) -> bool:
        nonlocal tries
        tries += 1
        if tries <= 2:
            raise RuntimeUnavailableError
        return await remove(sandbox_id, incarnation)

    monkeypatch.setattr(background, "_REMOVAL_PAUSES_S", (0.001, 0.001))
    async with served.client() as client:
        waiting = asyncio.create_task(client.post("/sandboxes", json={**BODY, "wait": True}))
        await ordered(served, 1)
        await client.delete("/sandboxes/sb-1")
        await until_async(lambda: not served.gateway.removals.running, deadline_s=60, what="the removal of nothing to end")
        monkeypatch.setattr(served.runtime, "delete", away)
        hold.set()
        assert (await waiting).json()["code"] == "sandbox_gone"
        await until_async(lambda: tries == 3, deadline_s=60, what="the third try")
        await until_async(lambda: not served.gateway.background.repeated, deadline_s=60, what="the removal to end")
    assert served.runtime.present == {}


async def test_a_queued_create_gets_the_outcome_of_its_own_sandbox_only(redis_url: str, tmp_path: Path) -> None:
    """The id was created again in the meantime; that is another sandbox, and its outcome does not matter here."""
    async with serve(redis_url, tmp_path, admission=AdmissionSettings(concurrent_creates=1, owner_concurrent_creates=1)) as served:
        hold = served.runtime.hold = asyncio.Event()
        async with served.client() as client:
            await client.post("/sandboxes", json={**BODY, "sandbox_id": "before"})
            await ordered(served, 1)
            waiting = asyncio.create_task(client.post("/sandboxes", json={**BODY, "wait": True}))
            await until_async(lambda: served.gateway.admission.waiting == 1, deadline_s=60, what="the first to queue")
            await client.delete("/sandboxes/sb-1")
            again = asyncio.create_task(client.post("/sandboxes", json={**BODY, "wait": True, "labels": {"n": "2"}}))
            await until_async(lambda: served.gateway.admission.waiting == 2, deadline_s=60, what="the second to queue")
            hold.set()
            assert (await waiting).json()["code"] == "sandbox_gone"
            assert (await again).json()["labels"] == {"n": "2"}
        assert [order.spec.name for order in served.runtime.orders] == ["before", "sb-1"]


@pytest.mark.parametrize("wait", [True, False])
async def test_a_second_replica_that_fails_removes_nothing_of_the_first(redis_url: str, tmp_path: Path, wait: bool) -> None:
    """The same request reaches two replicas: one creates the sandbox, the other gets no capacity from its runtime."""
    other_folder = tmp_path / "other"
    other_folder.mkdir()
    async with serve(redis_url, tmp_path) as here, serve(redis_url, other_folder) as there:
        holds = here.runtime.hold, there.runtime.hold = asyncio.Event(), asyncio.Event()
        there.runtime.refuse = HoldfastError("no_capacity", "full")
        async with here.client() as first, there.client() as second:
            one = asyncio.create_task(first.post("/sandboxes", json={**BODY, "wait": True}))
            await ordered(here, 1)
            two = asyncio.create_task(second.post("/sandboxes", json={**BODY, "wait": wait}))
            await ordered(there, 1)
            holds[0].set()
            made = (await one).json()
            holds[1].set()
            await until_async(lambda: not there.gateway.creations, deadline_s=60, what="the second to have failed")
            assert (await two).json() == made or not wait, "the other replica created it"
            assert (await first.get("/sandboxes/sb-1")).json() == made
        assert here.runtime.deleted == []


async def test_an_earlier_sandbox_that_starts_late_does_not_block_its_id(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """The runtime reports that the id is taken before it lists the earlier sandbox, whose creator removes it only after it started."""
    create, tries = served.runtime.create, 0

    async def taken(order: CreateRequest, timeout_s: float) -> str:
        nonlocal tries
        tries += 1
        if tries < 4:
            raise HoldfastError("sandbox_exists", "another has that name, and is not up yet")
        return await create(order, timeout_s)

    monkeypatch.setattr(served.runtime, "create", taken)
    async with served.client() as client:
        answer = await client.post("/sandboxes", json={**BODY, "wait": True, "timeout": 30})
        assert answer.json().get("status") == "ready", answer.text


async def test_a_sandbox_created_during_a_long_pass_stays_counted_and_in_its_group(served: Served) -> None:
    """The pass began with older records. A sandbox that is missing there may have been created since, even minutes ago."""
    store, limits = served.store, AdmissionSettings(owner_quota=Quota(sandboxes=9))
    term = await store.lead("c1", 60)
    assert term is not None
    usages, groups = QuotaCounts(store, limits, unmade_s=-1.0), Groups(store, Reconciler(store, served.runtime, 60.0).remove, unmade_s=-1.0)
    spec = SandboxSpec("sb-1", "ada", "1" * 16, "host", group="run-7")
    before: dict[str, Record] = {}
    await store.reserve("ada", spec, limits.owner_quota)
    await store.group_join("ada", "run-7", "sb-1")
    await store.create(spec, fingerprint="f")
    await usages.reconcile(before, term)
    await groups.reconcile(before, term)
    assert set(await store.usage_entries("ada")) == {"sb-1"}
    assert set(await store.group_members(group_key("ada", "run-7"))) == {"sb-1"}


@pytest.mark.parametrize("known", [True, False], ids=["begun before the pass", "begun after the pass read the records"])
async def test_a_failed_and_forgotten_create_is_not_recorded_again_by_a_running_pass(
    served: Served, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    """A repeated request would find a sandbox that is not there."""
    looking, listed, failed = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def fails(order: CreateRequest, timeout_s: float) -> str:
        served.runtime.add(order.spec.sandbox_id, order.spec.incarnation, owner=order.spec.owner)
        await listed.wait()
        raise HoldfastError("no_capacity", "its agent never answered", retryable=True)

    list_all, lists = served.runtime.list_all, 0

    async def slowly() -> list[SandboxStatus]:
        nonlocal lists
        lists += 1
        if lists > 1:
            return await list_all()
        looking.set()
        await until_async(lambda: served.runtime.present, deadline_s=60, what="the half-created sandbox")
        found = await list_all()
        listed.set()
        await failed.wait()
        return found

    monkeypatch.setattr(served.runtime, "create", fails)
    term = await served.store.lead("c1", 60)
    assert term is not None
    async with served.client() as client:

        async def create() -> httpx.Response:
            if not known:
                await looking.wait()
            return await client.post("/sandboxes", json={**BODY, "wait": True})

        creating = asyncio.create_task(create())
        if known:
            await until_async(lambda: served.runtime.present, deadline_s=60, what="the half-created sandbox")
        monkeypatch.setattr(served.runtime, "list_all", slowly)
        passing = asyncio.create_task(Reconciler(served.store, served.runtime, 60.0).run_once(term))
        assert (await creating).json()["code"] == "no_capacity"
        failed.set()
        await passing  # it may mark the pending record that it read as ready, which has no effect
    assert await served.store.get("sb-1") is None


async def test_the_creator_reports_the_cause_although_the_removal_is_seen_first(served: Served) -> None:
    """The runtime removes the pod before its creator has recorded the cause. "Deleted by the caller" would be wrong and final."""
    store, runtime = served.store, served.runtime
    for id_ in ("sb-1", "later"):
        await store.create(SandboxSpec(id_, "ada", "1" * 16, "host"), fingerprint="f")
        runtime.add(id_, state="starting")
    async with at_work(Controller(store, runtime, "c1", ControllerSettings())) as controller:
        await until_async(lambda: controller.leadership.term and runtime._watchers, deadline_s=60, what="the lead")
        await runtime.delete("sb-1")
        runtime.lose("later", Cause("oom", "workload"))

        async def seen() -> bool:
            entry = await store.get("later")
            return isinstance(entry, Record) and entry.status == "failed"

        await until_async(seen, deadline_s=60, what="both events to be processed")
        failed = await store.mark_failed("sb-1", "1" * 16, Cause("unschedulable", "infrastructure", "no node can take it"), was="pending")
    assert isinstance(failed, Record)
    assert failed.cause == Cause("unschedulable", "infrastructure", "no node can take it")
