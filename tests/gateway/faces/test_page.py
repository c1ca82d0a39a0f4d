"""The page's face: its files and their policy, signing in and out, and what the cookie of a session permits and to whom."""

from __future__ import annotations

import hashlib
import time
from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio

from gateway.faces.page.sign_in import COOKIES
from gateway.faces.rest import FACE as REST
from gateway.faces.table import PUBLIC
from gateway.identity import page_sessions
from gateway.identity.page_sessions import PageSession
from tests.gateway.faces.test_rows import BODIES, filled
from tests.gateway.harness import ADA, SECRET, Served
from tests.support.requires import requires

pytestmark = requires("redis")

COOKIE = COOKIES[1]


@pytest_asyncio.fixture
async def browser(served: Served) -> AsyncIterator[httpx.AsyncClient]:
    """A client that sends what a browser's page sends, and keeps cookies."""
    headers = {"Origin": served.url, "Sec-Fetch-Site": "same-origin"}
    async with httpx.AsyncClient(base_url=served.url, headers=headers, trust_env=False, verify=False) as client:
        yield client


async def signed_in(browser: httpx.AsyncClient) -> str:
    """Sign in with ada's key; returns the cookie."""
    answer = await browser.post("/ui/session", json={"key": ADA})
    assert answer.status_code == 201, answer.text
    return browser.cookies[COOKIE]


async def test_a_browser_is_sent_to_the_page_and_a_program_is_not(browser: httpx.AsyncClient) -> None:
    page = await browser.get("/", headers={"Accept": "text/html,application/xhtml+xml"})
    assert (page.status_code, page.headers["location"]) == (303, "/ui")
    assert (await browser.get("/", headers={"Accept": "*/*"})).json()["service"] == "holdfast"


async def test_every_file_has_the_policy(browser: httpx.AsyncClient) -> None:
    for path, kind in (
        ("/ui", "text/html"),
        ("/ui/js/main.js", "text/javascript"),
        ("/ui/style.css", "text/css"),
        ("/ui/icon.svg", "image/svg+xml"),
    ):
        answer = await browser.get(path)
        assert (answer.status_code, answer.headers["content-type"]) == (200, f"{kind}; charset=utf-8"), path
        policy = answer.headers["content-security-policy"]
        assert all(part in policy for part in ("default-src 'none'", "script-src 'self'", "frame-ancestors 'none'"))
        assert not any(part in policy for part in ("unsafe", "http", "*"))
        assert (answer.headers["x-content-type-options"], answer.headers["x-frame-options"]) == ("nosniff", "DENY")
        assert (await browser.get(path, headers={"If-None-Match": answer.headers["etag"]})).status_code == 304


@pytest.mark.parametrize(
    "path", ["../rows.py", "..%2frows.py", "js/../../rows.py", "js", "js/", ".gitignore", "none.js", "js/main.js%00", "//etc/passwd"]
)
async def test_nothing_else_is_served(browser: httpx.AsyncClient, path: str) -> None:
    assert (await browser.get(f"/ui/{path}")).status_code in (404, 400), path


async def test_a_key_signs_in_and_the_cookie_is_closed_to_scripts_and_other_sites(browser: httpx.AsyncClient) -> None:
    assert (await browser.get("/ui/session")).status_code == 401
    answer = await browser.post("/ui/session", json={"key": ADA})
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith(f"{COOKIE}=")
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(cookie.split("; "))
    assert "Domain" not in cookie
    assert ADA not in cookie + answer.text
    who = (await browser.get("/ui/session")).json()
    assert (who["owner"], "exec" in who["scopes"]) == ("ada", True)
    assert (await browser.get("/ui/api/sandboxes")).json()["sandboxes"] == []
    assert (await browser.delete("/ui/session")).status_code == 200
    assert (await browser.get("/ui/api/sandboxes")).status_code == 401


async def test_over_tls_the_cookie_belongs_to_this_host_alone(served: Served) -> None:
    trusted = {"Origin": "https://127.0.0.1", "Host": "127.0.0.1", "X-Forwarded-Proto": "https"}
    async with httpx.AsyncClient(base_url=served.url, trust_env=False, verify=False) as client:
        refused = await client.post("/ui/session", json={"key": ADA}, headers=trusted)
    assert refused.json()["code"] == "origin_refused"  # the header counts only from a trusted proxy
    assert COOKIES[0].startswith("__Host-")


