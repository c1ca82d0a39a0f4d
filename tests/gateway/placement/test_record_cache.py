"""The controller's record cache on a real Redis: it equals the store after any steps, and reads only records that changed."""

from __future__ import annotations

import random
from typing import Any

import pytest

from gateway.controller.reconciler import _READS_UNTIL_SCAN, Reconciler, RecordCache
from gateway.model.records import Cause, Record, SandboxSpec
from gateway.placement.keys import shard_of
from gateway.placement.store import PlacementStore
from tests.gateway.harness import MemoryRuntime
from tests.support.redis_server import RedisServer
from tests.support.requires import requires

pytestmark = requires("redis")

OOM, DELETED = Cause("oom", "workload"), Cause("deleted", "caller")


async def states(store: PlacementStore) -> dict[str, tuple[str, str]]:
    return {record.sandbox_id: (record.incarnation, record.status) async for record in store.scan()}


async def step(store: PlacementStore, random_: random.Random, number: int) -> None:
    id_ = f"sb-{random_.randrange(12)}"
    entry = await store.get(id_)
    living = entry if isinstance(entry, Record) else None
    match random_.choice(["create", "ready", "failed", "delete"]):
        case "create" if living is None:
            await store.create(SandboxSpec(id_, "ada", f"i{number}", "host"), fingerprint="f")
        case "ready" if living is not None:
            await store.mark_ready(id_, living.incarnation, "unix:///a")
        case "failed" if living is not None:
            await store.mark_failed(id_, living.incarnation, OOM)
        case "delete" if living is not None:
            await store.delete(id_, DELETED, owner="ada")


@pytest.mark.parametrize("seed", range(2))
async def test_the_cache_follows_every_step(store: PlacementStore, redis_server: RedisServer, seed: int) -> None:
    random_, cache, marker = random.Random(seed), RecordCache(store), "m0"
    for number in range(200):
        for _ in range(random_.randrange(4)):
            await step(store, random_, number)
        if number % 70 == 69:
            redis_server.flush()
            marker = f"m{number}"
        kept = {id_: (record.incarnation, record.status) for id_, record in (await cache.read(marker)).items()}
        assert kept == await states(store), f"after step {number}"


async def test_a_read_without_changes_fetches_no_record(store: PlacementStore, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(50):
        await store.create(SandboxSpec(f"sb-{number}", "ada", "i", "host"), fingerprint="f")
        await store.mark_ready(f"sb-{number}", "i", "unix:///a")
    cache, read = RecordCache(store), store.records
    assert len(await cache.read("m")) == 50
    fetched: list[str] = []

    async def counted(ids: Any) -> list[Record]:
        fetched.extend(ids)
        return await read(ids)

    monkeypatch.setattr(store, "records", counted)
    assert len(await cache.read("m")) == 50
    assert fetched == []
    await store.create(SandboxSpec("late", "ada", "i", "host"), fingerprint="f")
    assert len(await cache.read("m")) == 51
    assert "late" in fetched
    fetched.clear()
    await cache.read("m")
    assert fetched == ["late"], "the renewal of a pending record is not a change, so it is fetched each time"
    for _ in range(_READS_UNTIL_SCAN):
        await cache.read("m")
    assert len(fetched) > 50, "after a number of reads everything is fetched"


async def test_an_outdated_watch_ends_no_sandbox(store: PlacementStore) -> None:
    """Its list is older than the sandboxes: all of them seem lost, and a deleted one seems to exist."""
    runtime, term = MemoryRuntime(), await store.lead("c1", 60)
    assert term is not None
    for number in range(20):
        spec = SandboxSpec(f"sb-{number}", "ada", "1" * 16, "host")
        await store.create(spec, fingerprint="f")
        await store.mark_ready(spec.sandbox_id, spec.incarnation, runtime.endpoint)
        runtime.add(spec.sandbox_id)
    old = [runtime.add("sb-old", created_at=1.0)]
    runtime.list_watched = lambda: _returning(old)  # type: ignore[method-assign]
    await store.set_marker("m", term=term)
    reconciler = Reconciler(store, runtime, -1.0)
    for _ in range(4):
        await reconciler.run_once(term)
    assert runtime.deleted == []
    assert {record.status async for record in store.scan()} == {"ready"}
    del runtime.present["sb-3"]
    for _ in range(4):
        await reconciler.run_once(term)
    assert [record.sandbox_id async for record in store.scan() if record.status == "failed"] == ["sb-3"], (
        "a sandbox that is really lost is recorded"
    )


async def _returning(found: list[Any]) -> list[Any]:
    return found


@pytest.mark.parametrize("moment", ["wiped", "now and then"])
async def test_a_list_finds_what_the_watch_does_not_show(store: PlacementStore, redis_server: RedisServer, moment: str) -> None:
    """An outdated watch would leave a sandbox without a record after a wipe; one that missed an end would keep the record forever."""
    runtime, term = MemoryRuntime(), await store.lead("c1", 60)
    assert term is not None
    await store.set_marker("m", term=term)
    await store.create(SandboxSpec("sb-1", "ada", "1" * 16, "host"), fingerprint="f")
    await store.mark_ready("sb-1", "1" * 16, runtime.endpoint)
    shown = [runtime.add("sb-1", created_at=1.0)]
    runtime.list_watched = lambda: _returning(shown)  # type: ignore[method-assign]
    reconciler, reconciled = Reconciler(store, runtime, -1.0), []

    async def note_records(records: Any, term: int) -> None:
        reconciled.append(set(records))

    reconciler.further_reconcilers.append(note_records)
    await reconciler.run_once(term)
    assert reconciled == [{"sb-1"}]
    if moment == "wiped":
        redis_server.flush()
        shown.clear()
        term = await store.lead("c1", 60)
        assert term is not None
        await reconciler.run_once(term)
        assert isinstance(await store.get("sb-1"), Record)
        await reconciler.run_once(term)
        assert reconciled == [{"sb-1"}, {"sb-1"}], "groups and quotas are compared as soon as the records are complete"
        return
    runtime.present.clear()
    for _ in range(2 * _READS_UNTIL_SCAN + 2):
        await reconciler.run_once(term)
    entry = await store.get("sb-1")
    assert isinstance(entry, Record)
    assert entry.status == "failed"


async def test_lost_changes_behind_a_cursor_are_detected(store: PlacementStore, redis_server: RedisServer) -> None:
    await store.create(SandboxSpec("sb-1", "ada", "i1", "host"), fingerprint="f")
    cursor = (await store.changes()).cursor
    redis_server.flush()
    await store.create(SandboxSpec("sb-1", "ada", "i2", "host"), fingerprint="f")
    assert shard_of("sb-1") in (await store.changes(cursor)).lost
    cursor = (await store.changes()).cursor
    await store.mark_ready("sb-1", "i2", "unix:///a")
    changes = await store.changes(cursor)
    assert (changes.ids, list(changes.lost)) == ({"sb-1"}, [])
