"""D12: the same conversation in three dialects gives the same prompt, and streamed events assemble to the same answer."""

from __future__ import annotations

import json
from typing import Any

import pytest
from holdfast_recipes.core.calls import CallError, CallFault, Parsed, ToolCall, parse_blocks, parse_items, parse_message
from holdfast_recipes.core.template import render, text_of
from holdfast_recipes.proxy.answers import Answer, EventReader, events, whole
from holdfast_recipes.proxy.branches import Dialect
from holdfast_recipes.proxy.dialects import DialectError, read_request
from hypothesis import given
from hypothesis import strategies as st

SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}}}
DIALECTS: list[Dialect] = ["chat", "responses", "messages"]
BODIES: dict[Dialect, dict[str, Any]] = {
    "chat": {
        "model": "m",
        "max_completion_tokens": 100,
        "temperature": 0.5,
        "stream": True,
        "messages": [
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two é"}]},
            {
                "role": "assistant",
                "content": "So:",
                "reasoning_content": "think",
                "tool_calls": [
                    {"id": "a", "type": "function", "function": {"name": "bash", "arguments": '{"command":   "ls"}'}},
                    {"id": "b", "type": "function", "function": {"name": "bash", "arguments": "{}"}},
                ],
            },
            {"role": "tool", "tool_call_id": "a", "content": "x"},
            {"role": "tool", "tool_call_id": "b", "content": [{"type": "text", "text": "y"}]},
            {"role": "user", "content": "go on"},
        ],
        "tools": [{"type": "function", "function": {"parameters": SCHEMA, "name": "bash", "description": "Run", "strict": True}}],
    },
    "responses": {
        "model": "m",
        "max_output_tokens": 100,
        "temperature": 0.5,
        "stream": True,
        "instructions": "Be brief.",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "one"}, {"type": "input_text", "text": "two é"}]},
            {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "think"}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "So:"}]},
            {"type": "function_call", "call_id": "a", "name": "bash", "arguments": '{"command": "ls"}'},
            {"type": "function_call", "call_id": "b", "name": "bash", "arguments": ""},
            {"type": "function_call_output", "call_id": "a", "output": "x"},
            {"type": "function_call_output", "call_id": "b", "output": [{"type": "input_text", "text": "y"}]},
            {"type": "message", "role": "user", "content": "go on"},
        ],
        "tools": [{"type": "function", "name": "bash", "description": "Run", "parameters": SCHEMA, "strict": False}],
    },
    "messages": {
        "model": "m",
        "max_tokens": 100,
        "temperature": 0.5,
        "stream": True,
        "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two é"}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "think", "signature": ""},
                    {"type": "text", "text": "So:"},
                    {"type": "tool_use", "id": "a", "name": "bash", "input": {"command": "ls"}},
                    {"type": "tool_use", "id": "b", "name": "bash", "input": {}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "a", "content": "x"},
                    {"type": "tool_result", "tool_use_id": "b", "content": [{"type": "text", "text": "y"}]},
                    {"type": "text", "text": "go on"},
                ],
            },
        ],
        "tools": [{"name": "bash", "description": "Run", "input_schema": SCHEMA}],
    },
}


def test_three_dialects_are_one_request() -> None:
    first, second, third = (read_request(dialect, BODIES[dialect]) for dialect in DIALECTS)
    assert first == second == third
    assert [message["role"] for message in first.messages] == ["system", "user", "assistant", "tool", "tool", "user"]
    assert (first.model, first.max_new_tokens, first.temperature, first.stream) == ("m", 100, 0.5, True)
    prompts = {text_of(render(request.messages, request.tools, generation_prompt=True)) for request in (first, second, third)}
    assert len(prompts) == 1
    assert '{"command": "ls"}' in prompts.pop()


@pytest.mark.parametrize("dialect", DIALECTS)
def test_omitted_settings_stay_unset(dialect: Dialect) -> None:
    body = {"responses": {"input": "hi"}}.get(dialect, {"messages": [{"role": "user", "content": "hi"}]})
    request = read_request(dialect, body)
    assert request.messages == ({"role": "user", "content": "hi"},)
    assert (request.tools, request.stream, request.max_new_tokens, request.temperature, request.stop) == ((), False, None, None, ())
    assert read_request(dialect, {**body, "stop": "END"}).stop == ("END",)


