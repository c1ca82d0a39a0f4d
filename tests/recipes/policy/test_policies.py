"""Policies: scripted ones, tokens of bytes, and the two HTTP policies against a real server that answers what the test says."""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from holdfast_recipes.policy.base import (
    ContextLengthError,
    Finish,
    Generation,
    PolicyError,
    PolicyRefusedError,
    PolicyUnavailableError,
)
from holdfast_recipes.policy.endpoint import Sampling
from holdfast_recipes.policy.openai_chat import OpenAIChat, Prices
from holdfast_recipes.policy.scripted import ScriptedChat, ScriptedTokens, call, written
from holdfast_recipes.policy.sglang import SGLang
from holdfast_recipes.policy.tokenizer import ByteTokenizer
from hypothesis import given
from hypothesis import strategies as st

ASK = [{"role": "user", "content": "Häll\udc80o"}]


@contextlib.contextmanager
def server(status: int, body: Any, headers: dict[str, str] | None = None) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A server that answers every POST alike, and records the requests."""
    requests: list[dict[str, Any]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers["Content-Length"]))
            requests.append({"path": self.path, "key": self.headers.get("Authorization"), **json.loads(content)})
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            """Quiet."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{running.server_address[1]}", requests
        finally:
            running.shutdown()
            thread.join()


def completion(message: dict[str, Any], finish: str = "stop", **usage: int) -> dict[str, Any]:
    return {"choices": [{"index": 0, "message": message, "finish_reason": finish}], "usage": usage}


async def test_an_endpoint_is_asked_in_the_standard_form() -> None:
    answer = completion({"content": None, "tool_calls": [{"id": "a"}], "reasoning": "hm"}, prompt_tokens=1000, completion_tokens=100)
    with server(200, answer) as (url, requests):
        sampling = Sampling(temperature=0.7, top_p=0.9, extra={"top_k": 20})
        async with OpenAIChat(f"{url}/v1/", "m", "secret", sampling=sampling, prices=Prices(1.0, 10.0)) as policy:
            reply = await policy.reply(ASK, [{"type": "function"}], seed=5, max_new_tokens=64)
    assert requests[0]["path"] == "/v1/chat/completions"
    assert requests[0]["key"] == "Bearer secret"
    assert [requests[0][key] for key in ("model", "seed", "max_tokens", "temperature", "top_p", "top_k")] == ["m", 5, 64, 0.7, 0.9, 20]
    assert reply.message == {"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": [{"id": "a"}]}
    assert reply.cost_usd == pytest.approx(0.002)
    assert reply.finish is Finish.STOP


@pytest.mark.parametrize(
    ("status", "body", "error"),
    [
        (429, {}, PolicyUnavailableError),
        (503, b"busy", PolicyUnavailableError),
        (400, {"error": "This model's maximum context length is 4096 tokens"}, ContextLengthError),
        (400, {"error": "unknown field"}, PolicyRefusedError),
        (401, {}, PolicyRefusedError),
        (404, {}, PolicyRefusedError),
        (200, b"no json", PolicyUnavailableError),
        (200, [], PolicyUnavailableError),
        (200, {"choices": []}, PolicyUnavailableError),
        (200, {"choices": [{"message": None}]}, PolicyUnavailableError),
    ],
)
async def test_failures_of_an_endpoint_are_sorted(status: int, body: Any, error: type[PolicyError]) -> None:
    with server(status, body, {"Retry-After": "7"}) as (url, _):
        async with OpenAIChat(url, "m") as policy:
            with pytest.raises(error) as raised:
                await policy.reply(ASK, [], seed=None, max_new_tokens=8)
    if isinstance(raised.value, PolicyUnavailableError) and status != 200:
        assert raised.value.retry_after_s == 7


async def test_an_endpoint_that_is_not_there_is_unavailable() -> None:
    async with OpenAIChat("http://127.0.0.1:9", "m") as policy:
        with pytest.raises(PolicyUnavailableError):
            await policy.reply(ASK, [], seed=None, max_new_tokens=8)


async def test_token_ids_come_back_with_their_probabilities() -> None:
    meta = {"output_token_logprobs": [[-0.5, 7, None], [-0.25, 9, None]], "finish_reason": {"type": "length"}, "weight_version": "12"}
    with server(200, {"text": "x", "meta_info": meta}) as (url, requests):
        async with SGLang(url) as policy:
            generation = await policy.generate([1, 2], seed=3, max_new_tokens=2, stop={9, 4})
            with pytest.raises(ContextLengthError):
                await policy.generate([1], seed=None, max_new_tokens=0, stop=())
    assert generation == Generation((7, 9), (-0.5, -0.25), Finish.LENGTH, 12)
    assert requests[0]["path"] == "/generate"
    assert requests[0]["input_ids"] == [1, 2]
    assert requests[0]["sampling_params"]["stop_token_ids"] == [4, 9]
    assert requests[0]["return_logprob"] is True


@pytest.mark.parametrize(
    "meta", [None, {}, {"output_token_logprobs": [["x"]]}, {"output_token_logprobs": [], "finish_reason": {"type": "abort"}}]
)
async def test_an_answer_without_probabilities_is_none(meta: Any) -> None:
    with server(200, {"meta_info": meta}) as (url, _):
        async with SGLang(url) as policy:
            with pytest.raises(PolicyUnavailableError):
                await policy.generate([1], seed=None, max_new_tokens=2, stop=())


async def test_a_script_of_messages_is_read_turn_by_turn() -> None:
    policy = ScriptedChat([call("bash", command="ls"), "done"])
    first = await policy.reply(ASK, [], seed=None, max_new_tokens=8)
    assert first == await policy.reply(ASK, [], seed=None, max_new_tokens=8)
    history = [*ASK, first.message, {"role": "tool", "content": "a"}]
    assert (await policy.reply(history, [], seed=None, max_new_tokens=8)).message["content"] == "done"
    with pytest.raises(PolicyError):
        await policy.reply([*history, {"role": "assistant"}], [], seed=None, max_new_tokens=8)


async def test_a_script_of_tokens_ends_each_turn_and_is_cut_where_there_is_no_room() -> None:
    tokenizer = ByteTokenizer()
    stop = tokenizer.special("<|im_end|>")
    policy = ScriptedTokens(["ab"], tokenizer, stop)
    prompt = tokenizer.encode("<|im_start|>assistant\n")
    assert (await policy.generate(prompt, seed=None, max_new_tokens=3, stop={stop})).ids == (97, 98, stop)
    cut = await policy.generate(prompt, seed=None, max_new_tokens=2, stop={stop})
    assert (cut.ids, cut.finish) == ((97, 98), Finish.LENGTH)
    seeded = ScriptedTokens(lambda text, seed: f"{text[-1]}{seed}", tokenizer, stop)
    assert tokenizer.decode((await seeded.generate([120], seed=4, max_new_tokens=9, stop={stop})).ids) == "x4<|im_end|>"


def test_a_turn_as_a_model_writes_it() -> None:
    assert written("bash", thought="hm", command="ls") == (
        '<think>\nhm\n</think>\n\n<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>'
    )


@given(st.lists(st.sampled_from(["<|im_start|>", "<|im_end|>", "ä", "x\n", "<|im", "_end|>", "𝄞"])).map("".join))
def test_bytes_and_special_tokens_come_back_as_they_were(text: str) -> None:
    tokenizer = ByteTokenizer()
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert all(0 <= token < tokenizer.size for token in ids)


def test_a_generation_has_a_probability_for_each_id() -> None:
    with pytest.raises(ValueError, match="2 ids"):
        Generation((1, 2), (0.0,))
