"""Names belong to owners: two owners' sandboxes of one name exist side by side, and no request reaches or shows the other's."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from gateway.faces.table import WEBSOCKET, Face, Row
from gateway.model.names import id_of
from gateway.model.records import Cause, Record
from tests.gateway.checked import Checked
from tests.gateway.event_stream import Stream
from tests.gateway.faces.test_rows import BODIES, CLOSED, UPGRADE, answer_of, filled, name_of, path_of
from tests.gateway.harness import ADA, BOB, Served, serve
from tests.support.redis_server import RedisServer
from tests.support.requires import requires

pytestmark = requires("redis")

OF_SANDBOXES = [pair for pair in CLOSED if "{sandbox_id}" in path_of(*pair) or "{job_id}" in path_of(*pair)]
ENDED = Cause("oom", "workload", "only bob's sandbox ran out of memory")
OF_THE_RECORD = {"/sandboxes/{sandbox_id}", "/sandboxes/{sandbox_id}/wait", "/sandboxes/{sandbox_id}/branch"}
"""Paths that also answer for a failed sandbox, or are refused for another reason before that is looked at."""
PLACES = {"ada": "unix:///nowhere/ada", "bob": "unix:///nowhere/bob"}


async def side_by_side(served: Served, name: str = "sb-1") -> dict[str, Record]:
    """Two ready sandboxes of one name."""
    return {
        owner: await served.place(id_of(owner, name), place, owner, incarnation=owner.encode().hex()) for owner, place in PLACES.items()
    }


async def made(served: Served, key: str, **body: Any) -> httpx.Response:
    async with served.client(key) as client:
        return await client.post("/sandboxes", json={"image": "host", "wait": True, **body})


@pytest.mark.parametrize("pair", OF_SANDBOXES, ids=name_of)
async def test_every_row_reaches_the_callers_own_of_two_with_one_name(served: Served, pair: tuple[Face, Row]) -> None:
    """Bob's has failed with a message of its own, ada's is ready."""
    row = pair[1]
    records = await side_by_side(served)
    await served.store.mark_failed(records["bob"].sandbox_id, records["bob"].incarnation, ENDED)
    status, code, text = await whole_answer(served, pair, BOB)
    if row.method == "DELETE" and path_of(*pair) == "/sandboxes/{sandbox_id}":
        assert status == 200
    elif pair[0].prefix == "/e2b":  # E2B's errors have a number, and know no sandbox that has ended
        assert (status, ENDED.message in text) == ((204, False) if row.method == "DELETE" else (404, True)), text
    elif (row.method, path_of(*pair)) in {("GET", "/sandboxes/{sandbox_id}"), ("GET", "/sandboxes/{sandbox_id}/wait")}:
        assert (status, json.loads(text)["incarnation"]) == (200, records["bob"].incarnation)
    else:
        assert (code, ENDED.message in text) == ("sandbox_gone", True), text
    assert await served.gateway.record("ada", "sb-1") == records["ada"], "nothing of ada's has changed"


async def whole_answer(served: Served, pair: tuple[Face, Row], key: str) -> tuple[int, str, str]:
    face, row = pair
    if row.method == WEBSOCKET:
        status, code = await answer_of(served, pair, key)
        return status, code, ENDED.message
    headers = {"X-API-Key": key} | (UPGRADE if row.upgrades else {})
    async with httpx.AsyncClient(base_url=served.url, headers=headers, trust_env=False, verify=False) as client:
        body = BODIES.get(path_of(*pair)) if row.method in ("POST", "PUT") else None
        answer = await client.request(row.method, filled(face.prefix + row.path), json=body)
    problem = answer.headers.get("content-type") == "application/problem+json"
    if row.method == "HEAD":
        return answer.status_code, "sandbox_gone" if answer.status_code == 410 else "", ENDED.message
    return answer.status_code, answer.json()["code"] if problem else "", answer.text


async def test_two_owners_create_and_delete_one_name(served: Served, ada: Checked, bob: Checked) -> None:
    mine, theirs = await made(served, ADA, sandbox_id="a1"), await made(served, BOB, sandbox_id="a1")
    assert (mine.status_code, theirs.status_code) == (200, 200), theirs.text
    assert mine.json()["sandbox_id"] == theirs.json()["sandbox_id"] == "a1"
    assert mine.headers["location"] == theirs.headers["location"] == "/sandboxes/a1"
    assert set(served.runtime.present) == {id_of("ada", "a1"), id_of("bob", "a1")}
    for client, own in ((ada, mine), (bob, theirs)):
        assert (await client("GET", "/sandboxes/a1")).json()["incarnation"] == own.json()["incarnation"]
        listed = (await client("GET", "/sandboxes")).json()["sandboxes"]
        assert [(one["sandbox_id"], one["incarnation"]) for one in listed] == [("a1", own.json()["incarnation"])]
    assert (await bob("DELETE", "/sandboxes/a1")).status_code == 200
    gone = await bob("GET", "/sandboxes/a1")
    assert (gone.status_code, gone.json()["code"]) == (410, "sandbox_gone")
    assert "'a1'" in gone.json()["detail"]
    assert (await ada("GET", "/sandboxes/a1")).json()["status"] == "ready"
    again = await made(served, BOB, sandbox_id="a1")
    assert again.json()["incarnation"] not in (mine.json()["incarnation"], theirs.json()["incarnation"])


async def test_an_unknown_name_and_anothers_look_alike(served: Served, bob: Checked) -> None:
    await made(served, ADA, sandbox_id="a1")
    answers = [(await bob("GET", f"/sandboxes/{name}")).json() for name in ("a1", "a2", id_of("ada", "a1"), id_of("bob", "a1"))]
    shown = {json.dumps({**one, "detail": re.sub("'.*?'", "NAME", one["detail"]), "instance": ""}, sort_keys=True) for one in answers}
    assert len(shown) == 1, shown
    assert (await made(served, BOB, sandbox_id=id_of("ada", "a1"))).status_code == 200, "ada's id is a free name of bob's"
    async with served.client(ADA) as ada:
        assert (await ada.delete(f"/sandboxes/{id_of('ada', 'a1')}")).status_code == 404, "an id is no second name"
        assert (await ada.get("/sandboxes/a1")).status_code == 200


async def test_events_have_names_and_are_the_owners_own(served: Served) -> None:
    async with served.client(ADA) as client, client.stream("GET", "/events?sandbox=a1") as answer:
        stream = Stream(answer)
        assert (await stream.next()).name == "position"
        await made(served, BOB, sandbox_id="a1")
        own = (await made(served, ADA, sandbox_id="a1")).json()
        event = await stream.next()
        while event.name != "ready":
            assert event.facts["sandbox_id"] == "a1"
            event = await stream.next()
        assert event.facts["created_at"] == own["created_at"]
        async with served.client(BOB) as bob:
            await bob.delete("/sandboxes/a1")
        await client.delete("/sandboxes/a1")
        ended = await stream.next()
        assert (ended.name, ended.facts["sandbox_id"]) == ("deleted", "a1")
        assert ended.facts["time"] >= own["created_at"]


async def test_groups_of_one_name_have_their_owners_sandboxes(served: Served, ada: Checked, bob: Checked) -> None:
    for client in (ada, bob):
        await client("POST", "/groups/run/heartbeat", json={"ttl_s": 60})
    for key in (ADA, BOB):
        assert (await made(served, key, sandbox_id="a1", group="run")).status_code == 200
    await made(served, BOB, sandbox_id="b2", group="run")
    assert (await ada("GET", "/groups/run")).json()["sandboxes"] == ["a1"]
    assert sorted((await bob("GET", "/groups/run")).json()["sandboxes"]) == ["a1", "b2"]
    await bob("DELETE", "/groups/run")
    assert (await ada("GET", "/groups/run")).json()["status"] == "open"


async def test_a_preview_of_one_name_is_two_hosts(redis_url: str, tmp_path: Path) -> None:
    domain = "preview-example.org"
    async with serve(redis_url, tmp_path, more={"preview_domain": domain}) as served, served.client(None) as browser:
        records = await side_by_side(served, "a1")
        links = {}
        for owner, key in (("ada", ADA), ("bob", BOB)):
            async with served.client(key) as client:
                links[owner] = (await client.post("/sandboxes/a1/previews", json={"port": 8000})).json()
        hosts = {owner: urlsplit(link["url"]).hostname for owner, link in links.items()}
        assert hosts == {owner: f"8000-{record.sandbox_id}.{domain}" for owner, record in records.items()}
        statuses = {
            (host, token): (await browser.get("/", headers={"Host": host, "X-Holdfast-Preview": links[token]["token"]})).json()["code"]
            for host in (*hosts.values(), f"8000-a1.{domain}")
            for token in links
        }
        reached = {pair for pair, code in statuses.items() if code == "agent_unreachable"}
        assert reached == {(host, owner) for owner, host in hosts.items()}, statuses
        with_keys = {
            (owner, key): (await browser.get("/", headers={"Host": host, "X-API-Key": key})).json()["code"]
            for owner, host in hosts.items()
            for key in (ADA, BOB)
        }
        assert with_keys == {
            ("ada", ADA): "agent_unreachable",
            ("ada", BOB): "sandbox_not_found",
            ("bob", ADA): "sandbox_not_found",
            ("bob", BOB): "agent_unreachable",
        }


async def test_a_wiped_store_is_rebuilt_with_both(served: Served, redis_server: RedisServer, ada: Checked, bob: Checked) -> None:
    own = {key: (await made(served, key, sandbox_id="a1")).json()["incarnation"] for key in (ADA, BOB)}
    redis_server.flush()
    for present in served.runtime.present.values():
        await served.store.rebuild(present.spec, present.endpoint, present.created_at, term=2)
    await served.store.set_marker("g2", term=2)
    for client, key in ((ada, ADA), (bob, BOB)):
        assert (await client("GET", "/sandboxes/a1")).json()["incarnation"] == own[key]
        assert len((await client("GET", "/sandboxes")).json()["sandboxes"]) == 1


async def test_a_sandbox_of_a_version_before_keeps_its_name(served: Served, ada: Checked, bob: Checked) -> None:
    """Its id was its name."""
    await served.place("old", "unix:///nowhere", "ada")
    assert (await ada("GET", "/sandboxes/old")).json()["sandbox_id"] == "old"
    assert (await bob("GET", "/sandboxes/old")).status_code == 404
    assert (await ada("POST", "/sandboxes/old/heartbeat", json={})).status_code == 200
    assert (await made(served, BOB, sandbox_id="old")).status_code == 200
    assert (await ada("DELETE", "/sandboxes/old")).status_code == 200
    assert (await bob("GET", "/sandboxes/old")).json()["status"] == "ready"


async def test_a_key_with_the_scope_admin_acts_for_another_owner(served: Served) -> None:
    operator = "hf_" + "c" * 32
    keys = served.gateway.settings.keys_file
    line = f"olga {hashlib.sha256(operator.encode()).hexdigest()} scopes=read,create,admin\n"
    keys.write_text(keys.read_text() + line)
    own = {key: (await made(served, key, sandbox_id="a1")).json()["incarnation"] for key in (ADA, BOB)}
    async with served.client(operator) as client:
        found = await client.get("/sandboxes/a1", headers={"X-Holdfast-Owner": "bob"})
        assert found.json()["incarnation"] == own[BOB]
        assert (await client.get("/sandboxes/a1")).status_code == 404
        assert (await client.get("/sandboxes/a1", headers={"X-Holdfast-Owner": "olga"})).status_code == 404
        refused = await client.get("/sandboxes/a1", headers={"X-Holdfast-Owner": "no owner"})
        assert (refused.status_code, refused.json()["code"]) == (422, "invalid_argument")
        no_scope = await client.post("/sandboxes/a1/exec", headers={"X-Holdfast-Owner": "bob"}, json={"command": "true"})
        assert (no_scope.status_code, no_scope.json()["code"]) == (403, "scope_missing"), "it needs the route's own scope too"
        assert (await client.delete("/sandboxes/a1", headers={"X-Holdfast-Owner": "bob"})).status_code == 200
    async with served.client(ADA) as ada:
        refused = await ada.get("/sandboxes/a1", headers={"X-Holdfast-Owner": "bob"})
        assert (refused.status_code, refused.json()["code"]) == (403, "scope_missing"), "whether or not bob has one"
        assert (await ada.get("/sandboxes/a1", headers={"X-Holdfast-Owner": "ada"})).json()["incarnation"] == own[ADA]
