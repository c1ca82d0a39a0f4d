"""Every row of every face refuses what it must: no key, a wrong key, a key without its scope, another owner's resource."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio
from holdfast_wire.errors import TABLE, HoldfastError
from starlette.requests import Request
from starlette.responses import Response
from websockets.asyncio.client import connect

from gateway.__main__ import FACES
from gateway.app import Application
from gateway.faces.rest.service import health
from gateway.faces.table import PUBLIC, WEBSOCKET, Face, Row
from gateway.http.responses import problem_response
from gateway.identity.keys import Keys
from gateway.identity.principal import DEFAULT_SCOPES, Scope
from tests.gateway.harness import ADA, BOB, Served
from tests.support.requires import requires

pytestmark = requires("redis")

ROWS = [(face, row) for face in FACES for row in face.rows]
CLOSED = [pair for pair in ROWS if pair[1].scope != PUBLIC]
STRANGER = "hf_" + "0" * 32
UPGRADE = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "A" * 22 + "=="}

PARAMETERS = {"sandbox_id": "sb-1", "job_id": "sb-1.j1", "name": "g1", "port": "8000", "path": "x", "recording_id": f"sb-1.{'1' * 16}"}
PARAMETERS |= {"key_id": "key-1", "project": "p1", "member": "ada", "subject": "owner:ada"}
"""What stands for each parameter of a path or host: ada's resources, so that bob's request is refused for its owner."""
BODIES: dict[str, Any] = {
    "/sandboxes/{sandbox_id}/lifetime": {"lifetime_s": 60},
    "/sandboxes/{sandbox_id}/exec": {"command": "true"},
    "/sandboxes/{sandbox_id}/files": {"path": "/x", "content": ""},
    "/sandboxes/{sandbox_id}/apply_patch": {"patch": "x"},
    "/groups/{name}/heartbeat": {"ttl_s": 60},
    "/sandboxes/{sandbox_id}/previews": {"port": 8000},
    "/keys": {"owner": "ada"},
    "/sandboxes/{sandbox_id}/files/links": {"path": "/x"},
    "/projects": {"project": "p1"},
    "/projects/{project}": {"sharing": "none"},
    "/e2b/sandboxes/{sandbox_id}/timeout": {"timeout": 60},
    "/limits/{subject}": {"sandboxes": 1},
}
OTHERS = {
    "/groups/{name}": "group_not_found",
    "/recordings/{recording_id}": "not_found",
    "/recordings/{recording_id}/lines": "not_found",
    "/jobs/{job_id}": "command_not_found",
    "/jobs/{job_id}/wait": "command_not_found",
}
"""Codes of another owner's resource, where it is no sandbox."""
UNOWNED = {
    ("POST", "/sandboxes"): "names are per owner: it creates the caller's own sandbox",
    ("GET", "/sandboxes"): "lists the caller's own",
    ("POST", "/groups/{name}/heartbeat"): "names are per owner: it begins the caller's own group",
    ("GET", "/images"): "lists the caller's own and shared ones",
    ("POST", "/images"): "imports one for the caller",
    ("POST", "/images/pull"): "pulls one for the caller",
    ("POST", "/images/tag"): "the runtime decides: tests of images",
    ("GET", "/images/config"): "the runtime decides: tests of images",
    ("GET", "/images/archive"): "the runtime decides: tests of images",
    ("DELETE", "/images/{name:path}"): "the runtime decides: tests of images",
    ("GET", "/events"): "streams the caller's own",
    ("GET", "/recordings"): "lists the caller's own",
    **{(row.method, row.path): "is an operator's" for face in FACES for row in face.rows if row.scope == Scope.ADMIN},
    ("GET", "/resources"): "is about the service",
    ("POST", "/e2b/v2/sandboxes"): "creates the caller's own sandbox",
    ("GET", "/e2b/snapshots"): "lists the caller's own",
    ("DELETE", "/e2b/templates/{name:path}"): "the runtime decides: tests of images",
    ("POST", "/e2b/sandboxes"): "creates the caller's own sandbox",
    ("GET", "/e2b/v2/sandboxes"): "lists the caller's own",
    ("GET", "/limits"): "is about the caller",
    ("POST", "/batch/create"): "creates the caller's own",
    ("POST", "/batch/delete"): "deletes the caller's own, and answers for each of them alone: test_batches",
    ("GET", "/doctor"): "is about the service",
    ("GET", "/debug"): "is about the service",
}
"""Rows whose path names no resource of an owner, and what they do instead."""


def name_of(pair: tuple[Face, Row]) -> str:
    return f"{pair[1].method} {path_of(*pair)}"


def key_with(scope: str) -> str:
    return "hf_" + hashlib.sha256(scope.encode()).hexdigest()[:32]


