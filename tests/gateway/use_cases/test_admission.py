"""Admission: the queue of creates, its limits, and a thousand creates at once against the runtime in memory."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from holdfast_wire.errors import HoldfastError
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.metrics import Metrics
from gateway.model.records import Record, SandboxSpec
from gateway.runtimes.base import CreateRequest
from gateway.settings import AdmissionSettings
from gateway.use_cases import projects
from gateway.use_cases.admission import Admission, QueuePlace
from tests.gateway.checked import check
from tests.gateway.harness import BOB, MemoryRuntime, Served, id_of_adas, serve
from tests.support.requires import requires
from tests.support.until import until_async

pytestmark = requires("redis")


SMALL = AdmissionSettings(concurrent_creates=2, owner_concurrent_creates=2, queue=6, owner_queue=4, queue_wait_s=5.0)


def admission(**more: Any) -> Admission:
    values = {name: getattr(SMALL, name) for name in SMALL.__dataclass_fields__} | more
    return Admission(AdmissionSettings(**values), Metrics())


def turns(places: list[QueuePlace]) -> list[int]:
    return [number for number, place in enumerate(places) if place.admitted.done()]


async def test_owners_are_served_round_robin() -> None:
    one = admission(concurrent_creates=1, owner_concurrent_creates=1)
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
    one = admission(concurrent_creates=4, owner_concurrent_creates=4, queue=1000, owner_queue=1000)
    places = [one.enter("ada") for _ in range(900)] + [one.enter(owner) for _ in range(50) for owner in ("bob", "eve")]
    served: list[int] = []
    for number, place in enumerate(places):
        place.admitted.add_done_callback(lambda _, number=number: served.append(number))  # type: ignore[misc]
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
    one = admission(concurrent_creates=3, owner_concurrent_creates=2)
    ada, bob = [one.enter("ada") for _ in range(3)], one.enter("bob")
    assert (turns(ada), bob.admitted.done()) == ([0, 1], True)


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
    one = admission(concurrent_creates=1, queue_wait_s=0.05)
    first, second, third = (one.enter("ada") for _ in range(3))
    with pytest.raises(HoldfastError, match="queue"), second:
        await second.turn()

    async def held(place: QueuePlace) -> None:
        with place:
            await place.turn()

    waiting = asyncio.create_task(held(third))
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
            running, waiting = [p for p in held if p.admitted.done()], [p for p in held if not p.admitted.done()]
            assert (one.running, one.waiting) == (len(running), len(waiting))
            assert len(running) <= SMALL.concurrent_creates
            assert len(waiting) <= SMALL.queue
            assert all(count <= SMALL.owner_concurrent_creates for count in Counter(p.owner for p in running).values())
            assert len(running) == SMALL.concurrent_creates or not waiting
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
    limits = AdmissionSettings(concurrent_creates=16, owner_concurrent_creates=12, queue=2000, owner_queue=2000, queue_wait_s=120.0)
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
        assert 'holdfast_node_disk_bytes{state="left"} 1.073741824e+09' in metrics


async def test_an_owner_has_one_share_in_all_projects_together(redis_url: str, tmp_path: Path) -> None:
    limits = AdmissionSettings(concurrent_creates=4, owner_concurrent_creates=1)
    async with serving(redis_url, tmp_path, limits) as (served, runtime), served.client() as ada:
        for project in ("one", "two"):
            await projects.create(served.gateway, project, ["ada"], "none")
        runtime.hold = asyncio.Event()
        headers: list[dict[str, str]] = [{}, {"X-Holdfast-Project": "one"}, {"X-Holdfast-Project": "two"}]
        for named in headers:
            assert (await ada.post("/sandboxes", json={"image": "host"}, headers=named)).status_code == 200
        assert (served.gateway.admission.running, served.gateway.admission.waiting) == (1, 2)
        runtime.hold.set()
        await until_async(lambda: len(runtime.present) == 3, deadline_s=60, what="all of them")


async def test_creates_beyond_the_queue_are_refused_and_leave_no_record(redis_url: str, tmp_path: Path) -> None:
    limits = AdmissionSettings(concurrent_creates=4, owner_concurrent_creates=4, queue=20, owner_queue=10, queue_wait_s=60.0)
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
    limits = AdmissionSettings(concurrent_creates=1, owner_concurrent_creates=1, queue=20, owner_queue=10, queue_wait_s=0.05)
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


async def test_the_wait_of_a_queued_create_is_visible(redis_url: str, tmp_path: Path) -> None:
    """It is in the record at any replica, in the metrics, and in the error if the turn does not come."""
    settings_ = AdmissionSettings(concurrent_creates=1, owner_concurrent_creates=1, queue=6, owner_queue=4, queue_wait_s=6.0)
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
            assert " s in the queue without being started; " in third.json()["detail"]
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
    async with serve(redis_url, tmp_path, admission=AdmissionSettings(concurrent_creates=1, owner_concurrent_creates=1)) as served:
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
        record = await served.store.get(id_of_adas("second"))
        assert isinstance(record, Record)
        assert record.begun_at is not None
        assert record.begun_at <= (record.ready_at or 0.0)
        assert waits[0] > 0.0
    spec_ = SandboxSpec("sb-1", "ada", "1" * 16, "host")
    assert Record(spec_, "ready", 10.0, ready_at=14.0).queued_s(99.0) == 4.0
