"""Who may use a sandbox through E2B's API, and the form of its refusals. What works is tested with the SDKs (tests/e2b)."""

from __future__ import annotations

import gzip
import hashlib
import struct
from typing import Any

import httpx
import pytest
from holdfast_wire.errors import HoldfastError
from starlette.requests import Request

from gateway.faces.e2b import processes, transfers
from gateway.model.names import id_of
from tests.gateway.harness import ADA, BOB, Served
from tests.support.requires import requires

pytestmark = requires("redis")

JSON, STREAM = {"Content-Type": "application/json"}, {"Content-Type": "application/connect+json"}


ONE = len(gzip.compress(b"a" * 10))


def enveloped(body: bytes, flags: int = 0) -> bytes:
    return struct.pack(">BI", flags, len(body)) + body


async def made(client: httpx.AsyncClient) -> dict[str, Any]:
    answer = await client.post("/e2b/v2/sandboxes", json={"templateID": "host", "timeout": 60}, headers={"X-API-Key": ADA})
    assert answer.status_code == 201, answer.text
    body: dict[str, Any] = answer.json()
    return body


async def test_a_token_opens_its_sandbox_alone_and_ends_with_its_key(served: Served) -> None:
    async with httpx.AsyncClient(base_url=served.url, trust_env=False) as client:
        one, two = await made(client), await made(client)

        async def health(sandbox_id: str, **headers: str) -> int:
            sent = {name.replace("_", "-"): value for name, value in headers.items()}
            return (await client.get("/e2b/health", headers={"E2b-Sandbox-Id": sandbox_id, **sent})).status_code

        token = one["envdAccessToken"]
        assert await health(one["sandboxID"], X_Access_Token=token) == 204
        assert await health(two["sandboxID"], X_Access_Token=token) == 401
        assert await health(one["sandboxID"], X_Access_Token=token[:-1] + "x") == 401
        assert await health(one["sandboxID"]) == 401
        assert await health(one["sandboxID"], X_API_Key=BOB) == 502, "as a sandbox that does not exist"
        assert await health(id_of("ada", "none"), X_Access_Token=token) == 502
        listed = await client.get("/e2b/v2/sandboxes", headers={"X-Access-Token": token})
        assert (listed.status_code, listed.json()["code"]) == (401, 401), "a token is no key"
        keys = served.gateway.settings.keys_file
        text = keys.read_text()
        digest = hashlib.sha256(ADA.encode()).hexdigest()
        keys.write_text("".join(line for line in text.splitlines(keepends=True) if digest not in line))
        assert await health(one["sandboxID"], X_Access_Token=token) == 401, "its key was removed"
        keys.write_text(text.replace(digest, f"{digest} scopes=files"))
        assert await health(one["sandboxID"], X_Access_Token=token) == 403, "its key lost the scope read"


async def test_nobody_else_learns_that_a_sandbox_exists(served: Served) -> None:
    async with httpx.AsyncClient(base_url=served.url, trust_env=False) as client:
        await served.place(id_of("ada", "web"), "unix:///nowhere")
        bobs = await served.place(id_of("bob", "b1"), "unix:///nowhere", "bob")
        body = (await client.get(f"/e2b/sandboxes/{bobs.sandbox_id}", headers={"X-API-Key": BOB})).json()
        unsigned = f"hfs_{'0' * 64}_{'0' * 40}"
        for who in ({"X-Access-Token": "x"}, {"X-Access-Token": unsigned}, {"X-Access-Token": body["envdAccessToken"]}, {"X-API-Key": BOB}):
            answers = [await client.get("/e2b/health", headers={"E2b-Sandbox-Id": id_of("ada", name), **who}) for name in ("web", "none")]
            assert answers[0].status_code == answers[1].status_code
            assert answers[0].text.replace("web", "") == answers[1].text.replace("none", "")
        signed = {"path": "/a", "signature": "v1_" + "A" * 43}
        answers = [
            await client.get("/e2b/files", params=signed, headers={"E2b-Sandbox-Id": id_of("ada", name)}) for name in ("web", "none")
        ]
        assert (answers[0].status_code, answers[0].text) == (answers[1].status_code, answers[1].text)


@pytest.mark.parametrize("text", ["0", "x", "1" * 20, "0" * 19 + "1" + "9" * 400])
async def test_a_time_that_cannot_be_one_is_refused(served: Served, text: str) -> None:
    request = Request({"type": "http", "headers": [(b"connect-timeout-ms", text.encode())]})
    with pytest.raises(HoldfastError, match="number of milliseconds"):
        processes._timeout_s(request)


async def test_refusals_of_procedures_have_the_form_of_connect(served: Served) -> None:
    async with httpx.AsyncClient(base_url=served.url, trust_env=False) as client:
        one = await made(client)
        who = {"E2b-Sandbox-Id": one["sandboxID"], "X-Access-Token": one["envdAccessToken"]}

        async def ask(path: str, content: bytes, headers: dict[str, str]) -> httpx.Response:
            return await client.post(f"/e2b/{path}", content=content, headers={**who, **headers})

        for content, headers in ((b"{}", STREAM), (b"[]", JSON), (b"{", JSON)):
            answer = await ask("process.Process/List", content, headers)
            assert answer.json()["code"] in ("unimplemented", "invalid_argument")
        for content in (b"", b"{}", enveloped(b"{}")[:-1], enveloped(b"{}", 1), enveloped(b"[]"), enveloped(b"{}") * 2):
            answer = await ask("process.Process/Start", content, STREAM)
            assert answer.status_code == 200
            assert answer.content[0] == 2, "one envelope, which ends the stream"
            assert b'"error"' in answer.content


@pytest.mark.parametrize("cuts", [[], [ONE], [ONE - 3], [ONE + 3], [ONE, ONE], [5, ONE, ONE + 5]])
async def test_a_compressed_body_is_read_to_its_end_however_it_is_cut(cuts: list[int]) -> None:
    whole = gzip.compress(b"a" * 10) + gzip.compress(b"b" * 10)
    ends = [*cuts, len(whole)]
    chunks = [whole[begin:end] for begin, end in zip([0, *cuts], ends, strict=True)]

    async def receive() -> dict[str, Any]:
        body = chunks.pop(0)
        return {"type": "http.request", "body": body, "more_body": bool(chunks)}

    request = Request({"type": "http", "headers": [(b"content-encoding", b"gzip")]}, receive)
    assert b"".join([piece async for piece in transfers._body(request)]) == b"a" * 10 + b"b" * 10
    chunks[:] = [gzip.compress(b"a"), b"more"]
    with pytest.raises(HoldfastError, match="decompressing"):
        async for _ in transfers._body(request):
            pass


async def test_no_file_is_a_page_of_this_service() -> None:
    request = Request({"type": "http", "headers": []})
    headers = dict(transfers._Download(request, None, "/x.html", compressed=False)._headers({"size": 3}))
    assert headers[b"content-security-policy"] == b"sandbox"
    assert headers[b"x-content-type-options"] == b"nosniff"


@pytest.mark.parametrize("field", ["autoPause", "volumeMounts", "mcp", "iam"])
async def test_what_cannot_be_honoured_is_refused_by_name(served: Served, field: str) -> None:
    body = {"templateID": "host", field: {"a": 1}}
    async with httpx.AsyncClient(base_url=served.url, trust_env=False) as client:
        answer = await client.post("/e2b/v2/sandboxes", json=body, headers={"X-API-Key": ADA})
    assert answer.status_code == 501
    assert field in answer.json()["message"]
