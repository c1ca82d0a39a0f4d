"""A policy behind any endpoint that speaks OpenAI's chat completions: hosted services, vLLM, SGLang, llama.cpp, a local script.

Owns one HTTP request, and the sorting of its failures into ``PolicyError``s. Retries and time limits are the loop's. The key is read from
the environment by the caller, goes into one header and into no message.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import httpx

from .base import ContextLengthError, Finish, Message, PolicyError, PolicyRefusedError, PolicyUnavailableError, Reply, Tool

_LATER = {408, 409, 425, 429, 500, 502, 503, 504, 520, 522, 524, 529}
_TOO_LONG = ("context length", "context_length", "maximum context", "too many tokens", "longer than the model", "prompt is too long")
_SHOWN = 300


@dataclass(frozen=True, slots=True)
class Prices:
    """US dollars per million tokens; 0 for a model of one's own."""

    prompt: float = 0.0
    completion: float = 0.0

    def of(self, prompt_tokens: int, completion_tokens: int) -> float:
        return (prompt_tokens * self.prompt + completion_tokens * self.completion) / 1e6


@dataclass(frozen=True, slots=True)
class Sampling:
    """What is sent beside the messages. ``extra`` goes into the body as it is, for what an endpoint has beyond the standard."""

    temperature: float | None = 1.0
    top_p: float | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


class OpenAIChat:
    """``url`` is the endpoint's base (``http://127.0.0.1:8000/v1``), ``model`` a name it knows.

    ``timeout_s`` bounds one request where the loop's own limit does not; ``connect_timeout_s`` the connecting. Use it in an ``async with``.
    """

    def __init__(
        self,
        url: str,
        model: str,
        api_key: str = "",
        *,
        sampling: Sampling | None = None,
        prices: Prices | None = None,
        timeout_s: float = 600.0,
        connect_timeout_s: float = 10.0,
        version: int = 0,
    ) -> None:
        self.name = model
        self.version = version
        self._sampling, self._prices = sampling or Sampling(), prices or Prices()
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
        self._http = httpx.AsyncClient(
            base_url=url.rstrip("/") + "/", headers=headers, timeout=httpx.Timeout(timeout_s, connect=connect_timeout_s), limits=limits
        )

    async def reply(self, messages: Sequence[Message], tools: Sequence[Tool], *, seed: int | None, max_new_tokens: int) -> Reply:
        body: dict[str, Any] = {"model": self.name, "messages": [_sent(message) for message in messages], "max_tokens": max_new_tokens}
        body |= {"tools": list(tools)} if tools else {}
        body |= {"seed": seed} if seed is not None else {}
        for key in ("temperature", "top_p"):
            if (value := getattr(self._sampling, key)) is not None:
                body[key] = value
        return self._reply(await post(self._http, "chat/completions", body | dict(self._sampling.extra)))

    def _reply(self, answer: Mapping[str, Any]) -> Reply:
        choices = answer.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        message = choice.get("message") if isinstance(choice, Mapping) else None
        if not isinstance(choice, Mapping) or not isinstance(message, Mapping):
            raise PolicyUnavailableError("the endpoint answered without a message")
        usage = answer.get("usage")
        usage = usage if isinstance(usage, Mapping) else {}
        counts = [value if isinstance(value := usage.get(key), int) else 0 for key in ("prompt_tokens", "completion_tokens")]
        finish = Finish.LENGTH if choice.get("finish_reason") == "length" else Finish.STOP
        return Reply(_received(message), finish, self.version, counts[0], counts[1], self._prices.of(counts[0], counts[1]))

    async def aclose(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        await self.aclose()


async def post(http: httpx.AsyncClient, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
    """The JSON object that an endpoint answers with. Raises PolicyError of the right kind for everything else."""
    try:
        content = json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")
        response = await http.post(path, content=content, headers={"Content-Type": "application/json"})
    except httpx.TransportError as error:
        raise PolicyUnavailableError(f"{type(error).__name__}: {error}") from error
    if response.status_code != 200:
        raise _refusal(response)
    try:
        answer = response.json()
    except ValueError as error:
        raise PolicyUnavailableError("the endpoint answered with something that is not JSON") from error
    if not isinstance(answer, Mapping):
        raise PolicyUnavailableError("the endpoint answered with JSON that is no object")
    return answer


def _refusal(response: httpx.Response) -> PolicyError:
    text = response.text[:_SHOWN]
    message = f"the endpoint answered {response.status_code}: {text}"
    if response.status_code in (400, 413, 422) and any(words in response.text.lower() for words in _TOO_LONG):
        return ContextLengthError(message)
    if response.status_code in _LATER:
        return PolicyUnavailableError(message, _seconds(response.headers.get("Retry-After")))
    return PolicyRefusedError(message)


def _seconds(value: str | None) -> float | None:
    """``Retry-After`` in seconds; its form as a date is not read."""
    try:
        seconds = float(value or "")
    except ValueError:
        return None
    return seconds if 0 <= seconds < 3600 else None


def _sent(message: Message) -> dict[str, Any]:
    """A message with what the standard knows; arguments of calls are strings there."""
    kept = {key: value for key, value in message.items() if key in ("role", "content", "tool_calls", "tool_call_id", "reasoning_content")}
    kept.setdefault("content", "")
    return kept


def _received(message: Mapping[str, Any]) -> dict[str, Any]:
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    kept: dict[str, Any] = {"role": "assistant", "content": message.get("content") or ""}
    kept |= {"reasoning_content": reasoning} if isinstance(reasoning, str) else {}
    calls = message.get("tool_calls")
    return kept | ({"tool_calls": calls} if isinstance(calls, list) and calls else {})
