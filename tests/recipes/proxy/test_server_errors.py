"""Errors of the policy and of requests, in the form that each dialect's client expects."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest
from holdfast_recipes.policy.base import ContextLengthError, PolicyRefusedError, PolicyUnavailableError
from holdfast_recipes.proxy.branches import Dialect
from holdfast_recipes.proxy.server import Proxy
from holdfast_recipes.proxy.session import SessionLimits

from .clients import (
    DIALECTS,
    PATHS,
    TOKENIZER,
    USER,
    Socket,
    ask,
    body_of,
    events_in,
    headers,
    scripted_policy,
)


def code_of(dialect: Dialect, response: httpx.Response) -> tuple[int, str | None]:
    body = response.json()
    if dialect == "messages":
        assert body["type"] == "error"
        assert body["error"]["message"]
        return response.status_code, body["error"]["type"]
    assert set(body["error"]) == {"message", "type", "param", "code"}
    return response.status_code, body["error"]["code"] or body["error"]["type"]


FAILURES: list[tuple[Exception, tuple[int, str], tuple[int, str]]] = [
    (PolicyUnavailableError("busy", 2.4), (503, "overloaded"), (529, "overloaded_error")),
    (ContextLengthError("no room"), (400, "context_length_exceeded"), (400, "invalid_request_error")),
    (PolicyRefusedError("no"), (500, "server_error"), (500, "api_error")),
    (ZeroDivisionError("defect"), (500, "server_error"), (500, "api_error")),
]


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(("error", "openai", "anthropic"), FAILURES)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_policy_that_fails_answers_in_the_dialect(
    proxy: Proxy,
    http: httpx.AsyncClient,
    dialect: Dialect,
    error: Exception,
    openai: tuple[int, str],
    anthropic: tuple[int, str],
    stream: bool,
) -> None:
    policy = scripted_policy("one")
    policy.fails = [error]
    session = proxy.open(policy)
    response = await ask(http, session, dialect, body_of(dialect, [USER], stream=stream))
    assert code_of(dialect, response) == (anthropic if dialect == "messages" else openai)
    assert response.headers.get("retry-after") == ("2" if isinstance(error, PolicyUnavailableError) else None)
    assert session.calls == []
    assert (session.failure, session.unanswered) == (error, True)
    assert (await ask(http, session, dialect, body_of(dialect, [USER], stream=stream))).status_code == 200
    assert not session.unanswered


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_policy_that_fails_after_the_stream_began(dialect: Dialect) -> None:
    async with Proxy(TOKENIZER, patience_s=0.01) as proxy, httpx.AsyncClient(verify=False, base_url=proxy.url, timeout=60) as http:
        policy = scripted_policy("one", held=True)
        policy.fails = [PolicyUnavailableError("busy")]
        session = proxy.open(policy)
        path, key = PATHS[dialect], headers(dialect, session.key)
        async with http.stream("POST", path, headers=key, json=body_of(dialect, [USER], stream=True)) as response:
            assert response.status_code == 200
            pieces = response.aiter_text()
            assert (await anext(pieces)).startswith(":")  # a comment: the policy takes its time
            policy.hold.set()
            rest = "".join([piece async for piece in pieces])
        event = events_in(": \n\n" + rest)[-1]
        if dialect == "responses":
            assert (event["type"], event["response"]["status"], event["response"]["error"]["code"]) == (
                "response.failed",
                "failed",
                "overloaded",
            )
        else:
            assert event["error"]["type"] == ("overloaded_error" if dialect == "messages" else "server_error")
        assert "[DONE]" not in rest
        assert session.calls == []


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_bad_requests(proxy: Proxy, http: httpx.AsyncClient, dialect: Dialect) -> None:
    session = proxy.open(scripted_policy("one"), limits=SessionLimits(calls=1, context=200))
    path, key = PATHS[dialect], headers(dialect, session.key)
    stranger = headers(dialect, "hfp-none")
    anthropic = dialect == "messages"
    good = json.dumps(body_of(dialect, [USER])).encode()
    cases: list[tuple[str, str, dict[str, str], bytes, int, str]] = [
        ("POST", path, stranger, good, 401, "authentication_error" if anthropic else "invalid_api_key"),
        ("POST", path, key, b"{", 400, "invalid_request_error"),
        ("POST", path, key, b"[1]", 400, "invalid_request_error"),
        ("POST", path, key, b"\xff", 400, "invalid_request_error"),
        ("POST", path, key, b"[" * 100_000, 400, "invalid_request_error"),
        ("POST", path, key | {"Content-Encoding": "br"}, good, 415, ""),
        ("POST", path, key | {"Content-Encoding": "gzip"}, good, 400, ""),
        ("GET", path, key, b"", 405, "invalid_request_error" if anthropic else "method_not_allowed"),
        ("POST", "/v1/embeddings", key, good, 404, "not_found_error" if anthropic else "not_found"),
    ]
    for method, where, sent, content, status, kind in cases:
        response = await http.request(method, where, headers=sent, content=content)
        if "Content-Encoding" in sent:  # refused before anything says which dialect it is
            assert response.status_code == status
        else:
            assert code_of(dialect, response) == (status, kind), (method, where, content[:20])
    long = body_of(dialect, [{"role": "user", "content": "x" * 300}])
    assert code_of(dialect, await ask(http, session, dialect, long)) == (
        400,
        "invalid_request_error" if anthropic else "context_length_exceeded",
    )
    assert session.refused == "tokens"
    assert not session.out_of_steps.is_set()
    assert (await ask(http, session, dialect, body_of(dialect, [USER]))).status_code == 200
    over = await ask(http, session, dialect, body_of(dialect, [USER]))
    assert code_of(dialect, over) == (400 if dialect == "responses" else 403, "permission_error" if anthropic else "rollout_over")
    assert session.out_of_steps.is_set()
    assert len(session.calls) == 1


async def test_invalid_http_is_rejected(proxy: Proxy) -> None:
    for sent in (
        b"nonsense\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"x: " + b"y" * 200_000,
        b"",
        b"POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\nab",
    ):
        async with Socket(proxy) as client:
            client.writer.write(sent)
            client.writer.write_eof()
            answer = await client.reader.read()
            assert answer.partition(b"\r\n")[0] == (b"HTTP/1.1 400 " if sent else b"")


@pytest.mark.parametrize("body", ["Content-Length: 67108864", "Transfer-Encoding: chunked"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/nowhere"])
async def test_a_body_without_a_valid_key_is_refused_before_it_is_read(proxy: Proxy, path: str, body: str) -> None:
    """64 MiB were read from anyone before the key was looked at."""
    reader, writer = await asyncio.open_connection(*proxy.address)
    writer.write(f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer wrong\r\n{body}\r\n\r\n".encode())
    async with asyncio.timeout(60):
        head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 401 ")
    writer.transport.abort()
