"""A policy behind SGLang's native ``/generate``: token ids in, token ids with log-probabilities out.

Owns one HTTP request and the reading of its answer. Returns the sampled ids for training: no text is tokenized again, and
the answer contains the version of the weights that sampled it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from .base import ContextLengthError, Finish, Generation, PolicyUnavailableError
from .endpoint import Endpoint, Sampling


class SGLang(Endpoint):
    """``url`` is the server's or its router's base. ``version`` is taken where the server names none. Use it in an ``async with``."""

    def __init__(self, url: str, name: str = "sglang", *, sampling: Sampling | None = None, timeout_s: float = 600.0) -> None:
        self.name = name
        self.version = 0
        super().__init__(url, sampling, timeout_s)

    async def generate(self, prompt_ids: Sequence[int], *, seed: int | None, max_new_tokens: int, stop: Collection[int]) -> Generation:
        if max_new_tokens < 1:
            raise ContextLengthError("the prompt leaves no room for an answer")
        sampling: dict[str, Any] = {"max_new_tokens": max_new_tokens, "stop_token_ids": sorted(stop), "no_stop_trim": True}
        sampling |= {"skip_special_tokens": False, "sampling_seed": seed} if seed is not None else {"skip_special_tokens": False}
        sampling |= self._sampling.fields() | dict(self._sampling.extra)
        body = {"input_ids": list(prompt_ids), "sampling_params": sampling, "return_logprob": True}
        return self._generation(await self._post("generate", body))

    def _generation(self, answer: Mapping[str, Any]) -> Generation:
        meta = answer.get("meta_info")
        rows = meta.get("output_token_logprobs") if isinstance(meta, Mapping) else None
        if not isinstance(meta, Mapping) or not isinstance(rows, list):
            raise PolicyUnavailableError("the server answered without log-probabilities of its tokens")
        try:
            ids, logprobs = tuple(int(row[1]) for row in rows), tuple(float(row[0]) for row in rows)
        except (TypeError, ValueError, IndexError) as error:
            raise PolicyUnavailableError(f"the server answered with malformed log-probabilities: {error}") from error
        reason = meta.get("finish_reason")
        kind = reason.get("type") if isinstance(reason, Mapping) else reason
        if kind == "abort":
            raise PolicyUnavailableError("the server aborted the request")
        version = str(meta.get("weight_version") or "")
        return Generation(
            ids, logprobs, Finish.LENGTH if kind == "length" else Finish.STOP, int(version) if version.isdigit() else self.version
        )
