"""Warm pools: what fits, what is planned, who gets a spare, and that a killed controller leaves nothing behind.

A real Redis and the runtime in memory. The kills are exhaustive: a controller is killed before and after each of its steps in turn.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
from collections.abc import AsyncIterator, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from holdfast_wire.errors import HoldfastError
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.controller.loop import Controller
from gateway.controller.pool_keeper import PoolKeeper
from gateway.controller.pool_plan import Discard, Forget, Offer, Withdraw, is_spare, missing, tend
from gateway.controller.reconcile import Reconciler
from gateway.placement.redis_store import RedisStore
from gateway.placement.store import COLD, FencedError, PoolState, SandboxSpec
from gateway.pools import KEY_LABEL, Pool, PoolsError, PoolsFile, key_of, read_pools
from gateway.runtimes.base import Order, Present
from gateway.settings import ControllerSettings, PlacementSettings
from gateway.telemetry import Metrics
from tests.conformance.runtimes import order
from tests.gateway.harness import ADA, SECRET, MemoryRuntime, Served, serve
from tests.support.redis_server import RedisServer
from tests.support.requires import requires
from tests.support.until import until_async

pytestmark = requires("redis")

GRACE = 60.0
POOL = Pool("warm", "host", 3, cores=1.0, memory_bytes=2**30, refill_per_s=100.0)
KEY = POOL.key
POOLS = {KEY: POOL}
QUICK = ControllerSettings(
    lease_ttl_s=1.0, lease_renew_s=0.05, expiry_interval_s=0.05, reconcile_interval_s=0.05, grace_s=0.2, refill_interval_s=0.02,
    claim_grace_s=0.0,
)  # fmt: skip


# Definitions ---------------------------------------------------------------------------------------------------------

TEXT = """
pools:
  - {name: warm, image: host, cpu: 1, memory: 1Gi, size: 3, refill_per_s: 100}
  - {name: gpu, image: "python:3.12", cpu: 500m, memory: 2Gi, disk: 1Gi, size: 1, options: {gpu: 1}, egress: {mode: internet}}
