"""Signed links and tokens: they permit what their key may do at the moment for the owner of their sandbox, and nothing elsewhere."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import pytest_asyncio
from holdfast_wire.frames import Started

from gateway.identity.keys import digest_of
from gateway.model.names import id_of
from gateway.use_cases.accounts import Accounts
from tests.gateway.event_stream import Stream
from tests.gateway.faces.test_e2b import STREAM, enveloped
from tests.gateway.faces.test_tenants import OLGA, with_operator
from tests.gateway.harness import ADA, DEADLINE_S, ScriptedAgent, Served, echo, serve, silent
from tests.support.requires import requires
from tests.support.until import until_async

pytestmark = requires("redis")

REFUSED = (401, 403)


@pytest_asyncio.fixture
async def lab(redis_url: str, tmp_path: Path) -> AsyncIterator[Served]:
    """A gateway with the project lab of ada and bob, and an audit log."""
    async with serve(redis_url, tmp_path, more={"audit": str(tmp_path / "audit.jsonl")}) as served:
        with_operator(served)
        async with served.client(OLGA) as olga:
            assert (await olga.post("/projects", json={"project": "lab", "members": ["ada", "bob"]})).status_code == 201
        yield served


async def share(served: Served, sharing: str) -> None:
    async with served.client(OLGA) as olga:
        assert (await olga.patch("/projects/lab", json={"sharing": sharing})).status_code == 200


async def key_of(served: Served, owner: str, **more: Any) -> dict[str, Any]:
    async with served.client(OLGA) as olga:
        found: dict[str, Any] = (await olga.post("/keys", json={"owner": owner, "project": "lab", **more})).json()
        return found


def token_headers(body: dict[str, Any]) -> dict[str, str]:
    return {"E2b-Sandbox-Id": body["sandboxID"], "X-Access-Token": body["envdAccessToken"], "Content-Type": "application/json"}


async def test_a_member_who_may_look_gets_no_token_to_act(lab: Served) -> None:
    await share(lab, "read")
    key = (await key_of(lab, "ada"))["key"]
    await lab.place(id_of("bob+lab", "b1"), "unix:///nowhere", "bob+lab")
    async with lab.client(None) as client:
        body = (await client.get("/e2b/sandboxes/b1", headers={"X-API-Key": key, "X-Holdfast-Owner": "bob"})).json()
        who = token_headers(body)
        assert (await client.get("/e2b/health", headers=who)).status_code == 204
        for path in ("process.Process/List", "filesystem.Filesystem/Stat"):
            answer = await client.post(f"/e2b/{path}", content=b"{}", headers=who)
            assert answer.status_code in REFUSED, path


async def test_links_end_when_the_key_may_not_act_there_any_more(lab: Served) -> None:
    await share(lab, "use")
    key = (await key_of(lab, "ada"))["key"]
    await lab.place(id_of("bob+lab", "b1"), "unix:///nowhere", "bob+lab")
    as_bob = {"X-API-Key": key, "X-Holdfast-Owner": "bob"}
    async with lab.client(None) as client:
        file = urlsplit((await client.post("/sandboxes/b1/files/links", json={"path": "/a"}, headers=as_bob)).json()["url"])
        preview = (await client.post("/sandboxes/b1/previews", json={"port": 8000}, headers=as_bob)).json()["token"]
        who = token_headers((await client.get("/e2b/sandboxes/b1", headers=as_bob)).json())

        async def codes() -> list[str]:
            answers = [
                await client.get(f"{file.path}?{file.query}"),
                await client.get("/sandboxes/b1/ports/8000/", headers={"X-Holdfast-Preview": preview}),
                await client.post("/e2b/process.Process/List", content=b"{}", headers=who),
            ]
            return [answer.json()["code"] for answer in answers]

        assert await codes() == ["agent_unreachable", "agent_unreachable", "unavailable"]
        await share(lab, "none")
        assert await codes() == ["key_invalid", "key_invalid", 401]
        await share(lab, "use")
        async with lab.client(OLGA) as olga:
            await olga.delete("/projects/lab/members/bob")
        assert await codes() == ["key_invalid", "key_invalid", 401]


async def test_what_is_open_with_a_link_ends_with_its_permission(lab: Served) -> None:
    await share(lab, "use")
    key = (await key_of(lab, "ada"))["key"]
    as_bob = {"X-API-Key": key, "X-Holdfast-Owner": "bob"}
    async with ScriptedAgent(silent, sandbox_id=id_of("bob+lab", "b1")) as agent, lab.client(None) as client:
        await lab.place(id_of("bob+lab", "b1"), agent.endpoint, "bob+lab")
        file = urlsplit((await client.post("/sandboxes/b1/files/links", json={"path": "/a"}, headers=as_bob)).json()["url"])
        waiting = asyncio.create_task(client.get(f"{file.path}?{file.query}"))
        await until_async(lambda: agent.connections, deadline_s=DEADLINE_S, what="the request at the agent")
        await share(lab, "none")
        async with asyncio.timeout(5):
            assert (await waiting).json()["code"] == "key_invalid"


@pytest.mark.parametrize(("query", "ends"), [("", False), ("?activity=true", True)])
async def test_a_stream_of_activity_ends_with_the_scope_that_it_needs(lab: Served, query: str, ends: bool) -> None:
    async with lab.client(ADA) as ada, ada.stream("GET", f"/events{query}") as events:
        stream = Stream(events)
        assert (await stream.next()).name == "position"
        keys = lab.gateway.settings.keys_file
        line = f"ada {digest_of(ADA)}"
        assert line in keys.read_text()
        keys.write_text(keys.read_text().replace(line, f"{line} scopes=read"))
        if ends:
            async with asyncio.timeout(5):
                with pytest.raises(httpx.HTTPError):
                    await stream.next()
        else:
            await asyncio.sleep(1.5)
            assert len(lab.gateway.tenants.uses) == 1


async def test_a_stream_of_e2b_ends_with_its_key(lab: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    async def begun(*_: Any) -> AsyncIterator[Any]:
        yield Started(0, "c1", {"pid": 7})
        await asyncio.sleep(DEADLINE_S)

    async def users(*_: Any) -> Accounts:
        return Accounts()

    monkeypatch.setattr("gateway.use_cases.streams.begun", begun)
    monkeypatch.setattr("gateway.use_cases.accounts.users", users)
    made = await key_of(lab, "ada")
    await lab.place(id_of("ada+lab", "a1"), "unix:///nowhere", "ada+lab")
    async with lab.client(made["key"]) as ada, lab.client(None) as client, lab.client(OLGA) as olga:
        who = token_headers((await ada.get("/e2b/sandboxes/a1")).json()) | STREAM
        message = enveloped(b'{"process": {"cmd": "sleep"}}')
        async with client.stream("POST", "/e2b/process.Process/Start", content=message, headers=who) as answer:
            pieces = answer.aiter_bytes()
            assert b'"pid":7' in await anext(pieces)
            await olga.delete(f"/keys/{made['key_id']}")
            async with asyncio.timeout(5):
                with pytest.raises(httpx.HTTPError):
                    await anext(pieces)


async def test_a_link_opens_no_sandbox_of_the_same_name_in_a_project(lab: Served) -> None:
    async with (
        ScriptedAgent(echo, sandbox_id=id_of("ada+lab", "web")) as agent,
        lab.client(ADA) as ada,
        lab.client(None) as client,
    ):
        await lab.place(id_of("ada", "web"), "unix:///nowhere")
        await lab.place(id_of("ada+lab", "web"), agent.endpoint, "ada+lab")
        file = urlsplit((await ada.post("/sandboxes/web/files/links", json={"path": "/a"})).json()["url"])
        preview = (await ada.post("/sandboxes/web/previews", json={"port": 8000})).json()["token"]
        elsewhere = {"X-Holdfast-Project": "lab"}
        answers = [
            await client.get(f"{file.path}?{file.query}", headers=elsewhere),
            await client.get("/sandboxes/web/ports/8000/", headers={"X-Holdfast-Preview": preview, **elsewhere}),
        ]
        assert [answer.json()["code"] for answer in answers] == ["key_invalid", "key_invalid"]
        assert not agent.connections


async def test_the_key_of_a_link_is_counted_and_recorded(lab: Served) -> None:
    made = await key_of(lab, "ada")
    await lab.place(id_of("ada+lab", "a1"), "unix:///nowhere", "ada+lab")
    async with lab.client(OLGA) as olga:
        await olga.put(f"/limits/key:{made['key_id']}", json={"requests_per_minute": 12})
    async with lab.client(made["key"]) as ada, lab.client(None) as client:
        who = token_headers((await ada.get("/e2b/sandboxes/a1")).json())
        answers = [await client.post("/e2b/process.Process/List", content=b"{}", headers=who) for _ in range(6)]
    assert 429 in [answer.status_code for answer in answers]
    await lab.gateway.audit.flush()
    entries = [json.loads(line) for line in Path(lab.gateway.settings.audit).read_text().splitlines()]
    found = [one for one in entries if one["action"].endswith("/process.Process/List")]
    assert {(one["owner"], one["project"], one["key_id"], one["sandbox"]) for one in found if one["event"] == "request"} == {
        ("ada", "lab", made["key_id"], "a1")
    }
