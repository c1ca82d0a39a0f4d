"""Many sandboxes in one request: each has a result of its own, and no item reaches another owner's."""

from __future__ import annotations

import pytest

from gateway.identity.limits import Limits
from gateway.use_cases import limits
from tests.gateway.checked import Checked
from tests.gateway.harness import Served
from tests.support.requires import requires

pytestmark = requires("redis")


async def test_each_item_has_its_own_result(served: Served, ada: Checked, bob: Checked) -> None:
    good = [{"image": "host", "sandbox_id": f"a{n}", "wait": True} for n in range(5)]
    wanted = [*good, {"image": "unknown-image", "wait": True}, {"image": ""}, {"image": "host", "sandbox_id": "NO"}]
    answer = await ada("POST", "/batch/create", json={"sandboxes": wanted})
    results = answer.json()["results"]
    assert [one["status"] for one in results] == [200] * 5 + [404, 422, 422]
    assert [one["sandbox"]["sandbox_id"] for one in results[:5]] == [f"a{n}" for n in range(5)]
    assert [one["problem"]["code"] for one in results[5:]] == ["image_not_found", "invalid_argument", "invalid_argument"]
    others = (await bob("POST", "/batch/delete", json={"sandbox_ids": ["a0", "a1"]})).json()["results"]
    assert [one["problem"]["code"] for one in others] == ["sandbox_not_found"] * 2
    removed = (await ada("POST", "/batch/delete", json={"sandbox_ids": ["a0", "none", "a1"]})).json()["results"]
    assert [(one["status"], one.get("existed")) for one in removed] == [(200, True), (404, None), (200, True)]
    left = (await ada("GET", "/sandboxes")).json()["sandboxes"]
    assert {one["sandbox_id"] for one in left if one["ready"]} == {"a2", "a3", "a4"}


async def test_a_repeated_batch_makes_the_same_sandboxes(served: Served, ada: Checked) -> None:
    body = {"sandboxes": [{"image": "host"} for _ in range(3)]}
    first, again = [(await ada("POST", "/batch/create", json=body, headers={"Idempotency-Key": "k"})).json() for _ in range(2)]
    ids = [one["sandbox"]["sandbox_id"] for one in first["results"]]
    assert len(set(ids)) == 3
    assert [one["sandbox"]["sandbox_id"] for one in again["results"]] == ids


async def test_limits_hold_for_each_item(served: Served, ada: Checked) -> None:
    await limits.put(served.gateway, "owner:ada", Limits(sandboxes=2))
    body = {"sandboxes": [{"image": "host", "wait": True} for _ in range(4)]}
    results = (await ada("POST", "/batch/create", json=body)).json()["results"]
    assert sorted(one["status"] for one in results) == [200, 200, 429, 429]
    assert {one["problem"]["limit"]["subject"] for one in results if "problem" in one} == {"owner:ada"}


@pytest.mark.parametrize("body", [{}, {"sandboxes": []}, {"sandboxes": [1]}, {"sandboxes": [{}] * 101}, {"sandboxes": "x"}])
async def test_what_is_no_batch_is_refused(served: Served, body: dict[str, object]) -> None:
    async with served.client() as client:
        answer = await client.post("/batch/create", json=body)
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_argument")
