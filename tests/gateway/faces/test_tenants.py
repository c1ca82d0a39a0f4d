"""Projects and stored keys: made, used, rotated and revoked, on several replicas, over an emptied Redis and a restart."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from websockets.exceptions import InvalidStatus

from gateway.identity.keys import Keys, digest_of
from gateway.model.names import id_of
from gateway.placement.store import PlacementStore
from gateway.tenants.copy import TenantCopy
from gateway.tenants.file import TenantFile
from tests.gateway.checked import Checked
from tests.gateway.event_stream import Stream
from tests.gateway.harness import ADA, DEADLINE_S, ScriptedAgent, Served, echo, serve
from tests.support.pace import Stopwatch
from tests.support.requires import requires
from tests.support.until import until_async

pytestmark = requires("redis")

OLGA = "hf_" + "c" * 32
PROMISED_S = 1.0
"""Within this time a revocation takes effect on every replica."""


def with_operator(served: Served) -> Served:
    keys = served.gateway.settings.keys_file
    scopes = "scopes=read,create,exec,files,images,admin"
    keys.write_text(keys.read_text() + f"olga {digest_of(OLGA)} {scopes} id=olgas\n")
    return served


@pytest_asyncio.fixture
async def first(redis_url: str, tmp_path: Path) -> AsyncIterator[Served]:
    """A gateway with an operator's key and a file of projects and keys."""
    async with serve(redis_url, tmp_path, more={"tenants_file": tmp_path / "tenants.json"}) as served:
        yield with_operator(served)


@pytest_asyncio.fixture
async def second(redis_url: str, tmp_path_factory: Any, first: Served) -> AsyncIterator[Served]:
    """Another replica on the same Redis, without a file."""
    async with serve(redis_url, tmp_path_factory.mktemp("second")) as served:
        yield with_operator(served)


@pytest_asyncio.fixture
async def olga(first: Served) -> AsyncIterator[Checked]:
    async with first.client(OLGA) as client:
        yield Checked(client)


async def new_key(olga: Checked, **body: Any) -> dict[str, Any]:
    answer = await olga("POST", "/keys", json={"owner": "ada", **body})
    assert answer.status_code == 201, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def status(served: Served, key: str, path: str = "/sandboxes") -> tuple[int, str]:
    async with served.client(key) as client:
        answer = await client.get(path)
        return answer.status_code, answer.json().get("code", "")


async def test_a_key_is_shown_once_and_stored_as_a_digest(first: Served, olga: Checked, tmp_path: Path) -> None:
    made = await new_key(olga, scopes=["read", "exec"], expires_s=3600, note="for ci")
    key = made.pop("key")
    assert (made["owner"], made["project"], made["scopes"], made["note"], made["valid"]) == ("ada", None, ["read", "exec"], "for ci", True)
    assert made["expires_at"] == pytest.approx(made["created_at"] + 3600)
    assert await status(first, key) == (200, "")
    assert (await olga("GET", f"/keys/{made['key_id']}")).json().items() >= {"created_by": "olga", "key_id": made["key_id"]}.items()
    listed = (await olga("GET", "/keys")).text
    version, entries = await first.store.tenants()
    assert version == 1
    for text in (listed, str(entries), (tmp_path / "tenants.json").read_text()):
        assert key not in text
        assert made["key_id"] in text
    assert (tmp_path / "tenants.json").stat().st_mode & 0o777 == 0o600
    in_file = [one for one in (await olga("GET", "/keys")).json()["keys"] if one["in_file"]]
    assert [one["owner"] for one in in_file] == ["ada", "bob", "olga"]
    refused = await olga("DELETE", "/keys/olgas")
    assert (refused.status_code, "keys file" in refused.json()["hint"]) == (422, True)


async def test_when_a_key_was_used_last_is_known(first: Served, second: Served, olga: Checked) -> None:
    made = await new_key(olga)
    assert (await olga("GET", f"/keys/{made['key_id']}")).json()["used_at"] is None
    assert await status(second, made["key"]) == (200, ""), "at once also at another replica"
    await second.gateway.tenants.note_uses()
    assert (await olga("GET", f"/keys/{made['key_id']}")).json()["used_at"] == pytest.approx(made["created_at"], abs=DEADLINE_S)