@pytest.mark.parametrize(
    "body", [{}, {"key": ""}, {"key": "hf_" + "0" * 32}, {"key": 7}, {"link": "x" * 300}, {"link": "none"}, {"key": "\x00"}]
)
async def test_a_wrong_key_or_link_signs_nobody_in(browser: httpx.AsyncClient, body: dict[str, object]) -> None:
    answer = await browser.post("/ui/session", json=body)
    assert answer.status_code in (403, 422)
    assert "set-cookie" not in answer.headers


async def test_a_link_signs_in_once(browser: httpx.AsyncClient, served: Served) -> None:
    assert (await browser.post("/ui/links")).status_code == 401
    await signed_in(browser)
    assert (await browser.post("/ui/links")).status_code == 401, "a session makes no further links"
    link = (await browser.post("/ui/links", headers={"X-API-Key": ADA})).json()["url"]
    assert link.startswith(f"{served.url}/ui#/sign-in/")
    browser.cookies.clear()
    token = link.rpartition("/")[2]
    assert (await browser.post("/ui/session", json={"link": token})).json()["owner"] == "ada"
    assert (await browser.post("/ui/session", json={"link": token})).json()["code"] == "key_invalid"


async def test_a_wiped_store_ends_links_and_no_sessions(browser: httpx.AsyncClient, served: Served) -> None:
    cookie = await signed_in(browser)
    token = (await browser.post("/ui/links", headers={"X-API-Key": ADA})).json()["url"].rpartition("/")[2]
    await served.store._redis.command("FLUSHALL")
    assert (await browser.post("/ui/session", json={"link": token})).json()["code"] == "key_invalid"
    assert (await browser.get("/ui/session", headers={"Cookie": f"{COOKIE}={cookie}"})).json()["owner"] == "ada"


async def test_a_session_ends_with_its_key(browser: httpx.AsyncClient, served: Served) -> None:
    await signed_in(browser)
    keys = served.gateway.settings.keys_file
    before = keys.read_text()
    keys.write_text("".join(line for line in before.splitlines(keepends=True) if hashlib.sha256(ADA.encode()).hexdigest() not in line))
    assert (await browser.get("/ui/api/sandboxes")).json()["code"] == "key_invalid"
    keys.write_text(before + "\n")
    assert (await browser.get("/ui/api/sandboxes")).status_code == 200


@pytest.mark.parametrize("value", ["", "x", "x.y", "..", "a" * 5000, "W10.00", "é.é"])
async def test_a_forged_cookie_is_none(browser: httpx.AsyncClient, value: str) -> None:
    answer = await browser.get("/ui/api/sandboxes", headers={b"Cookie": f"{COOKIE}={value}".encode()})
    assert answer.status_code == 401


def test_a_session_is_read_only_as_it_was_signed() -> None:
    session = PageSession("d" * 64, "127.0.0.1:8765", int(time.time()) + 60)
    text = page_sessions.sign(SECRET, session)
    assert page_sessions.read(("o" * 64, SECRET), text, session.host, time.time()) == session
    assert page_sessions.read((SECRET,), text, "localhost:8765", time.time()) is None
    assert page_sessions.read((SECRET,), text, session.host, time.time() + 61) is None
    assert page_sessions.read(("o" * 64,), text, session.host, time.time()) is None
    for at in range(len(text)):
        changed = text[:at] + ("A" if text[at] != "A" else "B") + text[at + 1 :]
        assert page_sessions.read((SECRET,), changed, session.host, time.time()) is None


async def test_the_cookie_permits_the_routes_of_the_page_alone(browser: httpx.AsyncClient) -> None:
    await signed_in(browser)
    assert (await browser.get("/sandboxes")).json()["code"] == "key_missing"
    assert (await browser.get("/sandboxes/sb-1/ports/8000/")).json()["code"] == "key_missing"


