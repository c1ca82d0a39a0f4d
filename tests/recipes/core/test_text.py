"""D2 and the text beside it: tool calls, the chat template, token spans, loss masks and cuts."""

from __future__ import annotations

import json
import string
from pathlib import Path
from typing import Any

import pytest
from holdfast_recipes.core.calls import CallFault, parse_blocks, parse_items, parse_message, parse_text, tool_names
from holdfast_recipes.core.spans import Span, encode, last_turn, logit_positions, loss_mask, trim_right, truncate_left
from holdfast_recipes.core.template import Kind, Piece, call_text, render, text_of
from hypothesis import given
from hypothesis import strategies as st

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "bash",
            "parameters": {
                "type": "object",
                "properties": {"command": {"type": "string"}, "timeout": {"type": "integer", "minimum": 1}},
                "required": ["command"],
                "additionalProperties": False,
            },
        },
    }
]
GOLDEN = json.loads((Path(__file__).parent / "qwen3_tool_chain.json").read_text())


def faults(text: str, **options: Any) -> list[CallFault]:
    return [error.fault for error in parse_text(text, TOOLS, **options).errors]


def test_a_turn_with_thought_text_and_two_calls() -> None:
    parsed = parse_text(
        f"<think>\nlook\n</think>\n\nNow:\n{call_text('bash', {'command': 'ls'})}\n{call_text('bash', {'command': 'é'})}", TOOLS
    )
    assert (parsed.thought, parsed.text) == ("look", "Now:")
    assert [call.arguments for call in parsed.calls] == [{"command": "ls"}, {"command": "é"}]
    assert parsed.errors == ()


def test_the_generation_prompt_may_have_opened_the_thought() -> None:
    parsed = parse_text(f"look\n</think>\n\n{call_text('bash', {'command': 'ls'})}", TOOLS, thinking=True)
    assert (parsed.thought, len(parsed.calls)) == ("look", 1)


def test_a_call_within_a_thought_is_ignored() -> None:
    inside = call_text("bash", {"command": "rm -rf /"})
    assert parse_text(f"<think>maybe {inside}").errors[0].fault is CallFault.NO_CALL
    assert parse_text(f"<think>maybe {inside}</think>fine").calls == ()
    assert parse_text(f"maybe {inside}", thinking=True).calls == ()


def test_arguments_may_hold_the_tags() -> None:
    command = "echo '</tool_call><tool_call><think>'"
    parsed = parse_text(call_text("bash", {"command": command}) + call_text("bash", {"command": "ls"}), TOOLS)
    assert [call.arguments["command"] for call in parsed.calls] == [command, "ls"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("just words", [CallFault.NO_CALL]),
        ("", [CallFault.NO_CALL]),
        ('<tool_call>\n{"name": "bash", "arguments": {"command": "l', [CallFault.BAD_JSON]),
        ('<tool_call>{"name": "bash", "arguments": {"command": "ls"}}', [CallFault.BAD_JSON]),
        ('{"name": "bash", "arguments": {}}</tool_call>', [CallFault.BAD_JSON]),
        ("<tool_call></tool_call>", [CallFault.BAD_JSON]),
        ("<tool_call>[1]</tool_call>", [CallFault.BAD_JSON]),
        ('<tool_call>{"arguments": {}}</tool_call>', [CallFault.BAD_JSON]),
        ('<tool_call>{"name": 3, "arguments": {}}</tool_call>', [CallFault.BAD_JSON]),
        ('<tool_call>{"name": "bash", "arguments": [1]}</tool_call>', [CallFault.BAD_JSON]),
        ('<tool_call>{"name": "bash", "arguments": "not json"}</tool_call>', [CallFault.BAD_JSON]),
        ('<tool_call>{"name": "bash", "arguments": {"command": NaN}}</tool_call>', [CallFault.BAD_JSON]),
        ('<tool_call>{"name": "bash", "arguments": {"command": "\\ud800"}}</tool_call>', [CallFault.BAD_JSON]),
        ("<tool_call>" + '{"a":' * 100_000, [CallFault.BAD_JSON]),
        ('<tool_call>{"name": "python", "arguments": {}}</tool_call>', [CallFault.UNDEFINED_TOOL]),
        ('<tool_call>{"name": "bash", "arguments": {}}</tool_call>', [CallFault.SCHEMA_VIOLATION]),
        ('<tool_call>{"name": "bash"}</tool_call>', [CallFault.SCHEMA_VIOLATION]),
        ('<tool_call>{"name": "bash", "arguments": {"command": 1}}</tool_call>', [CallFault.SCHEMA_VIOLATION]),
        ('<tool_call>{"name": "bash", "arguments": {"command": "", "timeout": true}}</tool_call>', [CallFault.SCHEMA_VIOLATION]),
        ('<tool_call>{"name": "bash", "arguments": {"command": "", "timeout": 0}}</tool_call>', [CallFault.SCHEMA_VIOLATION]),
        ('<tool_call>{"name": "bash", "arguments": {"command": "", "x": 0}}</tool_call>', [CallFault.SCHEMA_VIOLATION]),
        ('<tool_call>{"name": "bash", "arguments": "{\\"command\\": \\"ls\\"}"}</tool_call>', []),
        ('<tool_call>{"name": "bash", "arguments": {"command": "", "timeout": 3.0}}</tool_call>', []),
    ],
)
def test_malformed_calls_are_values(text: str, expected: list[CallFault]) -> None:
    assert faults(text) == expected


