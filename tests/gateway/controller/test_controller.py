"""The controller on a real Redis and a runtime in memory: expiry, failed sandboxes, a wiped Redis, and two controllers at once."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from gateway.controller import loop
from gateway.controller.leadership import Leadership
from gateway.controller.loop import Controller
from gateway.controller.reconciler import Reconciler
from gateway.model.documents import read_spec, write_spec
from gateway.model.options import AllowedRange, Egress, Options, Port, Toleration, Volume
from gateway.model.records import Cause, Record, SandboxSpec, Tombstone
from gateway.placement.errors import FencedError, PlacementUnavailableError
from gateway.placement.store import PlacementStore
from gateway.runtimes.base import RuntimeUnavailableError
from gateway.settings import ControllerSettings
from tests.gateway.controllers import at_work
from tests.gateway.harness import MemoryRuntime
from tests.support.pace import Stopwatch
from tests.support.redis_server import RedisServer
from tests.support.requires import requires
from tests.support.until import until_async

pytestmark = requires("redis")

FAST = ControllerSettings(lease_ttl_s=2.0, lease_renew_s=0.05, expiry_interval_s=0.05, reconcile_interval_s=0.05, grace_s=0.5)


@pytest.fixture
def runtime() -> MemoryRuntime:
    return MemoryRuntime()


def running(store: PlacementStore, runtime: MemoryRuntime, name: str = "c1") -> contextlib.AbstractAsyncContextManager[Controller]:
    return at_work(Controller(store, runtime, name, FAST))


async def add(store: PlacementStore, runtime: MemoryRuntime, sandbox_id: str = "sb-1", **more: Any) -> SandboxSpec:
    spec = SandboxSpec(sandbox_id=sandbox_id, owner="ada", incarnation="1" * 16, image="host", **more)
    await store.create(spec, fingerprint="f")
    runtime._make(spec)
    await store.mark_ready(sandbox_id, spec.incarnation, runtime.endpoint)
    return spec


async def becomes(store: PlacementStore, sandbox_id: str, kind: type, reason: str | None) -> Any:
    found: list[Any] = []

    async def matches() -> bool:
        try:
            entry = await store.get(sandbox_id)
        except PlacementUnavailableError:
            return False
        found[:] = [entry]
        if isinstance(entry, Record) and entry.status == "pending":
            return False
        return entry is not None and isinstance(entry, kind) and (entry.cause.reason if entry.cause else None) == reason

    await until_async(matches, deadline_s=60, what=f"{sandbox_id} to be a {kind.__name__} because of {reason}")
    return found[0]


async def test_an_expired_sandbox_is_removed(store: PlacementStore, runtime: MemoryRuntime) -> None:
    await add(store, runtime, lifetime_s=0.1)
    await add(store, runtime, "stays")
    async with running(store, runtime):
        await becomes(store, "sb-1", Tombstone, "ttl")
        await until_async(lambda: "sb-1" not in runtime.present, deadline_s=60, what="the removal")
    assert list(runtime.present) == ["stays"]


async def test_a_new_leader_lets_the_runtime_clean_up_at_once(store: PlacementStore, runtime: MemoryRuntime) -> None:
    collections: list[int] = []

    async def collect() -> int:
        collections.append(1)
        return 0

    runtime.collect = collect  # type: ignore[method-assign]
    async with running(store, runtime):  # its regular interval is minutes
        await until_async(lambda: collections, deadline_s=60, what="the first collection")
        async with running(store, runtime, "c2") as second:
            await until_async(lambda: "holdfast_leading 0" in second.metrics.render(), deadline_s=60, what="the second controller to run")
            assert len(collections) == 1, "a controller that does not lead collects nothing"


async def test_a_rare_step_that_failed_is_repeated_soon(
    store: PlacementStore, runtime: MemoryRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a cluster this step probes what creates wait for: one error of the API server must not delay them for minutes."""
    tries: list[int] = []

    async def collect() -> int:
        tries.append(len(tries))
        if len(tries) < 3:
            raise RuntimeUnavailableError
        return 0

    runtime.collect = collect  # type: ignore[method-assign]
    monkeypatch.setattr(loop, "_FAILED_PAUSE_S", 0.05)
    async with running(store, runtime):
        await until_async(lambda: len(tries) == 3, deadline_s=60, what="the step to succeed")


async def test_a_failure_is_recorded_with_its_cause(store: PlacementStore, runtime: MemoryRuntime) -> None:
    await add(store, runtime)
    async with running(store, runtime) as controller:
        await until_async(lambda: controller.leadership.term and runtime._watchers, deadline_s=60, what="the lead")
        runtime.lose("sb-1", Cause("oom", "workload", "killed for memory"))
        record = await becomes(store, "sb-1", Record, "oom")
        assert (record.status, record.cause.fault) == ("failed", "workload")
        await until_async(lambda: "sb-1" not in runtime.present, deadline_s=60, what="the remains to be removed")


