"""The Qwen3 chat template (Hermes tool format) as pieces: the same characters as the official template, each with its origin.

Owns the text of messages and tools and which of it a policy wrote. Token ids come from encoding the pieces one by one (``spans``).
Thoughts stay in the turns after the last real user message, that is within a chain of tool calls, and vanish from those before it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

_START, _END = "<|im_start|>", "<|im_end|>"
_TOOLS_BEFORE = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>"
)
_TOOLS_AFTER = (
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments within <tool_call></tool_call> "
    'XML tags:\n<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>'
)


class Kind(StrEnum):
    """The kind of a piece: ``header`` opens a message (and is given to the policy), ``content`` and ``end`` are written by the one who
    has the role, ``glue`` stands between messages."""

    HEADER = "header"
    CONTENT = "content"
    END = "end"
    GLUE = "glue"


@dataclass(frozen=True, slots=True)
class Piece:
    """Text of one kind and role. ``turn`` counts assistant messages from 0 and is None in others; ``message`` counts all messages."""

    text: str
    role: str
    kind: Kind
    message: int
    turn: int | None = None


def render(
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] = (),
    *,
    generation_prompt: bool = False,
    opens_thought: bool = False,
) -> list[Piece]:
    """Messages of the chat form → pieces; their texts joined are what the official template gives.

    ``opens_thought`` is for models whose generation prompt ends with ``<think>`` (Qwen3-Thinking-2507): there that line belongs to the
    header, since the policy did not write it. ``generation_prompt`` adds the header of the next assistant message.
    """
    pieces = list(_system(messages, tools))
    last_query = _last_query(messages)
    turn = 0
    for index, message in enumerate(messages):
        role = str(message["role"])
        if role == "assistant":
            thought, content = _thought_and_content(message)
            keeps = index > last_query and (bool(thought) or index == len(messages) - 1)
            pieces += _assistant(message, thought if keeps else None, content, opens_thought, index, turn)
            turn += 1
        elif role == "tool":
            pieces += _tool(messages, index)
        elif role == "user" or (role == "system" and index > 0):
            pieces += _message(role, _string(message.get("content")), index)
    if generation_prompt:
        opening = f"{_START}assistant\n" + ("<think>\n" if opens_thought else "")
        pieces.append(Piece(opening, "assistant", Kind.HEADER, len(messages), turn))
    return pieces


def text_of(pieces: Sequence[Piece]) -> str:
    return "".join(piece.text for piece in pieces)


def observation(text: str) -> dict[str, str]:
    """A harness's answer to a turn that made no call which a tool message could answer. It has the role of a user, since endpoints refuse a
    tool message without its call, and the form of a tool's result: after a plain message of a user the template drops the thoughts of
    all earlier turns, and the prompt no longer begins with what was sampled."""
    return {"role": "user", "content": f"<tool_response>\n{text}\n</tool_response>"}


def call_text(name: str, arguments: Any) -> str:
    """A tool call as the model is to write it. Arguments given as a string are taken as they are."""
    written = arguments if isinstance(arguments, str) else _json(arguments)
    return f'<tool_call>\n{{"name": "{name}", "arguments": {written}}}\n</tool_call>'


def _system(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> Iterator[Piece]:
    first = _string(messages[0].get("content")) if messages and messages[0]["role"] == "system" else None
    if tools:
        listed = "".join("\n" + _json(tool) for tool in tools)
        yield from _message("system", (f"{first}\n\n" if first is not None else "") + _TOOLS_BEFORE + listed + _TOOLS_AFTER, 0)
    elif first is not None:
        yield from _message("system", first, 0)


def _assistant(
    message: Mapping[str, Any], thought: str | None, content: str, opens_thought: bool, index: int, turn: int
) -> Iterator[Piece]:
    header = f"{_START}assistant\n"
    written = content
    if thought is not None:
        opening = "<think>\n"
        header, opening = (header + opening, "") if opens_thought else (header, opening)
        written = opening + thought.strip("\n") + "\n</think>\n\n" + content.lstrip("\n")
    for number, call in enumerate(message.get("tool_calls") or ()):
        function = call.get("function") or call
        written += ("\n" if number or content else "") + call_text(function["name"], function["arguments"])
    yield Piece(header, "assistant", Kind.HEADER, index, turn)
    if written:
        yield Piece(written, "assistant", Kind.CONTENT, index, turn)
    yield Piece(_END, "assistant", Kind.END, index, turn)
    yield Piece("\n", "assistant", Kind.GLUE, index, turn)


def _tool(messages: Sequence[Mapping[str, Any]], index: int) -> Iterator[Piece]:
    """Neighbouring results share one user message."""
    if index == 0 or messages[index - 1]["role"] != "tool":
        yield Piece(f"{_START}user", "tool", Kind.HEADER, index)
    yield Piece(f"\n<tool_response>\n{_string(messages[index].get('content'))}\n</tool_response>", "tool", Kind.CONTENT, index)
    if index + 1 == len(messages) or messages[index + 1]["role"] != "tool":
        yield Piece(_END, "tool", Kind.END, index)
        yield Piece("\n", "tool", Kind.GLUE, index)


def _message(role: str, content: str, index: int) -> Iterator[Piece]:
    yield Piece(f"{_START}{role}\n", role, Kind.HEADER, index)
    if content:
        yield Piece(content, role, Kind.CONTENT, index)
    yield Piece(_END, role, Kind.END, index)
    yield Piece("\n", role, Kind.GLUE, index)


def _last_query(messages: Sequence[Mapping[str, Any]]) -> int:
    """Index of the last user message that is no wrapped tool result; without one, past the end of any thought."""
    for index in range(len(messages) - 1, -1, -1):
        content = messages[index].get("content")
        if messages[index]["role"] != "user" or not isinstance(content, str):
            continue
        if not (content.startswith("<tool_response>") and content.endswith("</tool_response>")):
            return index
    return len(messages) - 1


def _thought_and_content(message: Mapping[str, Any]) -> tuple[str, str]:
    content = _string(message.get("content"))
    reasoning = message.get("reasoning_content")
    if isinstance(reasoning, str):
        return reasoning, content
    if "</think>" not in content:
        return "", content
    before = content.split("</think>")[0].rstrip("\n")
    return before.split("<think>")[-1].lstrip("\n"), content.split("</think>")[-1].lstrip("\n")


def _string(content: Any) -> str:
    """The template renders content that is no string as nothing."""
    return content if isinstance(content, str) else ""


def _json(value: Any) -> str:
    """As the template filter of the reference implementation writes it: keys in their order, no escapes beyond JSON's."""
    return json.dumps(value, ensure_ascii=False)