def test_a_broken_call_does_not_affect_other_calls() -> None:
    good = call_text("bash", {"command": "ls"})
    for broken in ("<tool_call>{oops</tool_call>", "<tool_call>{oops", '<tool_call>{"name": "bash"} extra</tool_call>'):
        parsed = parse_text(f"{good}\n{broken}\n{good}", TOOLS)
        assert ([call.name for call in parsed.calls], [error.fault for error in parsed.errors]) == (["bash"] * 2, [CallFault.BAD_JSON])


def test_all_dialects_parse_to_the_same_result() -> None:
    arguments = {"command": "ls"}
    chat = {"role": "assistant", "content": "Now:", "reasoning_content": "look"}
    chat["tool_calls"] = [{"id": "7", "type": "function", "function": {"name": "bash", "arguments": json.dumps(arguments)}}]  # type: ignore[assignment]
    blocks = [
        {"type": "thinking", "thinking": "look"},
        {"type": "text", "text": "Now:"},
        {"type": "tool_use", "id": "7", "name": "bash", "input": arguments},
    ]
    items: list[dict[str, Any]] = [
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "look"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Now:"}]},
        {"type": "function_call", "call_id": "7", "name": "bash", "arguments": json.dumps(arguments)},
    ]
    first = parse_message(chat, TOOLS)
    assert (first.thought, first.text, first.calls[0].id, first.calls[0].arguments) == ("look", "Now:", "7", arguments)
    assert parse_blocks(blocks, TOOLS) == parse_items(items, TOOLS) == first
    assert parse_blocks("words").errors[0].fault is CallFault.NO_CALL
    assert tool_names(TOOLS) == tool_names([{"name": "bash", "input_schema": {}}]) == {"bash"}


@pytest.mark.parametrize("entry", ["text", {"function": None}, {"function": {"name": "bash", "arguments": '{"command": "l'}}, {}])
def test_malformed_chat_calls(entry: Any) -> None:
    assert [error.fault for error in parse_message({"content": None, "tool_calls": [entry]}, TOOLS).errors] == [CallFault.BAD_JSON]


def test_an_error_keeps_the_id_it_must_be_answered_with() -> None:
    for function in (None, {"name": "bash", "arguments": "{"}, {"name": "python", "arguments": "{}"}):
        assert parse_message({"content": None, "tool_calls": [{"id": "7", "function": function}]}, TOOLS).errors[0].id == "7"


@given(
    st.text(alphabet='<>/{}"\\:,_abc1 \n' + string.ascii_lowercase)
    | st.lists(
        st.sampled_from(["<tool_call>", "</tool_call>", "<think>", "</think>", '{"name": "bash", "arguments": {}}', "{", " x "])
    ).map("".join)
)
def test_any_text_is_parsed(text: str) -> None:
    for thinking in (False, True):
        parsed = parse_text(text, TOOLS, thinking=thinking)
        assert parsed.calls or parsed.errors
        assert len(parsed.calls) + len(parsed.errors) <= text.count("tool_call>") + 1


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x), max_leaves=6
)


