"""Clients that disconnect: what was being written is recorded as cut, what was read is not."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from holdfast_recipes.proxy.branches import Dialect
from holdfast_recipes.proxy.server import Proxy

from .clients import (
    DIALECTS,
    LONG,
    PATHS,
    USER,
    Socket,
    ask,
    body_of,
    scripted_policy,
)


@pytest.mark.parametrize("stream", [False, True])
async def test_hanging_up_while_the_policy_writes_leaves_one_cut_record(proxy: Proxy, stream: bool) -> None:
    policy = scripted_policy("yes", held=True)
    session = proxy.open(policy)
    async with Socket(proxy) as client:
        await client.send("POST", PATHS["chat"], session.key, body_of("chat", [USER], stream=stream))
        prompt = await policy.prompts.get()
        client.writer.close()
        async with asyncio.timeout(60):
            await policy.cancelled.wait()
    await proxy.close()
    (call,) = session.calls
    assert (call.finish, call.prompt_ids, call.output_ids) == ("cut", prompt, ())
    assert session.samples() == []


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_hanging_up_in_the_middle_of_a_stream_leaves_one_cut_record(proxy: Proxy, dialect: Dialect) -> None:
    session = proxy.open(scripted_policy("word " * 2_000_000), limits=LONG)
    async with Socket(proxy) as client:
        await client.send("POST", PATHS[dialect], session.key, body_of(dialect, [USER], stream=True, max_tokens=20_000_000))
        await client.reader.readuntil(b"data: ")
        client.disconnect()
    await proxy.close()
    (call,) = session.calls
    assert call.finish == "cut"
    assert len(call.output_ids) > 1_000_000
    assert session.samples() == []


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_an_answer_that_was_dropped_unread_is_cut(proxy: Proxy, dialect: Dialect) -> None:
    """A short answer is written before a client can disconnect; it says so by resetting the connection."""
    session = proxy.open(scripted_policy("word " * 5000), limits=LONG)
    async with Socket(proxy) as client:
        await client.send("POST", PATHS[dialect], session.key, body_of(dialect, [USER], stream=True, max_tokens=100_000))
        await client.reader.readuntil(b"data: ")
        client.disconnect()
    async with asyncio.timeout(60):
        while not session.calls or session.calls[0].finish != "cut":
            await asyncio.sleep(0)
    assert len(session.calls) == 1


async def test_an_answer_that_was_continued_was_read(proxy: Proxy, http: httpx.AsyncClient) -> None:
    """A reset says that bytes were dropped, perhaps only the last of them: a later prompt that holds the answer says more."""
    text = "word " * 200_000 + "end"
    session = proxy.open(scripted_policy(text, "two"), limits=LONG)
    async with Socket(proxy) as client:
        await client.send("POST", PATHS["chat"], session.key, body_of("chat", [USER], max_tokens=2_000_000))
        await client.reader.readuntil(b"HTTP/1.1 200")
        one = {"role": "assistant", "content": text}
        assert (await ask(http, session, "chat", body_of("chat", [USER, one, USER]))).status_code == 200
        client.disconnect()
    await proxy.settle(session)
    assert [call.finish for call in session.calls] == ["stop", "stop"]
    assert len(session.samples()) == 1


async def test_a_closed_connection_after_an_answer_cuts_nothing(proxy: Proxy) -> None:
    session = proxy.open(scripted_policy("one"))
    async with Socket(proxy) as client:
        await client.send("POST", PATHS["chat"], session.key, body_of("chat", [USER], stream=True), Connection="close")
        assert b"[DONE]" in await client.reader.read()
    await proxy.close()
    assert [call.finish for call in session.calls] == ["stop"]


async def test_a_session_that_ends_cuts_what_is_being_written(proxy: Proxy, http: httpx.AsyncClient) -> None:
    policy = scripted_policy("one", held=True)
    session = proxy.open(policy)
    request = asyncio.ensure_future(ask(http, session, "messages", body_of("messages", [USER])))
    await policy.prompts.get()
    proxy.close_session(session)
    response = await request
    assert (response.status_code, response.json()["error"]["type"]) == (403, "permission_error")
    assert [call.finish for call in session.calls] == ["cut"]
    assert (await ask(http, session, "messages", body_of("messages", [USER]))).status_code == 401
