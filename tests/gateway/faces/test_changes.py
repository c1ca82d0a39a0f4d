"""``PATCH /sandboxes/{id}``, entity tags, ``Prefer`` and selectors of labels."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.model.names import id_of
from gateway.model.records import SandboxSpec
from gateway.model.selectors import read_selector, selects
from tests.gateway.checked import Checked, made, problem
from tests.gateway.harness import Served
from tests.support.requires import requires

pytestmark = requires("redis")


async def test_a_change_merges_labels_and_sets_limits(served: Served, ada: Checked, bob: Checked) -> None:
    before = await made(ada, sandbox_id="a1", labels={"run": "7", "old": "x"})
    body = {"labels": {"run": "8", "new": 'q"ü/\\'}, "lifetime_s": 500, "idle_timeout_s": 60, "heartbeat_timeout_s": 30}
    answer = await ada("PATCH", "/sandboxes/a1", json=body | {"labels": body["labels"] | {"old": None}})  # type: ignore[operator]
    assert answer.status_code == 200
    after = answer.json()
    assert after["labels"] == {"run": "8", "new": 'q"ü/\\'}
    assert (after["idle_timeout_s"], after["heartbeat_timeout_s"]) == (60, 30)
    assert after["incarnation"] == before["incarnation"]
    assert after["expires_at"] < before["expires_at"]
    assert (await ada("GET", "/sandboxes/a1")).json() == after
    removed = (await ada("PATCH", "/sandboxes/a1", json={"idle_timeout_s": None, "heartbeat_timeout_s": None})).json()
    assert (removed["idle_timeout_s"], removed["heartbeat_timeout_s"], removed["labels"]) == (None, None, after["labels"])
    longer = (await ada("PATCH", "/sandboxes/a1", json={"extend_s": 100})).json()
    assert longer["expires_at"] == pytest.approx(removed["expires_at"] + 100, abs=0.01)
    emptied = (await ada("PATCH", "/sandboxes/a1", json={"labels": {"run": None, "new": None, "never": None}})).json()
    assert emptied["labels"] == {}
    assert (await ada("PATCH", "/sandboxes/a1", json={"labels": {"b": "1"}})).json()["labels"] == {"b": "1"}
    assert problem(await bob("PATCH", "/sandboxes/a1", json=body)) == (404, "sandbox_not_found")
    assert (await ada("GET", "/sandboxes?label=b=1")).json()["sandboxes"][0]["sandbox_id"] == "a1"


@pytest.mark.parametrize(
    "body",
    [
        {"labels": {"holdfast/x": "1"}},
        {"labels": {"a": 1}},
        {"labels": []},
        {"lifetime_s": 0},
        {"lifetime_s": 1, "extend_s": 1},
        {"idle_timeout_s": -1},
        {"idle_timeout_s": "soon"},
        {"image": "other"},
        {"labels": {f"l{n}": "" for n in range(65)}},
    ],
)
async def test_wrong_changes_change_nothing(served: Served, ada: Checked, body: dict[str, Any]) -> None:
    before = await made(ada, sandbox_id="a1", labels={"x": "1"})
    assert problem(await ada("PATCH", "/sandboxes/a1", json=body)) == (422, "invalid_argument")
    assert (await ada("GET", "/sandboxes/a1")).json() == before


async def test_the_number_of_labels_is_limited_after_the_merge(served: Served, ada: Checked) -> None:
    await made(ada, sandbox_id="a1", labels={f"l{n}": "" for n in range(60)})
    more = {f"m{n}": "" for n in range(5)}
    assert problem(await ada("PATCH", "/sandboxes/a1", json={"labels": more})) == (422, "invalid_argument")
    fewer = await ada("PATCH", "/sandboxes/a1", json={"labels": more | {"l0": None}})
    assert len(fewer.json()["labels"]) == 64


async def test_a_version_protects_a_change_and_saves_an_answer(served: Served, ada: Checked) -> None:
    await made(ada, sandbox_id="a1", idle_timeout_s=100)
    first = await ada.client.get("/sandboxes/a1")
    tag = first.headers["etag"]
    await ada("POST", "/sandboxes/a1/heartbeat", json={})
    same = await ada.client.get("/sandboxes/a1", headers={"If-None-Match": f'"x", W/{tag}'})
    assert (same.status_code, same.content, same.headers["etag"]) == (304, b"", tag), "use is no change"
    done = await ada("PATCH", "/sandboxes/a1", json={"labels": {"n": "1"}}, headers={"If-Match": tag})
    assert done.status_code == 200
    assert done.headers["etag"] != tag
    late = await ada("PATCH", "/sandboxes/a1", json={"labels": {"n": "2"}}, headers={"If-Match": tag})
    assert problem(late) == (412, "precondition_failed")
    assert (await ada("GET", "/sandboxes/a1", headers={"If-None-Match": tag})).json()["labels"] == {"n": "1"}
    listed = await ada.client.get("/sandboxes")
    again = await ada.client.get("/sandboxes", headers={"If-None-Match": listed.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert problem(await ada("PATCH", "/sandboxes/a1", json={}, headers={"If-Match": "nonsense"})) == (422, "invalid_argument")
    weak = await ada("PATCH", "/sandboxes/a1", json={}, headers={"If-Match": "W/" + done.headers["etag"]})
    assert problem(weak) == (412, "precondition_failed"), "a weak tag never matches (RFC 9110 §13.1.1)"


async def test_a_create_waits_as_it_prefers(served: Served, ada: Checked) -> None:
    waited = await ada("POST", "/sandboxes", json={"image": "host"}, headers={"Prefer": "wait=30"})
    assert (waited.json()["ready"], waited.headers["preference-applied"]) == (True, "wait=30")
    at_once = await ada("POST", "/sandboxes", json={"image": "host", "wait": True}, headers={"Prefer": "respond-async, wait=5"})
    assert at_once.headers["preference-applied"] == "respond-async"
    found = await ada("GET", f"/sandboxes/{at_once.json()['sandbox_id']}", headers={"Prefer": "wait"})
    assert (found.json()["ready"], found.headers["preference-applied"]) == (True, "wait")
    ignored = await ada("GET", f"/sandboxes/{at_once.json()['sandbox_id']}", headers={"Prefer": "wait=soon, handling=lenient"})
    assert "preference-applied" not in ignored.headers


async def test_a_wait_that_runs_out_answers_the_state(served: Served, ada: Checked) -> None:
    await served.store.create(SandboxSpec(id_of("ada", "sb-9"), "ada", "i1", "host"), fingerprint="f")
    found = await ada("GET", "/sandboxes/sb-9", headers={"Prefer": "wait=0.2"})
    assert (found.status_code, found.json()["status"]) == (200, "pending")


LABELS = {"a": {"env": "dev", "tier": "1"}, "b": {"env": "prod"}, "c": {"tier": "=2,x"}}


@pytest.mark.parametrize(
    ("selector", "wanted"),
    [
        (["env=dev"], "a"),
        (["env==dev"], "a"),
        (["env!=dev"], "bc"),
        (["env in (dev, prod)"], "ab"),
        (["env notin (dev)"], "bc"),
        (["env"], "ab"),
        (["!env"], "c"),
        (["env", "tier=1"], "a"),
        (["tier===2,x"], "c"),
        (["tier=x"], ""),
        ([], "abc"),
    ],
)
async def test_labels_are_selected_as_in_kubernetes(served: Served, ada: Checked, selector: list[str], wanted: str) -> None:
    assert "".join(name for name, labels in LABELS.items() if selects(read_selector(selector), labels)) == wanted
    for name, labels in LABELS.items():
        await made(ada, sandbox_id=name, labels=labels)
    found = (await ada("GET", "/sandboxes", params=[("label", one) for one in selector])).json()["sandboxes"]
    assert "".join(sorted(one["sandbox_id"] for one in found)) == wanted


@pytest.mark.parametrize(
    "text", ["", "!", "a b", "in (x)", "a in x", "a in (x", "a of (x)", "(x)", "=x", "!a=", "holdfast/pool=x", "a in (x) y"]
)
async def test_what_is_no_requirement_is_refused(served: Served, ada: Checked, text: str) -> None:
    assert problem(await ada("GET", "/sandboxes", params={"label": text})) == (422, "invalid_argument")