@given(st.lists(st.tuples(st.sampled_from(["bash", "view"]), st.dictionaries(st.text(), values, max_size=3)), min_size=1, max_size=4))
def test_what_is_rendered_is_parsed_again(calls: list[tuple[str, dict[str, Any]]]) -> None:
    message = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": name, "arguments": args}} for name, args in calls]}
    pieces = render([{"role": "user", "content": "q"}, message])
    written = "".join(piece.text for piece in pieces if piece.role == "assistant" and piece.kind is Kind.CONTENT)
    assert [(call.name, call.arguments) for call in parse_text(written).calls] == calls


def test_the_renderer_gives_the_official_text() -> None:
    messages, tools = GOLDEN["messages"], GOLDEN["tools"]
    assert text_of(render(messages, tools)) == GOLDEN["text"]
    assert text_of(render(messages[:-1], tools, generation_prompt=True, opens_thought=True)) == GOLDEN["prompt"]


@pytest.mark.parametrize("case", json.loads((Path(__file__).parent / "qwen3_cases.json").read_text()))
def test_odd_conversations_give_the_official_text(case: dict[str, Any]) -> None:
    """Cases drawn at random and rendered by the official template: system messages anywhere, no user, stray results, odd thoughts."""
    options = {key: case[key] for key in ("generation_prompt", "opens_thought")}
    assert text_of(render(case["messages"], case["tools"], **options)) == case["text"]


def test_pieces_mark_what_the_policy_wrote() -> None:
    pieces = render(GOLDEN["messages"], GOLDEN["tools"])
    written = [piece for piece in pieces if piece.role == "assistant" and piece.kind in (Kind.CONTENT, Kind.END)]
    assert [piece.turn for piece in written] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert written[2].text.startswith("<think>\nlook first\n</think>")
    assert written[0].text == "Old answer."
    opened = render(GOLDEN["messages"], GOLDEN["tools"], opens_thought=True)
    assert text_of(opened) == text_of(pieces)
    headers = [piece.text for piece in opened if piece.role == "assistant" and piece.kind is Kind.HEADER]
    assert headers == ["<|im_start|>assistant\n"] + ["<|im_start|>assistant\n<think>\n"] * 3


def test_each_piece_is_encoded_by_itself() -> None:
    pieces = render(GOLDEN["messages"], GOLDEN["tools"])
    ids, spans = encode(pieces, lambda text: list(text.encode()))
    assert bytes(ids).decode() == GOLDEN["text"]
    mask = loss_mask(spans, None, len(ids))
    supervised = bytes(token for token, bit in zip(ids, mask, strict=True) if bit).decode()
    assert supervised == "".join(p.text for p in pieces if p.role == "assistant" and p.kind in (Kind.CONTENT, Kind.END))
    assert "grep" in supervised
    assert "tool_response" not in supervised
    assert encode([Piece("x", "user", Kind.CONTENT, 0)], lambda _: []) == ([], [])


def chain() -> list[Span]:
    """The sequence of D2."""
    spans = [Span(0, 3, "system", Kind.CONTENT), Span(3, 7, "user", Kind.CONTENT, message=1)]
    for turn, (header, content, end, result) in enumerate([(7, 9, 14, 19), (19, 21, 24, 29), (29, 31, 33, 34)]):
        message = 2 + 2 * turn
        spans.append(Span(header, content, "assistant", Kind.HEADER, turn, message))
        spans.append(Span(content, end, "assistant", Kind.CONTENT, turn, message))
        spans.append(Span(end, end + 1, "assistant", Kind.END, turn, message))
        if result > end + 1:
            spans.append(Span(end + 1, result, "tool", Kind.CONTENT, None, message + 1))
    return spans