async def test_a_revocation_ends_sessions_streams_and_requests_on_every_replica(first: Served, second: Served, olga: Checked) -> None:
    made, other = await new_key(olga), await new_key(olga)
    for key in (made["key"], other["key"]):
        assert await status(second, key) == (200, "")
    async with ScriptedAgent(echo, sandbox_id=id_of("ada", "sb-1")) as agent, second.client(made["key"]) as client:
        await second.place(id_of("ada", "sb-1"), agent.endpoint)
        async with second.attach("sb-1", made["key"]) as session, second.attach("sb-1", other["key"]) as kept:
            async with client.stream("GET", "/events") as events:
                stream = Stream(events)
                assert (await stream.next()).name == "position"
                with Stopwatch() as watch:
                    assert (await olga("DELETE", f"/keys/{made['key_id']}")).json()["valid"] is False
                    assert await status(first, made["key"]) == (403, "key_invalid"), "at once here"
                    async with asyncio.timeout(DEADLINE_S):
                        await session.wait_closed()
                    with pytest.raises(httpx.HTTPError):
                        await stream.next()
                    assert watch.elapsed_s < PROMISED_S
                assert session.close_code == 1001, "a client then attaches again, and gets the reason"
                assert await status(second, made["key"]) == (403, "key_invalid")
                with pytest.raises(InvalidStatus) as refused:
                    async with second.attach("sb-1", made["key"]):
                        pass
                assert refused.value.response.status_code == 403
            await kept.send(b"\x92\x01\x02")
            assert await kept.recv() == b"\x92\x01\x02", "another key's session goes on"
    assert len(second.gateway.tenants.uses) == 0


async def test_what_waits_for_an_answer_ends_with_its_key(first: Served, olga: Checked) -> None:
    made = await new_key(olga)
    first.runtime.hold = asyncio.Event()
    async with first.client(made["key"]) as client:
        waiting = asyncio.create_task(client.post("/sandboxes", json={"image": "host", "wait": True}))
        await until_async(lambda: first.runtime.orders, deadline_s=DEADLINE_S, what="the create")
        await olga("DELETE", f"/keys/{made['key_id']}")
        answer = await waiting
        assert (answer.status_code, answer.json()["code"]) == (403, "key_invalid")
        first.runtime.hold.set()


async def test_a_key_of_the_file_ends_what_it_opened_when_its_line_goes(first: Served) -> None:
    keys = first.gateway.settings.keys_file
    async with first.client(ADA) as client, client.stream("GET", "/events") as events:
        stream = Stream(events)
        assert (await stream.next()).name == "position"
        keys.write_text("\n".join(line for line in keys.read_text().splitlines() if not line.startswith("ada ")))
        with pytest.raises(httpx.HTTPError):
            await stream.next()


async def test_a_rotation_leaves_time_to_change(first: Served, olga: Checked) -> None:
    made = await new_key(olga, scopes=["read"])
    graceful = (await olga("POST", f"/keys/{made['key_id']}/rotate", json={"grace_s": 3600})).json()
    assert graceful["scopes"] == ["read"]
    assert await status(first, made["key"]) == await status(first, graceful["key"]) == (200, "")
    old = (await olga("GET", f"/keys/{made['key_id']}")).json()
    assert (old["replaced_by"], old["expires_at"] is not None) == (graceful["key_id"], True)
    at_once = (await olga("POST", f"/keys/{graceful['key_id']}/rotate")).json()
    assert await status(first, graceful["key"]) == (403, "key_invalid")
    assert await status(first, at_once["key"]) == (200, "")
    again = await olga("POST", f"/keys/{graceful['key_id']}/rotate")
    assert (again.status_code, again.json()["code"]) == (422, "invalid_argument")


async def test_keys_outlive_an_emptied_redis_and_a_restart(first: Served, redis_url: str, tmp_path: Path, olga: Checked) -> None:
    await olga("POST", "/projects", json={"project": "lab", "members": ["ada"]})
    made, revoked = await new_key(olga, project="lab"), await new_key(olga)
    await olga("DELETE", f"/keys/{revoked['key_id']}")
    await first.store._redis.command("FLUSHALL")
    await until_async(lambda: _restored(first), deadline_s=DEADLINE_S, what="the copy to be written to Redis again")
    await first.store._redis.command("FLUSHALL")  # as `holdfast up` does (decision 0003)
    folder = tmp_path / "again"
    folder.mkdir()
    async with serve(redis_url, folder, more={"tenants_file": tmp_path / "tenants.json"}) as later:
        assert await status(later, made["key"]) == (200, "")
        assert await status(later, revoked["key"]) == (403, "key_invalid"), "a revoked key stays revoked"


async def _restored(served: Served) -> bool:
    version, entries = await served.store.tenants()
    return version == served.gateway.tenants.tenants.version and len(entries) == 3


async def test_an_older_file_or_replica_never_brings_back_a_revoked_key(
    first: Served, second: Served, olga: Checked, tmp_path: Path
) -> None:
    made = await new_key(olga)
    older = (tmp_path / "tenants.json").read_bytes()
    await olga("DELETE", f"/keys/{made['key_id']}")
    (tmp_path / "older.json").write_bytes(older)
    version, entries, uses = TenantFile(tmp_path / "older.json").read()
    assert await first.store.restore_tenants(version, entries) is False
    TenantFile(tmp_path / "tenants.json").write(version, entries, uses)
    assert TenantFile(tmp_path / "tenants.json").read()[0] == version + 1
    assert await first.store.change_tenants(version, entries) is False, "a change on an older version is refused"