async def test_a_wiped_store_learns_of_sandboxes_in_creation_and_of_their_deletes(
    store: PlacementStore, runtime: MemoryRuntime, redis_server: RedisServer
) -> None:
    """Also of those that were deleted while their record was missing: none is left behind."""
    await add(store, runtime)
    runtime.add("starting", state="starting")
    runtime.add("deleted", state="starting")
    runtime.add("failed", state="failed", cause=Cause("oom", "workload", "killed for memory"))
    redis_server.flush()
    await store.delete("deleted", Cause("deleted", "caller"), owner="ada")
    async with running(store, runtime):
        await until_async(store.marker, deadline_s=60, what="the records to be complete")
        assert isinstance(entry := await store.get("starting"), Record)
        assert entry.status == "pending"
        await becomes(store, "failed", Record, "oom")
        await becomes(store, "deleted", Tombstone, "deleted")
        await until_async(lambda: "deleted" not in runtime.present, deadline_s=60, what="the delete to be carried out")
        assert not await store.knows("sb-2"), "a gateway may still be creating it"
        runtime.add("starting")
        await becomes(store, "starting", Record, None)


async def test_a_wiped_store_loses_no_sandbox(store: PlacementStore, runtime: MemoryRuntime, redis_server: RedisServer) -> None:
    specs = [await add(store, runtime, f"sb-{number}", labels={"n": str(number)}, lifetime_s=600.0) for number in range(30)]
    async with running(store, runtime) as controller:
        await until_async(lambda: controller.leadership.term, deadline_s=60, what="the lead")
        redis_server.flush()
        for spec in specs:
            record = await becomes(store, spec.sandbox_id, Record, None)
            assert record.spec == spec
            assert record.status == "ready"
        await until_async(store.marker, deadline_s=60, what="the marker")
    assert runtime.deleted == []
    assert len(runtime.present) == 30


async def test_a_wiped_store_is_rebuilt_within_a_minute_with_deployed_settings(
    store: PlacementStore, runtime: MemoryRuntime, redis_server: RedisServer
) -> None:
    """The limit is 60 s; the loss of the lease is detected within a second, and 500 records are written again at once."""
    for number in range(500):
        runtime.add(f"sb-{number}", lifetime_s=600.0, group=f"run-{number % 5}")
    controller = Controller(store, runtime, "c1", ControllerSettings())
    clock = asyncio.get_running_loop().time
    async with at_work(controller):

        async def all_recorded() -> bool:
            with contextlib.suppress(PlacementUnavailableError):  # Redis may be slow on a busy machine
                return await store.marker() is not None and len([one async for one in store.scan()]) == 500
            return False

        await until_async(all_recorded, deadline_s=60, what="the first records")
        redis_server.flush()
        begun = clock()
        await until_async(all_recorded, deadline_s=60, what="the records")
        print(f"\n500 records written again {clock() - begun:.1f} s after the wipe")
        assert runtime.deleted == []
        assert len(runtime.present) == 500


async def test_a_restart_of_redis_loses_nothing(store: PlacementStore, runtime: MemoryRuntime, redis_server: RedisServer) -> None:
    await add(store, runtime)
    async with running(store, runtime) as controller:
        await until_async(store.marker, deadline_s=60, what="the marker")
        redis_server.kill()
        await until_async(lambda: controller.leadership.term is None, deadline_s=60, what="the lead to end")
        redis_server.start()  # empty, as after a crash without persistence
        record = await becomes(store, "sb-1", Record, None)
        assert record.status == "ready"
    assert runtime.deleted == []


async def test_interrupted_creates_and_removals_are_completed(store: PlacementStore, runtime: MemoryRuntime) -> None:
    made = SandboxSpec(sandbox_id="made", owner="ada", incarnation="1" * 16, image="host")
    await store.create(made, fingerprint="f")
    runtime.add("made")
    await add(store, runtime, "ended")
    await store.delete("ended", Cause("deleted", "caller"), owner="ada")
    await add(store, runtime, "vanished")
    del runtime.present["vanished"]
    async with running(store, runtime):
        record = await becomes(store, "made", Record, None)
        assert record.endpoint == runtime.endpoint
        await becomes(store, "vanished", Record, "node-lost")
        await until_async(lambda: "ended" not in runtime.present, deadline_s=60, what="the remains to be removed")


async def test_one_of_two_controllers_leads_and_the_other_takes_over(store: PlacementStore, runtime: MemoryRuntime) -> None:
    async with running(store, runtime, "c1") as first:
        await until_async(lambda: first.leadership.term, deadline_s=60, what="the first to lead")
        async with running(store, runtime, "c2") as second:
            assert await store.lead("c2", 1.0) is None
            old = first.leadership.term
            assert old is not None
            # The first one freezes: its lease expires, the second leads, and later writes of the first are refused.
            first.leadership.renew = asyncio.Event().wait  # type: ignore[method-assign,assignment]
            await until_async(lambda: second.leadership.term, deadline_s=60, what="the second to lead")
            await add(store, runtime)
            with pytest.raises(FencedError):
                await store.mark_failed("sb-1", "1" * 16, Cause("oom", "workload"), term=old)


