"""The interface between the agent loop and a policy: token ids in, token ids out; or messages, for an endpoint without token ids.

Owns the two protocols, their results and errors. A request has no side effects: the same ids and seed may be sent
again, and the inference layer does so after a failure. Owns neither retries (``harness.layers``) nor the held ids
(``harness.conversation``).

PolicyError
├── PolicyUnavailableError    the endpoint did not answer or was overloaded: the same request may be sent again
├── ContextLengthError        the prompt leaves no room for an answer: the rollout is truncated
└── PolicyRefusedError        the request can never succeed (a key, a model's name, a malformed field)
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

Message = Mapping[str, Any]
Tool = Mapping[str, Any]


class Finish(StrEnum):
    """Why a generation ended: at a stop token (or at the end of a chat turn), or because it had no more room."""

    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True, slots=True)
class Generation:
    """[n] sampled ids, the stop token included where one was sampled, and the log-probability of each. ``version`` counts updates of
    the weights that sampled them."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: Finish = Finish.STOP
    version: int = 0

    def __post_init__(self) -> None:
        if len(self.ids) != len(self.logprobs):
            raise ValueError(f"{len(self.ids)} ids with {len(self.logprobs)} log-probabilities")


@dataclass(frozen=True, slots=True)
class Reply:
    """An assistant message of the chat form. Token counts are the endpoint's own, 0 where it gives none; ``cost_usd`` follows from
    them and the prices that the policy was given."""

    message: Message
    finish: Finish = Finish.STOP
    version: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_usd: float = 0.0


class Policy(Protocol):
    """Samples token ids. The same prompt and seed give the same ids as long as the weights are the same."""

    @property
    def name(self) -> str: ...

    async def generate(self, prompt_ids: Sequence[int], *, seed: int | None, max_new_tokens: int, stop: Collection[int]) -> Generation:
        """Up to ``max_new_tokens`` ids that follow the prompt, ending with one of ``stop`` where that was sampled. Raises PolicyError."""
        ...


class ChatPolicy(Protocol):
    """Answers messages. For teachers and evaluations; what it sampled is not known as token ids."""

    @property
    def name(self) -> str: ...

    async def reply(self, messages: Sequence[Message], tools: Sequence[Tool], *, seed: int | None, max_new_tokens: int) -> Reply:
        """The next assistant message. Raises PolicyError."""
        ...


class PolicyError(Exception):
    """A policy gave no answer."""


class PolicyUnavailableError(PolicyError):
    """The endpoint did not answer or was overloaded. ``retry_after_s``: the delay before a retry, if the endpoint gave one."""

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class ContextLengthError(PolicyError):
    """The prompt is longer than the policy can read, or leaves no room for an answer."""


class PolicyRefusedError(PolicyError):
    """The request can never succeed: a wrong key, an unknown model, a field that the endpoint does not take."""
