"""Sampling from a model: one prompt at a time, and many episodes of the twin in lockstep.

Owns the choice of the next token. Each rollout has its own seed, so its tokens do not depend on the other rows of the batch.
Log-probabilities are those of the model at temperature 1, which the importance ratio needs; greedy sampling is ``temperature=0``.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from holdfast_recipes.core.scored import Scored, Status
from holdfast_recipes.miniature import language
from holdfast_recipes.miniature.language import Step
from holdfast_recipes.miniature.twin import Twin

from .batches import Row
from .model import Cache, Model, keep_rows


def choose(logits: Tensor, draws: Sequence[float], temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """For logits [B, V] and a number in [0, 1) each: the tokens [B] (greedy for temperature 0) and their log-probabilities [B]."""
    logprobs = logits.float().log_softmax(-1)
    if temperature == 0:
        tokens = logprobs.argmax(-1)
    else:
        shares = (logits.float() / temperature).softmax(-1).double().cumsum(-1)
        marks = torch.tensor(draws, dtype=torch.double)[:, None] * shares[:, -1:]
        tokens = (shares <= marks).sum(-1).clamp_max(logits.shape[-1] - 1)
    return tokens, logprobs.gather(1, tokens[:, None]).squeeze(1)


@torch.no_grad()
def generate(
    model: Model,
    prompt: Sequence[int],
    *,
    seed: int,
    most_tokens: int,
    stop: Sequence[int],
    temperature: float = 1.0,
    allowed: Sequence[int] | None = None,
) -> tuple[list[int], list[float]]:
    """Tokens after ``prompt`` until one of ``stop`` (which is kept) or ``most_tokens``, with their log-probabilities. ``allowed``
    restricts what can be sampled; log-probabilities are then of the restricted distribution."""
    draw = random.Random(seed)  # noqa: S311
    cache: Cache = []
    logits = model(torch.tensor([list(prompt)]), cache)[:, -1]
    tokens: list[int] = []
    logprobs: list[float] = []
    for _ in range(min(most_tokens, model.shape.context - len(prompt))):
        if allowed is not None:
            barred = torch.full_like(logits, float("-inf"))
            barred[:, list(allowed)] = 0.0
            logits = logits + barred
        token, logprob = choose(logits, [draw.random()], temperature)
        tokens.append(int(token[0]))
        logprobs.append(float(logprob[0]))
        if tokens[-1] in stop or len(prompt) + len(tokens) >= model.shape.context:
            break
        logits = model(token[:, None], cache)[:, -1]
    return tokens, logprobs


@dataclass(slots=True)
class Played:
    """One episode of a policy in the twin: [T] ids with mask and log-probabilities as sampled, its turns, and how it went."""

    twin: Twin
    ids: list[int] = field(default_factory=lambda: [language.START_ID])
    mask: list[int] = field(default_factory=lambda: [0])
    logprobs: list[float] = field(default_factory=lambda: [0.0])
    steps: list[Step] = field(default_factory=list)
    _action: list[int] = field(default_factory=list)
    _given: list[int] = field(default_factory=list)

    def row(self, advantage: float = 0.0) -> Row:
        return Row(tuple(self.ids), tuple(self.mask), tuple(self.logprobs), advantage)

    def scored(self, reward: float | None = None) -> Scored:
        """+1 or −1, unless another reward is given; the length is that of its actions."""
        own = 1.0 if self.twin.solved else -1.0
        status = Status.TRUNCATED if self.twin.truncated else Status.COMPLETED
        return Scored(own if reward is None else reward, status, sum(self.mask), payload=self)

    def take(self, token: int, logprob: float) -> None:
        """The next token: one that was given if there is one, else the sampled one."""
        if self._given:
            self._append(self._given.pop(0), 0, 0.0)
            return
        self._append(token, 1, logprob)
        self._action.append(token)
        if token == language.END_ID or len(self._action) >= language.MOST_ACTION_TOKENS:
            ended = self._action[-1] == language.END_ID
            action = tuple(language.words(self._action[:-1] if ended else self._action))
            observation = self.twin.step(action)
            self.steps.append(Step(action, observation))
            self._given = language.observation_ids(observation) if observation else []
            self._action = []

    def _append(self, token: int, bit: int, logprob: float) -> None:
        self.ids.append(token)
        self.mask.append(bit)
        self.logprobs.append(logprob)


@torch.no_grad()
def play(model: Model, twins: Sequence[Twin], seeds: Sequence[int], temperature: float = 1.0) -> list[Played]:
    """An episode in each twin. All rows are always at the same position: each takes one token per step, given or sampled."""
    model.eval()
    episodes = [Played(twin) for twin in twins]
    draws: list[Callable[[], float]] = [random.Random(f"play-{seed}").random for seed in seeds]  # noqa: S311
    running = list(range(len(episodes)))
    cache: Cache = []
    tokens = torch.full((len(running), 1), language.START_ID)
    while running:
        logits = model(tokens, cache)[:, -1]
        sampled, logprobs = choose(logits, [draws[index]() for index in running], temperature)
        for index, token, logprob in zip(running, sampled.tolist(), logprobs.tolist(), strict=True):
            episodes[index].take(token, logprob)
        going = [place for place, index in enumerate(running) if not _over(episodes[index], model)]
        running = [running[place] for place in going]
        if len(going) < len(tokens):
            keep_rows(cache, torch.tensor(going, dtype=torch.long))
        tokens = torch.tensor([[episodes[index].ids[-1]] for index in running])
    return episodes


def _over(episode: Played, model: Model) -> bool:
    return episode.twin.ended or len(episode.ids) >= model.shape.context
