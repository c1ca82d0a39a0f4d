"""Every row of every face, with every kind of key: a table that is printed, and in which what is forbidden looks like what does not exist.

The rows are those of the faces themselves, so a new route is in the table at once; ``test_rows`` names its parameters and bodies.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import httpx
import pytest
from holdfast_wire.errors import HoldfastError
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from gateway.faces.table import PUBLIC, WEBSOCKET, Face, Row
from gateway.identity.principal import DEFAULT_SCOPES, Scope
from gateway.identity.tenants import write_key
from gateway.use_cases import keys, projects
from gateway.use_cases.keys import NewKey
from tests.gateway.faces.test_rows import BODIES, OTHERS, ROWS, UNOWNED, UPGRADE, filled, path_of, refusal
from tests.gateway.harness import ADA, Served
from tests.support.requires import requires

pytestmark = requires("redis")

EVERY = frozenset(Scope) - {Scope.ADMIN}


@dataclass(frozen=True)
class Who:
    """A kind of request: its key, and the owner that it names."""

    key: str | None
    owner: str = ""


async def kinds(served: Served, scope: Scope | str) -> dict[str, Who]:
    """A request of each kind to a row that needs this scope. Ada's resources are in the project ``lab``, of which bob is a member too."""
    lacking = EVERY - {scope} or EVERY
    revoked = await made(served, "ada", "lab", EVERY)
    await keys.revoke(served.gateway, revoked[0])
    expired = await made(served, "ada", "lab", EVERY)
    await backdate(served, expired[0])
    return {
        "owner": Who((await made(served, "ada", "lab", EVERY))[1]),
        "owner outside of the project": Who(ADA),
        "other project": Who((await made(served, "ada", "other", EVERY))[1]),
        "member": Who((await made(served, "bob", "lab", EVERY))[1]),
        "member for the owner": Who((await made(served, "bob", "lab", EVERY))[1], owner="ada"),
        "stranger for the owner": Who((await made(served, "cyd", "", DEFAULT_SCOPES))[1], owner="ada"),
        "missing scope": Who((await made(served, "ada", "lab", lacking))[1]),
        "expired": Who(expired[1]),
        "revoked": Who(revoked[1]),
        "unknown": Who("hfk_" + "0" * 43),
        "malformed": Who("hfk_?/%"),
        "no key": Who(None),
    }


async def made(served: Served, owner: str, project: str, scopes: frozenset[Scope]) -> tuple[str, str]:
    """The id and text of a new key."""
    operator = await served.gateway.tenants.principal_of(ADA)
    key, text = await keys.create(served.gateway, operator, NewKey(owner, project, scopes))
    return key.key_id, text


async def backdate(served: Served, key_id: str) -> None:
    """Let a key have expired a minute ago."""
    await served.gateway.tenants.change(
        lambda tenants: {f"key:{key_id}": write_key(replace(tenants.keys[key_id], expires_at=time.time() - 60))}
    )


async def place(served: Served) -> None:
    """Ada's sandbox and group in the project."""
    await served.place("sb-1", "unix:///nowhere", "ada+lab")
    served.runtime.add("sb-1", owner="ada+lab")
    await served.store.group_beat("ada+lab", "g1", 600.0, "")


@pytest.fixture(scope="module")
def table() -> Any:
    """What was answered, by row and kind of request; printed at the end."""
    found: dict[str, dict[str, str]] = {}
    yield found
    print("\n" + "\n".join(f"{row:<52} " + "  ".join(f"{kind}: {code}" for kind, code in cells.items()) for row, cells in found.items()))


async def answered(served: Served, face: Face, row: Row, who: Who) -> tuple[int, str, str]:
    """Status, code and body of the answer; the body of a stream is not read."""
    path = filled(face.prefix + row.path)
    headers = ({"X-API-Key": who.key} if who.key else {}) | ({"X-Holdfast-Owner": who.owner} if who.owner else {})
    if row.method == WEBSOCKET:
        async with connect(f"ws{served.url.removeprefix('http')}{path}", additional_headers=headers, proxy=None) as socket:
            text = ""
            with contextlib.suppress(ConnectionClosed):
                text = str(await socket.recv())
            code = json.loads(text)["message"].partition("[")[2].partition("]")[0] if text else ""
            return 0, code, code
    headers |= UPGRADE if row.upgrades else {}
    async with httpx.AsyncClient(base_url=served.url, headers=headers, trust_env=False, verify=False, timeout=60.0) as client:
        body = BODIES.get(path_of(face, row)) if row.method in ("POST", "PUT", "PATCH") else None
        async with client.stream(row.method, path, json=body) as answer:
            if answer.headers.get("content-type", "").startswith("text/event-stream"):
                return answer.status_code, "stream", ""
            text = (await answer.aread()).decode()
            is_problem = answer.headers.get("content-type") == "application/problem+json"
            return answer.status_code, json.loads(text)["code"] if is_problem else str(answer.status_code), text


REFUSALS = frozenset({"key_missing", "key_invalid", "scope_missing", "sandbox_not_found", "group_not_found"})


