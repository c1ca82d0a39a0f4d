"""Thoughts and tool calls in the output of a model: Qwen/Hermes text, chat ``tool_calls``, responses items and Anthropic blocks.

Owns parsing and the kinds of error. An error is a value with the text it comes from: the driver answers it, the filters count it.
``template`` renders calls. A malformed call never hides well-formed calls of the same turn.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NoReturn

from .jsonschema import violations

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_THINK, _END_THINK = "<think>", "</think>"
_SPACE = re.compile(r"[ \t\r\n]*")


class CallFault(StrEnum):
    """Errors of a call. ``NO_CALL`` belongs to a whole turn: it contains no call."""

    UNDEFINED_TOOL = "undefined_tool"
    BAD_JSON = "bad_json"
    SCHEMA_VIOLATION = "schema_violation"
    NO_CALL = "no_call"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that can be run: arguments are a JSON object, checked where the tools were given."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    id: str = ""


@dataclass(frozen=True, slots=True)
class CallError:
    """A call that cannot be run: what is wrong, in words for the model, and the text or JSON it comes from."""

    fault: CallFault
    message: str
    source: str = ""
    id: str = ""


@dataclass(frozen=True, slots=True)
class Parsed:
    """The content of one assistant turn: its thought, the text beside it, calls and errors each in the order of writing."""

    thought: str = ""
    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    errors: tuple[CallError, ...] = ()


def parse_text(text: str, tools: Sequence[Mapping[str, Any]] | None = None, *, thinking: bool = False) -> Parsed:
    """Parse ``<think>…</think>`` and ``<tool_call>{"name": …, "arguments": {…}}</tool_call>`` in the text of a turn.

    ``thinking``: the generation prompt already opened ``<think>``, so the text starts inside it. A thought that never ends takes
    the whole text: what looks like a call within a thought is none. A call's end is where its JSON ends, so arguments may contain the
    closing tag. ``tools`` (chat form) adds the checks of names and arguments.
    """
    thought, rest = _split_thought(text, thinking)
    outside: list[str] = []
    found: list[ToolCall | CallError] = []
    position = 0
    while (start := rest.find(_OPEN, position)) >= 0:
        outside.append(rest[position:start])
        entry, position = _call_at(rest, start)
        found.append(entry)
    tail = rest[position:]
    if _CLOSE in tail:
        found.append(CallError(CallFault.BAD_JSON, f"{_CLOSE} without {_OPEN}", tail.strip()))
        tail = tail.replace(_CLOSE, "")
    return _parsed(thought, ("".join(outside) + tail).strip(), found, tools)


def parse_message(message: Mapping[str, Any], tools: Sequence[Mapping[str, Any]] | None = None) -> Parsed:
    """Parse an assistant message of the chat form: ``tool_calls[{id, type, function{name, arguments}}]``, arguments a JSON string or
    an object. A message without ``tool_calls`` is parsed from its text, where a model wrote the calls itself. A thought stands in
    ``reasoning_content`` or in ``<think>`` at the start of the content."""
    content = _text_of(message.get("content"))
    listed = message.get("tool_calls") or ()
    if not listed:
        parsed = parse_text(content, tools)
    else:
        thought, rest = _split_thought(content, thinking=False)
        parsed = _parsed(thought, rest.strip(), [_chat_call(entry) for entry in listed], tools)
    reasoning = message.get("reasoning_content")
    return Parsed(reasoning, parsed.text, parsed.calls, parsed.errors) if isinstance(reasoning, str) and reasoning else parsed


def parse_blocks(content: Any, tools: Sequence[Mapping[str, Any]] | None = None) -> Parsed:
    """Parse the content of an Anthropic assistant message: a string, or blocks ``thinking``, ``text`` and ``tool_use``."""
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else [b for b in content or () if isinstance(b, Mapping)]
    thought = "\n".join(str(block.get("thinking", "")) for block in blocks if block.get("type") == "thinking")
    text = "\n".join(str(block.get("text", "")) for block in blocks if block.get("type") == "text")
    uses = [block for block in blocks if block.get("type") == "tool_use"]
    return _parsed(thought, text, [_entry(use.get("name"), use.get("input"), use, use.get("id")) for use in uses], tools)


def parse_items(items: Iterable[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None = None) -> Parsed:
    """Parse output items of the OpenAI responses form: ``reasoning``, ``message`` and ``function_call``."""
    thought: list[str] = []
    text: list[str] = []
    found: list[ToolCall | CallError] = []
    for item in items:
        kind = item.get("type")
        if kind == "reasoning":
            thought.append(_text_of(item.get("content") or item.get("summary")))
        elif kind == "message":
            text.append(_text_of(item.get("content")))
        elif kind == "function_call":
            found.append(_entry(item.get("name"), item.get("arguments"), item, item.get("call_id")))
    return _parsed("\n".join(thought), "\n".join(text), found, tools)


def tool_names(tools: Iterable[Mapping[str, Any]]) -> set[str]:
    """Names that a list of tool definitions gives, in chat form ({"function": {"name": …}}) or bare ({"name": …})."""
    return {str(_definition(tool).get("name")) for tool in tools}


def _split_thought(text: str, thinking: bool) -> tuple[str, str]:
    stripped = text.lstrip()
    if stripped.startswith(_THINK):
        body = stripped[len(_THINK) :]
    elif thinking:
        body = text
    else:
        return "", text
    thought, _, rest = body.partition(_END_THINK)
    return thought.strip(), rest


def _call_at(text: str, start: int) -> tuple[ToolCall | CallError, int]:
    """The call whose opening tag is at ``start``, and where to go on."""
    begin = _skip(text, start + len(_OPEN))
    try:
        body, end = _DECODER.raw_decode(text, begin)
        _as_utf8(body)
    except (ValueError, RecursionError) as error:
        end = _after_broken(text, begin)
        return CallError(CallFault.BAD_JSON, f"the call is not valid JSON: {error}", text[start:end]), end
    end = _skip(text, end)
    if not text.startswith(_CLOSE, end):
        end = _after_broken(text, end)
        return CallError(CallFault.BAD_JSON, f"after its JSON the call must end with {_CLOSE}", text[start:end]), end
    end += len(_CLOSE)
    if not isinstance(body, dict):
        return CallError(CallFault.BAD_JSON, "a call must be an object with name and arguments", text[start:end]), end
    return _entry(body.get("name"), body.get("arguments"), body), end


def _after_broken(text: str, position: int) -> int:
    """The position at which parsing continues after a broken call: behind the next closing tag or before the next opening one, so that it
    costs only itself."""
    close, again = text.find(_CLOSE, position), text.find(_OPEN, position)
    if close >= 0 and not 0 <= again < close:
        return close + len(_CLOSE)
    return again if again >= 0 else len(text)


def _chat_call(entry: Any) -> ToolCall | CallError:
    if not isinstance(entry, Mapping):
        return CallError(CallFault.BAD_JSON, "a call must be an object", str(entry))
    function = entry.get("function", entry)
    if not isinstance(function, Mapping):
        return CallError(CallFault.BAD_JSON, "a call must name a function", str(entry), str(entry.get("id") or ""))
    return _entry(function.get("name"), function.get("arguments"), entry, entry.get("id"))


def _entry(name: Any, arguments: Any, source: Any, call_id: Any = "") -> ToolCall | CallError:
    call_id = str(call_id or "")
    written = source if isinstance(source, str) else json.dumps(source, ensure_ascii=False, default=str)
    if isinstance(arguments, str):
        try:
            arguments = loads(arguments or "{}")
        except (ValueError, RecursionError) as error:
            return CallError(CallFault.BAD_JSON, f"the arguments are not valid JSON: {error}", written, call_id)
    if arguments is None:
        arguments = {}
    if not isinstance(name, str) or not name or not isinstance(arguments, Mapping):
        return CallError(CallFault.BAD_JSON, "a call needs a name and an object of arguments", written, call_id)
    return ToolCall(name, dict(arguments), call_id)


def _parsed(thought: str, text: str, found: Sequence[ToolCall | CallError], tools: Sequence[Mapping[str, Any]] | None) -> Parsed:
    checked = [entry if tools is None or isinstance(entry, CallError) else _checked(entry, tools) for entry in found]
    calls = tuple(entry for entry in checked if isinstance(entry, ToolCall))
    errors = tuple(entry for entry in checked if isinstance(entry, CallError))
    if not checked:
        errors = (CallError(CallFault.NO_CALL, "the turn calls no tool"),)
    return Parsed(thought, text, calls, errors)


def _checked(call: ToolCall, tools: Sequence[Mapping[str, Any]]) -> ToolCall | CallError:
    definitions = {str(_definition(tool).get("name")): _definition(tool) for tool in tools}
    source = json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False)
    if call.name not in definitions:
        return CallError(CallFault.UNDEFINED_TOOL, f"there is no tool {call.name!r}; there are {sorted(definitions)}", source, call.id)
    definition = definitions[call.name]
    schema = definition.get("parameters") or definition.get("input_schema") or {}
    broken = "; ".join(violations(call.arguments, schema))
    return CallError(CallFault.SCHEMA_VIOLATION, broken, source, call.id) if broken else call


def _definition(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    function = tool.get("function")
    return function if isinstance(function, Mapping) else tool


def _text_of(content: Any) -> str:
    """The text of a message's content: a string, or parts of which only text counts."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list | tuple) else ()
    return "".join(str(part.get("text", "")) for part in parts if isinstance(part, Mapping))


def _skip(text: str, position: int) -> int:
    match = _SPACE.match(text, position)
    return match.end() if match else position


def _no_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_no_constant)


def loads(text: str) -> Any:
    """Strict JSON: neither NaN nor lone surrogates, which Python's reader would take. Raises ValueError (or RecursionError)."""
    return _as_utf8(_DECODER.decode(text))


def _as_utf8(value: Any) -> Any:
    """The value, if it can be written as UTF-8: a lone surrogate cannot reach a sandbox."""
    json.dumps(value, ensure_ascii=False).encode()
    return value
