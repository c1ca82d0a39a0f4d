"""Tree rollouts: one rollout up to a turn, then k that continue it in branches of its sandbox; and the samples for a learner.

Owns the growth of one tree, and which of its tokens get which advantage, each in at most one sample: the turns before the branch are a
sample of their own. The advantages are those of ``core.advantage`` over all leaves of a prompt. Called by a trainer's own loop;
``tree_sampler`` gives the leaves of trees to the manager of ``rollouts`` and to ``collect``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from holdfast import HoldfastError

from holdfast_recipes.core.advantage import Deviation, advantages
from holdfast_recipes.core.groups import GroupRules, admit
from holdfast_recipes.core.scored import Status
from holdfast_recipes.core.trajectory import Branch, Harness, PolicyName, Trajectory
from holdfast_recipes.harness.layers import FaultError
from holdfast_recipes.harness.loop import Episode
from holdfast_recipes.harness.rollout import Settings

from .branching import BranchableJob, Stem
from .playing import Replay, continuation_seed
from .samples import Sample, is_finite, tokens_of, tree_of_samples


@dataclass(frozen=True, slots=True)
class Tree:
    """Rollouts whose first ``turn`` turns are the same ones. Where these already ended the rollout, it is the only leaf. No leaves:
    ``reason`` is why, and infrastructure or the wall clock is the cause."""

    turn: int
    leaves: tuple[Trajectory, ...]
    reason: str = ""


async def grow_tree(job: BranchableJob, settings: Settings, *, k: int, turn: int, seed: int | None = None, trajectory_id: str = "") -> Tree:
    """Play ``turn`` turns, branch the sandbox, and play ``k`` rollouts on to their ends, each graded. Raises ValueError for less than one
    turn or branch, and UnsupportedError where sandboxes cannot be branched. The leaves of the editor harness are aborted."""
    if turn < 1 or k < 1:
        raise ValueError(f"a tree needs at least one turn before the branch and one branch: turn={turn}, k={k}")
    name = trajectory_id or f"{job.task_id}-{'x' if seed is None else seed}"
    async with Stem(job, settings) as stem:
        try:
            episode = await stem.play(settings.conversation(), turn, seed)
            if episode.status in (Status.ABORTED, Status.TIMEOUT):
                return Tree(turn, (), episode.reason)
            ended = len(episode.turns) < turn or episode.status is Status.COMPLETED
            branches = await stem.branch(1 if ended else k)
        except FaultError as fault:
            return Tree(turn, (), fault.reason)
        except HoldfastError as error:
            if error.code == "unsupported":
                raise
            return Tree(turn, (), error.code)
        prefix = beginning(name, job.task_id, episode, seed)
        async with asyncio.TaskGroup() as group:
            played = [
                group.create_task(
                    stem.continue_in(
                        branch,
                        lambda: Replay(settings.conversation(), prefix, len(prefix.turns)),
                        continuation_seed(prefix, turn, number),
                        f"{name}.{number}",
                    ),
                    name=f"leaf-{name}.{number}",
                )
                for number, branch in enumerate(branches)
            ]
        return Tree(turn, tuple(replace(task.result(), branch=None if ended else Branch(name, turn)) for task in played))


def beginning(name: str, task_id: str, episode: Episode, seed: int | None) -> Trajectory:
    """The first turns of a rollout, for those that continue them."""
    return Trajectory(
        name, task_id, Harness(""), PolicyName(""), episode.messages, episode.tools, episode.turns, seed, tokens=episode.tokens
    )


def tree_samples(groups: Iterable[Sequence[Tree]], *, std: Deviation = "sample", rules: GroupRules | None = None) -> list[Sample]:
    """The samples of groups, each the trees of one prompt, in their order. Groups that ``core.groups.admit`` refuses are left out.

    Each leaf is a sample with loss on its turns from the branch on. The turns before it are one sample of the tree, with the mean of the
    advantages of its leaves: that of one rollout whose reward is the mean of its continuations. In a group of one tree that mean is zero,
    and the sample is left out. Raises ValueError for rollouts without token ids, and for leaves whose first turns differ.
    """
    made: list[Sample] = []
    usable = (rules or GroupRules()).usable
    for number, trees in enumerate(groups):
        leaves = [_checked(leaf) for tree in trees for leaf in tree.leaves]
        for leaf in leaves:
            if usable(leaf.scored()):
                tokens_of(leaf)
        if not admit([leaf.scored() for leaf in leaves], rules).keep:
            continue
        rewards = [leaf.reward if usable(leaf.scored()) else None for leaf in leaves]
        of_leaf = {id(leaf): advantage for leaf, advantage in zip(leaves, advantages(rewards, std=std), strict=True)}
        for tree in trees:
            used = [leaf for leaf in map(_checked, tree.leaves) if usable(leaf.scored())]
            made += tree_of_samples(tree.turn, used, [of_leaf[id(leaf)] for leaf in used], number, alone=len(trees) == 1)
    return made


def _checked(leaf: Trajectory) -> Trajectory:
    """A number that is none would spoil the optimiser's step, so such a rollout counts as failed."""
    return leaf if is_finite(leaf) else replace(leaf, reward=None, status=Status.ABORTED)
