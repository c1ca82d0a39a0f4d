"""Requests of three public interfaces as one: OpenAI chat completions, OpenAI responses, Anthropic messages → ``Request`` (C4.2).

Owns the reading of request bodies. The same conversation gives the same messages in every dialect, and so the same prompt: text parts
are joined by newlines, arguments of calls become objects, tools have one shape. Tools that a provider would run by itself (web search)
are left out: nothing here runs them. What a policy of text cannot take (images, audio) is refused by name. Answers are written in
``answers``; serving is the server's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast_recipes.core.calls import loads

from .branches import Dialect

Body = Mapping[str, Any]

_TEXTS = ("text", "input_text", "output_text")
_THOUGHTS = ("thinking", "redacted_thinking")
_RUN_BY_PROVIDER = ("web_search_", "web_fetch_", "code_execution_", "tool_search_tool_", "mcp_toolset")
_FREEFORM = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}


class DialectError(ValueError):
    """The body is not a request of its dialect, or needs more than a text policy offers. The message is for the client."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request, independent of its dialect. None: the client did not set the field. ``freeform`` names the tools whose one argument,
    ``input``, is plain text to the client."""

    messages: tuple[dict[str, Any], ...]
    tools: tuple[dict[str, Any], ...] = ()
    model: str = ""
    stream: bool = False
    max_new_tokens: int | None = None
    temperature: float | None = None
    stop: tuple[str, ...] = ()
    freeform: frozenset[str] = frozenset()


def read_request(dialect: Dialect, body: Body) -> Request:
    """The request in a decoded JSON body. Raises DialectError."""
    if not isinstance(body, Mapping):
        raise DialectError("the body must be a JSON object")
    readers: dict[str, Callable[[Body], Iterator[dict[str, Any]]]] = {"chat": _chat, "responses": _responses, "messages": _anthropic}
    messages = tuple(readers[dialect](body))
    if not messages:
        raise DialectError("there are no messages")
    limit = next((body[key] for key in ("max_completion_tokens", "max_output_tokens", "max_tokens") if body.get(key) is not None), None)
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 1):
        raise DialectError("the limit of new tokens must be an integer above zero")
    temperature = body.get("temperature")
    if temperature is not None and (isinstance(temperature, bool) or not isinstance(temperature, int | float) or temperature < 0):
        raise DialectError("the temperature must be a number, zero or above")
    return Request(
        messages,
        tuple(tool for listed in _list(body, "tools") for tool in _tools(dialect, listed)),
        str(body.get("model") or ""),
        body.get("stream") is True,
        limit,
        temperature,
        _stop(body),
        frozenset(name for listed in _list(body, "tools") for name in _freeform(dialect, listed)),
    )


def _chat(body: Body) -> Iterator[dict[str, Any]]:
    for message in _objects(_list(body, "messages"), "messages"):
        role = {"developer": "system"}.get(str(message.get("role")), str(message.get("role")))
        content = _text(message.get("content"))
        if role in ("system", "user"):
            yield {"role": role, "content": content}
        elif role == "assistant":
            thought = message.get("reasoning_content") or message.get("reasoning")
            calls = [_chat_call(call) for call in _objects(_list(message, "tool_calls"), "tool_calls")]
            yield _assistant(content, thought if isinstance(thought, str) else "", calls)
        elif role == "tool":
            yield _result(message.get("tool_call_id"), content)
        else:
            raise DialectError(f"unknown role {role!r}")


def _responses(body: Body) -> Iterator[dict[str, Any]]:
    if body.get("previous_response_id"):
        raise DialectError("previous_response_id is not supported: send the whole input")
    if instructions := _text(body.get("instructions")):
        yield {"role": "system", "content": instructions}
    given = body.get("input")
    items = [{"role": "user", "content": given}] if isinstance(given, str) else _objects(_list(body, "input"), "input")
    pending: dict[str, Any] | None = None
    for item in items:
        kind = item.get("type") or "message"
        role = {"developer": "system"}.get(str(item.get("role")), str(item.get("role")))
        if kind in ("reasoning", "function_call", "custom_tool_call") or (kind == "message" and role == "assistant"):
            # one turn of the policy is several items: thought, then text, then calls
            if pending is not None and (kind == "reasoning" or (kind == "message" and (pending["content"] or "tool_calls" in pending))):
                yield pending
                pending = None
            pending = pending or _assistant("", "", [])
            _extend(pending, kind, item)
            continue
        if pending is not None:
            yield pending
            pending = None
        if kind == "message" and role in ("system", "user"):
            yield {"role": role, "content": _text(item.get("content"))}
        elif kind in ("function_call_output", "custom_tool_call_output"):
            yield _result(item.get("call_id"), _text(item.get("output")))
        else:
            raise DialectError(f"unknown input item {kind!r} of role {role!r}")
    if pending is not None:
        yield pending


def _extend(message: dict[str, Any], kind: str, item: Body) -> None:
    if kind == "reasoning":
        if thought := _text(item.get("content")) or _text(item.get("summary")):
            message["reasoning_content"] = thought
    elif kind == "function_call":
        call = _call(item.get("call_id"), _full_name(item.get("namespace"), item.get("name")), item.get("arguments"))
        message["tool_calls"] = [*message.get("tool_calls", []), call]
    elif kind == "custom_tool_call":
        call = _call(item.get("call_id"), _full_name(item.get("namespace"), item.get("name")), {"input": str(item.get("input") or "")})
        message["tool_calls"] = [*message.get("tool_calls", []), call]
    else:
        message["content"] = _text(item.get("content"))


def _anthropic(body: Body) -> Iterator[dict[str, Any]]:
    if system := _text(body.get("system")):
        yield {"role": "system", "content": system}
    for message in _objects(_list(body, "messages"), "messages"):
        role, content = message.get("role"), message.get("content")
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else _objects(content, "content")
        if role == "assistant":
            thoughts = [str(block.get("thinking") or "") for block in blocks if block.get("type") in _THOUGHTS]
            calls = [_call(block.get("id"), block.get("name"), block.get("input")) for block in blocks if block.get("type") == "tool_use"]
            rest = [block for block in blocks if block.get("type") not in (*_THOUGHTS, "tool_use")]
            yield _assistant(_text(rest), "\n".join(filter(None, thoughts)), calls)
        elif role == "user":
            for block in blocks:
                if block.get("type") == "tool_result":
                    yield _result(block.get("tool_use_id"), _text(block.get("content")))
            rest = [block for block in blocks if block.get("type") != "tool_result"]
            if rest or not blocks:
                yield {"role": "user", "content": _text(rest)}
        elif role == "system":
            yield {"role": "system", "content": _text(content)}
        else:
            raise DialectError(f"unknown role {role!r}")


def _assistant(content: str, thought: str, calls: Sequence[dict[str, Any]]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if thought:
        message["reasoning_content"] = thought
    if calls:
        message["tool_calls"] = list(calls)
    return message


def _result(call_id: Any, content: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": str(call_id or ""), "content": content}


def _chat_call(call: Body) -> dict[str, Any]:
    function = call.get("function")
    if not isinstance(function, Mapping):
        raise DialectError("a tool call has no function")
    return _call(call.get("id"), function.get("name"), function.get("arguments"))


def _call(call_id: Any, name: Any, arguments: Any) -> dict[str, Any]:
    """Arguments as an object, so that every dialect renders alike; text that is no JSON stays what it is."""
    if not isinstance(name, str) or not name:
        raise DialectError("a tool call has no name")
    if isinstance(arguments, str):
        try:
            arguments = loads(arguments or "{}")
        except (ValueError, RecursionError):
            pass
    return {"id": str(call_id or ""), "type": "function", "function": {"name": name, "arguments": {} if arguments is None else arguments}}


def _tools(dialect: Dialect, tool: Any, namespace: str = "") -> Iterator[dict[str, Any]]:
    """The functions that an entry of a request's tools gives the policy: one, those of a namespace, or none."""
    if not isinstance(tool, Mapping):
        raise DialectError("a tool must be an object")
    kind = tool.get("type")
    if dialect == "responses" and kind == "namespace":
        for nested in _list(tool, "tools"):
            yield from _tools(dialect, nested, _full_name(namespace, tool.get("name")))
        return
    inner = tool.get("function")
    bare: Body = inner if isinstance(inner, Mapping) else tool
    if dialect == "responses" and kind not in (None, "function", "custom"):
        return
    if dialect == "messages" and isinstance(kind, str) and kind.startswith(_RUN_BY_PROVIDER):
        return
    if not isinstance(bare.get("name"), str) or not bare["name"]:
        raise DialectError(f"the tool type {kind!r} without a name is not supported: only functions are")
    function: dict[str, Any] = {"name": _full_name(namespace, bare["name"])}
    if bare.get("description"):
        function["description"] = bare["description"]
    free = dialect == "responses" and kind == "custom"
    function["parameters"] = (
        _FREEFORM if free else bare.get("parameters") or bare.get("input_schema") or {"type": "object", "properties": {}}
    )
    yield {"type": "function", "function": function}


