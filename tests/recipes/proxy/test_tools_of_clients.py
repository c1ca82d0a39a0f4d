"""Tools as codex and claude-code list them: namespaces, free-form tools, tools that their provider runs; there and back."""

from __future__ import annotations

import json
from typing import Any

import pytest
from holdfast_recipes.core.calls import Parsed, ToolCall
from holdfast_recipes.proxy.answers import Answer, EventReader, events, whole
from holdfast_recipes.proxy.dialects import DialectError, read_request

PARAMETERS = {"type": "object", "properties": {"message": {"type": "string"}}}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "name": "exec_command", "parameters": PARAMETERS, "strict": False},
    {
        "type": "namespace",
        "name": "agents",
        "tools": [{"type": "function", "name": "spawn", "description": "Start", "parameters": PARAMETERS}],
    },
    {"type": "custom", "name": "apply_patch", "description": "Patch", "format": {"type": "grammar", "syntax": "lark", "definition": "x"}},
    {"type": "web_search", "external_web_access": True},
    {"type": "image_generation"},
]


def test_tools_of_the_responses_dialect() -> None:
    request = read_request("responses", {"input": "hi", "tools": TOOLS})
    assert [tool["function"]["name"] for tool in request.tools] == ["exec_command", "agents.spawn", "apply_patch"]
    assert request.tools[1]["function"] == {"name": "agents.spawn", "description": "Start", "parameters": PARAMETERS}
    assert request.tools[2]["function"]["parameters"]["required"] == ["input"]
    assert request.freeform == {"apply_patch"}


def test_calls_go_out_and_come_back_under_the_same_names() -> None:
    calls = (ToolCall("agents.spawn", {"message": "x"}), ToolCall("apply_patch", {"input": "*** Begin\né"}), ToolCall("apply_patch", {}))
    answer = Answer("7", "m", Parsed("", "", calls), 1, 1, freeform=frozenset({"apply_patch"}))
    spawn, patch, empty = whole("responses", answer)["output"]
    assert (spawn["type"], spawn["namespace"], spawn["name"], spawn["arguments"]) == (
        "function_call",
        "agents",
        "spawn",
        '{"message": "x"}',
    )
    assert (patch["type"], patch["name"], patch["input"]) == ("custom_tool_call", "apply_patch", "*** Begin\né")
    assert "namespace" not in patch
    assert empty["input"] == "{}"
    reader = EventReader()
    made = [json.loads(data) for data in reader.feed(b"".join(events("responses", answer)))]
    assert [each["item"] for each in made if each["type"] == "response.output_item.done"] == [spawn, patch, empty]
    assert [each["delta"] for each in made if each["type"].endswith("input.delta")] == ["*** Begin\né", "{}"]
    results = [
        {"type": "custom_tool_call_output" if item["type"] == "custom_tool_call" else "function_call_output", "call_id": item["call_id"]}
        for item in (spawn, patch)
    ]
    back = read_request("responses", {"input": [{"role": "user", "content": "hi"}, spawn, patch, *results]}).messages
    assert [call["function"] for call in back[1]["tool_calls"]] == [
        {"name": "agents.spawn", "arguments": {"message": "x"}},
        {"name": "apply_patch", "arguments": {"input": "*** Begin\né"}},
    ]
    assert [message["role"] for message in back] == ["user", "assistant", "tool", "tool"]


def test_tools_that_anthropic_runs_are_left_out() -> None:
    tools = [
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 3},
        {"type": "custom", "name": "Bash", "input_schema": PARAMETERS},
        {"type": "bash_20250124", "name": "bash"},
        {"name": "web_search_docs", "input_schema": PARAMETERS},
    ]
    request = read_request("messages", {"messages": [{"role": "user", "content": "hi"}], "tools": tools})
    assert [tool["function"]["name"] for tool in request.tools] == ["Bash", "bash", "web_search_docs"]
    assert request.freeform == frozenset()


@pytest.mark.parametrize(
    "tool", [3, {"type": "namespace", "name": "n", "tools": [{"type": "function"}]}, {"type": "namespace", "tools": 3}]
)
def test_tools_that_are_refused(tool: Any) -> None:
    with pytest.raises(DialectError):
        read_request("responses", {"input": "hi", "tools": [tool]})


def test_stop_sequences_are_named_to_anthropic_clients() -> None:
    answer = Answer("7", "m", Parsed("", "one"), 1, 1, stopped_by="END")
    assert (whole("messages", answer)["stop_reason"], whole("messages", answer)["stop_sequence"]) == ("stop_sequence", "END")
    made = [json.loads(data) for data in EventReader().feed(b"".join(events("messages", answer)))]
    assert made[0]["message"]["stop_sequence"] is None
    assert made[-2]["delta"] == {"stop_reason": "stop_sequence", "stop_sequence": "END"}