async def test_pages_of_others_may_do_nothing_with_the_cookie(browser: httpx.AsyncClient, served: Served) -> None:
    """Each row of REST, as a page of another origin, of a sibling host or without an origin requests it."""
    await signed_in(browser)
    await served.place("sb-1", "unix:///nowhere")
    for row in REST.rows:
        if row.scope == PUBLIC:
            continue
        path, acts = f"/ui/api{filled(row.path)}", row.method != "GET"
        body = BODIES.get(row.path, {}) if row.method in ("POST", "PUT") else None
        attempts = [
            {"Origin": "http://evil.example"},
            {"Origin": "null"},
            {"Origin": served.url.replace("http", "https")},
            {"Sec-Fetch-Site": "cross-site"},
            {"Sec-Fetch-Site": "same-site"},
        ]
        for headers in [*attempts, *([{"Origin": ""}] if acts else [])]:
            request = browser.build_request(row.method, path, json=body, headers=headers)
            if headers.get("Origin") == "":
                del request.headers["Origin"]
            answer = await browser.send(request)
            assert (answer.status_code, answer.json()["code"]) == (403, "origin_refused"), (row.method, path, headers)
    assert (await served.gateway.record("ada", "sb-1")).status == "ready"


async def test_another_owners_sandbox_looks_like_none(browser: httpx.AsyncClient, served: Served) -> None:
    await served.place("sb-1", "unix:///nowhere", owner="bob")
    await signed_in(browser)
    assert (await browser.get("/ui/api/sandboxes/sb-1")).json()["code"] == "sandbox_not_found"


async def test_a_session_has_the_scopes_of_its_key(browser: httpx.AsyncClient, served: Served) -> None:
    key = "hf_" + "c" * 32
    keys = served.gateway.settings.keys_file
    keys.write_text(f"{keys.read_text()}ada {hashlib.sha256(key.encode()).hexdigest()} scopes=read id=reader\n")
    answer = await browser.post("/ui/session", json={"key": key})
    assert answer.json()["scopes"] == ["read"]
    assert (await browser.get("/ui/api/sandboxes")).status_code == 200
    assert (await browser.post("/ui/api/sandboxes", json={"image": "host"})).json()["code"] == "scope_missing"


OPERATORS = [
    ("GET", "/keys", None),
    ("POST", "/keys", {"owner": "ada", "scopes": ["admin"]}),
    ("POST", "/keys/key-x/rotate", {}),
    ("DELETE", "/keys/key-x", None),
    ("GET", "/projects", None),
    ("POST", "/projects", {"project": "swe"}),
    ("PUT", "/projects/swe/members/ada", None),
    ("GET", "/limits?subjects=all", None),
    ("PUT", "/limits/owner:ada", {}),
    ("DELETE", "/limits/owner:ada", None),
    ("GET", "/audit", None),
]


@pytest.mark.parametrize(("method", "path", "body"), OPERATORS)
async def test_a_session_without_admin_administers_nothing(
    browser: httpx.AsyncClient, method: str, path: str, body: dict[str, object] | None
) -> None:
    await signed_in(browser)
    answer = await browser.request(method, f"/ui/api{path}", json=body)
    assert (answer.status_code, answer.json()["code"]) == (403, "scope_missing")


async def test_an_operators_session_makes_keys_that_no_cache_keeps(browser: httpx.AsyncClient, served: Served) -> None:
    key = "hf_" + "d" * 32
    keys = served.gateway.settings.keys_file
    keys.write_text(f"{keys.read_text()}olga {hashlib.sha256(key.encode()).hexdigest()} scopes=read,admin id=olgas\n")
    assert (await browser.post("/ui/session", json={"key": key})).status_code == 201
    made = await browser.post("/ui/api/keys", json={"owner": "ada", "scopes": ["read"]})
    assert (made.status_code, made.headers["cache-control"]) == (201, "no-store")
    assert made.json()["created_by"] == "olga"
    listed = await browser.get("/ui/api/keys")
    assert made.json()["key"] not in listed.text
    evil = await browser.post("/ui/api/keys", json={"owner": "ada"}, headers={"Origin": "http://evil.example"})
    assert evil.json()["code"] == "origin_refused"
