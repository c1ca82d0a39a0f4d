"""The proxy's other answers over HTTP: counts, models, usage, stop texts, limits, and bodies in every form."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from holdfast_recipes.proxy.server import Proxy
from holdfast_recipes.proxy.session import Session

from .clients import (
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


async def test_counts_are_those_of_the_prompt(proxy: Proxy, http: httpx.AsyncClient) -> None:
    session = proxy.open(scripted_policy("one"))
    body = body_of("messages", [USER], tools=True)
    counted = await http.post("/v1/messages/count_tokens?beta=true", headers=headers("messages", session.key), json=body)
    answer = await ask(http, session, "messages", body)
    assert counted.json() == {"input_tokens": len(session.calls[0].prompt_ids)}
    assert answer.json()["usage"]["input_tokens"] == counted.json()["input_tokens"]
    responses = body_of("responses", [USER], tools=True)
    counted = await http.post("/v1/responses/input_tokens", headers=headers("responses", session.key), json=responses)
    assert counted.json() == {"object": "response.input_tokens", "input_tokens": len(session.calls[0].prompt_ids)}
    assert len(session.calls) == 1


async def test_models_and_health(proxy: Proxy, http: httpx.AsyncClient) -> None:
    session = proxy.open(scripted_policy("one"))
    openai, anthropic = headers("chat", session.key), headers("messages", session.key)
    assert (await http.get("/v1/models", headers=openai)).json()["data"][0]["id"] == "policy"
    assert (await http.get("/v1/models/gpt-x", headers=openai)).json()["id"] == "gpt-x"
    assert (await http.get("/v1/models", headers=anthropic)).json()["data"][0]["type"] == "model"
    assert (await http.get("/v1/models/claude-x", headers=anthropic)).json()["id"] == "claude-x"
    assert (await http.get("/v1/models")).status_code == 401
    assert (await http.head("/")).status_code == (await http.get("/")).status_code == 200
    assert (await http.head("/nothing")).status_code == 404


async def test_usage_is_streamed_on_request(proxy: Proxy, http: httpx.AsyncClient) -> None:
    session = proxy.open(scripted_policy("one"))
    plain = events_in((await ask(http, session, "chat", body_of("chat", [USER], stream=True))).text)
    assert all(event["choices"] for event in plain)
    wanted = body_of("chat", [USER], stream=True, stream_options={"include_usage": True})
    last = events_in((await ask(http, session, "chat", wanted)).text)[-1]
    assert last["usage"]["prompt_tokens"] == len(session.calls[0].prompt_ids)


async def test_stop_texts_end_the_answer(proxy: Proxy, http: httpx.AsyncClient) -> None:
    session = proxy.open(scripted_policy("one STOP two HALT three"))
    answer = (await ask(http, session, "messages", body_of("messages", [USER], stop_sequences=["HALT", "STOP", ""]))).json()
    assert (answer["content"][0]["text"], answer["stop_reason"], answer["stop_sequence"]) == ("one", "stop_sequence", "STOP")
    assert TOKENIZER.decode(session.calls[0].output_ids) == "one STOP"
    assert len(session.calls[0].logprobs or ()) == len(session.calls[0].output_ids)


async def test_a_limit_of_new_tokens(proxy: Proxy, http: httpx.AsyncClient) -> None:
    session = proxy.open(scripted_policy("abcdef"))
    answer = (await ask(http, session, "chat", body_of("chat", [USER], max_tokens=3))).json()
    assert (answer["choices"][0]["message"]["content"], answer["choices"][0]["finish_reason"]) == ("abc", "length")
    assert [(call.finish, len(call.output_ids)) for call in session.calls] == [("length", 3)]


async def test_one_connection_serves_many_requests(proxy: Proxy) -> None:
    session = proxy.open(scripted_policy("one"))
    body = body_of("chat", [USER])
    async with Socket(proxy) as client:
        for _ in range(2):  # pipelined: the second is there before the first is answered
            await client.send("POST", PATHS["chat"], session.key, body)
        for _ in range(2):
            head = await client.reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            assert json.loads(await client.reader.readexactly(length))["object"] == "chat.completion"
    assert len(session.calls) == 2


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "chunked", "expect"])
async def test_bodies_come_in_every_form(proxy: Proxy, http: httpx.AsyncClient, encoding: str) -> None:
    session = proxy.open(scripted_policy("one"))
    plain = json.dumps(body_of("chat", [USER])).encode()
    key = headers("chat", session.key)
    if encoding == "expect":
        async with Socket(proxy) as client:
            await client.send("POST", PATHS["chat"], session.key, None, Expect="100-continue", Content_Length=str(len(plain)))
            client.writer.transport.abort()
        async with Socket(proxy) as client:
            lines = ["POST /v1/chat/completions HTTP/1.1", "Host: x", f"Authorization: Bearer {session.key}", "Expect: 100-continue"]
            client.writer.write("\r\n".join([*lines, f"Content-Length: {len(plain)}", "", ""]).encode())
            assert (await client.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100")
            client.writer.write(plain)
            assert (await client.reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 200")
        return

    async def pieces() -> AsyncIterator[bytes]:
        yield plain[:10]
        yield plain[10:]

    content: Any = {"gzip": gzip.compress(plain), "deflate": zlib.compress(plain), "chunked": pieces()}[encoding]
    more = {} if encoding == "chunked" else {"Content-Encoding": encoding}
    assert (await http.post(PATHS["chat"], headers=key | more, content=content)).status_code == 200


async def test_rollouts_do_not_mix(proxy: Proxy, http: httpx.AsyncClient) -> None:
    sessions: list[Session] = [proxy.open(scripted_policy(f"answer {n}"), rollout_id=f"r{n}") for n in range(3)]
    for number, session in enumerate(sessions):
        answer = await ask(http, session, "chat", body_of("chat", [USER]))
        assert answer.json()["choices"][0]["message"]["content"] == f"answer {number}"
    assert [[pair["rollout_id"] for pair in session.pairs()] for session in sessions] == [["r0"], ["r1"], ["r2"]]
    assert len({session.key for session in sessions}) == 3