def _freeform(dialect: Dialect, tool: Body, namespace: str = "") -> Iterator[str]:
    if dialect == "responses" and tool.get("type") == "namespace":
        for nested in _list(tool, "tools"):
            yield from _freeform(dialect, nested, _full_name(namespace, tool.get("name")))
    elif dialect == "responses" and tool.get("type") == "custom":
        yield _full_name(namespace, tool.get("name"))


def _full_name(namespace: Any, name: Any) -> Any:
    """A name within a namespace is written with a dot, which no function's name has."""
    return f"{namespace}.{name}" if namespace and isinstance(name, str) and name else name


def _stop(body: Body) -> tuple[str, ...]:
    stop = body.get("stop", body.get("stop_sequences"))
    words = [stop] if isinstance(stop, str) else stop or []
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise DialectError("stop must be a string or a list of strings")
    return tuple(words)


def _text(content: Any) -> str:
    """Text, or parts of which each must be text, joined by newlines."""
    if content is None or isinstance(content, str):
        return content or ""
    texts = []
    for part in _objects(content, "content"):
        kind = part.get("type")
        if kind not in (*_TEXTS, "summary_text", "reasoning_text", "refusal"):
            raise DialectError(f"content of type {kind!r} is not supported")
        texts.append(str(part.get("text") or part.get("refusal") or ""))
    return "\n".join(texts)


def _list(body: Body, key: str) -> list[Any]:
    value = body.get(key)
    if value is None:
        return []
    if not isinstance(value, list):
        raise DialectError(f"{key} must be a list")
    return value


def _objects(value: Any, name: str) -> list[Body]:
    entries: Iterable[Any] = [] if value is None else value
    if not isinstance(value, list | None) or not all(isinstance(entry, Mapping) for entry in entries):
        raise DialectError(f"{name} must be a list of objects")
    return list(entries)
