"""Warm pools on a real Redis: each spare is taken once, pools stay full, and a killed controller leaves nothing behind.

The runtime is in memory. The last test kills a controller before and after each of its steps in turn.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

import pytest

from gateway.controller.loop import Controller
from gateway.controller.pool_refill import PoolRefill, is_spare
from gateway.controller.reconciler import Reconciler
from gateway.metrics import Metrics
from gateway.model.records import SandboxSpec
from gateway.placement.errors import FencedError
from gateway.placement.redis_spares import COLD_START
from gateway.placement.store import PlacementStore
from gateway.pools import Pool
from tests.conformance.runtimes import order
from tests.gateway.controllers import at_work
from tests.gateway.harness import SECRET, MemoryRuntime
from tests.gateway.pool_kit import KEY, POOL, POOLS, QUICK, spare
from tests.support.redis_server import RedisServer
from tests.support.requires import requires
from tests.support.until import until_async

pytestmark = requires("redis")


async def offered(store: PlacementStore, key: str = KEY) -> set[str]:
    return set(await store.spares(key) or ())


async def test_an_offered_spare_is_taken_once_and_the_oldest_first(store: PlacementStore) -> None:
    assert await store.spares(KEY) is None, "a new store has no information about spares"
    await store.set_marker("g", term=1)
    assert await store.spares(KEY) == {}
    await store.offer_spares(KEY, {f"pool-{number}": 100.0 - number for number in range(20)}, term=1)
    await store.offer_spares(KEY, {"pool-3": 7.0}, term=1)
    assert (await store.spares(KEY) or {})["pool-3"] == 97.0
    assert await store.take_spare(KEY) == "pool-19"
    taken = await asyncio.gather(*(store.take_spare(KEY) for _ in range(30)))
    assert sorted(filter(None, taken)) == sorted(f"pool-{number}" for number in range(19))
    await store.offer_spares(KEY, {"pool-4": 1.0})
    assert await store.take_spare(KEY) == "pool-4"
    await store.offer_spares(KEY, {"pool-5": 1.0, "pool-6": 1.0}, term=1)
    await store.withdraw_spares(KEY, ["pool-5", "pool-unknown"], term=1)
    assert await offered(store) == {"pool-6"}


async def test_an_old_term_changes_no_pool(store: PlacementStore) -> None:
    await store.set_marker("g", term=7)
    await store.offer_spares(KEY, {"pool-a": 1.0}, term=7)
    with pytest.raises(FencedError):
        await store.offer_spares(KEY, {"pool-b": 1.0}, term=6)
    with pytest.raises(FencedError):
        await store.withdraw_spares(KEY, ["pool-a"], term=6)
    assert await offered(store) == {"pool-a"}


async def test_the_source_of_a_sandbox_is_assigned_once(store: PlacementStore) -> None:
    await store.create(SandboxSpec("sb-1", "ada", "i1", "host"), fingerprint="f")
    assert await store.assign_spare("sb-1", "i2", "pool-a") == ""
    assert await store.assign_spare("sb-1", "i1", "pool-a") == "pool-a"
    assert await store.assign_spare("sb-1", "i1", "pool-b") == "pool-a"
    assert await store.assign_spare("sb-1", "i1", COLD_START, "pool-b") == "pool-a"
    assert await store.assign_spare("sb-1", "i1", COLD_START, "pool-a") == COLD_START
    assert await store.assign_spare("sb-1", "i1", "pool-b") == COLD_START
    await store.mark_ready("sb-1", "i1", "x")
    assert await store.assign_spare("sb-1", "i1", "pool-b") == ""
    assert await store.assign_spare("nobody", "i1", "pool-b") == ""


# The controller ------------------------------------------------------------------------------------------------------


async def test_a_spare_that_became_ready_during_a_long_pass_stays(store: PlacementStore) -> None:
    """It was being created when the pass began, and its creation had ended and offered it when the pass examined it."""
    runtime, creations = MemoryRuntime(), asyncio.TaskGroup()
    await store.set_marker("g", term=1)
    term = await store.lead("c1", 60)
    assert term is not None
    hold = runtime.hold = asyncio.Event()
    pool_refill = PoolRefill(store, runtime, lambda: POOLS, SECRET, QUICK, Metrics())
    async with creations:
        await pool_refill.refill(term, lambda work, name: creations.create_task(work, name=name))
        await until_async(lambda: len(runtime.orders) == POOL.size, deadline_s=60, what="the creations")
        seen = await pool_refill.read_offers()
        hold.set()
    assert len(await offered(store)) == POOL.size
    await pool_refill.reconcile(seen, [], term)
    assert len(runtime.present) == POOL.size
    assert len(await offered(store)) == POOL.size


async def test_an_unoffered_spare_is_offered_after_two_passes(store: PlacementStore) -> None:
    """The spare may have just been taken. A new controller, or one with a new store, offers it at once."""
    await store.set_marker("g", term=1)
    await store.lead("c1", 60)
    pool_refill = PoolRefill(store, MemoryRuntime(), lambda: POOLS, SECRET, QUICK, Metrics())
    spares = [spare("pool-a", created_at=time.time())]
    await pool_refill.reconcile(await pool_refill.read_offers(), spares, 1)
    assert await store.take_spare(KEY) == "pool-a"
    await pool_refill.reconcile(await pool_refill.read_offers(), spares, 1)
    assert await offered(store) == set()
    made: list[str] = []

    def spawn(work: Coroutine[Any, Any, None], name: str) -> None:
        work.close()
        made.append(name)

    await pool_refill.refill(1, spawn)
    assert len(made) == POOL.size - 1, "an existing spare is counted, offered or not"
    await pool_refill.reconcile(await pool_refill.read_offers(), spares, 1)
    assert await offered(store) == {"pool-a"}
    assert await store.take_spare(KEY) == "pool-a"
    await pool_refill.reconcile({KEY: None}, spares, 1)
    assert await offered(store) == {"pool-a"}


def controller_of(store: PlacementStore, runtime: MemoryRuntime, pools: dict[str, Pool] = POOLS) -> Controller:
    pool_refill = PoolRefill(store, runtime, lambda: pools, SECRET, QUICK, Metrics())
    return Controller(store, runtime, "c1", QUICK, pool_refill)


async def filled(store: PlacementStore, runtime: MemoryRuntime, pool: Pool = POOL) -> None:
    async def exact() -> bool:
        waiting = {one.sandbox_id for one in runtime.present.values() if is_spare(one)}
        return len(waiting) == pool.size and await offered(store, pool.key) == waiting

    await until_async(exact, deadline_s=60, what=f"{pool.size} spares, all on offer")


async def test_a_pool_is_filled_refilled_replaced_and_emptied(store: PlacementStore) -> None:
    runtime, pools = MemoryRuntime(), dict(POOLS)
    async with at_work(controller_of(store, runtime, pools)):
        await filled(store, runtime)
        gone = next(iter(runtime.present))
        del runtime.present[gone]
        await until_async(lambda: store_lacks(store, gone), deadline_s=60, what="the dead spare to be withdrawn")
        await filled(store, runtime)
        taken = await store.take_spare(KEY)
        assert taken
        await runtime.adopt(taken, order("sb-1"), 1.0)
        await filled(store, runtime)
        rolled = replace(POOL, image="other")
        pools.clear()
        pools[rolled.key] = rolled
        await filled(store, runtime, rolled)
        assert {one.spec.image for one in runtime.present.values() if is_spare(one)} == {"other"}
        pools.clear()
        await until_async(lambda: list(runtime.present) == ["sb-1"], deadline_s=60, what="the spares to be removed")


async def store_lacks(store: PlacementStore, id_: str) -> bool:
    return id_ not in await offered(store)


async def test_spares_are_offered_again_after_a_wipe(store: PlacementStore, redis_server: RedisServer) -> None:
    runtime = MemoryRuntime()
    async with at_work(controller_of(store, runtime)):
        await filled(store, runtime)
        before = set(runtime.present)
        redis_server.flush()
        await filled(store, runtime)
        assert before == set(runtime.present), "the existing spares are offered again"
    assert len(runtime.orders) == POOL.size


async def test_no_spare_is_created_while_the_store_is_rebuilt(store: PlacementStore) -> None:
    made: list[str] = []

    def spawn(work: Coroutine[Any, Any, None], name: str) -> None:
        work.close()
        made.append(name)

    pool_refill = PoolRefill(store, MemoryRuntime(), lambda: POOLS, SECRET, QUICK, Metrics())
    await pool_refill.refill(1, spawn)
    assert made == []
    await store.set_marker("one", term=1)
    await pool_refill.refill(1, spawn)
    assert made


async def test_an_unavailable_image_is_not_requested_all_the_time(store: PlacementStore) -> None:
    runtime, broken = MemoryRuntime(), replace(POOL, image="unknown-image")
    async with at_work(controller_of(store, runtime, {broken.key: broken})):
        await until_async(lambda: runtime.deleted, deadline_s=60, what="a failed spare to be cleaned up")
        rounds = asyncio.get_running_loop().time() + 1.0
        await until_async(lambda: asyncio.get_running_loop().time() > rounds, deadline_s=60, what="some rounds")
        assert len(runtime.orders) <= 2 * POOL.size
    assert runtime.present == {}


class Killed(BaseException):
    """The simulated process was killed; none of its code may run after this."""


class KillableProxy:
    """Forwards calls to ``inner``; the process is killed before or after the call with a given number."""

    def __init__(self, inner: Any, counter: KillCounter) -> None:
        self._inner, self._counter = inner, counter

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not inspect.iscoroutinefunction(found):
            return found

        async def step(*arguments: Any, **named: Any) -> Any:
            self._counter.tick(before=True)
            answer = await found(*arguments, **named)
            self._counter.tick(before=False)
            return answer

        return step


class KillCounter:
    def __init__(self, kill_at: int) -> None:
        self.left, self.killed = kill_at, False

    def tick(self, before: bool) -> None:
        if self.killed:
            raise Killed
        self.left -= 1
        if self.left < 0:
            self.killed = True
            raise Killed


async def run_passes(store: Any, runtime: Any, term: int, passes: int, pools: dict[str, Pool]) -> None:
    """Run passes of a controller without timers: each refills, waits for the creations, and reconciles."""
    pool_refill = PoolRefill(store, runtime, lambda: pools, SECRET, QUICK, Metrics())
    reconciler = Reconciler(store, runtime, 0.2, pool_refill)
    await reconciler.run_once(term)
    for _ in range(passes):
        creations: list[Coroutine[Any, Any, None]] = []

        def spawn(work: Coroutine[Any, Any, None], name: str, creations: list[Coroutine[Any, Any, None]] = creations) -> None:
            creations.append(work)

        await pool_refill.refill(term, spawn)
        killed = await asyncio.gather(*(was_killed(creation) for creation in creations))
        if any(killed):
            raise Killed
        await reconciler.run_once(term)


async def was_killed(work: Coroutine[Any, Any, None]) -> bool:
    try:
        await work
    except Killed:
        return True
    return False


@pytest.mark.timeout(300)
async def test_a_controller_killed_between_any_two_steps_leaves_nothing(store: PlacementStore, redis_server: RedisServer) -> None:
    """It fills a pool, replaces it and a taken spare, and is killed at each step; the next controller corrects everything."""
    changed = replace(POOL, image="other", size=2)
    kills = 0
    for kill_at in range(10_000):
        redis_server.flush()
        runtime, counter = MemoryRuntime(), KillCounter(kill_at)
        killable = KillableProxy(store, counter), KillableProxy(runtime, counter)
        term = await store.lead("killed", 60) or 0
        try:
            await run_passes(*killable, term, 1, POOLS)
            taken = await store.take_spare(KEY)
            assert taken
            await run_passes(*killable, term, 2, {changed.key: changed})
        except Killed:
            kills += 1
        await store.resign("killed")
        term = await store.lead("next", 60) or 0
        await run_passes(store, runtime, term, 4, {changed.key: changed})
        assert await offered(store, changed.key) == set(runtime.present), f"killed at step {kill_at}"
        assert len(runtime.present) == 2
        assert all(one.spec.image == "other" for one in runtime.present.values())
        if not counter.killed:
            break
    assert kills > 50
