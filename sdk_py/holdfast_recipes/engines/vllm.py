"""A policy behind vLLM's ``/v1/completions``: token ids in, the sampled ids with their log-probabilities out.

Owns one HTTP request and the reading of its answer. For asynchronous TRL, whose trainer puts new weights into such a server; ``version``
is set by the adapter when they are in place. Imports no engine.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from holdfast_recipes.policy.base import ContextLengthError, Finish, Generation, PolicyUnavailableError
from holdfast_recipes.policy.endpoint import Endpoint, Sampling


class VllmCompletions(Endpoint):
    """``url`` is the server's base (``http://127.0.0.1:8000``), ``model`` the name it serves. Use it in an ``async with``."""

    def __init__(self, url: str, model: str, *, sampling: Sampling | None = None, timeout_s: float = 600.0) -> None:
        self.name, self.version = model, 0
        super().__init__(url, sampling, timeout_s)

    async def generate(self, prompt_ids: Sequence[int], *, seed: int | None, max_new_tokens: int, stop: Collection[int]) -> Generation:
        if max_new_tokens < 1:
            raise ContextLengthError("the prompt leaves no room for an answer")
        body: dict[str, Any] = {"model": self.name, "prompt": list(prompt_ids), "max_tokens": max_new_tokens, "n": 1}
        body |= {"stop_token_ids": sorted(stop), "return_token_ids": True, "logprobs": 0, "skip_special_tokens": False}
        body |= {"seed": seed} if seed is not None else {}
        body |= self._sampling.fields() | dict(self._sampling.extra)
        version = self.version
        return _generation(await self._post("v1/completions", body), version)


def _generation(answer: Mapping[str, Any], version: int) -> Generation:
    try:
        choice = answer["choices"][0]
        ids = tuple(int(token) for token in choice["token_ids"])
        logprobs = tuple(float(value) for value in choice["logprobs"]["token_logprobs"])
        finish = Finish.LENGTH if choice["finish_reason"] == "length" else Finish.STOP
        return Generation(ids, logprobs, finish, version)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise PolicyUnavailableError(f"the server answered without ids and log-probabilities of its tokens: {error!r}") from error