async def test_a_file_that_cannot_be_read_stops_the_start(tmp_path: Path, store: PlacementStore) -> None:
    (tmp_path / "tenants.json").write_text("{")
    with pytest.raises(ValueError, match=r"tenants\.json cannot be read"):
        TenantCopy(store, Keys(tmp_path / "keys"), TenantFile(tmp_path / "tenants.json"))


async def test_members_and_projects(first: Served, olga: Checked) -> None:
    body = {"project": "lab", "members": ["ada", "bob", "ada"]}
    assert (await olga("POST", "/projects", json=body)).json().items() >= {"members": ["ada", "bob"], "sharing": "none"}.items()
    assert (await olga("POST", "/projects", json=body)).status_code == 409
    stranger = await olga("POST", "/keys", json={"owner": "cyd", "project": "lab"})
    assert (stranger.status_code, "project members lab --add cyd" in stranger.json()["hint"]) == (422, True)
    of_project = await olga("POST", "/keys", json={"owner": "ada", "project": "lab", "scopes": ["admin"]})
    assert (of_project.status_code, of_project.json()["code"]) == (422, "invalid_argument")
    made = await new_key(olga, project="lab")
    async with first.client(made["key"]) as lab, first.client(ADA) as ada:
        for client in (lab, ada):
            answer = await client.post("/sandboxes", json={"image": "host", "sandbox_id": "a1", "wait": True})
            assert answer.status_code == 200, "a name is free in each project"
        assert [one["sandbox_id"] for one in (await lab.get("/sandboxes")).json()["sandboxes"]] == ["a1"]
        refused = await olga("DELETE", "/projects/lab")
        assert (refused.status_code, "--owner ada --project lab" in refused.json()["hint"]) == (409, True)
        assert (await olga("DELETE", "/projects/lab/members/ada")).json()["members"] == ["bob"]
        assert (await lab.get("/sandboxes")).json()["code"] == "key_invalid", "a former member's key"
        await olga("PUT", "/projects/lab/members/ada")
        assert (await lab.delete("/sandboxes/a1")).status_code == 200
        assert (await olga("DELETE", "/projects/lab")).status_code == 200
        assert (await lab.get("/sandboxes")).json()["code"] == "key_invalid"
        await olga("POST", "/projects", json=body)
        assert (await lab.get("/sandboxes")).json()["code"] == "key_invalid", "a project of the same name does not revive its keys"
    for path, method in (("/projects/none", "GET"), ("/projects/none", "DELETE"), ("/keys/none", "GET"), ("/keys/none", "DELETE")):
        assert (await olga(method, path)).status_code == 404


async def test_an_operator_lists_and_ends_everybodys(first: Served, olga: Checked) -> None:
    await olga("POST", "/projects", json={"project": "lab", "members": ["ada"]})
    for n in range(30):
        await first.place(id_of("ada+lab" if n % 2 else "bob", f"s{n}"), "unix:///nowhere", "ada+lab" if n % 2 else "bob")
    found: set[tuple[Any, ...]] = set()
    cursor = ""
    for _ in range(100):
        page = (await olga("GET", "/sandboxes", params={"owners": "all", "limit": 7, "cursor": cursor})).json()
        found |= {(one["owner"], one["project"], one["sandbox_id"]) for one in page["sandboxes"]}
        cursor = page["cursor"]
        if not cursor:
            break
    assert found == {("ada", "lab", f"s{n}") if n % 2 else ("bob", None, f"s{n}") for n in range(30)}
    headers = {"X-Holdfast-Owner": "ada", "X-Holdfast-Project": "lab"}
    assert (await olga("DELETE", "/sandboxes/s1", headers=headers)).json()["existed"] is True
    async with first.client(ADA) as ada:
        assert (await ada.get("/sandboxes", params={"owners": "all"})).json()["code"] == "scope_missing"


async def test_two_operators_change_at_once(first: Served, second: Served, olga: Checked) -> None:
    async with second.client(OLGA) as other:
        answers = await asyncio.gather(
            *[olga("POST", "/keys", json={"owner": "ada", "note": f"{n}"}) for n in range(8)],
            *[other.post("/keys", json={"owner": "bob", "note": f"{n}"}) for n in range(8)],
        )
        assert {answer.status_code for answer in answers} == {201}

    async def all_listed() -> bool:
        return len([one for one in (await olga("GET", "/keys")).json()["keys"] if not one["in_file"]]) == 16

    await until_async(all_listed, deadline_s=DEADLINE_S, what="the keys that were made through the other replica")


async def test_without_redis_known_keys_work_and_unknown_ones_are_not_refused(
    redis_url: str, tmp_path: Path, first: Served, olga: Checked
) -> None:
    made = await new_key(olga)
    first.store._redis._retry_at = float("inf")
    assert await status(first, made["key"], "/resources") == (200, "")
    assert await status(first, "hfk_" + "0" * 43, "/resources") == (503, "placement_unavailable")
    first.store._redis._retry_at = 0.0
