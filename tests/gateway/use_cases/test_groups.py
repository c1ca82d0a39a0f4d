"""Groups on a real Redis: the controller that deletes their sandboxes, the routes, and an announced end of a sandbox."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from gateway.controller.groups import Groups
from gateway.controller.loop import Controller
from gateway.controller.reconciler import Reconciler
from gateway.model.records import Cause, PlannedEnd, Record, SandboxSpec, Tombstone
from gateway.placement import keys
from gateway.placement.store import PlacementStore
from gateway.runtimes import base
from tests.gateway.checked import check
from tests.gateway.controller.test_controller import FAST, add, becomes, running
from tests.gateway.controllers import at_work
from tests.gateway.harness import BOB, MemoryRuntime, Served, id_of_adas, serve
from tests.support.redis_server import RedisServer
from tests.support.requires import requires
from tests.support.until import until_async

pytestmark = requires("redis")


DELETED = Cause("deleted", "caller", "asked for")
EVICTED = Cause("evicted", "infrastructure", "the node is drained")


# The controller ------------------------------------------------------------------------------------------------------


async def add_to(store: PlacementStore, runtime: MemoryRuntime, group: str, sandbox_id: str, ttl_s: float | None = None) -> None:
    outcome, _ = await store.group_join("ada", group, sandbox_id)
    assert outcome == "ok"
    await add(store, runtime, sandbox_id, group=group, group_ttl_s=ttl_s)


async def test_an_expired_lease_removes_all_sandboxes_of_its_group(store: PlacementStore) -> None:
    runtime = MemoryRuntime()
    await store.group_beat("ada", "run-7", 0.3)
    for number in range(40):
        await add_to(store, runtime, "run-7", f"sb-{number}")
    await add_to(store, runtime, "run-8", "other")
    await add(store, runtime, "alone")
    await store.mark_failed("sb-0", "1" * 16, Cause("oom", "workload"))
    async with running(store, runtime):
        for number in range(40):
            tombstone = await becomes(store, f"sb-{number}", Tombstone, "group-lease" if number else "oom")
            assert tombstone.cause.fault == ("caller" if number else "workload")
        await until_async(lambda: sorted(runtime.present) == ["alone", "other"], deadline_s=60, what="the sandboxes to be removed")

        async def over() -> bool:
            return await store.group_keys() == [keys.group_key("ada", "run-8")]

        await until_async(over, deadline_s=60, what="the group to be over")
    outcome, _ = await store.group_beat("ada", "run-7", 60)
    assert outcome == "ok", "the name can be used again"


async def test_heartbeats_keep_a_group(store: PlacementStore) -> None:
    runtime = MemoryRuntime()
    _, group = await store.group_beat("ada", "run-7", 2.0)
    await add_to(store, runtime, "run-7", "sb-1")
    term = await store.lead("c0", 60)
    assert term is not None
    groups, end = Groups(store, Reconciler(store, runtime, 60.0).remove), asyncio.get_running_loop().time() + 4.4

    async def beaten() -> bool:
        outcome, _ = await store.group_beat("ada", "run-7", 2.0, group.lease)
        assert outcome == "ok"
        for (
            key
        ) in await groups.due():  # right after the heartbeat, so that a slow machine does not look like a client that stopped renewing
            await groups.free(key, term)
        return asyncio.get_running_loop().time() > end

    await until_async(beaten, deadline_s=60, what="two leases' time")
    assert list(runtime.present) == ["sb-1"]
    await store.resign("c0")
    async with running(store, runtime):
        await becomes(store, "sb-1", Tombstone, "group-lease")
    outcome, _ = await store.group_beat("ada", "run-7", 60, group.lease)
    assert outcome == "lapsed", "a late heartbeat does not restore the group"


async def test_a_wiped_store_rebuilds_groups_with_their_leases(store: PlacementStore, redis_server: RedisServer) -> None:
    runtime = MemoryRuntime()
    _, group = await store.group_beat("ada", "run-7", 60)
    await add_to(store, runtime, "run-7", "sb-1", ttl_s=60.0)
    await add_to(store, runtime, "run-8", "sb-2", ttl_s=1.0)
    async with running(store, runtime):
        redis_server.flush()
        record = await becomes(store, "sb-1", Record, None)
        assert record.spec.group == "run-7"
        outcome, again = await store.group_beat("ada", "run-7", 60, group.lease)
        assert (outcome, again.lease, set(again.members) | {"sb-1"}) == ("ok", group.lease, {"sb-1"})
        await becomes(store, "sb-2", Tombstone, "group-lease")  # no client renews its lease any more
        assert "sb-1" in runtime.present


async def test_members_never_created_leave_the_group_and_missing_members_join_again(store: PlacementStore) -> None:
    runtime = MemoryRuntime()
    await add_to(store, runtime, "run-7", "sb-1")
    await store.group_join("ada", "run-7", "never-made")
    await add(store, runtime, "lost", group="run-9", group_ttl_s=60.0)
    term = await store.lead("c1", 60)
    assert term is not None
    await store.set_marker("g", term=term)
    reconciler = Reconciler(store, runtime, 0.0)
    reconciler.further_reconcilers.append(Groups(store, reconciler.remove, unmade_s=0.0).reconcile)
    await reconciler.run_once(term)
    group, found = await store.group("ada", "run-7"), await store.group("ada", "run-9")
    assert group is not None
    assert found is not None
    assert (set(group.members), set(found.members), found.ttl_s) == ({"sb-1"}, {"lost"}, 60.0)


async def test_a_create_that_races_with_the_end_of_its_group_is_removed(store: PlacementStore) -> None:
    """The sandbox joined, the group ended and its sandboxes were removed, and only then the record was written."""
    runtime = MemoryRuntime()
    await store.group_beat("ada", "run-7", 60)
    await store.group_join("ada", "run-7", "sb-1")
    await store.group_end("ada", "run-7", DELETED)
    term = await store.lead("c1", 60)
    assert term is not None
    reconciler = Reconciler(store, runtime, 0.0)
    groups = Groups(store, reconciler.remove)
    for key in await groups.due():
        await groups.free(key, term)
    await add(store, runtime, "sb-1", group="run-7")
    for key in await groups.due():
        await groups.free(key, term)
    assert isinstance(await store.get("sb-1"), Tombstone)
    assert runtime.present == {}
    assert await store.group_keys() == []


# Announced ends -------------------------------------------------------------------------------------------------------------


async def test_an_announced_end_is_shown_and_becomes_the_cause_of_the_loss(store: PlacementStore) -> None:
    runtime = MemoryRuntime()
    for id_ in ("evicted", "oom"):
        await add(store, runtime, id_)
    async with running(store, runtime) as controller:
        await until_async(lambda: controller.leadership.term and runtime._watchers, deadline_s=60, what="the lead")
        deadline = round(time.time() + 30, 3)
        for id_ in ("evicted", "oom"):
            runtime._publish(base.EndAnnounced(id_, "1" * 16, EVICTED, deadline))

        async def announced() -> bool:
            entries = [await store.get(id_) for id_ in ("evicted", "oom")]
            return all(isinstance(entry, Record) and entry.leaving == PlannedEnd(EVICTED, deadline) for entry in entries)

        await until_async(announced, deadline_s=60, what="the announcement")
        runtime.lose("evicted", Cause("node-lost", "infrastructure", "its pod is gone"))
        runtime.lose("oom", Cause("oom", "workload"))
        record = await becomes(store, "evicted", Record, "evicted")
        assert (record.status, record.cause) == ("failed", EVICTED)
        assert (await becomes(store, "oom", Record, "oom")).cause.fault == "workload"
        await store.delete("evicted", record.cause, owner="ada")
        assert (await becomes(store, "evicted", Tombstone, "evicted")).cause == EVICTED


async def test_an_event_without_a_leader_is_recorded_by_the_next_leader(store: PlacementStore) -> None:
    runtime = MemoryRuntime()
    await add(store, runtime)
    assert await store.lead("another", 0.5) is not None
    async with running(store, runtime, "standby"):
        await until_async(lambda: runtime._watchers, deadline_s=60, what="the watch")
        runtime.lose("sb-1", EVICTED)
        del runtime.present["sb-1"]  # when a controller leads again, the list no longer contains it
        record = await becomes(store, "sb-1", Record, "evicted")
        assert record.cause == EVICTED


# REST ----------------------------------------------------------------------------------------------------------------


@pytest_asyncio.fixture
async def served(redis_url: str, tmp_path: Path) -> AsyncIterator[Served]:
    async with serve(redis_url, tmp_path) as served:
        yield served


def controlled(served: Served) -> contextlib.AbstractAsyncContextManager[Controller]:
    return at_work(Controller(served.store, served.runtime, "c1", FAST))


async def test_a_group_over_rest(served: Served) -> None:
    async with controlled(served), served.client() as ada, served.client(BOB) as bob:

        async def ask(client: Any, method: str, path: str, **more: Any) -> tuple[int, Any]:
            answer = check(await client.request(method, path, **more))
            return answer.status_code, answer.json()

        assert (await ask(ada, "GET", "/groups/run-7"))[1]["code"] == "group_not_found"
        status, lease = await ask(ada, "POST", "/groups/run-7/heartbeat", json={"ttl_s": 60})
        assert (status, lease["status"], lease["count"]) == (200, "open", 0)
        body = {"image": "host", "wait": True, "group": "run-7", "group_lease": lease["lease"]}
        made = [(await ask(ada, "POST", "/sandboxes", json=body))[1] for _ in range(3)]
        assert {one["group"] for one in made} == {"run-7"}
        _, group = await ask(ada, "GET", "/groups/run-7")
        assert sorted(group["sandboxes"]) == sorted(one["sandbox_id"] for one in made)
        assert (await ask(bob, "GET", "/groups/run-7"))[0] == 404
        assert (await ask(bob, "DELETE", "/groups/run-7"))[0] == 404
        assert (await ask(ada, "POST", "/groups/run-7/heartbeat", json={"ttl_s": 60, "lease": "other"}))[1]["code"] == "group_lapsed"
        assert (await ask(ada, "POST", "/sandboxes", json={**body, "group_lease": "other"}))[1]["code"] == "group_lapsed"

        leaving = made[0]
        id_ = id_of_adas(leaving["sandbox_id"])
        served.runtime._publish(base.EndAnnounced(id_, leaving["incarnation"], EVICTED, time.time() + 9))

        async def announced() -> bool:
            return bool((await ask(ada, "GET", "/groups/run-7"))[1]["leaving"] == [leaving["sandbox_id"]])

        await until_async(announced, deadline_s=60, what="the announcement")
        _, record = await ask(ada, "GET", f"/sandboxes/{leaving['sandbox_id']}")
        assert (record["leaving"]["reason"], record["leaving"]["fault"]) == ("evicted", "infrastructure")

        for _ in range(2):
            status, answer = await ask(ada, "DELETE", "/groups/run-7")
            assert (status, answer["status"]) == (200, "deleted")
        await until_async(lambda: not served.runtime.present, deadline_s=60, what="the sandboxes to be removed")
        status, answer = await ask(ada, "GET", f"/sandboxes/{made[1]['sandbox_id']}")
        assert (status, answer["code"], answer["reason"]) == (410, "sandbox_gone", "deleted")
        status, answer = await ask(ada, "POST", "/sandboxes", json=body)
        assert (status, answer["code"], answer["reason"]) == (410, "group_lapsed", "deleted")


@pytest.mark.parametrize("name", ["-a", "a b", "a" * 101, "%2e%2e", "é"])
async def test_an_invalid_group_name_is_refused(served: Served, name: str) -> None:
    async with served.client() as ada:
        assert (await ada.get(f"/groups/{name}")).json()["code"] in ("invalid_argument", "not_found")
        assert (await ada.post("/sandboxes", json={"image": "host", "group": "a/b"})).json()["code"] == "invalid_argument"
        for body in ({}, {"ttl_s": 0}, {"ttl_s": "soon"}, {"ttl_s": 1e9}, {"ttl_s": 1, "lease": 7}):
            assert (await ada.post("/groups/a/heartbeat", json=body)).json()["code"] == "invalid_argument"


async def test_a_new_group_must_wait_until_the_earlier_one_is_removed(served: Served) -> None:
    async with served.client() as ada:
        await ada.post("/groups/run-7/heartbeat", json={"ttl_s": 60})
        await ada.post("/sandboxes", json={"image": "host", "wait": True, "group": "run-7"})
        await ada.delete("/groups/run-7")
        answer = check(await ada.post("/groups/run-7/heartbeat", json={"ttl_s": 60}))
        assert (answer.status_code, answer.json()["code"], answer.json()["retryable"]) == (503, "group_freeing", True)
        async with controlled(served):

            async def begun() -> bool:
                return (await ada.post("/groups/run-7/heartbeat", json={"ttl_s": 60})).status_code == 200

            await until_async(begun, deadline_s=60, what="the new group")


async def test_the_group_of_a_spec_is_stored_in_the_record(store: PlacementStore) -> None:
    spec = SandboxSpec("sb-1", "ada", "i1", "host", group="run-7", group_ttl_s=9.0)
    await store.create(spec, fingerprint="f")
    entry = await store.get("sb-1")
    assert isinstance(entry, Record)
    assert entry.spec == spec
