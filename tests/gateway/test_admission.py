"""Admission: the queue of creates, its limits, quotas, and a thousand creates at once against the runtime in memory."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from holdfast_wire.errors import HoldfastError
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.admission import ALL_OWNERS, Admission, QueuePlace, Quotas
from gateway.controller.metrics_server import serve_metrics
from gateway.controller.quota_counts import QuotaCounts
from gateway.metrics import Metrics
from gateway.model.records import Cause, Quota, Record, SandboxSpec
from gateway.placement.errors import FencedError
from gateway.placement.store import PlacementStore
from gateway.runtimes.base import CreateRequest
from gateway.settings import AdmissionSettings, PlacementSettings, from_environment
from tests.gateway.checked import check
from tests.gateway.harness import ADA, BOB, MemoryRuntime, Served, serve
from tests.support.requires import requires
from tests.support.until import until_async

pytestmark = requires("redis")

SMALL = AdmissionSettings(making=2, owner_making=2, queue=6, owner_queue=4, queue_wait_s=5.0)


def admission(**more: Any) -> Admission:
    values = {name: getattr(SMALL, name) for name in SMALL.__dataclass_fields__} | more
    return Admission(AdmissionSettings(**values), Metrics())


def turns(places: list[QueuePlace]) -> list[int]:
    return [number for number, place in enumerate(places) if place.turn.done()]


async def test_owners_are_served_round_robin() -> None:
    one = admission(making=1, owner_making=1)
    places = [one.enter("ada") for _ in range(4)] + [one.enter("bob"), one.enter("eve")]
    order = []
    for _ in range(6):
        (turn,) = [number for number in turns(places) if number not in order]
        order.append(turn)
        places[turn].leave()
    assert [places[number].owner for number in order] == ["ada", "ada", "bob", "eve", "ada", "ada"]
    assert (one.waiting, one.running) == (0, 0)


async def test_a_thousand_creates_are_served_in_order_with_a_fair_share_for_each_owner() -> None:
    """Ada's 900 creates arrive first; Bob's and Eve's are served in turn with hers, and each owner's in order of arrival."""
    one = admission(making=4, owner_making=4, queue=1000, owner_queue=1000)
    places = [one.enter("ada") for _ in range(900)] + [one.enter(owner) for _ in range(50) for owner in ("bob", "eve")]
    served: list[int] = []
    for number, place in enumerate(places):
        place.turn.add_done_callback(lambda _, number=number: served.append(number))  # type: ignore[misc]
    for done in range(1000):
        while len(served) <= done:
            await asyncio.sleep(0)
        places[served[done]].leave()
    assert sorted(served) == list(range(1000))
    for owner in ("ada", "bob", "eve"):
        mine = [number for number in served if places[number].owner == owner]
        assert mine == sorted(mine)
    last = max(served.index(number) for number in range(1000) if places[number].owner != "ada")
    assert last <= 4 + 3 * 50, "the last of Bob's and Eve's 100 comes after at most as many of Ada's as of each of them"


async def test_one_owner_cannot_take_every_place() -> None:
    one = admission(making=3, owner_making=2)
    ada, bob = [one.enter("ada") for _ in range(3)], one.enter("bob")
    assert (turns(ada), bob.turn.done()) == ([0, 1], True)


async def test_a_full_queue_is_refused_with_a_retry_time() -> None:
    one = admission()
    places = [one.enter("ada") for _ in range(6)]
    with pytest.raises(HoldfastError) as owner:
        one.enter("ada")
    assert (owner.value.code, owner.value.kind.status, owner.value.fault) == ("quota_exceeded", 429, "caller")
    places += [one.enter("bob"), one.enter("bob")]
    with pytest.raises(HoldfastError) as overloaded:
        one.enter("bob")
    assert (overloaded.value.code, overloaded.value.kind.status, overloaded.value.fault) == ("overloaded", 503, "infrastructure")
    assert 1 <= overloaded.value.detail["retry_after_s"] <= 30
    places[0].leave()
    places[0].leave()
    one.enter("bob")


async def test_a_create_that_leaves_the_queue_takes_no_turn() -> None:
    one = admission(making=1, queue_wait_s=0.05)
    first, second, third = (one.enter("ada") for _ in range(3))
    with pytest.raises(HoldfastError, match="queue"):
        async with second:
            pass
    waiting = asyncio.create_task(third.__aenter__())
    await asyncio.sleep(0)
    waiting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await waiting
    assert (one.waiting, one.running) == (0, 1)
    first.leave()
    assert (one.waiting, one.running) == (0, 0)


@settings(deadline=None)
@given(steps=st.lists(st.tuples(st.sampled_from(["enter", "leave"]), st.sampled_from("abc"), st.integers(0, 9)), max_size=60))
def test_after_any_steps_the_limits_hold_and_no_turn_is_lost(steps: list[tuple[str, str, int]]) -> None:
    async def run() -> None:
        one = admission()
        held: list[QueuePlace] = []
        for verb, owner, which in steps:
            if verb == "enter":
                with contextlib.suppress(HoldfastError):
                    held.append(one.enter(owner))
            elif held:
                held.pop(which % len(held)).leave()
            running, waiting = [p for p in held if p.turn.done()], [p for p in held if not p.turn.done()]
            assert (one.running, one.waiting) == (len(running), len(waiting))
            assert len(running) <= SMALL.making
            assert len(waiting) <= SMALL.queue
            assert all(count <= SMALL.owner_making for count in Counter(p.owner for p in running).values())
            assert len(running) == SMALL.making or not waiting
        for place in held:
            place.leave()
        assert (one.running, one.waiting) == (0, 0)

    asyncio.run(run())


# Many creates at once --------------------------------------------------------------------------------------------------------------


class SlowRuntime(MemoryRuntime):
    """Records how many creates run at the same time, and in which order owners are served."""

    def __init__(self) -> None:
        super().__init__()
        self.at_once = self.most = 0
        self.served: list[str] = []

    async def create(self, order: CreateRequest, timeout_s: float) -> str:
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        for _ in range(20):
            await asyncio.sleep(0)
        self.at_once -= 1
        self.served.append(order.spec.owner)
        return await super().create(order, timeout_s)


@contextlib.asynccontextmanager
async def serving(redis_url: str, folder: Path, admission: AdmissionSettings) -> AsyncIterator[tuple[Served, SlowRuntime]]:
    async with serve(redis_url, folder, admission=admission) as served:
        runtime = SlowRuntime()
        served.gateway.runtime = served.runtime = runtime
        yield served, runtime


@pytest.mark.timeout(180)
async def test_a_thousand_creates_at_once_keep_the_runtime_limit_and_starve_no_owner(redis_url: str, tmp_path: Path) -> None:
    limits = AdmissionSettings(making=16, owner_making=12, queue=2000, owner_queue=2000, queue_wait_s=120.0)
    async with serving(redis_url, tmp_path, limits) as (served, runtime), served.client() as ada, served.client(BOB) as bob:
        # At most 100 requests at once, none with "wait": a thousand sockets would overload the client, which is not the subject here.
        gate = asyncio.Semaphore(100)

        async def create(client: Any, **more: Any) -> Any:
            async with gate:
                return await client.post("/sandboxes", json={"image": "host", **more}, timeout=60)

        creates = [asyncio.create_task(create(ada)) for _ in range(1000)]
        await until_async(lambda: served.gateway.admission.waiting > 300, deadline_s=60, what="a queue")
        before = len(runtime.served)
        mine = await bob.post("/sandboxes", json={"image": "host", "wait": True}, timeout=60)
        assert mine.json()["status"] == "ready"
        assert runtime.served[before:].index("bob") < 64, "bob's one create did not wait for ada's hundreds"
        answers = await asyncio.gather(*creates)
        assert [answer.text for answer in answers if answer.status_code != 200] == []
        await until_async(lambda: len(runtime.present) == 1001, deadline_s=60, what="all of them")
        assert runtime.most <= 16
        assert served.gateway.admission.waiting == 0
        metrics = (await ada.get("/metrics")).text
        assert "holdfast_creates_waiting 0" in metrics
        assert 'holdfast_node_spares{state="ready"} 2.0' in metrics


async def test_creates_beyond_the_queue_are_refused_and_leave_no_record(redis_url: str, tmp_path: Path) -> None:
    limits = AdmissionSettings(making=4, owner_making=4, queue=20, owner_queue=10, queue_wait_s=60.0)
    async with serving(redis_url, tmp_path, limits) as (served, runtime), served.client() as ada:
        runtime.hold = asyncio.Event()
        posts = [asyncio.create_task(ada.post("/sandboxes", json={"image": "host", "wait": True}, timeout=60)) for _ in range(100)]
        done, _ = await asyncio.wait(posts, timeout=60, return_when=asyncio.FIRST_COMPLETED)
        await until_async(lambda: sum(post.done() for post in posts) == 86, deadline_s=60, what="86 refusals")
        after = set()
        for post in posts:
            if post.done():
                answer = check(post.result())
                assert (answer.status_code, answer.json()["code"]) == (429, "quota_exceeded")
                after.add(int(answer.headers["retry-after"]))
        assert after <= set(range(1, 31))
        runtime.hold.set()
        answers = [await post for post in posts]
        assert [answer.status_code for answer in answers].count(200) == 14, {answer.text for answer in answers}
        assert len(runtime.present) == 14
        records = [one async for one in served.store.scan()]
        assert len(records) == 14, "a refused create leaves no record"
        assert done


async def test_a_create_whose_turn_does_not_come_leaves_nothing_and_can_be_retried(redis_url: str, tmp_path: Path) -> None:
    limits = AdmissionSettings(making=1, owner_making=1, queue=20, owner_queue=10, queue_wait_s=0.05)
    async with serving(redis_url, tmp_path, limits) as (served, runtime), served.client() as ada:
        runtime.hold = asyncio.Event()
        first = asyncio.create_task(ada.post("/sandboxes", json={"image": "host", "wait": True}))
        await until_async(lambda: served.gateway.admission.running, deadline_s=60, what="the first create to run")
        late: dict[str, Any] = {"json": {"image": "host", "wait": True}, "headers": {"Idempotency-Key": "k"}}
        answer = check(await ada.post("/sandboxes", **late))
        assert (answer.status_code, answer.json()["code"]) == (503, "overloaded")
        runtime.hold.set()
        assert (await first).status_code == 200
        assert (await ada.post("/sandboxes", **late)).status_code == 200


# Quotas --------------------------------------------------------------------------------------------------------------


@pytest_asyncio.fixture
async def store(redis_url: str) -> AsyncIterator[PlacementStore]:
    made = PlacementStore(PlacementSettings(redis_url=redis_url, step_timeout_s=20.0, connect_timeout_s=20.0))
    yield made
    await made.aclose()


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
    quotas = Quotas(AdmissionSettings(), store, admission())
    assert await quotas.reserve(spec("sb-1")) == []
    assert await store.usage_owners() == set()


def test_limits_come_from_the_environment() -> None:
    env = {"HOLDFAST_MAKING": "8", "HOLDFAST_CREATE_QUEUE": "40", "HOLDFAST_QUOTA_CPU": "1500m", "HOLDFAST_MAX_MEMORY": "4Gi"}
    limits = from_environment(env).admission
    assert (limits.making, limits.owner_making, limits.queue, limits.owner_queue) == (8, 6, 40, 30)
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
        assert (await ask(b"nonsense\r\n\r\n")).startswith(b"HTTP/1.1 404")


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


async def test_the_wait_of_a_queued_create_is_visible(redis_url: str, tmp_path: Path) -> None:
    """It is in the record at any replica, in the metrics, and in the error if the turn does not come."""
    settings_ = AdmissionSettings(making=1, owner_making=1, queue=6, owner_queue=4, queue_wait_s=6.0)
    other_folder = tmp_path / "other"
    other_folder.mkdir()
    async with serve(redis_url, tmp_path, admission=settings_) as served, serve(redis_url, other_folder) as other:
        hold = served.runtime.hold = asyncio.Event()
        async with served.client() as client, other.client() as elsewhere:
            for name in ("first", "second"):
                assert (await client.post("/sandboxes", json={"image": "host", "sandbox_id": name})).status_code == 200
            seen: dict[str, Any] = {}

            async def waits() -> bool:
                seen.update((await elsewhere.get("/sandboxes/second")).json())
                return bool(seen["queued_s"] > 0.2)

            await until_async(waits, deadline_s=60, what="the second to have waited")
            assert seen["status"] == "pending"
            assert seen["status_message"].startswith("its creation has been queued for ")
            first = (await elsewhere.get("/sandboxes/first")).json()
            assert (first["queued_s"], first["status_message"]) == (0.0, "")
            third = await client.post("/sandboxes", json={"image": "host", "sandbox_id": "third", "wait": True})
            assert third.json()["code"] == "overloaded"
            assert third.json()["context"]["queued_s"] >= 6.0
            assert " s in the queue without its turn; " in third.json()["detail"]
            fourth = asyncio.create_task(client.post("/sandboxes", json={"image": "host", "sandbox_id": "fourth", "wait": True}))
            await until_async(lambda: served.gateway.admission.waiting, deadline_s=60, what="the fourth to wait")
            hold.set()
            made = (await fourth).json()
            assert made["status"] == "ready"
            again = (await elsewhere.get("/sandboxes/fourth")).json()
            assert again["queued_s"] == made["queued_s"] > 0
            assert again["created_at"] + again["queued_s"] <= again["ready_at"] + 0.0005  # the sum of two rounded numbers
            text = (await client.get("/metrics")).text
            assert "holdfast_create_queue_seconds_count 2" in text


async def test_a_turn_that_comes_while_the_record_is_written_is_recorded(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record is written as queued, and the turn comes before the creation waits for it."""
    async with serve(redis_url, tmp_path, admission=AdmissionSettings(making=1, owner_making=1)) as served:
        first = served.gateway.admission.enter("ada")
        write = served.store.create

        async def slow(*args: Any, **options: Any) -> Any:
            created = await write(*args, **options)
            first.leave()
            return created

        monkeypatch.setattr(served.gateway.store, "create", slow)
        waits: list[float] = []
        observe = served.gateway.metrics.observe

        def observed(name: str, value: float, **labels: Any) -> None:
            if name == "create_queue_seconds":
                waits.append(value)
            observe(name, value, **labels)

        monkeypatch.setattr(served.gateway.metrics, "observe", observed)
        async with served.client() as client:
            made = (await client.post("/sandboxes", json={"image": "host", "sandbox_id": "second", "wait": True})).json()
        assert made["status"] == "ready"
        record = await served.store.get("second")
        assert isinstance(record, Record)
        assert record.begun_at is not None
        assert record.begun_at <= (record.ready_at or 0.0)
        assert waits[0] > 0.0
    spec_ = SandboxSpec("sb-1", "ada", "1" * 16, "host")
    assert Record(spec_, "ready", 10.0, ready_at=14.0).queued_s(99.0) == 4.0
