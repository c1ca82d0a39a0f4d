"""The records of trajectories, their columns and their schemas."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
from holdfast_recipes.core.calls import ToolCall
from holdfast_recipes.core.jsonschema import violations
from holdfast_recipes.core.records import from_json, from_row, to_json, to_row
from holdfast_recipes.core.scored import Blame, Status
from holdfast_recipes.core.spans import Span
from holdfast_recipes.core.template import Kind
from holdfast_recipes.core.trajectory import (
    Branch,
    Harness,
    Observation,
    PolicyName,
    SandboxNote,
    Tokens,
    Trajectory,
    Turn,
    Verdict,
    turns_of,
)
from hypothesis import given
from hypothesis import strategies as st

SCHEMAS = Path(__file__).parents[3] / "schemas" / "recipes"
BASH = {"type": "function", "function": {"name": "bash", "parameters": {"type": "object", "properties": {"command": {"type": "string"}}}}}


def assistant(name: str, arguments: str) -> dict[str, Any]:
    call = {"id": "1", "type": "function", "function": {"name": name, "arguments": arguments}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def trajectory(*messages: dict[str, Any], **changes: Any) -> Trajectory:
    base = Trajectory("t1", "task", Harness("mini", "2.4.6", "ab"), PolicyName("teacher", "3"), tuple(messages), (BASH,))
    return replace(base, **changes)


def full() -> Trajectory:
    """One with every field set to something other than its default."""
    messages = (
        {"role": "user", "content": "fix ☃"},
        assistant("bash", '{"command": "ls"}'),
        {"role": "tool", "tool_call_id": "1", "content": "a\nb"},
    )
    turn = Turn(
        0, "why", "so", (ToolCall("bash", {"command": "ls"}, "1"),), ("bad_json",), (Observation("a", "1", 124, "timeout"),), 1.5, 0.25
    )
    tokens = Tokens((1, 2, 3), (0, 1, 1), (0.0, -0.5, -1.25), (Span(1, 3, "assistant", Kind.CONTENT, 0, 1),), (4,))
    return trajectory(
        *messages,
        turns=(turn,),
        seed=7,
        status=Status.TRUNCATED,
        blame=Blame.INFRASTRUCTURE,
        reason="oom",
        reward=-1.0,
        verdict=Verdict((1, 2), (2, 3), "ff", ("t::a",), ("t::b",)),
        tokens=tokens,
        values=(0.4, 0.1),
        value_of="after",
        rises=((0, 1),),
        credited=(1,),
        sandbox=SandboxNote("s", "sha256:1", True),
        repo="a/b",
        source="rebench",
        run="r1",
        prompts={"swe_mini": "ab"},
        branch=Branch("t1", 1),
    )


def test_records_round_trip_without_loss() -> None:
    record = full()
    assert all(getattr(record, field.name) not in (None, (), {}) for field in fields(record))
    assert from_json(json.loads(json.dumps(to_json(record)))) == record
    assert from_row(json.loads(json.dumps(to_row(record)))) == record
    assert from_row(to_row(trajectory())) == trajectory()


def test_columns_that_cannot_hold_a_message_lose_nothing() -> None:
    odd = trajectory(
        {"role": "user", "content": [{"type": "text", "text": "x"}]},
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "r",
            "tool_calls": [{"function": {"name": "bash", "arguments": {"a": 1}}}],
        },
    )
    row = to_row(odd)
    assert from_row(json.loads(json.dumps(row))) == odd
    for message in row["messages"]:
        assert message.keys() == {"role", "content", "reasoning_content", "tool_call_id", "tool_calls"}
        assert message["content"] is None or isinstance(message["content"], str)
    assert isinstance(row["messages"][1]["tool_calls"][0]["function"]["arguments"], str)


def test_rows_that_others_published_are_read() -> None:
    row = {
        "tools": json.dumps([BASH]),
        "messages": [
            {"role": "user", "content": "fix", "tool_call_id": None, "tool_calls": None},
            {**assistant("bash", '{"command": "ls"}'), "tool_call_id": None},
            {"role": "tool", "content": "out", "tool_call_id": "1", "tool_calls": None},
        ],
        "metadata": json.dumps({"verify_status": "resolved"}),
    }
    read = from_row(row)
    assert (read.reward, read.resolved, len(read.turns)) == (1.0, True, 1)
    assert read.turns[0].observations == (Observation("out", "1"),)
    assert read.turns[0].calls == (ToolCall("bash", {"command": "ls"}, "1"),)
    assert from_row({**row, "metadata": json.dumps({"verify_status": "unresolved"})}).reward == -1.0
    assert from_row({**row, "metadata": "{}"}).reward is None
    facts = {"instance_id": "i", "repo": "a/b", "teacher": "t", "harness": "h"}
    for named in ({**row, "metadata": json.dumps(facts)}, {**row, **facts, "metadata": '{"repo": "other"}'}):
        found = from_row(named)
        assert (found.task_id, found.trajectory_id, found.repo, found.policy.name, found.harness.name) == ("i", "i", "a/b", "t", "h")
    assert from_row({**row, "metadata": '{"model": "m"}'}).policy.name == "m"
    assert (from_row({**row, "metadata": "{}"}).repo, from_row({**row, "metadata": "{}"}).task_id) == ("", "")


def test_other_formats_and_broken_records_are_refused() -> None:
    for change in ({"format": 2}, {"status": "fine"}, {"harness": {"nom": 1}}):
        with pytest.raises(ValueError, match="record"):
            from_json({**to_json(full()), **change})


def test_tokens_must_have_one_shape() -> None:
    with pytest.raises(ValueError, match="one entry"):
        Tokens((1, 2), (0,), (0.0, 0.0))


def test_records_fit_their_schema() -> None:
    schema = json.loads((SCHEMAS / "trajectory.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    for record in (full(), trajectory()):
        jsonschema.validate(to_json(record), schema)
        assert list(violations(to_json(record), schema)) == []
    broken = {**to_json(full()), "status": "fine"}
    assert list(violations(broken, schema))
    assert not jsonschema.Draft202012Validator(schema).is_valid(broken)
    assert set(schema["properties"]) == {field.name for field in fields(Trajectory)} | {"format"}


SCHEMA_PARTS = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["object", "array", "string", "number", "integer", "boolean", "null"]),
        "enum": st.lists(st.sampled_from([1, True, "a", None, 1.0]), min_size=1),
        "const": st.sampled_from([0, False, "a"]),
        "minimum": st.integers(-2, 2),
        "exclusiveMaximum": st.integers(-2, 2),
        "minLength": st.integers(0, 2),
        "maxItems": st.integers(0, 2),
        "pattern": st.sampled_from(["a", "^b"]),
        "required": st.lists(st.sampled_from(["a", "b"]), unique=True),
        "additionalProperties": st.booleans(),
        "properties": st.just({"a": {"type": "integer"}}),
        "items": st.just({"type": "string"}),
        "anyOf": st.just([{"type": "string"}, {"minimum": 1}]),
    },
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from([1.0, 0.5]) | st.sampled_from(["", "a", "ab", "b"]),
    lambda x: st.lists(x, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "c"]), x),
    max_leaves=5,
)


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [
        ({"minimum": 1}, [1, 1.5, "a"], [0, 0.9]),
        ({"maximum": 1}, [1, 0], [2]),
        ({"exclusiveMinimum": 1}, [1.1, 2], [1, 0]),
        ({"exclusiveMaximum": 1}, [0.9], [1, 2]),
        ({"minLength": 2, "maxLength": 3}, ["ab", "abc", 7], ["a", "abcd"]),
        ({"minItems": 1, "maxItems": 2}, [[1], [1, 2]], [[], [1, 2, 3]]),
        ({"type": ["integer", "null"]}, [1, 2.0, None], [1.5, True, "1"]),
        ({"enum": [1, "a"]}, [1, 1.0, "a"], [True, "b"]),
        ({"const": False}, [False], [0, None]),
        ({"pattern": "^a"}, ["ab", 3], ["ba"]),
        ({"required": ["a"]}, [{"a": None}, []], [{}, {"b": 1}]),
        (
            {"properties": {"a": {"type": "string"}}, "additionalProperties": {"type": "null"}},
            [{"a": "x", "b": None}],
            [{"a": 1}, {"b": 1}],
        ),
        ({"anyOf": [{"type": "string"}, {"minimum": 3}]}, ["x", 3], [2]),
        ({"items": False}, [[]], [[1]]),
        (True, [1], []),
    ],
)
def test_each_keyword(schema: Any, valid: list[Any], invalid: list[Any]) -> None:
    for value in valid:
        assert list(violations(value, schema)) == []
        assert jsonschema.Draft202012Validator(schema).is_valid(value)
    for value in invalid:
        assert list(violations(value, schema))
        assert not jsonschema.Draft202012Validator(schema).is_valid(value)


@given(VALUES, SCHEMA_PARTS)
def test_validation_agrees_with_the_reference(value: Any, schema: dict[str, Any]) -> None:
    assert (not list(violations(value, schema))) == jsonschema.Draft202012Validator(schema).is_valid(value)


def test_turns_follow_their_messages() -> None:
    turns = turns_of(
        [{"role": "tool", "content": "stray"}, {"role": "assistant", "content": "<think>t</think>hi"}, {"role": "tool", "content": None}]
    )
    assert len(turns) == 1
    assert (turns[0].thought, turns[0].text, turns[0].faults) == ("t", "hi", ("no_call",))
    assert turns[0].observations == (Observation("", ""),)
    assert full().scored().length == 2
