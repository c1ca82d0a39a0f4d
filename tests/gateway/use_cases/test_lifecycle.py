"""The life of a sandbox over REST on a runtime in memory: creates, their failures and repetitions, and deletes."""

from __future__ import annotations

import asyncio

import pytest
from holdfast_wire.errors import Fault, HoldfastError

from gateway.controller.reconciler import Reconciler
from gateway.model.records import Cause, Entry
from gateway.placement.errors import PlacementUnavailableError
from gateway.runtimes.base import RuntimeUnavailableError
from gateway.use_cases import background, create
from tests.gateway.checked import Checked, made, problem
from tests.gateway.harness import Served, id_of_adas
from tests.support.requires import requires
from tests.support.until import until_async

pytestmark = requires("redis")


# The life of a sandbox ---------------------------------------------------------------------------------------------


async def test_a_sandbox_is_created_used_and_deleted(ada: Checked, served: Served) -> None:
    record = await made(ada, cpu="500m", memory="512Mi", labels={"run": "7"}, env={"A": "1"}, lifetime_s=60)
    assert (record["status"], record["ready"], record["cpu"], record["memory"]) == ("ready", True, "500m", "512Mi")
    (order,) = served.runtime.orders
    assert (order.spec.cores, order.spec.memory_bytes, order.env, order.spec.egress.mode) == (0.5, 512 << 20, {"A": "1"}, "none")
    assert order.spec.labels["run"] == "7"
    where = f"/sandboxes/{record['sandbox_id']}"
    assert (await ada("GET", where)).json() == record
    assert (await ada("GET", f"{where}/wait", params={"timeout": "1"})).json() == record
    assert (await ada("POST", f"{where}/heartbeat")).json()["status"] == "ok"
    for existed in (True, False):
        assert (await ada("DELETE", where)).json() == {"status": "deleted", "sandbox_id": record["sandbox_id"], "existed": existed}
    assert served.runtime.present == {}
    gone = await ada("GET", where)
    assert problem(gone) == (410, "sandbox_gone")
    assert gone.json()["reason"] == "deleted"
    assert problem(await ada("POST", f"{where}/heartbeat")) == (410, "sandbox_gone")


async def test_without_wait_the_answer_is_pending(ada: Checked, served: Served) -> None:
    served.runtime.hold = asyncio.Event()
    answer = await ada("POST", "/sandboxes", json={"image": "host"})
    assert answer.json()["status"] == "pending"
    where = f"/sandboxes/{answer.json()['sandbox_id']}"
    assert problem(await ada("GET", f"{where}/wait", params={"timeout": "0.05"})) == (408, "wait_timeout")
    assert problem(await ada("POST", f"{where}/exec", json={"command": "true"})) == (409, "sandbox_not_ready")
    waiting = asyncio.create_task(ada("GET", f"{where}/wait"))
    served.runtime.hold.set()
    assert (await waiting).json()["status"] == "ready"


async def test_a_failed_create_reports_its_cause_now_and_later(ada: Checked) -> None:
    assert problem(await ada("POST", "/sandboxes", json={"image": "unknown-image", "wait": True})) == (404, "image_not_found")
    answer = await ada("POST", "/sandboxes", json={"image": "unknown-image", "sandbox_id": "later"})
    assert answer.status_code == 200
    record = (await ada("GET", "/sandboxes/later/wait")).json()
    assert (record["status"], record["reason"], record["fault"]) == ("failed", "image-not-found", "caller")
    assert record["status_message"]


async def test_a_registry_outage_is_not_reported_as_a_missing_image(ada: Checked, served: Served) -> None:
    body = {"image": "registry/image:1", "sandbox_id": "pulled"}
    served.runtime.refuse = HoldfastError("image_pull_failed", "dial tcp: connection refused", reason="image-pull")
    await ada("POST", "/sandboxes", json=body)
    assert (await ada("GET", "/sandboxes/pulled/wait")).json()["reason"] == "image-pull"
    assert problem(await ada("POST", "/sandboxes", json=body | {"wait": True})) == (502, "image_pull_failed")


@pytest.mark.parametrize(
    ("fault", "answer"),
    [("caller", (404, "image_not_found")), ("infrastructure", (502, "image_pull_failed"))],
)
async def test_a_failed_pull_keeps_its_fault_in_later_answers(ada: Checked, served: Served, fault: Fault, answer: tuple[int, str]) -> None:
    """A cluster reports both as ``image-pull``; only the fault tells them apart."""
    body = {"image": "registry/image:1", "sandbox_id": "pulled", "wait": True}
    served.runtime.refuse = HoldfastError(answer[1], "what the kubelet says", fault=fault, reason="image-pull", retryable=False)
    for _ in range(2):
        refused = await ada("POST", "/sandboxes", json=body)
        found = refused.json()
        assert problem(refused) == answer
        assert (found["fault"], found["reason"], found["retryable"]) == (fault, "image-pull", False)


