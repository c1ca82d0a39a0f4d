"""The recorded token ids are those that the policy sampled, in every dialect, and the next prompt contains them unchanged."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from holdfast_recipes.policy.scripted import written
from holdfast_recipes.proxy.branches import Dialect
from holdfast_recipes.proxy.server import Proxy
from holdfast_recipes.proxy.session import call_seed

from .clients import (
    DIALECTS,
    END,
    LONG,
    TOKENIZER,
    USER,
    Digits,
    Policy,
    ask,
    body_of,
    events_in,
    parse_answer,
    result_of,
    scripted_policy,
    streamed_text,
    turn_of,
)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_each_response_is_in_exactly_one_loss(dialect: Dialect, stream: bool) -> None:
    outputs = {(1, 2, 3): (4, 5), (1, 2, 3, 4, 5, 6): (7,), (1, 9): (8,), (1, 2, 3, 4, 5, 6, 7, 6): (4,)}
    policy = Policy(lambda prompt: outputs[tuple(prompt)], version=3)
    one, six = ({"role": "user", "content": text} for text in ("1 2 3", "6"))
    four_five, seven = {"role": "assistant", "content": "4 5"}, {"role": "assistant", "content": "7"}
    async with Proxy(Digits()) as proxy, httpx.AsyncClient(verify=False, base_url=proxy.url) as http:
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
    async with Proxy(Twofold()) as proxy, httpx.AsyncClient(verify=False, base_url=proxy.url) as http:
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
    async with Proxy(Twofold()) as proxy, httpx.AsyncClient(verify=False, base_url=proxy.url) as http:
        session = proxy.open(Policy(lambda _: left.pop(0)))
        for messages in ([one], [two], [one, same, one], [two, same, two]):
            await ask(http, session, "chat", body_of("chat", messages))
    assert [sample.calls for sample in session.samples()] == [(0, 2), (1, 3)]


async def test_thoughts_stay_away_where_the_client_decides() -> None:
    async with Proxy(TOKENIZER) as proxy, httpx.AsyncClient(verify=False, base_url=proxy.url) as http:
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
