"""Reinforcement learning on groups of rollouts (P §3.3.3): a learner, and the loop between it and what makes rollouts.

Owns the optimiser step (group advantages, clipped objective on the log-probabilities of the rollout), weight versions and one step of
staleness. Which rollouts form a batch is ``pipeline.batching``'s. A batch that cannot be trained on is a count, never an end of the run.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

from holdfast_recipes.core.advantage import Deviation, advantages
from holdfast_recipes.core.balance import Member, length_bias
from holdfast_recipes.core.objective import Reduce
from holdfast_recipes.core.presets import Optimiser, Rl
from holdfast_recipes.core.schedule import Schedule
from holdfast_recipes.core.scored import Scored
from holdfast_recipes.core.trajectory import Trajectory
from holdfast_recipes.pipeline.batching import Batch, Batching
from holdfast_recipes.pipeline.samples import samples

from .batches import Row, Tensors
from .loss import policy_loss, token_logprobs
from .model import Model
from .optimisation import NotFiniteError, Optimisation, copy_of

Prompt = TypeVar("Prompt")
ToRow = Callable[[Any, float], Row]
"""The payload of a rollout and its advantage → the row that is trained on."""


@dataclass(frozen=True, slots=True)
class Objective:
    """Settings of the RL loss. The defaults are those of the paper's SWE preset, its open points resolved as in A2.4."""

    low: float = 0.2
    high: float = 0.28
    reduce: Reduce = "token_mean"
    deviation: Deviation = "sample"
    epochs: int = 1
    """Optimiser steps on each batch."""

    @classmethod
    def of(cls, preset: Rl) -> Objective:
        """As a run of the paper has it. Without 1/T for each trajectory every token weighs the same in the batch."""
        low, high = preset.clip
        return cls(low, high, "sequence_mean" if preset.length_normalised else "token_mean", epochs=preset.epochs_per_rollout)


class Learner:
    """Holds the weights that are trained. ``version`` counts its updates; ``weights()`` is a copy for actors.

    With a checkpoint path it saves after every ``save_every`` updates and goes on from what it finds there.
    """

    def __init__(
        self,
        model: Model,
        optimiser: Optimiser,
        schedule: Schedule,
        to_row: ToRow,
        *,
        objective: Objective | None = None,
        checkpoint: Path | None = None,
        save_every: int = 10,
    ) -> None:
        self.model, self.to_row = model, to_row
        self.objective = objective or Objective()
        self.optimisation = Optimisation(model, optimiser, schedule)
        self.version = 0
        self.refused = 0
        """Batches whose numbers were not finite: they moved no weight."""
        self._checkpoint, self._save_every = checkpoint, save_every
        if checkpoint and checkpoint.exists():
            self.version = int(self.optimisation.load(checkpoint)["version"])

    def weights(self) -> Model:
        return copy_of(self.model)

    def learn(self, batch: Batch[Any]) -> dict[str, float]:
        """One update from a batch; what it measured. The version moves even when the update was refused: actors wait for it."""
        started = time.monotonic()
        rows = self.rows(batch)
        numbers = _numbers(batch)
        self.model.train()
        try:
            for _ in range(self.objective.epochs):
                if rows:
                    numbers |= self.optimisation.update(rows, self._loss(rows, numbers))
        except NotFiniteError:
            self.refused += 1
        self.version += 1
        if self._checkpoint and self.version % self._save_every == 0:
            self.save()
        return numbers | {"version": float(self.version), "refused": float(self.refused), "learn_s": time.monotonic() - started}

    def rows(self, batch: Batch[Any]) -> list[Row]:
        """The rows with loss: of members that keep it, whose advantage is not zero. Those of trees have further rows (``samples``)."""
        if any(isinstance(each.rollout.payload, Trajectory) and each.rollout.payload.branch for each in _members(batch)):
            return [Row(each.ids, each.mask, each.logprobs, each.advantage) for each in samples(batch, std=self.objective.deviation)]
        rows = []
        for group in batch.groups:
            members = group.outcome.members
            each = advantages(group.outcome.rewards, std=self.objective.deviation)
            for member, advantage in zip(members, each, strict=True):
                if not member.remove_sample:
                    rows.append(self.to_row(member.rollout.payload, advantage))
        return rows

    def save(self) -> None:
        if self._checkpoint:
            self.optimisation.save(self._checkpoint, version=self.version)

    def _loss(self, rows: Sequence[Row], numbers: dict[str, float]) -> Callable[[Tensors], Tensor]:
        settings = self.objective
        whole = {
            "token_mean": sum(row.targets * row.weight for row in rows),
            "sequence_mean": sum(row.weight for row in rows if row.targets),
            "token_sum": 1.0,
        }[settings.reduce]
        targets = max(1, sum(row.targets for row in rows))
        numbers |= {"clipped": 0.0, "ratio": 0.0}

        def loss(part: Tensors) -> Tensor:
            logp = token_logprobs(self.model(part.ids), part.ids)
            with torch.no_grad():
                ratio = torch.where(part.mask.bool(), (logp - part.old), torch.zeros_like(logp)).exp()
                outside = ((ratio < 1 - settings.low) & (part.advantage[:, None] < 0)) | (
                    (ratio > 1 + settings.high) & (part.advantage[:, None] > 0)
                )
                numbers["clipped"] += float((outside * part.mask).sum()) / targets
                numbers["ratio"] += float((ratio * part.mask).sum()) / targets
            how: dict[str, Any] = {"low": settings.low, "high": settings.high, "weight": part.weight}
            if settings.reduce == "sequence_mean":
                share = float(((part.mask.sum(1) > 0) * part.weight).sum()) / whole
                return policy_loss(logp, part.old, part.advantage, part.mask, reduce="sequence_mean", **how) * share
            return policy_loss(logp, part.old, part.advantage, part.mask, reduce="token_sum", const=whole, **how)

        return loss


