"""A policy behind vLLM's ``/v1/completions``: token ids in, the sampled ids with their log-probabilities out.

Owns one HTTP request and the reading of its answer. For asynchronous TRL, whose trainer puts new weights into such a server; ``version``
is set by the adapter when they are in place. Imports no engine.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import httpx

from holdfast_recipes.policy.base import ContextLengthError, Finish, Generation, PolicyUnavailableError
from holdfast_recipes.policy.openai_chat import Sampling, post


class VllmCompletions:
    """``url`` is the server's base (``http://127.0.0.1:8000``), ``model`` the name it serves. Use it in an ``async with``."""

    def __init__(self, url: str, model: str, *, sampling: Sampling | None = None, timeout_s: float = 600.0) -> None:
        self.name, self.version = model, 0
        self._sampling = sampling or Sampling()
        self._http = httpx.AsyncClient(base_url=url.rstrip("/") + "/", timeout=httpx.Timeout(timeout_s, connect=10.0))

    async def generate(self, prompt_ids: Sequence[int], *, seed: int | None, max_new_tokens: int, stop: Collection[int]) -> Generation:
        if max_new_tokens < 1:
            raise ContextLengthError("no room for an answer")
        body: dict[str, Any] = {"model": self.name, "prompt": list(prompt_ids), "max_tokens": max_new_tokens, "n": 1}
        body |= {"stop_token_ids": sorted(stop), "return_token_ids": True, "logprobs": 0, "skip_special_tokens": False}
        body |= {"seed": seed} if seed is not None else {}
        for key in ("temperature", "top_p"):
            if (value := getattr(self._sampling, key)) is not None:
                body[key] = value
        version = self.version
        return _generation(await post(self._http, "v1/completions", body | dict(self._sampling.extra)), version)

    async def aclose(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        await self.aclose()


def _generation(answer: Mapping[str, Any], version: int) -> Generation:
    try:
        choice = answer["choices"][0]
        ids = tuple(int(token) for token in choice["token_ids"])
        logprobs = tuple(float(value) for value in choice["logprobs"]["token_logprobs"])
        finish = Finish.LENGTH if choice["finish_reason"] == "length" else Finish.STOP
        return Generation(ids, logprobs, finish, version)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise PolicyUnavailableError(f"the server answered without ids and log-probabilities of its tokens: {error!r}") from error