def test_turns_without_results_between_stay_apart() -> None:
    items = [
        {"type": "message", "role": "assistant", "content": "one"},
        {"type": "message", "role": "assistant", "content": "two"},
        {"type": "function_call", "call_id": "a", "name": "f", "arguments": "not json"},
        {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "t"}]},
    ]
    messages = read_request("responses", {"input": items}).messages
    assert [message["content"] for message in messages] == ["one", "two", ""]
    assert messages[1]["tool_calls"][0]["function"]["arguments"] == "not json"
    assert messages[2]["reasoning_content"] == "t"


USER = {"role": "user", "content": "hi"}


@pytest.mark.parametrize(
    ("dialect", "body"),
    [
        ("chat", []),
        ("chat", {}),
        ("chat", {"messages": "hi"}),
        ("chat", {"messages": ["hi"]}),
        ("chat", {"messages": [{"role": "judge", "content": "x"}]}),
        ("chat", {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}),
        ("chat", {"messages": [{"role": "user", "content": 3}]}),
        ("chat", {"messages": [{"role": "assistant", "tool_calls": [{"id": "1"}]}]}),
        ("chat", {"messages": [{"role": "assistant", "tool_calls": [{"function": {"arguments": "{}"}}]}]}),
        ("chat", {"messages": [USER], "max_tokens": 0}),
        ("chat", {"messages": [USER], "max_tokens": True}),
        ("chat", {"messages": [USER], "temperature": -1}),
        ("chat", {"messages": [USER], "temperature": "hot"}),
        ("chat", {"messages": [USER], "stop": [1]}),
        ("chat", {"messages": [USER], "tools": [{"type": "web_search"}]}),
        ("chat", {"messages": [USER], "tools": {}}),
        ("responses", {"input": [{"type": "item_reference", "id": "x"}]}),
        ("responses", {"input": "hi", "previous_response_id": "resp_1"}),
        ("messages", {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}),
        ("messages", {"messages": [{"role": "bot", "content": "x"}]}),
        ("messages", {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "1", "input": {}}]}]}),
    ],
)
def test_bodies_that_are_refused(dialect: Dialect, body: Any) -> None:
    with pytest.raises(DialectError):
        read_request(dialect, body)


FIELDS = st.sampled_from(["role", "content", "type", "text", "tool_calls", "function", "name"])
TOP_FIELDS = st.sampled_from(["messages", "input", "tools", "system", "stop", "max_tokens"])
EVENT_LINES = ["data: a", "data:b", "data:  c", ": note", "event: x", "id: 1", "data", "", ""]
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda x: st.lists(x, max_size=3) | st.dictionaries(FIELDS, x),
    max_leaves=8,
)


@given(st.sampled_from(DIALECTS), st.dictionaries(TOP_FIELDS, json_values))
def test_any_body_is_read_or_refused(dialect: Dialect, body: dict[str, Any]) -> None:
    try:
        request = read_request(dialect, body)
    except DialectError:
        return
    render(request.messages, request.tools)


PARSED = Parsed("think", "So: é\n☃", (ToolCall("bash", {"command": "ls"}, "a"), ToolCall("bash", {})))


def answer(parsed: Parsed = PARSED, *, truncated: bool = False) -> Answer:
    return Answer("7", "m", parsed, 11, 5, 1_700_000_000, truncated)


def assembled(dialect: Dialect, data: list[dict[str, Any]]) -> dict[str, Any]:
    """Assembles the events as a client's SDK does."""
    if dialect == "responses":
        assert [each["sequence_number"] for each in data] == list(range(len(data)))
        final: dict[str, Any] = data[-1]["response"]
        assert [each["item"] for each in data if each["type"] == "response.output_item.done"] == final["output"]
        return final
    if dialect == "messages":
        message: dict[str, Any] = dict(data[0]["message"])
        blocks: list[dict[str, Any]] = []
        for each in data[1:]:
            if each["type"] == "content_block_start":
                blocks.append({**each["content_block"], "_json": ""})
            elif each["type"] == "content_block_delta":
                delta, block = each["delta"], blocks[each["index"]]
                for field in ("text", "thinking"):
                    block.update({field: block[field] + delta[field]} if field in delta else {})
                block["_json"] += delta.get("partial_json", "")
            elif each["type"] == "message_delta":
                message |= each["delta"]
                message["usage"] = message["usage"] | each["usage"]
        for block in blocks:
            if text := block.pop("_json"):
                block["input"] = json.loads(text)
        return {**message, "content": blocks}
    merged: dict[str, Any] = {"role": "assistant", "content": None}
    finish = None
    for each in data:
        for choice in each["choices"]:
            finish = choice["finish_reason"] or finish
            for key, value in choice["delta"].items():
                if key == "tool_calls":
                    merged.setdefault(key, []).extend({k: v for k, v in call.items() if k != "index"} for call in value)
                elif key != "role":
                    merged[key] = (merged.get(key) or "") + value
    head = {**{key: data[0][key] for key in ("id", "created", "model")}, "object": "chat.completion", "usage": data[-1]["usage"]}
    return {**head, "choices": [{"index": 0, "message": merged, "finish_reason": finish, "logprobs": None}]}


