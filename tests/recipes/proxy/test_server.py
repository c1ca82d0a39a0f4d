"""D12 over HTTP: three dialects, whole and streamed, become recorded token ids with each response in exactly one loss."""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from holdfast_recipes.policy.base import ContextLengthError, PolicyRefusedError, PolicyUnavailableError
from holdfast_recipes.policy.scripted import written
from holdfast_recipes.proxy.branches import Dialect
from holdfast_recipes.proxy.server import Proxy
from holdfast_recipes.proxy.session import Session, SessionLimits, call_seed

from .clients import (
    DIALECTS,
    END,
    PATHS,
    TOKENIZER,
    Digits,
    Policy,
    Socket,
    ask,
    body_of,
    events_in,
    headers,
    parse_answer,
    result_of,
    scripted_policy,
    streamed_text,
    turn_of,
)

USER = {"role": "user", "content": "hi"}
LONG = SessionLimits(new_tokens=10_000_000, context=None)


@pytest.fixture
async def proxy() -> AsyncIterator[Proxy]:
    async with Proxy(TOKENIZER, patience_s=60) as proxy:
        yield proxy


@pytest.fixture
async def http(proxy: Proxy) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=proxy.url, timeout=60) as http:
        yield http


# The known answers of D12 ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_d12(dialect: Dialect, stream: bool) -> None:
    outputs = {(1, 2, 3): (4, 5), (1, 2, 3, 4, 5, 6): (7,), (1, 9): (8,), (1, 2, 3, 4, 5, 6, 7, 6): (4,)}
    policy = Policy(lambda prompt: outputs[tuple(prompt)], version=3)
    one, six = ({"role": "user", "content": text} for text in ("1 2 3", "6"))
    four_five, seven = {"role": "assistant", "content": "4 5"}, {"role": "assistant", "content": "7"}
    async with Proxy(Digits()) as proxy, httpx.AsyncClient(base_url=proxy.url) as http:
        session = proxy.open(policy)
        for messages in ([one], [one, four_five, six], [{"role": "user", "content": "1 9"}], [one, four_five, six, seven, six]):
            response = await ask(http, session, dialect, body_of(dialect, messages, stream=stream))
            assert response.status_code == 200
    first, second = session.samples()
    assert (first.ids, first.loss_mask, first.calls) == ((1, 2, 3, 4, 5, 6, 7, 6, 4), (0, 0, 0, 1, 1, 0, 1, 0, 1), (0, 1, 3))
    assert (second.ids, second.loss_mask) == ((1, 9, 8), (0, 0, 1))
    assert first.weight == second.weight == 0.5
    assert first.logprobs == (0.0, 0.0, 0.0, -0.0, -1.0, 0.0, -0.0, 0.0, -0.0)
    assert first.versions == (3, 3, 3)
    assert [pair["dialect"] for pair in session.pairs()] == [dialect] * 4


async def test_equal_messages_are_equal_prompts_over_dialects(proxy: Proxy, http: httpx.AsyncClient) -> None:
    prompts = []
    for dialect in DIALECTS:
        turn = written("bash", thought="look", command="ls")
        session = proxy.open(scripted_policy(turn, "done"))
        messages = [{"role": "system", "content": "Be brief."}, USER]
        answer = (await ask(http, session, dialect, body_of(dialect, messages, tools=True))).json()
        call = parse_answer(dialect, answer).calls[0]
        messages += [turn_of(dialect, answer), result_of(dialect, call.id, "a.txt")]
        assert (await ask(http, session, dialect, body_of(dialect, messages, tools=True))).status_code == 200
        prompts.append([call.prompt_ids for call in session.calls])
        assert len(session.samples()) == 1
    assert prompts[0] == prompts[1] == prompts[2]
    assert TOKENIZER.decode(prompts[0][1]).count("look") == 1


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_streams_reassemble_to_the_recorded_ids(proxy: Proxy, http: httpx.AsyncClient, dialect: Dialect) -> None:
    text = "Grüße, \u2603! " * 700 + "end"
    session = proxy.open(scripted_policy(text), limits=LONG)
    response = await ask(http, session, dialect, body_of(dialect, [USER], stream=True, max_tokens=100_000))
    assert response.headers["content-type"].startswith("text/event-stream")
    (call,) = session.calls
    shown = streamed_text(dialect, events_in(response.text))
    assert (*TOKENIZER.encode(shown), END) == call.output_ids
    assert call.finish == "stop"


# Token truth -----------------------------------------------------------------------------------------------------------


class Twofold:
    """A tokenizer that decodes two sequences to the same text, as every merged vocabulary does: 1000 is "ab" in one token."""

    def encode(self, text: str) -> list[int]:
        return TOKENIZER.encode(text)

    def decode(self, ids: Any) -> str:
        return TOKENIZER.decode([token for each in ids for token in ([97, 98] if each == 1000 else [each])])


