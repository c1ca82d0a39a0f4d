"""A policy behind any endpoint that speaks OpenAI's chat completions: hosted services, vLLM, SGLang, llama.cpp, a local script.

Owns the body of a request and the reading of its answer; ``endpoint`` sends it. Does not own retries and time limits, which are the loop's.
The caller reads the API key from the environment; the key is sent in one header and appears in no message.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .base import Finish, Message, PolicyUnavailableError, Reply, Tool
from .endpoint import Endpoint, Sampling


@dataclass(frozen=True, slots=True)
class Prices:
    """US dollars per million tokens; 0 for a self-hosted model."""

    prompt: float = 0.0
    completion: float = 0.0

    def of(self, prompt_tokens: int, completion_tokens: int) -> float:
        return (prompt_tokens * self.prompt + completion_tokens * self.completion) / 1e6


class OpenAIChat(Endpoint):
    """``url`` is the endpoint's base (``http://127.0.0.1:8000/v1``), ``model`` a name that it serves.

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
        self._prices = prices or Prices()
        super().__init__(url, sampling, timeout_s, connect_timeout_s=connect_timeout_s, api_key=api_key)

    async def reply(self, messages: Sequence[Message], tools: Sequence[Tool], *, seed: int | None, max_new_tokens: int) -> Reply:
        body: dict[str, Any] = {"model": self.name, "messages": [_sent(message) for message in messages], "max_tokens": max_new_tokens}
        body |= {"tools": list(tools)} if tools else {}
        body |= {"seed": seed} if seed is not None else {}
        body |= self._sampling.fields() | dict(self._sampling.extra)
        return self._reply(await self._post("chat/completions", body))

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


def _sent(message: Message) -> dict[str, Any]:
    """A message with the standard's fields only; arguments of calls are strings there."""
    kept = {key: value for key, value in message.items() if key in ("role", "content", "tool_calls", "tool_call_id", "reasoning_content")}
    kept.setdefault("content", "")
    return kept


def _received(message: Mapping[str, Any]) -> dict[str, Any]:
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    kept: dict[str, Any] = {"role": "assistant", "content": message.get("content") or ""}
    kept |= {"reasoning_content": reasoning} if isinstance(reasoning, str) else {}
    calls = message.get("tool_calls")
    return kept | ({"tool_calls": calls} if isinstance(calls, list) and calls else {})
