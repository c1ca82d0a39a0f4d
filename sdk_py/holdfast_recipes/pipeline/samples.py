"""The input of a learner from a batch: token ids, masks, log-probabilities and advantages of each rollout that carries loss.

Owns the joining of a group's advantages to its tokens, the tokens that rollouts of a tree share, each of which gets loss in one sample, and
the check that every number is finite, so that one sandbox cannot spoil an optimiser's step. Tensors are the training package's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast_recipes.core.advantage import advantages
from holdfast_recipes.core.trajectory import Tokens, Trajectory

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
    """One sample for each member with loss, in the order of groups, after one for the tokens that members of a tree share.

    Raises ValueError for a rollout without tokens, which cannot be trained on: the policy gave messages only.
    """
    made: list[Sample] = []
    for number, group in enumerate(batch.groups):
        rewards = group.outcome.rewards
        trees: dict[str | int, tuple[int, list[Trajectory], list[float]]] = {}
        for member, reward, advantage in zip(group.outcome.members, rewards, advantages(rewards, std=std), strict=True):  # type: ignore[arg-type]
            if reward is None:
                continue
            run = member.rollout.payload
            if not isinstance(run, Trajectory) or run.tokens is None:
                raise ValueError("a rollout of the batch has no token ids: train on a policy that gives ids and log-probabilities")
            assert math.isfinite(advantage)
            tree, turn = (run.branch.tree, run.branch.turn) if run.branch else (len(trees), 0)
            _, leaves, given = trees.setdefault(tree, (turn, [], []))
            leaves.append(run)
            given.append(advantage)
        for turn, leaves, given in trees.values():
            made += tree_of_samples(turn, leaves, given, number, version=group.version, alone=len(trees) == 1)
    return made


def tree_of_samples(
    turn: int, leaves: Sequence[Trajectory], given: Sequence[float], group: int, *, version: int = 0, alone: bool = False
) -> list[Sample]:
    """The samples of rollouts that share their first ``turn`` turns, with their advantages: one of the shared tokens, then one for each.

    The shared tokens get the mean of the advantages, and no sample if they are ``alone`` in their group, where that mean is zero. A single
    rollout is one sample. ``version`` is that of rollouts whose turns have none. Raises ValueError if the first turns differ.
    """
    shared = shared_tokens(turn, leaves) if len(leaves) > 1 else 0
    made = []
    if shared and not alone:
        rewards = [leaf.reward for leaf in leaves if leaf.reward is not None]
        made.append(_sample(leaves[0], 0, shared, math.fsum(given) / len(given), math.fsum(rewards) / len(rewards), group, version))
    for leaf, advantage in zip(leaves, given, strict=True):
        assert leaf.reward is not None
        made.append(_sample(leaf, shared, None, advantage, leaf.reward, group, version))
    return made


def _sample(run: Trajectory, begin: int, end: int | None, advantage: float, reward: float, group: int, version: int) -> Sample:
    """A sample of the tokens before ``end``, with loss from ``begin`` on."""
    tokens = tokens_of(run)
    mask = (*(0,) * begin, *tokens.loss_mask[begin:end])
    return Sample(tokens.ids[:end], mask, tokens.logprobs[:end], advantage, reward, group, min(tokens.versions, default=version), run)


def shared_tokens(turn: int, leaves: Sequence[Trajectory]) -> int:
    """The number of tokens before what the policy wrote in turn ``turn``, the same in all leaves. Raises ValueError if they differ."""
    beginnings = []
    for leaf in leaves:
        tokens = tokens_of(leaf)
        if not tokens.spans:
            raise ValueError(f"{leaf.trajectory_id}: the tokens of its turns were not recorded")
        start = first_token_of(turn, tokens)
        beginnings.append(tuple(zip(tokens.ids[:start], tokens.loss_mask[:start], tokens.logprobs[:start], strict=True)))
    shared = min(map(len, beginnings))
    if any(each[:shared] != beginnings[0][:shared] for each in beginnings) or any(
        bit for each in beginnings for _, bit, _ in each[shared:]
    ):
        raise ValueError(f"the leaves of a tree differ before turn {turn}")
    return shared


def first_token_of(turn: int, tokens: Tokens) -> int:
    """The place of the first token that the policy wrote in turn ``turn`` or later; the number of tokens if there is none."""
    own = (span.start for span in tokens.spans if span.turn is not None and span.turn >= turn and span.supervised)
    return min(own, default=len(tokens.ids))


def tokens_of(run: Trajectory) -> Tokens:
    """Raises ValueError where the policy gave none."""
    if run.tokens is None:
        raise ValueError(f"{run.trajectory_id} has no token ids: train on a policy that gives ids and log-probabilities")
    return run.tokens


def trained_tokens(made: Iterable[Sample]) -> int:
    """The number of tokens that get loss."""
    return sum(sum(each.mask) for each in made)
