"""The input of a learner from a batch: token ids, masks, log-probabilities and advantages of each rollout that carries loss.

Owns the joining of a group's advantages to its tokens and the check that every number is finite, so that one sandbox cannot spoil an
optimiser's step. Tensors are the training package's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from holdfast_recipes.core.advantage import advantages
from holdfast_recipes.core.trajectory import Trajectory

from .batching import Batch


@dataclass(frozen=True, slots=True)
class Sample:
    """[T] ids, mask and log-probabilities of the rollout policy, and one advantage for all of its tokens. ``group`` counts the groups of
    the batch; ``version`` is of the oldest weights that sampled a turn of it."""

    ids: tuple[int, ...]
    mask: tuple[int, ...]
    logprobs: tuple[float, ...]
    advantage: float
    reward: float
    group: int
    version: int
    trajectory: Trajectory


def is_finite(run: Trajectory) -> bool:
    """Whether reward and log-probabilities are numbers that can be trained on."""
    numbers = (*(run.tokens.logprobs if run.tokens else ()), *([] if run.reward is None else [run.reward]))
    return all(map(math.isfinite, numbers))


def samples(batch: Batch[Any], *, std: str = "sample") -> list[Sample]:
    """One sample for each member with loss, in the order of groups. Raises ValueError for a rollout without tokens, which cannot be
    trained on: the policy gave messages only."""
    made: list[Sample] = []
    for number, group in enumerate(batch.groups):
        rewards = group.outcome.rewards
        for member, reward, advantage in zip(group.outcome.members, rewards, advantages(rewards, std=std), strict=True):  # type: ignore[arg-type]
            if reward is None:
                continue
            run = member.rollout.payload
            if not isinstance(run, Trajectory) or run.tokens is None:
                raise ValueError("a rollout of the batch has no token ids: train on a policy that gives ids and log-probabilities")
            assert math.isfinite(advantage)
            version = min(run.tokens.versions, default=group.version)
            made.append(Sample(run.tokens.ids, run.tokens.loss_mask, run.tokens.logprobs, advantage, reward, number, version, run))
    return made


def trained_tokens(made: Iterable[Sample]) -> int:
    """The number of tokens that get loss."""
    return sum(sum(each.mask) for each in made)