@pytest.mark.parametrize("thought", [True, False])
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_sampled_ids_stand_in_the_next_prompt(dialect: Dialect, thought: bool) -> None:
    """Also where a client sends no thoughts back: they are put back by the ids of the calls."""
    turn = [*TOKENIZER.encode("<think>\n"), 1000, *TOKENIZER.encode("\n</think>\n\n" + written("bash", command="ab")), END]
    left = [turn, [*TOKENIZER.encode("done"), END]]
    async with Proxy(Twofold()) as proxy, httpx.AsyncClient(base_url=proxy.url) as http:
        session = proxy.open(Policy(lambda _: left.pop(0)))
        answer = (await ask(http, session, dialect, body_of(dialect, [USER], tools=True))).json()
        call = parse_answer(dialect, answer).calls[0]
        messages = [USER, turn_of(dialect, answer, thought=thought), result_of(dialect, call.id, "x")]
        await ask(http, session, dialect, body_of(dialect, messages, tools=True))
    first, second = session.calls
    assert second.prompt_ids[: len(first.ids)] == first.ids
    (sample,) = session.samples()
    assert sum(sample.loss_mask) == len(first.output_ids) + len(second.output_ids)


async def test_an_answer_given_twice_keeps_its_own_ids_in_each_history() -> None:
    left = [[1000, END], [97, 98, END], [99, END], [99, END]]
    one, two = {"role": "user", "content": "one"}, {"role": "user", "content": "two"}
    same = {"role": "assistant", "content": "ab"}
    async with Proxy(Twofold()) as proxy, httpx.AsyncClient(base_url=proxy.url) as http:
        session = proxy.open(Policy(lambda _: left.pop(0)))
        for messages in ([one], [two], [one, same, one], [two, same, two]):
            await ask(http, session, "chat", body_of("chat", messages))
    assert [sample.calls for sample in session.samples()] == [(0, 2), (1, 3)]


async def test_thoughts_stay_away_where_the_client_decides() -> None:
    async with Proxy(TOKENIZER) as proxy, httpx.AsyncClient(base_url=proxy.url) as http:
        session = proxy.open(scripted_policy(written("bash", thought="secret", command="ls"), "done"), restore_thoughts=False)
        answer = (await ask(http, session, "chat", body_of("chat", [USER], tools=True))).json()
        messages = [USER, turn_of("chat", answer, thought=False), result_of("chat", parse_answer("chat", answer).calls[0].id, "x")]
        await ask(http, session, "chat", body_of("chat", messages, tools=True))
    assert "secret" not in TOKENIZER.decode(session.calls[1].prompt_ids)
    assert len(session.samples()) == 2  # what the policy is shown is not what it wrote: a branch


async def test_a_thought_that_the_template_drops_makes_a_branch(proxy: Proxy, http: httpx.AsyncClient) -> None:
    session = proxy.open(scripted_policy("<think>\nhm\n</think>\n\nyes", "no"))
    answer = (await ask(http, session, "messages", body_of("messages", [USER]))).json()
    await ask(http, session, "messages", body_of("messages", [USER, turn_of("messages", answer), USER]))
    assert "hm" not in TOKENIZER.decode(session.calls[1].prompt_ids)
    assert [sum(sample.loss_mask) for sample in session.samples()] == [len(call.output_ids) for call in session.calls]


async def test_models_that_open_the_thought(proxy: Proxy, http: httpx.AsyncClient) -> None:
    session = proxy.open(scripted_policy("hm\n</think>\n\n" + written("bash", command="ls"), "so\n</think>\n\ndone"), opens_thought=True)
    answer = (await ask(http, session, "chat", body_of("chat", [USER], tools=True))).json()
    assert parse_answer("chat", answer).thought == "hm"
    messages = [USER, turn_of("chat", answer), result_of("chat", parse_answer("chat", answer).calls[0].id, "x")]
    await ask(http, session, "chat", body_of("chat", messages, tools=True))
    assert len(session.samples()) == 1


async def test_calls_at_once_are_a_branch_each(proxy: Proxy, http: httpx.AsyncClient) -> None:
    session = proxy.open(scripted_policy("yes", held=True), seed=7)
    bodies = [body_of("chat", [{"role": "user", "content": f"task {n}"}]) for n in range(20)]
    async with asyncio.TaskGroup() as group:
        for body in bodies:
            group.create_task(ask(http, session, "chat", body))
        policy: Any = session._policy
        for _ in bodies:
            await policy.prompts.get()
        policy.hold.set()
    samples = session.samples()
    assert len(samples) == len(session.calls) == 20
    assert [sample.weight for sample in samples] == pytest.approx([1 / 20] * 20)
    assert set(policy.seeds) == {call_seed(7, number) for number in range(20)}


# Clients that hang up --------------------------------------------------------------------------------------------------


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
        client.hang_up()
    await proxy.close()
    (call,) = session.calls
    assert call.finish == "cut"
    assert len(call.output_ids) > 1_000_000
    assert session.samples() == []


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_an_answer_that_was_dropped_unread_is_cut(proxy: Proxy, dialect: Dialect) -> None:
    """A short answer is written before a client can hang up; it says so by resetting the connection."""
    session = proxy.open(scripted_policy("word " * 5000), limits=LONG)
    async with Socket(proxy) as client:
        await client.send("POST", PATHS[dialect], session.key, body_of(dialect, [USER], stream=True, max_tokens=100_000))
        await client.reader.readuntil(b"data: ")
        client.hang_up()
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
        client.hang_up()
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


# Errors ----------------------------------------------------------------------------------------------------------------


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
    async with Proxy(TOKENIZER, patience_s=0.01) as proxy, httpx.AsyncClient(base_url=proxy.url, timeout=60) as http:
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


# What else clients ask -------------------------------------------------------------------------------------------------


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