_LEAST = 0.375
"""The share of either class in a balanced group, as the paper has it; counted for every way of making groups."""


def _members(batch: Batch[Any]) -> Iterator[Member]:
    return (member for group in batch.groups for member in group.outcome.members if not member.remove_sample)


def _numbers(batch: Batch[Any]) -> dict[str, float]:
    """Counts of a batch, the mean reward of what is trained on, and what selection by length did to lengths (B9)."""
    numbers = {name: float(count) for name, count in batch.counts.items()}
    numbers["trained_groups"] = float(len(batch.groups))
    numbers["trained_balanced"] = float(
        sum(_LEAST <= group.outcome.positives / len(group.outcome.members) <= 1 - _LEAST for group in batch.groups)
    )
    rewards = [reward for group in batch.groups for reward in group.outcome.rewards if reward is not None]
    numbers["reward"] = sum(rewards) / len(rewards) if rewards else 0.0
    pool = [each.reward for group in batch.groups for each in group.outcome.pool if each.reward is not None]
    numbers["pool_reward"] = sum(pool) / len(pool) if pool else 0.0
    for positive in (True, False):
        found = [bias for group in batch.groups if (bias := length_bias(group.outcome, positive=positive))]
        if found:
            numbers[f"length_bias_{'positive' if positive else 'negative'}"] = sum(each.selected - each.pool for each in found) / len(found)
    return numbers


class Source(Protocol):
    """The interface of a source of rollouts: ``pipeline.rollouts.RolloutManager`` in sandboxes, ``Lockstep`` in this process.

    ``batch()`` gives the next full one, None when there are no more prompts; ``publish`` hands over new weights, which rollouts use from
    then on."""

    async def batch(self) -> Batch[Any] | None: ...
    def publish(self, weights: Model, version: int) -> None: ...


Report = Callable[[dict[str, float]], None]


async def train(learner: Learner, source: Source, updates: int, *, report: Report | None = None, overlap: bool = True) -> None:
    """Run ``updates`` updates. While the learner works on batch k, batch k + 1 is generated with the weights that made batch k or newer:
    one step stale. ``overlap=False`` generates it first and learns then: the same data, in a fixed order, for runs on one core that must
    repeat exactly."""
    following = asyncio.ensure_future(source.batch())
    try:
        for number in range(updates):
            batch = await following
            if batch is None:
                return
            if number + 1 < updates:
                following = asyncio.ensure_future(source.batch())
                if not overlap:
                    await asyncio.wait([following])
            numbers = await asyncio.to_thread(learner.learn, batch) if overlap else learner.learn(batch)
            source.publish(learner.weights(), learner.version)
            if report:
                report(numbers)
    finally:
        if not following.done():
            following.cancel()
        await asyncio.gather(following, return_exceptions=True)


PlayMany = Callable[[Model, Sequence[Any], Sequence[int]], Sequence[Scored]]
"""Weights, prompts (repeated for each rollout) and seeds → finished rollouts in the same order."""


@dataclass
class Lockstep(Generic[Prompt]):
    """A source on one core: everything that is to be started is played at once by ``play``, to its end. Weights that are published are
    used by the next round. ``patience``: after so many rounds without a full batch there is none: all prompts are mastered or hopeless,
    and groups without variance would be dropped for ever."""

    batching: Batching[Prompt]
    play: PlayMany
    model: Model
    seed: int
    patience: int = 50
    totals: Counter[str] = field(default_factory=Counter)
    _played: int = 0

    async def batch(self) -> Batch[Prompt] | None:
        rounds = 0
        while (full := self.batching.take()) is None:
            launches = self.batching.launches()
            rounds += 1
            if not launches or rounds > self.patience:
                return None
            prompts = [launch.prompt for launch in launches for _ in range(launch.count)]
            keys = [launch.key for launch in launches for _ in range(launch.count)]
            seeds = [_seed(self.seed, self._played + index) for index in range(len(prompts))]
            self._played += len(prompts)
            version = self.batching.version
            for key, rollout in zip(keys, self.play(self.model, prompts, seeds), strict=True):
                self.batching.finished(key, rollout, version)
        self.totals.update(full.counts)
        return full

    def publish(self, weights: Model, version: int) -> None:
        self.model = weights
        self.batching.published()


def endless(prompts: Sequence[Prompt], seed: int) -> Iterator[Prompt]:
    """The prompts in epochs, each in an order of its own."""
    draw = random.Random(f"prompts-{seed}")  # noqa: S311
    while prompts:
        yield from draw.sample(list(prompts), len(prompts))


def _seed(seed: int, index: int) -> int:
    return seed * 1_000_003 + index
