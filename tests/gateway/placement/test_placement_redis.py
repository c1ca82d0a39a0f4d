"""The placement store on a real Redis: the conformance suite, outages and wipes."""

from __future__ import annotations

import asyncio
import os
import signal
from itertools import pairwise

import pytest
import redis

from gateway.model.records import Record, Tombstone
from gateway.placement import keys
from gateway.placement.errors import PlacementUnavailableError, UnreadableError
from gateway.placement.store import PlacementStore
from gateway.settings import PlacementSettings
from tests.conformance.placement import DELETED, PlacementConformance, ready, spec
from tests.support.pace import Stopwatch
from tests.support.redis_server import RedisServer
from tests.support.requires import requires
from tests.support.until import until_async

pytestmark = requires("redis")


class TestPlacementStore(PlacementConformance):
    """The complete contract."""


async def test_a_late_heartbeat_after_delete_leaves_no_key(store: PlacementStore, redis_url: str) -> None:
    await ready(store, spec(heartbeat_timeout_s=60.0))
    await store.delete("sb-1", DELETED, owner="ada")
    with redis.Redis.from_url(redis_url) as client:
        before = sorted(client.keys("*"))
        await store.heartbeat("sb-1", "ada")
        await store.touch(["sb-1"])
        assert sorted(client.keys("*")) == before
        client.delete(keys.tombstone("sb-1"))
        await store.heartbeat("sb-1", "ada")
        assert client.keys("*") == [keys.changes(keys.shard_of("sb-1")).encode()]


async def test_a_step_touches_one_slot_only(store: PlacementStore, redis_url: str) -> None:
    """On a Redis Cluster all keys of a step must share a hash tag."""
    for name in (keys.record, keys.tombstone, keys.idempotency):
        assert name("sb-1").startswith(f"hf:{{s{keys.shard_of('sb-1'):02d}}}:")
    shard = keys.shard_of("sb-1")
    for key in (keys.owned(shard, "ada"), keys.due(shard), keys.term(shard), keys.marker(shard)):
        assert key.startswith(f"hf:{{s{shard:02d}}}:")


async def test_scripts_are_reloaded_after_redis_dropped_them(store: PlacementStore, redis_url: str) -> None:
    await ready(store, spec())
    with redis.Redis.from_url(redis_url) as client:
        client.script_flush()
    await store.touch(["sb-1", "sb-1", "sb-1"])
    assert isinstance(await store.get("sb-1"), Record)


async def test_an_unreadable_record_does_not_prevent_the_touch_of_others(store: PlacementStore, redis_url: str) -> None:
    before = await ready(store, spec())
    assert isinstance(before, Record)
    with redis.Redis.from_url(redis_url) as client:
        client.set(keys.record("bad"), "junk")
        client.script_flush()
        for _ in range(2):
            with pytest.raises(UnreadableError):
                await store.touch(["bad", "sb-1"])
    after = await store.get("sb-1")
    assert isinstance(after, Record)
    assert after.active_at is not None
    assert before.active_at is not None
    assert after.active_at > before.active_at


async def test_steps_continue_after_redis_closed_their_connections(store: PlacementStore, redis_url: str) -> None:
    await ready(store, spec())
    for _ in range(2):
        assert isinstance(await store.get("sb-1"), Record)
        assert isinstance(await store.heartbeat("sb-1", "ada"), Record)
        assert [one.sandbox_id for one in await store.records(["sb-1", "sb-2"])] == ["sb-1"]
        with redis.Redis.from_url(redis_url) as client:
            client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")


async def test_the_reply_to_a_cancelled_lookup_does_not_reach_the_next(store: PlacementStore) -> None:
    for name in ("sb-1", "sb-2"):
        await ready(store, spec(name))
    for _ in range(20):
        cancelled = [asyncio.create_task(store.get("sb-1")) for _ in range(40)]  # more than there are connections for them
        await asyncio.sleep(0)
        for task in cancelled:
            task.cancel()
        found = await store.get("sb-2")
        assert isinstance(found, Record)
        assert found.sandbox_id == "sb-2"
        await asyncio.gather(*cancelled, return_exceptions=True)


async def test_a_record_that_changed_is_read_again(store: PlacementStore) -> None:
    before = await ready(store, spec())
    assert isinstance(before, Record)
    await store.change_lifetime("sb-1", "ada", from_now_s=77.0)
    after = await store.get("sb-1")
    assert isinstance(after, Record)
    assert after.lifetime_s != before.lifetime_s
    await store.delete("sb-1", DELETED, owner="ada")
    assert isinstance(await store.get("sb-1"), Tombstone)


@pytest.mark.alone
async def test_an_outage_is_reported_within_a_second_and_recovers(redis_server: RedisServer, redis_url: str) -> None:
    store = PlacementStore(PlacementSettings(redis_url=redis_url))
    await ready(store, spec())
    redis_server.kill()
    try:
        with Stopwatch() as watch:
            for _ in range(20):
                with pytest.raises(PlacementUnavailableError):
                    await store.get("sb-1")
            assert watch.elapsed_s < 1.0
    finally:
        redis_server.start()

    async def answers() -> bool:
        try:
            await store.ping()
        except PlacementUnavailableError:
            return False
        return True

    await until_async(answers, deadline_s=60, what="the store to recover")
    await store.aclose()


@pytest.mark.alone
async def test_a_hanging_redis_is_reported_within_a_second(redis_server: RedisServer, redis_url: str) -> None:
    store = PlacementStore(PlacementSettings(redis_url=redis_url))
    await store.ping()
    os.kill(redis_server.pid, signal.SIGSTOP)
    try:
        with Stopwatch() as watch:
            results = await asyncio.gather(*(store.get("sb-1") for _ in range(100)), return_exceptions=True)
            assert watch.elapsed_s < 1.0
        assert all(isinstance(result, PlacementUnavailableError) for result in results)
    finally:
        os.kill(redis_server.pid, signal.SIGCONT)
    await store.aclose()


async def test_a_wiped_shard_loses_the_completeness_marker(store: PlacementStore, redis_url: str) -> None:
    await store.set_marker("g1", term=1)
    with redis.Redis.from_url(redis_url) as client:
        client.delete(keys.marker(17))
    assert await store.marker() is None


async def test_terms_rise_over_a_wipe(store: PlacementStore, redis_server: RedisServer) -> None:
    terms: list[int] = []
    for holder in range(200):  # quick enough that some of them fall into one millisecond
        terms.append(await store.lead(str(holder), 60) or 0)
        redis_server.flush()
    assert all(terms)
    assert all(later > earlier for earlier, later in pairwise(terms))