@pytest.mark.alone
async def test_a_killed_leader_is_replaced_within_its_lease(store: PlacementStore, runtime: MemoryRuntime) -> None:
    """With the deployed settings there is no leader for about 3 s: one lease, without a further renewal interval."""
    settings = ControllerSettings()
    clock = asyncio.get_running_loop().time
    first = Leadership(store, "killed", settings)
    renewed_at = clock()
    await first.renew()
    assert first.term is not None
    second = Leadership(store, "next", settings)
    waiting = asyncio.create_task(second.run(), name="the next leader")
    try:
        with Stopwatch() as watch:
            async with asyncio.timeout(60):
                await second.changed.wait()
            assert clock() - renewed_at >= settings.lease_ttl_s - 0.01  # Redis counts in whole milliseconds
            assert watch.elapsed_s < settings.lease_ttl_s + 0.5
        assert second.term is not None
        assert second.term > first.term
    finally:
        waiting.cancel()


async def test_a_restarted_runtime_is_noticed_at_once(store: PlacementStore, runtime: MemoryRuntime) -> None:
    """With the deployed settings, which have a grace of a minute and a pass every ten seconds."""
    for number in range(30):
        await add(store, runtime, f"sb-{number}")
    controller = Controller(store, runtime, "c1", ControllerSettings())
    async with at_work(controller):
        await until_async(store.marker, deadline_s=60, what="the first pass")
        runtime.restart()
        with Stopwatch() as watch:
            for number in range(30):
                record = await becomes(store, f"sb-{number}", Record, "node-lost")
                assert (record.status, record.cause.fault) == ("failed", "infrastructure")
            assert watch.elapsed_s < 8.0


async def test_a_frozen_leader_that_continues_late_removes_nothing(store: PlacementStore, runtime: MemoryRuntime) -> None:
    """It planned a removal and froze. Another controller leads by now, and the id may belong to another sandbox."""
    await add(store, runtime)
    await store.delete("sb-1", Cause("deleted", "caller"), owner="ada")
    old = await store.lead("stopped", 0.05)
    assert old is not None
    await until_async(lambda: _lead(store, "next"), deadline_s=60, what="another to lead")
    with pytest.raises(FencedError):
        await Reconciler(store, runtime, 0.0).remove([("sb-1", "1" * 16)], old)
    assert runtime.deleted == []
    assert "sb-1" in runtime.present


async def _lead(store: PlacementStore, holder: str) -> bool:
    return await store.lead(holder, 60) is not None


async def test_only_the_incarnation_that_ended_is_removed(store: PlacementStore, runtime: MemoryRuntime) -> None:
    term = await store.lead("c1", 60)
    assert term is not None
    runtime.add("sb-1", "2" * 16)
    await Reconciler(store, runtime, 0.0).remove([("sb-1", "1" * 16)], term)
    assert "sb-1" in runtime.present


def test_a_specification_is_read_back_from_its_document() -> None:
    spec = SandboxSpec(
        sandbox_id="sb-1", owner="ada", incarnation="1" * 16, image="host", cpu="500m", memory="1Gi", cores=0.5, memory_bytes=2**30,
        disk_bytes=2**31, labels={"a": "b"}, ready_timeout_s=9.0, lifetime_s=1.5, idle_timeout_s=2.0,
        heartbeat_timeout_s=3.0, group="run-7", group_ttl_s=60.0,
        egress=Egress("listed", (AllowedRange("10.0.0.0/8", (Port(1, 9, "UDP"),)),), ("*.example.org",), dns=True),
        options=Options({"nvidia.com/gpu": 1}, 9, (Volume("claim", "/data", "mine"),), {"a": "b"}, (Toleration("spot", seconds=3),),
                        pull_secrets=("s",), user=0, entrypoint=("sh",), ulimits={"nofile": (1024, -1)}),
    )  # fmt: skip
    assert read_spec(write_spec(spec)) == spec


async def test_the_record_of_a_paused_sandbox_is_rebuilt_as_paused(store: PlacementStore, runtime: MemoryRuntime) -> None:
    """Its limits do not run out in between; and a record that its gateway could not change any more is corrected."""
    runtime.add("sb-1", paused="disk", lifetime_s=0.1, idle_timeout_s=0.1)
    await add(store, runtime, "sb-2")
    runtime.add("sb-2", paused="memory")

    async def paused() -> bool:
        found = [await store.get(name) for name in ("sb-1", "sb-2")]
        return [one.paused for one in found if isinstance(one, Record)] == ["disk", "memory"]

    async with running(store, runtime):
        await until_async(paused, deadline_s=60, what="both records to be those of paused sandboxes")
        runtime.add("sb-2", created_at=0.0)

        async def resumed() -> bool:
            found = await store.get("sb-2")
            return isinstance(found, Record) and not found.paused

        await until_async(resumed, deadline_s=60, what="the record to be that of a running sandbox")
        assert await paused() is False
        assert isinstance(await store.get("sb-1"), Record)