async def test_every_row_and_every_kind_of_key(served: Served, table: dict[str, dict[str, str]]) -> None:
    """Refusals first, on a gateway on which only their refusal is possible; then the owner, whom no row refuses."""
    gateway = served.gateway
    await projects.create(gateway, "lab", ["ada", "bob"], "none")
    await projects.create(gateway, "other", ["ada"], "none")
    asked = {scope: await kinds(served, scope) for scope in Scope}
    await place(served)
    wrong: list[str] = []
    counts: Counter[str] = Counter()
    ordered = sorted(ROWS, key=lambda pair: (pair[1].method, path_of(*pair)) in UNOWNED)  # the last make things of their callers' own
    for face, row in ordered:
        path, cells = path_of(face, row), table.setdefault(f"{row.method} {path_of(face, row)}", {})
        for kind, who in asked[Scope.READ if row.scope == PUBLIC else Scope(row.scope)].items():
            if kind == "owner":
                continue
            _, code, _ = await answered(served, face, row, who)
            cells[kind] = code
            counts[kind] += 1
            wanted = wanted_code(face, row, path, kind)
            if wanted is not None and code != wanted:
                wrong.append(f"{row.method} {path}, {kind}: {code}, not {wanted}")
    assert not wrong, "\n".join(wrong)
    assert (await gateway.record("ada+lab", "sb-1")).status == "ready", "nothing of ada's has changed"
    for face, row in ROWS:
        await place_again(served)
        who = asked[Scope.READ if row.scope == PUBLIC else Scope(row.scope)]["owner"]
        _, code, text = await answered(served, face, row, who)
        table[f"{row.method} {path_of(face, row)}"]["owner"] = code
        if row.scope == Scope.ADMIN:
            assert code == "scope_missing", "a key of a project is no operator's"
        elif code in REFUSALS:
            wrong.append(f"{row.method} {path_of(face, row)}, owner: {code} {text[:200]}")
    assert not wrong, "\n".join(wrong)
    assert len(set(counts.values())) == 1, "every kind of key is sent to every row"


async def place_again(served: Served) -> None:
    with contextlib.suppress(HoldfastError):
        await served.gateway.record("ada+lab", "sb-1")
        await served.store.group_beat("ada+lab", "g1", 600.0, "")
        return
    await served.store._redis.command("FLUSHALL")  # the row before has left a tombstone
    await served.store.set_marker("g", term=1)
    await served.gateway.tenants._compare(since=float("inf"))
    await place(served)


def wanted_code(face: Face, row: Row, path: str, kind: str) -> str | None:
    """The code of a refusal; None for what is not refused, or is no problem document."""
    if row.scope == PUBLIC:
        return None
    code = {
        "no key": "key_missing",
        "malformed": "key_invalid",
        "unknown": "key_invalid",
        "expired": "key_invalid",
        "revoked": "key_invalid",
        "missing scope": "scope_missing",
        "member for the owner": "scope_missing",
        "stranger for the owner": "scope_missing",
    }.get(kind)
    if code is None and row.scope == Scope.ADMIN:
        code = "scope_missing"
    if code is None and (row.method, path) not in UNOWNED:
        code = OTHERS.get(path, "sandbox_not_found")
    if code is None:
        return None
    shown = refusal(face, code)[1]
    return shown or str(refusal(face, code)[0])


async def test_what_is_forbidden_looks_like_what_does_not_exist(served: Served) -> None:
    """Answers to bob, byte for byte but for the request's id, while ada has the resource and while nobody has it."""
    gateway = served.gateway
    await projects.create(gateway, "lab", ["ada", "bob"], "none")
    bobs = Who((await made(served, "bob", "lab", EVERY))[1])
    rows = [(face, row) for face, row in ROWS if row.scope not in (PUBLIC, Scope.ADMIN) and (row.method, path_of(face, row)) not in UNOWNED]
    assert len(rows) > 20
    before = [await answered(served, face, row, bobs) for face, row in rows]
    await place(served)
    assert [await answered(served, face, row, bobs) for face, row in rows] == before


@pytest.mark.parametrize(("sharing", "looks", "acts"), [("none", 403, 403), ("read", 200, 403), ("use", 200, 200)])
async def test_a_member_may_do_what_the_project_shares(served: Served, sharing: Any, looks: int, acts: int) -> None:
    gateway = served.gateway
    await projects.create(gateway, "lab", ["ada", "bob"], "none")
    member, outside = (await made(served, "bob", "lab", EVERY))[1], (await made(served, "bob", "", EVERY))[1]
    await place(served)
    await projects.share(gateway, "lab", sharing)
    as_ada = {"X-Holdfast-Owner": "ada"}
    async with served.client(member) as bob, served.client(outside) as other:
        assert (await bob.get("/sandboxes/sb-1")).status_code == 404, "names stay those of their owner"
        assert (await bob.get("/sandboxes/sb-1", headers=as_ada)).status_code == looks
        assert (await bob.post("/sandboxes/sb-1/heartbeat", headers=as_ada, json={})).status_code == acts
        everyone = await bob.get("/sandboxes", params={"owners": "all"})
        assert everyone.status_code == looks
        if looks == 200:
            assert [(one["owner"], one["project"], one["sandbox_id"]) for one in everyone.json()["sandboxes"]] == [("ada", "lab", "sb-1")]
        assert (await bob.get("/sandboxes/sb-1", headers={"X-Holdfast-Owner": "dan"})).status_code == 403, "no member"
        assert (await bob.get("/sandboxes/sb-1", headers=as_ada | {"X-Holdfast-Project": "other"})).status_code == 403
        assert (await other.get("/sandboxes/sb-1", headers=as_ada)).status_code == 403, "a key of no project is no member's"
        in_lab = await other.get("/sandboxes", headers={"X-Holdfast-Project": "lab"})
        assert (in_lab.status_code, in_lab.json()["sandboxes"]) == (200, []), "a key without a project acts in those of its owner"
        assert (await other.get("/sandboxes", headers={"X-Holdfast-Project": "nowhere"})).status_code == 403