@pytest_asyncio.fixture
async def keyed(served: Served) -> AsyncIterator[Served]:
    """A gateway with a key of ada for each set of scopes that lacks one, and ada's sandbox and group."""
    keys = served.gateway.settings.keys_file
    lines = [keys.read_text()]
    for lacking in Scope:
        scopes = ",".join(scope for scope in Scope if scope is not lacking)
        lines.append(f"ada {hashlib.sha256(key_with(lacking).encode()).hexdigest()} scopes={scopes} id=without-{lacking}\n")
    keys.write_text("".join(lines))
    await served.place("sb-1", "unix:///nowhere")
    await served.store.group_beat("ada", "g1", 600.0, "")
    yield served


def path_of(face: Face, row: Row) -> str:
    """The path of a row below its face's host and prefix."""
    return f"{face.host}{face.prefix}{row.path}"


def filled(path: str) -> str:
    """A path or host with the value of each parameter."""
    missing = set(re.findall(r"{(\w+)", path)) - PARAMETERS.keys()
    assert not missing, (
        f"add {missing} to PARAMETERS, with a resource of ada: bob is refused what does not exist, whether or not owners are compared"
    )
    return re.sub(r"{(\w+)(:path)?}", lambda found: PARAMETERS[found[1]], path)


async def answer_of(served: Served, pair: tuple[Face, Row], key: str | None) -> tuple[int, str]:
    """The status and code of the answer to a request to the row; of a WEBSOCKET row the code of the error before it closes.

    The code is empty where the face's refusals are no problem documents.
    """
    face, row = pair
    path = filled(face.prefix + row.path)
    headers = {"X-API-Key": key} if key else {}
    if row.method == WEBSOCKET:
        async with connect(f"ws{served.url.removeprefix('http')}{path}", additional_headers=headers, proxy=None) as socket:
            code = json.loads(await socket.recv())["message"].partition("[")[2].partition("]")[0]
            await socket.wait_closed()
            assert socket.close_code == TABLE[code].close_code
            return TABLE[code].status, code
    headers |= {"Host": filled(face.host)} if face.host else {}
    headers |= UPGRADE if row.upgrades else {}
    async with httpx.AsyncClient(base_url=served.url, headers=headers, trust_env=False, verify=False) as client:
        answer = await client.request(row.method, path, json=BODIES.get(path_of(*pair)) if row.method in ("POST", "PUT", "PATCH") else None)
    is_problem = answer.headers.get("content-type") == "application/problem+json"
    return answer.status_code, answer.json()["code"] if is_problem else ""


def refusal(face: Face, code: str) -> tuple[int, str]:
    """What ``answer_of`` returns for an error, in the form of its face."""
    status = face.refuse(HoldfastError(code, "")).status_code
    return status, code if face.refuse is problem_response else ""


async def test_each_row_with_a_scope_refuses_other_requests(keyed: Served) -> None:
    """One gateway for all rows: none of these requests changes anything."""
    wrong = {}
    for pair in CLOSED:
        face, row = pair
        path = path_of(face, row)
        wanted = {None: "key_missing", STRANGER: "key_invalid", key_with(row.scope): "scope_missing"}
        if (row.method, path) not in UNOWNED:
            wanted[BOB] = OTHERS.get(path, "sandbox_not_found")
        for key, code in wanted.items():
            answer = await answer_of(keyed, pair, key)
            if answer != refusal(face, code):
                wrong[name_of(pair), code] = answer
    assert not wrong
    assert (await keyed.store.group("bob", "g1")) is None
    assert (await keyed.gateway.record("ada", "sb-1")).status == "ready"


async def test_the_public_rows_need_no_key(keyed: Served) -> None:
    public = [pair for pair in ROWS if pair[1].scope == PUBLIC]
    assert public
    assert {name_of(pair): await answer_of(keyed, pair, None) for pair in public} == dict.fromkeys(map(name_of, public), (200, ""))


async def test_the_other_rows_of_the_owner_show_nothing_of_another(keyed: Served) -> None:
    async with keyed.client(BOB) as bob, keyed.client(ADA) as ada:
        assert (await bob.get("/sandboxes")).json()["sandboxes"] == []
        assert [one["sandbox_id"] for one in (await ada.get("/sandboxes")).json()["sandboxes"]] == ["sb-1"]
        before = (await ada.get("/sandboxes/sb-1")).json()
        own = await bob.post("/sandboxes", json={"image": "host", "sandbox_id": "sb-1", "wait": True})
        assert (own.status_code, own.json()["sandbox_id"]) == (200, "sb-1")
        assert own.json()["incarnation"] != before["incarnation"]
        assert (await ada.get("/sandboxes/sb-1")).json() == before
        await bob.post("/groups/g1/heartbeat", json={"ttl_s": 60})
        assert (await bob.delete("/groups/g1")).status_code == 200
        assert (await ada.get("/groups/g1")).json()["status"] == "open"


def test_every_exception_names_a_row() -> None:
    rows = {(row.method, path_of(face, row)) for face, row in ROWS}
    assert UNOWNED.keys() <= rows
    assert {path for _, path in rows} >= OTHERS.keys() | BODIES.keys()