async def test_a_delete_during_the_creation_wins(ada: Checked, served: Served) -> None:
    served.runtime.hold = asyncio.Event()
    answer = await ada("POST", "/sandboxes", json={"image": "host"})
    where = f"/sandboxes/{answer.json()['sandbox_id']}"
    await ada("DELETE", where)
    served.runtime.hold.set()
    await until_async(lambda: served.runtime.deleted and not served.runtime.present, deadline_s=60, what="the removal")
    assert problem(await ada("GET", where)) == (410, "sandbox_gone")


async def test_a_long_create_is_not_given_up(ada: Checked, served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new node and a large image take many grace periods of the controller, while a gateway works on the creation."""
    monkeypatch.setattr(create, "_TOUCH_S", 0.02)
    served.gateway.background.start(create.renew(served.gateway), "activity")
    served.runtime.hold = asyncio.Event()
    where = f"/sandboxes/{(await ada('POST', '/sandboxes', json={'image': 'host'})).json()['sandbox_id']}"
    term = await served.store.lead("c1", 60)
    assert term is not None
    reconciler = Reconciler(served.store, served.runtime, grace_s=0.4)

    async def given_up() -> bool:
        return bool(await reconciler.run_once(term))

    with pytest.raises(AssertionError, match="waited"):
        await until_async(given_up, deadline_s=3.0, what="seven graces")
    assert (await ada("GET", where)).json()["status"] == "pending"
    for task in served.gateway.background._tasks:
        if task.get_name().startswith("activity"):
            task.cancel()  # as if the gateway that creates it had died
    await until_async(given_up, deadline_s=60, what="the abandoned creation to be given up")
    gone = (await ada("GET", where)).json()
    assert (gone["status"], gone["reason"]) == ("failed", "create-lost")
    served.runtime.hold.set()
    await until_async(lambda: served.runtime.deleted and not served.runtime.present, deadline_s=60, what="the removal")


async def test_a_create_can_be_retried_after_the_runtime_was_down(ada: Checked, served: Served) -> None:
    served.runtime.refuse = RuntimeUnavailableError()
    key = {"Idempotency-Key": "k"}
    answer = await ada("POST", "/sandboxes", json={"image": "host", "wait": True}, headers=key)
    assert problem(answer) == (503, "runtime_unavailable")
    again = await ada("POST", "/sandboxes", json={"image": "host", "wait": True}, headers=key)
    assert again.json()["status"] == "ready"
    assert len(served.runtime.present) == 1


async def test_no_capacity_can_be_retried_with_the_same_key(ada: Checked, served: Served) -> None:
    served.runtime.refuse = HoldfastError("no_capacity", "full")
    key = {"Idempotency-Key": "k"}
    assert problem(await ada("POST", "/sandboxes", json={"image": "host", "wait": True}, headers=key)) == (503, "no_capacity")
    assert (await ada("POST", "/sandboxes", json={"image": "host", "wait": True}, headers=key)).status_code == 200


# Creating once -----------------------------------------------------------------------------------------------------


async def test_one_key_five_times_at_once_gives_one_sandbox(ada: Checked, bob: Checked, served: Served) -> None:
    key = {"Idempotency-Key": "k"}
    body = {"image": "host", "wait": True, "labels": {"a": "b"}}
    answers = await asyncio.gather(*(ada("POST", "/sandboxes", json=body, headers=key) for _ in range(5)))
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.json()["sandbox_id"] for answer in answers}) == 1
    assert len(served.runtime.present) == 1
    other = await ada("POST", "/sandboxes", json={**body, "labels": {"a": "c"}}, headers=key)
    assert problem(other) == (422, "idempotency_conflict")
    assert (await bob("POST", "/sandboxes", json=body, headers=key)).json()["sandbox_id"] != answers[0].json()["sandbox_id"]


async def test_a_chosen_id_belongs_to_its_first_request_of_each_owner(ada: Checked, bob: Checked) -> None:
    await made(ada, sandbox_id="mine")
    await made(ada, sandbox_id="mine")  # the same request again, as a client retries
    assert problem(await ada("POST", "/sandboxes", json={"image": "other", "sandbox_id": "mine"})) == (409, "sandbox_exists")
    assert (await made(bob, sandbox_id="mine"))["sandbox_id"] == "mine"


async def test_a_chosen_id_can_be_used_again(ada: Checked, served: Served) -> None:
    first = await made(ada, sandbox_id="mine")
    leftover = served.runtime.present[id_of_adas("mine")]
    await ada("DELETE", "/sandboxes/mine")
    served.runtime.present[id_of_adas("mine")] = leftover  # the removal had failed
    second = await made(ada, sandbox_id="mine")
    assert second["incarnation"] != first["incarnation"]


async def test_an_ended_sandbox_reports_reason_and_fault(ada: Checked, served: Served) -> None:
    record = await made(ada)
    await served.store.mark_failed(id_of_adas(record["sandbox_id"]), record["incarnation"], Cause("oom", "workload", "killed for memory"))
    body = (await ada("GET", f"/sandboxes/{record['sandbox_id']}")).json()
    assert (body["status"], body["reason"], body["fault"]) == ("failed", "oom", "workload")
    answer = await ada("POST", f"/sandboxes/{record['sandbox_id']}/exec", json={"command": "true"})
    assert problem(answer) == (410, "sandbox_gone")
    assert (answer.json()["reason"], answer.json()["fault"]) == ("oom", "workload")


@pytest.mark.parametrize(("ready_timeout_s", "own_s"), [(3600.0, 3598.0), (20.0, 18.0), (1.0, 0.9)])
def test_a_creation_times_out_before_its_record(ready_timeout_s: float, own_s: float) -> None:
    """Otherwise the record fails first and reports only a timeout where the image could not be pulled."""
    assert create._own_time(ready_timeout_s) == pytest.approx(own_s)


async def test_a_delete_is_answered_before_the_runtime_has_removed_it(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record is deleted by then, so the client does not wait for 40 ms of unmounting."""
    proceed, runtime = asyncio.Event(), served.gateway.runtime
    remove = runtime.delete

    async def slowly(sandbox_id: str, incarnation: str | None = None) -> bool:
        await proceed.wait()
        return await remove(sandbox_id, incarnation)

    async with served.client() as client:
        made = await client.post("/sandboxes", json={"image": "host", "sandbox_id": "sb-1", "wait": True})
        assert made.status_code == 200
        monkeypatch.setattr(runtime, "delete", slowly)
        answer = await client.delete("/sandboxes/sb-1")
        assert answer.json() == {"status": "deleted", "sandbox_id": "sb-1", "existed": True}
        assert (await client.get("/sandboxes/sb-1")).status_code == 410
        assert (await client.delete("/sandboxes/sb-1")).json()["existed"] is False
        assert served.gateway.removals.running
        proceed.set()
        await until_async(lambda: not served.gateway.removals.running, deadline_s=60, what="the removal to end")
        assert [one for one in await runtime.list_all() if one.sandbox_id == "sb-1"] == []


async def test_a_delete_is_tried_again_while_the_runtime_is_away(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the store then lost the tombstone, the sandbox would look alive; only this request has asked for its removal."""
    runtime, tries = served.gateway.runtime, 0
    remove = runtime.delete

    async def away(sandbox_id: str, incarnation: str | None = None) -> bool:
        nonlocal tries
        tries += 1
        if tries <= 2:
            raise RuntimeUnavailableError
        return await remove(sandbox_id, incarnation)

    monkeypatch.setattr(background, "_REMOVAL_PAUSES_S", (0.001, 0.001, 0.001))
    async with served.client() as client:
        assert (await client.post("/sandboxes", json={"image": "host", "sandbox_id": "sb-1", "wait": True})).status_code == 200
        monkeypatch.setattr(runtime, "delete", away)
        assert (await client.delete("/sandboxes/sb-1")).json()["existed"] is True
        await until_async(lambda: tries == 3, deadline_s=60, what="the third try")
        await until_async(lambda: not served.gateway.background.repeated, deadline_s=60, what="the removal to end")
        assert [one for one in await runtime.list_all() if one.sandbox_id == "sb-1"] == []


async def test_a_sandbox_is_recorded_as_ready_once_the_store_is_back(ada: Checked, served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only this replica knows that the runtime has created it."""
    store, tries = served.gateway.store, 0
    mark_ready = store.mark_ready

    async def away(sandbox_id: str, incarnation: str, endpoint: str) -> Entry:
        nonlocal tries
        tries += 1
        if tries <= 2:
            raise PlacementUnavailableError
        return await mark_ready(sandbox_id, incarnation, endpoint)

    monkeypatch.setattr(create, "_RECORD_PAUSE_S", 0.001)
    monkeypatch.setattr(store, "mark_ready", away)
    body = {"image": "host", "sandbox_id": "sb-1", "wait": True}
    assert problem(await ada("POST", "/sandboxes", json=body)) == (503, "placement_unavailable")
    assert (await ada("GET", "/sandboxes/sb-1/wait")).json()["status"] == "ready"
    assert tries == 3
    await until_async(lambda: not served.gateway.background.repeated, deadline_s=60, what="the repetition to end")
