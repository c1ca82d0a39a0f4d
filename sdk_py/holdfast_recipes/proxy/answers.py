"""Answers of a policy in three public interfaces, whole and as server-sent events, and the reading of such events (C4.2).

Owns the bytes written to a client: a JSON object, or the same content in events that its SDK assembles. The policy's token ids
are recorded separately (``branches``) and never derived from an answer.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast_recipes.core.calls import Parsed

from .branches import Dialect, Finish

_CHAT_FINISH = {"stop": "stop", "tool_calls": "tool_calls", "length": "length"}
_STOP_REASONS = {"stop": "end_turn", "tool_calls": "tool_use", "length": "max_tokens"}


@dataclass(frozen=True, slots=True)
class Answer:
    """The policy's answer. ``created_s`` is Unix time; ``truncated`` when the limit of new tokens ended it; ``stopped_by`` is the one of
    the client's stop texts that did; ``freeform`` as in the request.

    Calls without an id are given one that follows from ``id``, so that results can name them. Calls that could not be parsed are
    shown to the client as text: it is the harness that must answer them.
    """

    id: str
    model: str
    parsed: Parsed
    prompt_tokens: int
    output_tokens: int
    created_s: int = 0
    truncated: bool = False
    stopped_by: str = ""
    freeform: frozenset[str] = frozenset()

    @property
    def finish(self) -> Finish:
        return "length" if self.truncated else "tool_calls" if self.parsed.calls else "stop"

    @property
    def text(self) -> str:
        broken = [error.source for error in self.parsed.errors if error.source]
        return "\n".join(filter(None, [self.parsed.text, *broken]))

    @property
    def calls(self) -> list[tuple[str, str, str]]:
        """(id, name, arguments as JSON text)."""
        listed = enumerate(self.parsed.calls)
        return [(call.id or f"call_{self.id}_{n}", call.name, json.dumps(dict(call.arguments), ensure_ascii=False)) for n, call in listed]


def whole(dialect: Dialect, answer: Answer) -> dict[str, Any]:
    """The JSON object of an answer that is not streamed."""
    return {"chat": _chat, "responses": _responses, "messages": _anthropic}[dialect](answer)


def events(dialect: Dialect, answer: Answer) -> list[bytes]:
    """The same answer as server-sent events, each ready to be written."""
    made = {"chat": _chat_events, "responses": _response_events, "messages": _anthropic_events}[dialect](answer)
    return [_event(data, named=dialect != "chat") for data in made] + ([b"data: [DONE]\n\n"] if dialect == "chat" else [])


def _chat(answer: Answer) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": answer.text or None}
    if answer.parsed.thought:
        message["reasoning_content"] = answer.parsed.thought
    if answer.calls:
        message["tool_calls"] = [_chat_call(*call) for call in answer.calls]
    choice = {"index": 0, "message": message, "finish_reason": _CHAT_FINISH[answer.finish], "logprobs": None}
    return {**_chat_head(answer, "chat.completion"), "choices": [choice], "usage": _chat_usage(answer)}


def _chat_events(answer: Answer) -> Iterator[dict[str, Any]]:
    head = _chat_head(answer, "chat.completion.chunk")

    def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        return {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}

    yield chunk({"role": "assistant"})
    if answer.parsed.thought:
        yield chunk({"reasoning_content": answer.parsed.thought})
    if answer.text:
        yield chunk({"content": answer.text})
    for index, call in enumerate(answer.calls):
        yield chunk({"tool_calls": [{"index": index, **_chat_call(*call)}]})
    yield chunk({}, _CHAT_FINISH[answer.finish])
    yield {**head, "choices": [], "usage": _chat_usage(answer)}


def _chat_head(answer: Answer, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{answer.id}", "object": kind, "created": answer.created_s, "model": answer.model}


def _chat_call(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _chat_usage(answer: Answer) -> dict[str, int]:
    total = answer.prompt_tokens + answer.output_tokens
    return {"prompt_tokens": answer.prompt_tokens, "completion_tokens": answer.output_tokens, "total_tokens": total}


def _responses(answer: Answer) -> dict[str, Any]:
    output: list[dict[str, Any]] = []
    if answer.parsed.thought:
        summary = [{"type": "summary_text", "text": answer.parsed.thought}]
        output.append({"type": "reasoning", "id": f"rs_{answer.id}", "summary": summary})
    if answer.text or not answer.calls:
        part = {"type": "output_text", "text": answer.text, "annotations": []}
        output.append({"type": "message", "id": f"msg_{answer.id}", "role": "assistant", "status": "completed", "content": [part]})
    for number, (call_id, name, arguments) in enumerate(answer.calls):
        output.append(_response_call(answer, number, call_id, name, arguments))
    total = answer.prompt_tokens + answer.output_tokens
    usage = {
        "input_tokens": answer.prompt_tokens,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": answer.output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": total,
    }
    return {
        "id": f"resp_{answer.id}",
        "object": "response",
        "created_at": answer.created_s,
        "model": answer.model,
        "status": "incomplete" if answer.truncated else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if answer.truncated else None,
        "error": None,
        "instructions": None,
        "metadata": {},
        "output": output,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "temperature": None,
        "top_p": None,
        "usage": usage,
    }


def _response_call(answer: Answer, number: int, call_id: str, name: str, arguments: str) -> dict[str, Any]:
    namespace, _, bare = name.rpartition(".")
    named = {"call_id": call_id, "name": bare, **({"namespace": namespace} if namespace else {}), "status": "completed"}
    if name in answer.freeform:
        text = answer.parsed.calls[number].arguments.get("input")
        return {
            "type": "custom_tool_call",
            "id": f"ctc_{answer.id}_{number}",
            "input": text if isinstance(text, str) else arguments,
            **named,
        }
    return {"type": "function_call", "id": f"fc_{answer.id}_{number}", "arguments": arguments, **named}


def _response_events(answer: Answer) -> Iterator[dict[str, Any]]:
    response = _responses(answer)
    started = {**response, "status": "in_progress", "incomplete_details": None, "output": [], "usage": None}
    made: list[dict[str, Any]] = [{"type": "response.created", "response": started}, {"type": "response.in_progress", "response": started}]
    for index, item in enumerate(response["output"]):
        place = {"item_id": item["id"], "output_index": index}
        empty: dict[str, dict[str, Any]] = {
            "message": {"content": [], "status": "in_progress"},
            "reasoning": {"summary": []},
            "function_call": {"arguments": ""},
            "custom_tool_call": {"input": ""},
        }
        made.append({"type": "response.output_item.added", "output_index": index, "item": {**item, **empty[item["type"]]}})
        if item["type"] == "function_call":
            made.append({"type": "response.function_call_arguments.delta", **place, "delta": item["arguments"]})
            done = {"name": item["name"], "arguments": item["arguments"]}
            made.append({"type": "response.function_call_arguments.done", **place, **done})
        elif item["type"] == "custom_tool_call":
            made.append({"type": "response.custom_tool_call_input.delta", **place, "delta": item["input"]})
            made.append({"type": "response.custom_tool_call_input.done", **place, "input": item["input"]})
        elif item["type"] == "message":
            part, text = item["content"][0], {**place, "content_index": 0}
            made.append({"type": "response.content_part.added", **text, "part": {**part, "text": ""}})
            made.append({"type": "response.output_text.delta", **text, "delta": part["text"], "logprobs": []})
            made.append({"type": "response.output_text.done", **text, "text": part["text"], "logprobs": []})
            made.append({"type": "response.content_part.done", **text, "part": part})
        else:
            part, text = item["summary"][0], {**place, "summary_index": 0}
            made.append({"type": "response.reasoning_summary_part.added", **text, "part": {**part, "text": ""}})
            made.append({"type": "response.reasoning_summary_text.delta", **text, "delta": part["text"]})
            made.append({"type": "response.reasoning_summary_text.done", **text, "text": part["text"]})
            made.append({"type": "response.reasoning_summary_part.done", **text, "part": part})
        made.append({"type": "response.output_item.done", "output_index": index, "item": item})
    made.append({"type": "response.incomplete" if answer.truncated else "response.completed", "response": response})
    yield from ({**data, "sequence_number": number} for number, data in enumerate(made))


def _anthropic(answer: Answer) -> dict[str, Any]:
    content: list[dict[str, Any]] = []
    if answer.parsed.thought:
        content.append({"type": "thinking", "thinking": answer.parsed.thought, "signature": ""})
    if answer.text:
        content.append({"type": "text", "text": answer.text})
    content += [{"type": "tool_use", "id": i, "name": name, "input": json.loads(arguments)} for i, name, arguments in answer.calls]
    return {
        "id": f"msg_{answer.id}",
        "type": "message",
        "role": "assistant",
        "model": answer.model,
        "content": content,
        "stop_reason": "stop_sequence" if answer.stopped_by else _STOP_REASONS[answer.finish],
        "stop_sequence": answer.stopped_by or None,
        "usage": {"input_tokens": answer.prompt_tokens, "output_tokens": answer.output_tokens},
    }


def _anthropic_events(answer: Answer) -> Iterator[dict[str, Any]]:
    message = _anthropic(answer)
    usage = message["usage"]
    started = {**message, "content": [], "stop_reason": None, "stop_sequence": None, "usage": {**usage, "output_tokens": 0}}
    yield {"type": "message_start", "message": started}
    for index, block in enumerate(message["content"]):
        kind = block["type"]
        field, delta = {"thinking": ("thinking", "thinking_delta"), "text": ("text", "text_delta"), "tool_use": ("input", "")}[kind]
        block_start = {**block, field: {} if kind == "tool_use" else ""}
        yield {"type": "content_block_start", "index": index, "content_block": block_start}
        if kind == "tool_use":
            change = {"type": "input_json_delta", "partial_json": json.dumps(block["input"], ensure_ascii=False)}
        else:
            change = {"type": delta, field: block[field]}
        yield {"type": "content_block_delta", "index": index, "delta": change}
        yield {"type": "content_block_stop", "index": index}
    final = {"stop_reason": message["stop_reason"], "stop_sequence": message["stop_sequence"]}
    yield {"type": "message_delta", "delta": final, "usage": {"output_tokens": usage["output_tokens"]}}
    yield {"type": "message_stop"}


def _event(data: Mapping[str, Any], *, named: bool) -> bytes:
    name = f"event: {data['type']}\n" if named else ""
    return f"{name}data: {json.dumps(data, ensure_ascii=False)}\n\n".encode()


class EventReader:
    """Server-sent events from bytes that arrive in any pieces: ``feed`` returns the data of each event that is now whole.

    Understands all three line ends, comments and data of several lines. ``finished``: no event is partly read.
    """

    def __init__(self) -> None:
        self._buffer = b""
        self._data: list[str] = []
        self._after_return = False

    @property
    def finished(self) -> bool:
        return not self._buffer and not self._data

    def feed(self, piece: bytes) -> list[str]:
        if self._after_return and piece:
            piece, self._after_return = piece.removeprefix(b"\n"), False
        lines = (self._buffer + piece).replace(b"\r\n", b"\n")
        self._after_return = lines.endswith(b"\r")
        *done, self._buffer = lines.replace(b"\r", b"\n").split(b"\n")
        found = []
        for line in done:
            name, _, value = line.decode("utf-8", "replace").partition(":")
            if not line and self._data:
                found.append("\n".join(self._data))
                self._data = []
            elif name == "data":
                self._data.append(value.removeprefix(" "))
        return found