"""


def test_a_file_of_pools_is_read() -> None:
    warm, gpu = read_pools(TEXT).values()
    assert warm == POOL
    assert (gpu.cores, gpu.disk_bytes, gpu.options.resources, gpu.egress.mode) == (0.5, 2**30, {"nvidia.com/gpu": 1}, "internet")
    assert list(read_pools(json.dumps([{"name": "warm", "image": "host", "cpu": 1, "memory": "1Gi", "size": 9}]))) == [KEY]


@pytest.mark.parametrize(
    "entry",
    ["[1]", "{name: a}", "{name: a, image: b, size: -1}", "{name: a, image: b, size: 1, nonsense: 2}", "{name: a b, image: b, size: 1}",
     "{name: a, image: b, size: 1, cpu: many}", "{name: a, image: b, size: 1, refill_per_s: 0}"],
)  # fmt: skip
def test_a_wrong_definition_is_refused(entry: str) -> None:
    with pytest.raises(PoolsError):
        read_pools(f"[{entry}]")
    for text in ("{", "7", TEXT + "  - {name: other, image: host, cpu: 1000m, memory: 1Gi, size: 1}"):
        with pytest.raises(PoolsError):
            read_pools(text)


def test_a_changed_file_is_read_again_and_a_broken_one_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "pools.yaml"
    file = PoolsFile(path)
    assert file.read() == {}
    path.write_text(TEXT)
    assert next(iter(file.read())) == KEY
    other = tmp_path / "other"
    other.write_text("{")
    other.rename(path)
    assert next(iter(file.read())) == KEY
    path.unlink()
    assert next(iter(file.read())) == KEY


def test_a_spare_fits_what_is_asked_for_and_nothing_less() -> None:
    spec = SandboxSpec("sb-1", "ada", "i1", "host", cores=1.0, memory_bytes=2**30, labels={"a": "b"}, lifetime_s=9.0)
    assert key_of(spec) == KEY
    for other in ({"image": "x"}, {"cores": 2.0}, {"memory_bytes": 1}, {"disk_bytes": 1}, {"egress": replace(spec.egress, mode="internet")},
                  {"options": replace(spec.options, user=1)}):  # fmt: skip
        assert key_of(dataclasses.replace(spec, **other)) != KEY


# The plan ------------------------------------------------------------------------------------------------------------


def spare(id_: str, age: float = 10.0, key: str = KEY, **more: Any) -> Present:
    return Present(id_, "i", "", "host", "x", 1000.0 - age, labels={KEY_LABEL: key}, **more)


def decide(state: PoolState, presents: list[Present], pools: dict[str, Pool] = POOLS, ours: set[str] = set()) -> list[Any]:  # noqa: B006
    return tend(pools, {KEY: state}, presents, now=1000.0, ours=ours, claim_grace_s=GRACE)


def test_what_is_missing_is_made_and_no_more() -> None:
    assert missing(POOL, PoolState()) == 3
    assert missing(POOL, PoolState({"a": 1.0}, {"b": 1.0})) == 1
    assert missing(POOL, PoolState({}, {"a": 1.0, "b": 1.0, "c": 1.0, "d": 1.0})) == 0
    old = POOL.max_age_s + 1
    assert missing(POOL, PoolState({}, {"a": old, "b": old, "c": old})) == 3
    assert missing(POOL, PoolState({}, {str(n): old for n in range(6)})) == 0


def test_each_spare_is_judged() -> None:
    fine = PoolState({}, {"pool-a": 1.0})
    assert decide(fine, [spare("pool-a")]) == []
    assert decide(PoolState(), [spare("pool-a")]) == [Offer(KEY, "pool-a")]
    assert decide(PoolState({"pool-a": 1.0}), [spare("pool-a")]) == [Offer(KEY, "pool-a")]
    assert decide(PoolState({"pool-a": 1.0}), [spare("pool-a")], ours={"pool-a"}) == []
    assert decide(PoolState({"pool-a": 1.0}), []) == [Discard(KEY, "pool-a")]
    assert decide(PoolState({"pool-a": 1.0}), [], ours={"pool-a"}) == []
    assert decide(fine, []) == [Withdraw(KEY, "pool-a")]
    assert decide(fine, [spare("pool-a", state="failed")]) == [Discard(KEY, "pool-a", "i"), Withdraw(KEY, "pool-a")][:1]
    assert decide(fine, [spare("pool-a")], {}) == [Discard(KEY, "pool-a", "i")]


def test_what_was_taken_is_left_alone_until_its_taker_must_be_gone() -> None:
    assert decide(PoolState({}, {}, {"pool-a": GRACE - 1}), [spare("pool-a")]) == []
    assert decide(PoolState({}, {}, {"pool-a": GRACE}), [spare("pool-a")]) == [Discard(KEY, "pool-a", "i")]
    assert decide(PoolState({}, {}, {"pool-a": GRACE - 1}), []) == []
    assert decide(PoolState({}, {}, {"pool-a": GRACE}), []) == [Forget(KEY, "pool-a")]


def test_old_spares_serve_until_there_are_new_ones() -> None:
    old = [spare(f"pool-{n}", POOL.max_age_s + 1) for n in range(3)]
    new = [spare(f"pool-new{n}", n) for n in range(4)]
    known = PoolState({}, {one.sandbox_id: 1.0 for one in old + new})
    assert [a for a in decide(known, old + new[:2]) if isinstance(a, Discard)] == []
    assert [a.spare_id for a in decide(known, old + new) if isinstance(a, Discard)] == ["pool-0", "pool-1", "pool-2", "pool-new3"]


IDS = st.sampled_from(["pool-a", "pool-b", "pool-c", "pool-d"])
AGES = st.sampled_from([1.0, GRACE, 1e9])


@settings(deadline=None)
@given(
    making=st.dictionaries(IDS, AGES),
    spares=st.dictionaries(IDS, AGES),
    taken=st.dictionaries(IDS, AGES),
    there=st.dictionaries(IDS, st.tuples(AGES, st.sampled_from(["ready", "failed"]))),
)
def test_no_plan_removes_what_somebody_may_be_using(
    making: dict[str, float], spares: dict[str, float], taken: dict[str, float], there: dict[str, tuple[float, Any]]
) -> None:
    presents = [spare(id_, age, state=state) for id_, (age, state) in there.items()]
    for action in decide(PoolState(making, spares, taken), presents):
        if isinstance(action, Discard | Offer):
            assert taken.get(action.spare_id, GRACE) >= GRACE or action.spare_id in making


# The store -----------------------------------------------------------------------------------------------------------


@pytest_asyncio.fixture
async def store(redis_url: str) -> AsyncIterator[RedisStore]:
    made = RedisStore(PlacementSettings(redis_url=redis_url, step_timeout_s=20.0, connect_timeout_s=20.0))
    yield made
    await made.aclose()


async def test_a_spare_is_taken_once(store: RedisStore) -> None:
    for number in range(20):
        await store.plan_spare(KEY, f"pool-{number}", term=1)
        assert await store.offer_spare(KEY, f"pool-{number}", term=1)
    assert await store.pool_keys() == {KEY}
    taken = await asyncio.gather(*(store.take_spare(KEY) for _ in range(30)))
    assert sorted(filter(None, taken)) == sorted(f"pool-{number}" for number in range(20))
    assert not await store.offer_spare(KEY, "pool-3", term=1), "an old list shows it still waiting"
    assert await store.take_spare(KEY) is None
    assert not await store.claim_spare(KEY, "pool-3", GRACE, term=1)
    assert await store.claim_spare(KEY, "pool-3", 0.0, term=1)
    await store.return_spare(KEY, "pool-4")
    assert await store.take_spare(KEY) == "pool-4"
    await store.return_spare(KEY, "pool-unknown")
    assert await store.take_spare(KEY) is None
    for number in range(20):
        await store.withdraw_spare(KEY, f"pool-{number}", term=1)
    assert len((await store.spares(KEY)).taken) == 20
    for number in range(20):
        await store.forget_spare(KEY, f"pool-{number}", term=1)
    assert await store.spares(KEY) == PoolState()
    assert await store.pool_keys() == set()


async def test_an_old_term_changes_no_pool(store: RedisStore) -> None:
    await store.fence(7)
    for write in (store.plan_spare, store.offer_spare, store.withdraw_spare, store.forget_spare):
        with pytest.raises(FencedError):
            await write(KEY, "pool-a", term=6)
    with pytest.raises(FencedError):
        await store.claim_spare(KEY, "pool-a", 0.0, term=6)
    assert await store.spares(KEY) == PoolState()


async def test_what_a_sandbox_is_made_of_is_said_once(store: RedisStore) -> None:
    await store.create(SandboxSpec("sb-1", "ada", "i1", "host"), fingerprint="f")
    assert await store.assign_spare("sb-1", "i2", "pool-a") == ""
    assert await store.assign_spare("sb-1", "i1", "pool-a") == "pool-a"
    assert await store.assign_spare("sb-1", "i1", "pool-b") == "pool-a"
    assert await store.assign_spare("sb-1", "i1", COLD, "pool-b") == "pool-a"
    assert await store.assign_spare("sb-1", "i1", COLD, "pool-a") == COLD
    assert await store.assign_spare("sb-1", "i1", "pool-b") == COLD
    await store.mark_ready("sb-1", "i1", "x", "e")
    assert await store.assign_spare("sb-1", "i1", "pool-b") == ""
    assert await store.assign_spare("nobody", "i1", "pool-b") == ""


# The controller ------------------------------------------------------------------------------------------------------


def controller_of(store: RedisStore, runtime: MemoryRuntime, pools: dict[str, Pool] = POOLS) -> Controller:
    keeper = PoolKeeper(store, runtime, lambda: pools, SECRET, QUICK, Metrics())
    return Controller(store, runtime, "c1", QUICK, keeper)


@contextlib.asynccontextmanager
async def running(controller: Controller) -> AsyncIterator[None]:
    task = asyncio.create_task(controller.run(), name="controller")
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def filled(store: RedisStore, runtime: MemoryRuntime, pool: Pool = POOL) -> None:
    async def exact() -> bool:
        waiting = {one.sandbox_id for one in runtime.present.values() if is_spare(one)}
        state = await store.spares(pool.key)
        return len(waiting) == pool.size and set(state.spares) == waiting and not state.making

    await until_async(exact, deadline_s=30, what=f"{pool.size} spares, all on offer")


async def test_a_pool_is_filled_refilled_rolled_and_emptied(store: RedisStore) -> None:
    runtime, pools = MemoryRuntime(), dict(POOLS)
    async with running(controller_of(store, runtime, pools)):
        await filled(store, runtime)
        gone = next(iter(runtime.present))
        del runtime.present[gone]
        await until_async(lambda: store_lacks(store, gone), deadline_s=5, what="the dead spare to be withdrawn")
        await filled(store, runtime)
        taken = await store.take_spare(KEY)
        assert taken
        await runtime.adopt(taken, order("sb-1"), 1.0)
        await filled(store, runtime)
        rolled = replace(POOL, image="other")
        pools.clear()
        pools[rolled.key] = rolled
        await filled(store, runtime, rolled)
        assert {one.image for one in runtime.present.values() if is_spare(one)} == {"other"}
        pools.clear()
        await until_async(lambda: list(runtime.present) == ["sb-1"], deadline_s=5, what="the spares to go")
        await until_async(lambda: nothing(store), deadline_s=5, what="the store to forget them")


async def store_lacks(store: RedisStore, id_: str) -> bool:
    return id_ not in (await store.spares(KEY)).spares


async def nothing(store: RedisStore) -> bool:
    return not await store.pool_keys()


async def test_a_wiped_store_finds_its_spares_again(store: RedisStore, redis_server: RedisServer) -> None:
    runtime = MemoryRuntime()
    async with running(controller_of(store, runtime)):
        await filled(store, runtime)
        before = set(runtime.present)
        redis_server.flush()
        await filled(store, runtime)
        assert before == set(runtime.present), "those that were there are offered again"
    assert len(runtime.orders) == POOL.size


async def test_an_image_that_cannot_be_had_is_not_hammered(store: RedisStore) -> None:
    runtime, broken = MemoryRuntime(), replace(POOL, image="unknown-image")
    async with running(controller_of(store, runtime, {broken.key: broken})):
        await until_async(lambda: runtime.deleted, deadline_s=5, what="a failed spare to be cleaned up")
        rounds = asyncio.get_running_loop().time() + 1.0
        await until_async(lambda: asyncio.get_running_loop().time() > rounds, deadline_s=5, what="some rounds")
        assert len(runtime.orders) <= 2 * POOL.size
    assert runtime.present == {}


class Killed(BaseException):
    """The process is gone: nothing after this runs."""


class Mortal:
    """Forwards to ``inner``; the process dies before or after the call of a given number."""

    def __init__(self, inner: Any, life: Life) -> None:
        self._inner, self._life = inner, life

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not asyncio.iscoroutinefunction(found):
            return found

        async def step(*arguments: Any, **named: Any) -> Any:
            self._life.tick(before=True)
            answer = await found(*arguments, **named)
            self._life.tick(before=False)
            return answer

        return step


class Life:
    def __init__(self, dies_at: int) -> None:
        self.left, self.dead = dies_at, False

    def tick(self, before: bool) -> None:
        if self.dead:
            raise Killed
        self.left -= 1
        if self.left < 0:
            self.dead = True
            raise Killed


async def one_life(store: Any, runtime: Any, term: int, passes: int, pools: dict[str, Pool]) -> None:
    """Passes of a controller without clocks: each refills, lets its makers end, and reconciles."""
    keeper = PoolKeeper(store, runtime, lambda: pools, SECRET, QUICK, Metrics())
    reconciler = Reconciler(store, runtime, 0.2, keeper)
    await reconciler.run_once(term)
    for _ in range(passes):
        makers: list[Coroutine[Any, Any, None]] = []

        def spawn(work: Coroutine[Any, Any, None], name: str, makers: list[Coroutine[Any, Any, None]] = makers) -> None:
            makers.append(work)

        await keeper.refill(term, spawn)
        ends = await asyncio.gather(*(shielded(maker) for maker in makers))
        if any(ends):
            raise Killed
        await reconciler.run_once(term)


async def shielded(work: Coroutine[Any, Any, None]) -> bool:
    try:
        await work
    except Killed:
        return True
    return False


@pytest.mark.timeout(300)
async def test_a_controller_killed_between_any_two_steps_leaves_nothing(store: RedisStore, redis_server: RedisServer) -> None:
    """It fills a pool, rolls it and replaces a taken spare; killed at every step; the next one makes everything right."""
    changed = replace(POOL, image="other", size=2)
    kills = 0
    for dies_at in range(10_000):
        redis_server.flush()
        runtime, life = MemoryRuntime(), Life(dies_at)
        mortal = Mortal(store, life), Mortal(runtime, life)
        term = await store.lead("killed", 60) or 0
        try:
            await one_life(*mortal, term, 1, POOLS)
            taken = await store.take_spare(KEY)
            assert taken
            await one_life(*mortal, term, 2, {changed.key: changed})
        except Killed:
            kills += 1
        await store.resign("killed")
        term = await store.lead("next", 60) or 0
        await one_life(store, runtime, term, 4, {changed.key: changed})
        state = await store.spares(changed.key)
        assert set(state.spares) == set(runtime.present), f"killed at step {dies_at}"
        assert (len(state.spares), state.making, state.taken) == (2, {}, {})
        assert await store.pool_keys() == {changed.key}
        assert all(one.image == "other" for one in runtime.present.values())
        if not life.dead:
            break
    assert kills > 50


# The create path -----------------------------------------------------------------------------------------------------

BODY = {"image": "host", "cpu": 1, "memory": "1Gi", "wait": True}


@pytest_asyncio.fixture
async def served(redis_url: str, tmp_path: Path) -> AsyncIterator[Served]:
    async with serve(redis_url, tmp_path, step_timeout_s=20.0) as served:
        path = tmp_path / "pools.yaml"
        path.write_text(TEXT)
        served.gateway.pools = PoolsFile(path)
        yield served


async def offer(served: Served, count: int) -> list[str]:
    ids = [f"pool-{number}" for number in range(count)]
    for id_ in ids:
        served.runtime.add(id_, owner="", labels={KEY_LABEL: KEY})
        await served.store.offer_spare(KEY, id_, term=1)
    return ids


async def test_a_create_that_fits_gets_a_spare(served: Served) -> None:
    await offer(served, 2)
    async with served.client() as client:
        made = (await client.post("/sandboxes", json={**BODY, "labels": {"a": "b"}, "env": {"A": "1"}})).json()
        assert made["status"] == "ready"
        cold = (await client.post("/sandboxes", json={**BODY, "cpu": 2})).json()
        last = [(await client.post("/sandboxes", json=BODY)).json() for _ in range(2)]
        metrics = (await client.get("/metrics")).text
    assert sorted(served.runtime.present) == sorted([made["sandbox_id"], cold["sandbox_id"], *(one["sandbox_id"] for one in last)])
    first = served.runtime.orders[0]
    assert (first.sandbox_id, first.env, first.labels["a"], KEY_LABEL in first.labels) == (made["sandbox_id"], {"A": "1"}, "b", False)
    assert 'holdfast_pool_claims_total{outcome="warm"} 2' in metrics
    assert 'holdfast_pool_claims_total{outcome="empty"} 1' in metrics


async def test_dead_spares_are_passed_over_and_then_it_is_made_cold(served: Served) -> None:
    for id_ in await offer(served, 5):
        if id_ != "pool-1":
            del served.runtime.present[id_]
    async with served.client() as client:
        assert (await client.post("/sandboxes", json=BODY)).json()["status"] == "ready"
        assert "pool-1" not in served.runtime.present
        assert (await client.post("/sandboxes", json=BODY)).json()["status"] == "ready"
    assert len(served.runtime.present) == 2


async def test_a_spare_that_fails_half_way_is_removed_under_both_names(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    await offer(served, 1)

    async def half(spare_id: str, order: Order, timeout_s: float) -> Any:
        served.runtime.present.pop(spare_id)
        served.runtime.add(order.sandbox_id, order.incarnation, owner=order.owner, state="failed")
        raise HoldfastError("agent_unreachable", "it does not answer")

    monkeypatch.setattr(served.runtime, "adopt", half)
    async with served.client() as client:
        made = (await client.post("/sandboxes", json=BODY)).json()
    assert made["status"] == "ready"
    assert [one.state for one in served.runtime.present.values()] == ["ready"]
    assert served.runtime.deleted == ["pool-0", made["sandbox_id"]]


async def test_two_replicas_make_one_sandbox_of_one_spare(served: Served, redis_url: str, tmp_path: Path) -> None:
    """The same request at two gateways at once: one spare is used, the other stays on offer."""
    await offer(served, 4)
    other_folder = tmp_path / "other"
    other_folder.mkdir()
    async with serve(redis_url, other_folder, step_timeout_s=20.0) as other:
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
                assert {id_ for id_ in present if not id_.startswith("pool-")} == {made}
                await here.delete(f"/sandboxes/{made}")
                waiting = {id_ for id_ in present if id_.startswith("pool-")}
                assert len(waiting) == 3
                await until_async(lambda wanted=waiting: on_offer(served, wanted), deadline_s=5, what="the rest to be on offer")
                await forget_all(served)


async def on_offer(served: Served, wanted: set[str]) -> bool:
    return set((await served.store.spares(KEY)).spares) == wanted


async def forget_all(served: Served) -> None:
    for id_ in {**(await served.store.spares(KEY)).taken, **(await served.store.spares(KEY)).spares}:
        await served.store.forget_spare(KEY, id_, term=1)
        served.runtime.present.pop(id_, None)