def parsed_body(dialect: Dialect, body: dict[str, Any]) -> Parsed:
    if dialect == "chat":
        return parse_message(body["choices"][0]["message"])
    return parse_blocks(body["content"]) if dialect == "messages" else parse_items(body["output"])


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("parsed", [PARSED, Parsed("", "words"), Parsed("", "", (ToolCall("f", {"x": [1]}),)), Parsed()])
@pytest.mark.parametrize("truncated", [False, True])
def test_events_assemble_to_the_whole_answer(dialect: Dialect, parsed: Parsed, truncated: bool) -> None:
    given_answer = answer(parsed, truncated=truncated)
    expected = whole(dialect, given_answer)
    stream = b"".join(events(dialect, given_answer))
    for size in (1, 7, len(stream)):
        reader = EventReader()
        data = [text for start in range(0, len(stream), size) for text in reader.feed(stream[start : start + size])]
        assert reader.finished
        assert (data.pop() == "[DONE]") if dialect == "chat" else True
        assert assembled(dialect, [json.loads(text) for text in data]) == expected
    back = parsed_body(dialect, expected)
    assert (back.thought, back.text) == (parsed.thought, parsed.text)
    assert [(call.name, call.arguments) for call in back.calls] == [(call.name, call.arguments) for call in parsed.calls]
    assert all(call.id for call in back.calls)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_an_answer_comes_back_as_the_same_turn(dialect: Dialect) -> None:
    """What a client sends back with its next request renders to the answer recorded for the policy."""
    body = whole(dialect, answer())
    turn = body["choices"][0]["message"] if dialect == "chat" else body
    history = [{"role": "user", "content": "q"}, *(body["output"] if dialect == "responses" else [turn])]
    request = read_request(dialect, {"input" if dialect == "responses" else "messages": history})
    message = request.messages[1]
    assert (message["reasoning_content"], message["content"]) == ("think", "So: é\n☃")
    assert [call["function"] for call in message["tool_calls"]] == [
        {"name": "bash", "arguments": {"command": "ls"}},
        {"name": "bash", "arguments": {}},
    ]


def test_ends_and_broken_calls_are_shown() -> None:
    ends = [whole("chat", answer(*case))["choices"][0]["finish_reason"] for case in [(PARSED,), (Parsed("", "x"),)]]
    assert [*ends, whole("chat", answer(truncated=True))["choices"][0]["finish_reason"]] == ["tool_calls", "stop", "length"]
    assert whole("messages", answer(truncated=True))["stop_reason"] == "max_tokens"
    assert whole("responses", answer(truncated=True))["incomplete_details"] == {"reason": "max_output_tokens"}
    broken = Parsed("", "try", (), (CallError(CallFault.BAD_JSON, "m", "<tool_call>{oops"), CallError(CallFault.NO_CALL, "m")))
    assert whole("messages", answer(broken))["content"] == [{"type": "text", "text": "try\n<tool_call>{oops"}]
    assert whole("chat", answer())["usage"] == {"prompt_tokens": 11, "completion_tokens": 5, "total_tokens": 16}


@given(st.lists(st.sampled_from(EVENT_LINES), max_size=12), st.sampled_from(["\n", "\r\n", "\r"]), st.randoms())
def test_events_are_read_from_any_pieces(lines: list[str], end: str, draw: Any) -> None:
    expected: list[str] = []
    held: list[str] = []
    for line in lines:
        if line.startswith("data"):
            held.append(line.partition(":")[2].removeprefix(" "))
        elif not line and held:
            expected.append("\n".join(held))
            held = []
    stream = "".join(line + end for line in lines).encode()
    reader = EventReader()
    found: list[str] = []
    while stream:
        size = draw.randint(1, 3)
        found += reader.feed(stream[:size])
        stream = stream[size:]
    assert found == expected
    assert reader.finished == (not held)
