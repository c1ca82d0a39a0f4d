"""The stream of events: what comes, for whom, after a lost connection through another replica, and what is said about a loss."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.model.names import id_of
from gateway.model.records import Cause, SandboxSpec
from gateway.placement import keys
from gateway.placement.change_feed import Batch, Follower
from gateway.use_cases import followed
from tests.gateway.event_stream import Stream
from tests.gateway.harness import ADA, BOB, DEADLINE_S, Served, serve
from tests.support.requires import requires
from tests.support.until import until_async

pytestmark = requires("redis")


@contextlib.asynccontextmanager
async def following(served: Served, key: str = ADA, last_id: str = "", **query: Any) -> AsyncIterator[Stream]:
    """A stream of events that has begun."""
    headers = {"Last-Event-ID": last_id} if last_id else {}
    async with served.client(key) as client, client.stream("GET", "/events", params=query, headers=headers) as answer:
        assert answer.status_code == 200, await answer.aread()
        assert answer.headers["content-type"].startswith("text/event-stream")
        stream = Stream(answer)
        if not last_id:
            assert (await stream.next()).name == "position"
        yield stream


@contextlib.asynccontextmanager
async def following_since(served: Served, seconds: int) -> AsyncIterator[Stream]:
    """A stream of events that begins before now."""
    async with served.client(ADA) as client, client.stream("GET", "/events", params={"since": seconds}) as answer:
        yield Stream(answer)


async def create(served: Served, sandbox_id: str, owner: str = "ada", **more: Any) -> SandboxSpec:
    spec = SandboxSpec(sandbox_id, owner, "1" * 16, "host", **more)
    await served.store.create(spec, fingerprint=sandbox_id)
    return spec


async def test_the_life_of_a_sandbox(served: Served) -> None:
    async with following(served) as stream:
        spec = await create(served, "sb-1", labels={"a": "b"}, group="g")
        created = await stream.next()
        assert (created.name, created.facts["sandbox_id"], created.facts["labels"], created.facts["group"]) == (
            "created",
            "sb-1",
            {"a": "b"},
            "g",
        )
        await served.store.mark_ready("sb-1", spec.incarnation, "unix:///nowhere")
        ready = await stream.next()
        assert (ready.name, ready.facts["fault"]) == ("ready", None)
        assert ready.facts["ready_at"] >= ready.facts["created_at"]
        await served.store.delete("sb-1", Cause("oom", "workload", "out of memory"), owner="ada")
        deleted = await stream.next()
        assert deleted.name == "deleted"
        assert {name: deleted.facts[name] for name in ("reason", "fault", "message")} == {
            "reason": "oom",
            "fault": "workload",
            "message": "out of memory",
        }


async def test_nothing_of_another_owner(served: Served) -> None:
    async with following(served, BOB) as bob, following(served, ADA) as ada:
        await create(served, "sb-ada")
        assert (await ada.next()).facts["sandbox_id"] == "sb-ada"
        await create(served, "sb-bob", owner="bob")
        assert (await bob.next()).facts["sandbox_id"] == "sb-bob"
    async with following(served, BOB, sandbox="sb-ada") as bob:
        await served.store.delete("sb-ada", Cause("deleted", "caller"), owner="ada")
        await served.store.delete("sb-bob", Cause("deleted", "caller"), owner="bob")
        await create(served, "sb-ada", owner="bob")
        assert (await bob.next()).name == "created"


async def test_filters(served: Served) -> None:
    async with (
        following(served, label="a=b") as labelled,
        following(served, group="g") as grouped,
        following(served, sandbox=["sb-3", "sb-4"]) as named,
    ):
        await create(served, "sb-1")
        await create(served, "sb-2", labels={"a": "b"})
        await create(served, "sb-3", labels={"a": "c"}, group="g")
        assert (await labelled.next()).facts["sandbox_id"] == "sb-2"
        assert (await grouped.next()).facts["sandbox_id"] == "sb-3"
        assert (await named.next()).facts["sandbox_id"] == "sb-3"


async def test_a_stream_continues_through_another_replica(served: Served, redis_url: str, tmp_path: Path) -> None:
    async with following(served) as stream:
        await create(served, "sb-1")
        assert (await stream.next()).facts["sandbox_id"] == "sb-1"
    for number in range(2, 40):
        await create(served, f"sb-{number}")
    (tmp_path / "other").mkdir()
    async with serve(redis_url, tmp_path / "other") as other, following(other, last_id=stream.last_id) as resumed:
        found = [await resumed.next() for _ in range(2, 40)]
        assert {one.facts["sandbox_id"] for one in found} == {f"sb-{number}" for number in range(2, 40)}
        assert [bool(one.id) for one in found] == [False] * 37 + [True], "the position is after all of them"
        await create(served, "sb-40")
        assert (await resumed.next()).facts["sandbox_id"] == "sb-40"


async def test_what_the_store_no_longer_has_is_a_gap(served: Served) -> None:
    async with following(served) as stream:
        await create(served, "sb-1")
        await stream.next()
    await served.store._redis.command("DEL", keys.changes(keys.shard_of("sb-1")))
    async with following(served, last_id=stream.last_id) as resumed:
        gap = await resumed.next()
        assert (gap.name, gap.facts["message"]) == ("gap", "the store no longer has all changes since that position")
        await create(served, "sb-2")
        assert (await resumed.next()).facts["sandbox_id"] == "sb-2"


@pytest.mark.parametrize("last_id", ["x", "1", ".".join(["1-1"] * 63), ".".join(["1-1"] * 63 + ["*"])])
async def test_an_id_of_no_event_is_a_gap(served: Served, last_id: str) -> None:
    async with following(served, last_id=last_id) as stream:
        assert (await stream.next()).name == "gap"


async def test_since_begins_with_what_changed_before(served: Served) -> None:
    for number in range(20):
        await create(served, f"sb-{number}")
    await served.store.delete("sb-7", Cause("deleted", "caller"), owner="ada")
    async with following(served, last_id="", since=0) as stream, following_since(served, 60) as earlier:
        found = [await earlier.next() for _ in range(20)]
        assert {one.facts["sandbox_id"] for one in found} == {f"sb-{number}" for number in range(20)}
        assert [one.facts["time"] for one in found] == sorted(one.facts["time"] for one in found)
        assert [one.facts["sandbox_id"] for one in found if one.name == "deleted"] == ["sb-7"]
        await create(served, "sb-new")
        assert (await earlier.next()).facts["sandbox_id"] == "sb-new"
        assert (await stream.next()).facts["sandbox_id"] == "sb-new"


async def test_more_changes_than_are_kept_since_a_time_are_a_gap(served: Served) -> None:
    changes = keys.changes(keys.shard_of("sb-1"))
    for _ in range(1001):
        await served.store._redis.command("XADD", changes, "MAXLEN", "1000", "*", "id", "sb-1")
    async with following_since(served, 60) as stream:
        assert (await stream.next()).name == "gap"


async def test_bad_arguments(served: Served) -> None:
    async with served.client() as client:
        for query in (
            {"label": "x y"},
            {"label": "=x"},
            {"sandbox": ["a"] * 1001},
            {"last_event_id": "1" * 5000},
            {"since": "x"},
            {"since": "-1"},
            {"since": "3601"},
            {"since": "nan"},
        ):
            answer = await client.get("/events", params=query)
            assert (answer.status_code, answer.json()["code"]) == (422, "invalid_argument"), query


async def test_a_follower_that_does_not_read_gets_a_gap_and_no_more_memory() -> None:
    follower = Follower("ada")
    entry: Any = object()
    for number in range(5000):
        follower.add(Batch([str(number)], [entry]))
    batches = [await follower.next() for _ in range(len(follower._batches))]
    assert sum(len(batch.entries) for batch in batches) <= 1024
    assert [batch.cursor for batch in batches][-1] == ["4999"]
    assert batches[0].gap


async def test_followers_that_left_cost_nothing(served: Served) -> None:
    async with following(served), following(served, BOB):
        assert len(served.gateway.feed) == 2

    async def left() -> bool:
        return not len(served.gateway.feed)

    await until_async(left, deadline_s=DEADLINE_S, what="the streams to be left")
    assert served.gateway.feed._cursor is None


async def test_a_stream_does_not_delay_the_end_of_a_gateway(redis_url: str, tmp_path: Path) -> None:
    async with serve(redis_url, tmp_path) as served, following(served) as stream:
        served.server.should_exit = True
        with pytest.raises(httpx.TransportError):
            await stream.next()


async def test_one_owner_cannot_take_all_that_streams_may_follow(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(followed, "_MOST_OF_OWNER", 1)
    monkeypatch.setattr(followed, "_MOST_OF_REPLICA", 2)
    for owner, name in (("ada", "a1"), ("ada", "a2"), ("bob", "b1")):
        await served.place(id_of(owner, name), "unix:///nowhere", owner)
    async with following(served, ADA, activity="true") as hers, following(served, BOB, activity="true"):
        gap = await hers.next()
        assert (gap.name, "one owner" in gap.facts["message"]) == ("gap", True)
        assert dict(served.gateway.followed) == {"ada": 1, "bob": 1}
    await until_async(lambda: not served.gateway.followed, deadline_s=DEADLINE_S, what="the end of the streams")