def test_loss_masks() -> None:
    spans = chain()
    everything = loss_mask(spans, None, 34)
    assert [index for index, bit in enumerate(everything) if bit] == [*range(9, 15), *range(21, 25), *range(31, 34)]
    assert sum(everything) == 13
    assert sum(loss_mask(spans, {0, 1}, 34)) == 10
    assert sum(loss_mask(spans, {last_turn(spans)}, 34)) == 3  # type: ignore[arg-type]
    assert sum(loss_mask(spans, set(), 34)) == 0
    assert logit_positions(everything)[0] == 8
    assert trim_right(loss_mask(spans, {0}, 34)) == 15
    assert trim_right([0, 0]) == 0
    with pytest.raises(ValueError, match="first token"):
        logit_positions([1])
    with pytest.raises(ValueError, match="leaves"):
        loss_mask(spans, None, 33)
    with pytest.raises(ValueError, match="overlap"):
        loss_mask([*spans, Span(5, 8, "tool", Kind.CONTENT)], None, 34)
    assert last_turn([]) is None


def test_left_truncation_keeps_system_and_pairs() -> None:
    ids, spans = list(range(34)), chain()
    assert truncate_left(ids, spans, 34) == (ids, spans)
    cut = truncate_left(ids, spans, 33)
    assert cut is not None
    assert cut[0] == [0, 1, 2, *range(7, 34)]
    for limit in range(18, 30):  # never starts with a tool result: its call would be missing
        cut = truncate_left(ids, spans, limit)
        assert cut is not None
        assert cut[0] == [0, 1, 2, *range(19, 34)]
    kept = truncate_left(ids, spans, 8)
    assert kept is not None
    assert kept[0] == [0, 1, 2, *range(29, 34)]
    assert loss_mask(kept[1], {2}, 8) == [0, 0, 0, 0, 0, 1, 1, 1]
    assert truncate_left(ids, spans, 7) is None


def test_recorded_pairs_are_cut_at_their_borders() -> None:
    """The first branch of D12: [1 2 3] → [4 5], 6, → [7], 6, → [4]."""
    ids = [1, 2, 3, 4, 5, 6, 7, 6, 4]
    parts = [(0, 3, "user"), (3, 5, "assistant"), (5, 6, "user"), (6, 7, "assistant"), (7, 8, "user"), (8, 9, "assistant")]
    spans = [
        Span(start, end, role, Kind.CONTENT, number // 2 if role == "assistant" else None, number)
        for number, (start, end, role) in enumerate(parts)
    ]
    cut = truncate_left(ids, spans, 6)
    assert cut is not None
    assert cut[0] == [4, 5, 6, 7, 6, 4]
    assert loss_mask(cut[1], {last_turn(cut[1]) or 0}, 6) == [0, 0, 0, 0, 0, 1]


@given(
    st.lists(st.tuples(st.sampled_from(["user", "assistant", "tool"]), st.integers(1, 5)), min_size=1, max_size=8),
    st.integers(0, 4),
    st.integers(0, 40),
)
def test_cuts_are_the_least_that_fit(parts: list[tuple[str, int]], system: int, limit: int) -> None:
    spans = [Span(0, system, "system", Kind.CONTENT)] if system else []
    position, turn = system, 0
    for number, (role, length) in enumerate(parts, 1):
        spans.append(Span(position, position + length, role, Kind.CONTENT, turn if role == "assistant" else None, number))
        position += length
        turn += role == "assistant"
    ids = list(range(position))
    cut = truncate_left(ids, spans, limit)
    starts = [span.start for span in spans if span.role in ("user", "assistant") and span.start > system]
    last = max((span.start for span in spans if span.role == "assistant"), default=position)
    fitting = [] if position > limit else [ids]
    fitting += [ids[:system] + ids[start:] for start in starts if start <= last and system + position - start <= limit]
    assert (cut[0] if cut else None) == (fitting[0] if fitting else None)
    if cut:  # each span that is left has the tokens it had, and all of what is left has a span
        had = {span.message: ids[span.start : span.end] for span in spans}
        assert [token for span in cut[1] for token in had[span.message]] == cut[0]
        assert all(cut[0][span.start : span.end] == had[span.message] for span in cut[1])
        assert {span.turn for span in cut[1]} <= {span.turn for span in spans}