def test_a_path_has_a_value_for_each_parameter() -> None:
    assert filled("/x/{sandbox_id}/{name:path}") == "/x/sb-1/g1"
    with pytest.raises(AssertionError, match=r"no_such_name.* to PARAMETERS"):
        filled("/x/{no_such_name}")


@pytest.mark.parametrize("scope", [None, "", "everything", "read"])
def test_a_row_without_a_scope_cannot_be_made(scope: Any) -> None:
    with pytest.raises(ValueError, match="needs a scope"):
        Row("GET", "/secrets", scope, health)
    with pytest.raises(TypeError):
        Row("GET", "/secrets", handler=health)  # type: ignore[call-arg]


async def test_two_rows_of_one_method_and_path_are_refused(served: Served) -> None:
    row = Row("GET", "/x", Scope.READ, health)
    with pytest.raises(ValueError, match="two rows GET /x"):
        Application(served.gateway, [Face("twice", (row, row))])


async def test_a_face_has_its_host_its_prefix_and_its_refusals(served: Served) -> None:
    """And every response passes through ASGI, so that middleware around a face sees it."""

    async def hello(request: Request) -> Response:
        return Response(f"hello {request.path_params}")

    def refuse(error: Any) -> Response:
        return Response(f"no: {error.code}", 418)

    rows = (Row("GET", "/hello/{who}", PUBLIC, hello), Row("GET", "/secret", Scope.ADMIN, hello))
    faces = [*FACES, Face("hosted", rows, host="{box}.example.org", refuse=refuse), Face("prefixed", rows, prefix="/api", refuse=refuse)]
    seen: list[int] = []
    application = Application(served.gateway, faces)

    async def watched(scope: Any, receive: Any, send: Any) -> None:
        async def observed(message: Any) -> None:
            if message["type"] == "http.response.start":
                seen.append(message["status"])
            await send(message)

        await application(scope, receive, observed)

    async with httpx.AsyncClient(transport=httpx.ASGITransport(watched), base_url="http://b1.example.org") as hosted:
        assert (await hosted.get("/hello/you")).text == "hello {'box': 'b1', 'who': 'you'}"
        assert (await hosted.get("/secret")).text == "no: key_missing"
        assert (await hosted.get("/secret", headers={"X-API-Key": ADA})).text == "no: scope_missing", "admin is in no key by default"
        assert (await hosted.get("/sandboxes")).text == "no: not_found", "a host has only the rows of its face"
        posted = await hosted.post("/hello/you")
        assert (posted.text, posted.headers["allow"]) == ("no: method_not_allowed", "GET, HEAD")
    async with httpx.AsyncClient(transport=httpx.ASGITransport(watched), base_url="http://gateway") as plain:
        assert (await plain.get("/api/hello/me")).text == "hello {'who': 'me'}"
        assert (await plain.get("/api/sandboxes")).text == "no: not_found"
        assert (await plain.get("/hello/me")).json()["code"] == "not_found"
        assert (await plain.get("/healthz")).status_code == 200
        assert (await plain.get("/healthz%0A")).status_code == 404
    assert seen == [200, 418, 418, 418, 418, 200, 418, 404, 200, 404]


async def test_scopes_and_ids_are_columns_of_the_keys_file(tmp_path: Any) -> None:
    def line(key: str, columns: str) -> str:
        return f"ada {hashlib.sha256(key.encode()).hexdigest()} {columns}\n"

    columns = {"a": "", "b": "scopes=read,exec id=ci  # a comment", "c": "scopes=read,fly", "d": "limit=3", "e": "scopes="}
    columns |= {"f": "project=lab expires=2999-01-01", "g": "expires=2020-01-01T12:00", "h": "expires=soon", "i": "project=Lab"}
    path = tmp_path / "keys"
    path.write_text("".join(line(key, text) for key, text in columns.items()))
    keys = Keys(path)
    plain, limited = await keys.principal_of("a"), await keys.principal_of("b")
    assert (plain.scopes, plain.key_id) == (DEFAULT_SCOPES, hashlib.sha256(b"a").hexdigest()[:12])
    assert (limited.owner, limited.scopes, limited.key_id) == ("ada", frozenset((Scope.READ, Scope.EXEC)), "ci")
    in_project = await keys.principal_of("f")
    assert (in_project.owner, in_project.member, in_project.project) == ("ada+lab", "ada", "lab")
    for key in "cdeghi":
        with pytest.raises(Exception, match="key_invalid"):
            await keys.principal_of(key)


def test_every_scope_is_documented() -> None:
    assert {scope.value for scope in Scope} == {"read", "create", "exec", "files", "images", "admin"}
    assert not [row for _, row in ROWS if not re.fullmatch(r"(/[A-Za-z0-9_.]*|/\{\w+(:path)?\})+", row.path)]
