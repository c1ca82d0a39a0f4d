"""What the tests of the proxy share: policies that wait and fail on command, clients of the three dialects, a socket that hangs up."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Self

import httpx
from holdfast_recipes.core.calls import Parsed, parse_blocks, parse_items, parse_message
from holdfast_recipes.policy.base import Finish, Generation
from holdfast_recipes.policy.tokenizer import ByteTokenizer
from holdfast_recipes.proxy.answers import EventReader
from holdfast_recipes.proxy.branches import Dialect
from holdfast_recipes.proxy.server import Proxy
from holdfast_recipes.proxy.session import Session, SessionLimits

DIALECTS: list[Dialect] = ["chat", "responses", "messages"]
PATHS: dict[Dialect, str] = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}
TOKENIZER = ByteTokenizer()
END = TOKENIZER.special("<|im_end|>")
BASH = {"name": "bash", "description": "Run", "parameters": {"type": "object", "properties": {"command": {"type": "string"}}}}


USER = {"role": "user", "content": "hi"}
LONG = SessionLimits(new_tokens=10_000_000, context=None)


class Digits:
    """A tokenizer whose tokens are the digits of a text, as in the examples of D12."""

    def encode(self, text: str) -> list[int]:
        return [int(letter) for letter in text if letter.isdigit()]

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join(map(str, ids))


class Policy:
    """Answers with ``answer(prompt_ids)``; every answer waits until the event ``hold`` is set."""

    name = "scripted"

    def __init__(self, answer: Callable[[Sequence[int]], Sequence[int]], *, version: int = 0, held: bool = False) -> None:
        self.hold = asyncio.Event()
        if not held:
            self.hold.set()
        self.prompts: asyncio.Queue[tuple[int, ...]] = asyncio.Queue()
        self.seeds: list[int | None] = []
        self.cancelled = asyncio.Event()
        self.fails: list[Exception] = []
        self.version = version
        self._answer = answer

    async def generate(self, prompt_ids: Sequence[int], *, seed: int | None, max_new_tokens: int, stop: Collection[int]) -> Generation:
        self.prompts.put_nowait(tuple(prompt_ids))
        self.seeds.append(seed)
        try:
            await self.hold.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        if self.fails:
            raise self.fails.pop(0)
        ids = tuple(self._answer(prompt_ids))
        finish = Finish.STOP if len(ids) <= max_new_tokens else Finish.LENGTH
        ids = ids[:max_new_tokens]
        return Generation(ids, tuple(-float(place) for place in range(len(ids))), finish, self.version)


def scripted_policy(*texts: str, held: bool = False) -> Policy:
    """Answers with the texts in turn, each followed by the end token; the last one is repeated."""
    left = list(texts)
    return Policy(lambda _: [*TOKENIZER.encode(left.pop(0) if len(left) > 1 else left[0]), END], held=held)


def headers(dialect: Dialect, key: str) -> dict[str, str]:
    return {"x-api-key": key, "anthropic-version": "2023-06-01"} if dialect == "messages" else {"Authorization": f"Bearer {key}"}


def body_of(dialect: Dialect, messages: Sequence[Mapping[str, Any]], *, stream: bool = False, **more: Any) -> dict[str, Any]:
    """A request; ``messages`` have a role and a text, the same in all three dialects, or come from ``turn_of``."""
    listed: list[Any] = []
    for message in messages:
        listed += message["items"] if "items" in message else [dict(message)]
    tool = {"chat": {"type": "function", "function": BASH}, "responses": {"type": "function", **BASH}}.get(
        dialect, {"name": "bash", "description": "Run", "input_schema": BASH["parameters"]}
    )
    body: dict[str, Any] = {"model": "m", "input" if dialect == "responses" else "messages": listed, "stream": stream}
    body |= {"max_tokens": 5000} if dialect == "messages" else {}
    return body | ({"tools": [tool]} if more.pop("tools", False) else {}) | more


def turn_of(dialect: Dialect, answer: Mapping[str, Any], *, thought: bool = True) -> dict[str, Any]:
    """The answer as a client puts it into its next request; ``thought=False``: as one that has no field for thoughts."""
    if dialect == "responses":
        return {"items": [item for item in answer["output"] if thought or item["type"] != "reasoning"]}
    if dialect == "messages":
        return {"role": "assistant", "content": [block for block in answer["content"] if thought or block["type"] != "thinking"]}
    message = dict(answer["choices"][0]["message"])
    if not thought:
        message.pop("reasoning_content", None)
    return message


def result_of(dialect: Dialect, call_id: str, text: str) -> dict[str, Any]:
    """A tool's result as a client sends it."""
    if dialect == "responses":
        return {"items": [{"type": "function_call_output", "call_id": call_id, "output": text}]}
    if dialect == "messages":
        return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call_id, "content": text}]}
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def parse_answer(dialect: Dialect, answer: Mapping[str, Any]) -> Parsed:
    if dialect == "chat":
        return parse_message(answer["choices"][0]["message"])
    return parse_blocks(answer["content"]) if dialect == "messages" else parse_items(answer["output"])


async def ask(http: httpx.AsyncClient, session: Session, dialect: Dialect, body: Mapping[str, Any]) -> httpx.Response:
    return await http.post(PATHS[dialect], headers=headers(dialect, session.key), json=body)


def events_in(text: str) -> list[Any]:
    """The data of every event of a stream; the ``[DONE]`` of chat completions is left out."""
    reader = EventReader()
    found = reader.feed(text.encode())
    assert reader.finished
    return [json.loads(data) for data in found if data != "[DONE]"]


def streamed_text(dialect: Dialect, events: Sequence[Mapping[str, Any]]) -> str:
    """The text that a client shows for a stream: every piece of text in order."""
    if dialect == "chat":
        return "".join(choice["delta"].get("content") or "" for event in events for choice in event["choices"])
    if dialect == "responses":
        return "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    return "".join(event["delta"].get("text", "") for event in events if event["type"] == "content_block_delta")


class Socket:
    """A client on a raw connection, which can close it at any time."""

    def __init__(self, proxy: Proxy) -> None:
        self._address = proxy.address

    async def __aenter__(self) -> Self:
        self.reader, self.writer = await asyncio.open_connection(*self._address, limit=1024)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except OSError:
            pass

    async def send(self, method: str, path: str, key: str, body: Any = None, **more: str) -> None:
        data = b"" if body is None else json.dumps(body).encode()
        lines = [f"{method} {path} HTTP/1.1", "Host: x", f"Authorization: Bearer {key}", f"Content-Length: {len(data)}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in more.items()]
        self.writer.write("\r\n".join([*lines, "", ""]).encode() + data)
        await self.writer.drain()

    def disconnect(self) -> None:
        """Closes the connection abruptly and discards unread data."""
        self.writer.transport.abort()
