"""Snapshots, branches and pauses over REST on a whole service with a quota: what counts, what ends with what, what survives a crash."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from tests.gateway.checked import Checked
from tests.gateway.event_stream import Event, Stream
from tests.support.requires import requires
from tests.support.stack import Stack, running_stack
from tests.support.until import until_async

pytestmark = requires("namespaces", "root", "redis")

MOST = 5


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with running_stack({"HOLDFAST_QUOTA_SANDBOXES": str(MOST)}) as running:
        yield running


@pytest_asyncio.fixture
async def call(stack: Stack) -> AsyncIterator[Checked]:
    async with httpx.AsyncClient(base_url=stack.url, headers={"X-API-Key": stack.key}, timeout=120) as client:
        checked = Checked(client)
        yield checked
        for one in (await checked("GET", "/sandboxes")).json()["sandboxes"]:
            await checked("DELETE", f"/sandboxes/{one['sandbox_id']}")


async def _create(call: Checked, **more: Any) -> str:
    answer = await call("POST", "/sandboxes", json={"image": "host", "wait": True, "cpu": 1, "memory": "256Mi", **more})
    assert answer.status_code == 200, answer.text
    return f"/sandboxes/{answer.json()['sandbox_id']}"


async def _sh(call: Checked, where: str, script: str) -> str:
    answer = await call("POST", f"{where}/exec", json={"command": script, "wait": True})
    assert answer.status_code == 200, answer.text
    return str(answer.json()["stdout"])


async def _ids(call: Checked) -> set[str]:
    return {one["sandbox_id"] for one in (await call("GET", "/sandboxes")).json()["sandboxes"]}


async def test_events_of_pauses_and_branches(call: Checked, stack: Stack) -> None:
    """A reader of the events alone follows each change, and the way from a branch to its parent and turn."""
    where = await _create(call, labels={"a": "b"}, group="g")
    parent = where.rpartition("/")[2]
    headers = {"X-API-Key": stack.key}
    async with (
        httpx.AsyncClient(base_url=stack.url, headers=headers, timeout=120) as client,
        client.stream("GET", "/events", params={"group": "g"}) as answer,
    ):
        stream = Stream(answer)
        assert (await stream.next()).name == "position"

        async def until(name: str, sandbox_id: str) -> Event:
            """The next such event; changes close together come as the last of them, and a change may come twice."""
            while True:
                event = await stream.next()
                if (event.name, event.facts["sandbox_id"]) == (name, sandbox_id):
                    return event

        for to_disk, kind in ((False, "memory"), (True, "disk")):
            assert (await call("POST", f"{where}/pause", json={"to_disk": to_disk})).status_code == 200
            paused = await until("paused", parent)
            assert (paused.facts["paused"], paused.facts["parent"], paused.facts["turn"]) == (kind, None, None)
            assert (await call("POST", f"{where}/resume", json={})).status_code == 200
            assert (await until("ready", parent)).facts["paused"] is None
        made = await call("POST", f"{where}/branch", json={"count": 1, "turn": 7, "sandbox_ids": ["b1"]})
        assert made.status_code == 201, made.text
        ready = (await until("ready", "b1")).facts
        assert (ready["parent"], ready["turn"], ready["labels"], ready["group"]) == (parent, 7, {"a": "b"}, "g")
        again = await call("POST", "/sandboxes/b1/branch", json={"count": 1, "sandbox_ids": ["b2"]})
        assert again.status_code == 201, again.text
        second = (await until("ready", "b2")).facts
        assert (second["parent"], second["turn"]) == ("b1", None)
        await call("DELETE", where)
        assert (await until("deleted", parent)).facts["reason"] == "deleted"
        await call("DELETE", "/sandboxes/b1")
        await until("deleted", "b1")


async def test_branches_count_for_the_quota_and_none_is_left_if_one_is_refused(call: Checked) -> None:
    where = await _create(call, labels={"a": "b"})
    refused = await call("POST", f"{where}/branch", json={"count": MOST})
    assert (refused.status_code, refused.json()["code"]) == (429, "quota_exceeded")

    async def only_the_parent() -> bool:
        return await _ids(call) == {where.rpartition("/")[2]}

    await until_async(only_the_parent, deadline_s=60, what="the other branches to be deleted")

    async def there_is_room() -> bool:
        made = await call("POST", f"{where}/branch", json={"count": MOST - 1, "sandbox_ids": [f"b{n}" for n in range(MOST - 1)]})
        return made.status_code == 201

    await until_async(there_is_room, deadline_s=60, what="their places in the quota")
    assert await _ids(call) == {where.rpartition("/")[2], *(f"b{n}" for n in range(MOST - 1))}
    await call("POST", "/sandboxes/b0/exec", json={"command": "echo b0 > /tmp/f", "wait": True})
    assert await _sh(call, "/sandboxes/b1", "cat /tmp/f || echo none") == "none\n"


async def test_a_refused_request_leaves_no_branch_in_its_group(call: Checked) -> None:
    """Some of its branches are still being counted, and have no record yet, when another one is refused."""
    where = await _create(call, group="race")
    parent = where.rpartition("/")[2]
    for number in range(6):
        refused = await call("POST", f"{where}/branch", json={"count": MOST})
        assert (refused.status_code, refused.json()["code"]) == (429, "quota_exceeded")
        names = [f"r{number}-{one}" for one in range(MOST - 1)]

        async def has_room(names: list[str] = names) -> bool:
            return (await call("POST", f"{where}/branch", json={"sandbox_ids": names})).status_code == 201

        await until_async(has_room, deadline_s=60, what="the places of those that were refused")
        assert await _ids(call) == {parent, *names}, "only those of the second request"
        for name in names:
            await call("DELETE", f"/sandboxes/{name}")


async def test_places_of_branches_are_free_soon_after_the_node_was_killed(call: Checked, stack: Stack) -> None:
    """Killed amid the creation of further branches; what is on disk goes on counting."""
    where, kept = await _create(call), await _create(call)
    assert (await call("POST", f"{kept}/pause", json={"to_disk": True})).status_code == 200
    assert (await call("POST", f"{where}/branch", json={"sandbox_ids": ["k0"]})).status_code == 201
    branching = asyncio.ensure_future(call("POST", f"{where}/branch", json={"count": 2}))
    await asyncio.sleep(0.1)
    stack.wait_restarted("node", stack.kill_process("node"))
    began, made = time.monotonic(), 0
    assert (await branching).status_code in (201, 503)
    while made < MOST - 1:
        answer = await call("POST", "/sandboxes", json={"image": "host", "wait": True, "cpu": 1, "memory": "128Mi"})
        made += answer.status_code == 200
        assert answer.status_code in (200, 429, 503), answer.text
        assert time.monotonic() < began + 45, "much longer than the controller's next look"
        await asyncio.sleep(0 if answer.status_code == 200 else 0.2)
    over = await call("POST", "/sandboxes", json={"image": "host", "wait": True, "cpu": 1, "memory": "128Mi"})
    assert over.json()["code"] == "quota_exceeded"


async def test_the_same_request_again_answers_with_the_same_branches(call: Checked) -> None:
    where = await _create(call)
    first, again = [await call("POST", f"{where}/branch", json={"count": 2}, headers={"Idempotency-Key": "k"}) for _ in range(2)]
    assert [one["incarnation"] for one in again.json()["sandboxes"]] == [one["incarnation"] for one in first.json()["sandboxes"]]
    assert len(await _ids(call)) == 3
    other = await call("POST", f"{where}/branch", json={"count": 1}, headers={"Idempotency-Key": "k"})
    assert other.json()["code"] == "idempotency_conflict"


async def test_a_branch_ends_with_its_parents_group(call: Checked) -> None:
    where = await _create(call, group="run")
    made = (await call("POST", f"{where}/branch", json={})).json()["sandboxes"]
    assert made[0]["group"] == "run"
    await call("DELETE", "/groups/run")

    async def none() -> bool:
        return not await _ids(call)

    await until_async(none, deadline_s=60, what="both to be deleted")


async def test_what_is_no_request_is_refused(call: Checked) -> None:
    where = await _create(call)
    for path, body in (
        ("branch", {"count": 0}), ("branch", {"count": 257}), ("branch", {"when": "later"}), ("branch", {"sandbox_ids": ["A"]}),
        ("branch", {"sandbox_ids": ["a", "a"]}), ("branch", {"sandbox_ids": ["a"], "count": 2}), ("branch", {"turn": -1}),
        ("branch", {"timeout": 0}), ("snapshot", {"name": "../x"}), ("pause", {"to_disk": "yes"}),
    ):  # fmt: skip
        answer = await call("POST", f"{where}/{path}", json=body)
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_argument"), (path, body)
    assert len(await _ids(call)) == 1


async def test_limits_do_not_run_out_while_a_sandbox_is_paused(call: Checked) -> None:
    where = await _create(call, idle_timeout_s=1.0, heartbeat_timeout_s=60.0)
    short = await _create(call, idle_timeout_s=1.0)
    paused = (await call("POST", f"{where}/pause", json={})).json()["sandbox"]
    assert (paused["paused"], paused["expires_at"]) == ("memory", None)

    async def is_gone() -> bool:
        return (await call("GET", short)).status_code == 410

    await until_async(is_gone, deadline_s=60, what="the idle limit of the other one")
    assert (await call("GET", where)).json()["paused"] == "memory"
    resumed = (await call("POST", f"{where}/resume")).json()["sandbox"]
    assert resumed["paused"] is None
    assert resumed["expires_at"] is not None
    assert (await call("POST", f"{where}/pause", json={})).status_code == 200
    assert (await call("DELETE", where)).json()["existed"]


async def test_a_sandbox_on_disk_survives_the_node_and_redis(call: Checked, stack: Stack) -> None:
    where = await _create(call, labels={"kept": "yes"})
    await _sh(call, where, "echo kept > /tmp/f")
    assert (await call("POST", f"{where}/pause", json={"to_disk": True})).json()["sandbox"]["paused"] == "disk"
    for process in ("node", "redis"):
        stack.wait_restarted(process, stack.kill_process(process))
        await asyncio.to_thread(stack.wait_ready)

    async def is_known() -> bool:
        answer = await call("GET", where)
        return answer.status_code == 200 and answer.json()["paused"] == "disk"

    await until_async(is_known, deadline_s=90, what="its record to be rebuilt")
    refused = await call("POST", f"{where}/exec", json={"command": "true", "wait": True})
    assert (refused.status_code, refused.json()["code"]) == (409, "sandbox_paused")
    resumed = (await call("POST", f"{where}/resume")).json()["sandbox"]
    assert (resumed["paused"], resumed["labels"]) == (None, {"kept": "yes"})
    assert await _sh(call, where, "cat /tmp/f") == "kept\n"


async def test_metrics_count_them(call: Checked, stack: Stack) -> None:
    where = await _create(call)
    image = (await call("POST", f"{where}/snapshot", json={})).json()
    await call("DELETE", f"/images/{image['name']}")
    await call("POST", f"{where}/branch", json={})
    await call("POST", f"{where}/pause", json={})
    await call("POST", f"{where}/resume")
    async with httpx.AsyncClient(base_url=stack.url) as client:
        text = (await client.get("/metrics")).text
    for name in (
        "snapshots_total",
        "branches_total",
        'pauses_total{to="memory"}',
        "resumes_total",
        "snapshot_seconds_count",
        "branch_seconds_count",
    ):
        value = next(line.split()[-1] for line in text.splitlines() if line.startswith(f"holdfast_{name}"))
        assert float(value) >= 1, name
