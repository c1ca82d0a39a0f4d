"""The learner's rows of rollouts from trees: each token in at most one loss, with the advantage that belongs to it."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import pytest
import torch
from holdfast_recipes.core.advantage import advantages
from holdfast_recipes.core.balance import Balance, Outcome
from holdfast_recipes.core.presets import Optimiser
from holdfast_recipes.core.schedule import Schedule
from holdfast_recipes.core.scored import Blame, Status
from holdfast_recipes.core.trajectory import Branch, Trajectory
from holdfast_recipes.pipeline.batching import Batch, Group
from holdfast_recipes.pipeline.samples import first_token_of
from holdfast_recipes.training.batches import Row
from holdfast_recipes.training.model import Model, Shape
from holdfast_recipes.training.rl import Learner, Objective

from tests.recipes.pipeline.test_trees import TOKENIZER, leaf

TURN = 2


def learner(**objective: object) -> Learner:
    def to_row(run: Trajectory, advantage: float) -> Row:
        assert run.tokens is not None
        return Row(run.tokens.ids, run.tokens.loss_mask, run.tokens.logprobs, advantage)

    model = Model(Shape(TOKENIZER.special("<|im_end|>") + 1, width=16, layers=1, heads=2, context=2048), 0)
    settings = Objective(**objective)  # type: ignore[arg-type]
    return Learner(model, Optimiser(1e-2, 1e-2, weight_decay=0.0), Schedule(1e-2, 10, shape="constant"), to_row, objective=settings)


async def branched(tree: str, rewards: tuple[float, ...]) -> list[Trajectory]:
    """The leaves of a tree that share two turns."""
    made = [await leaf(f"{tree}{n}", [f"look {tree}", "think", f"do {n}"], reward) for n, reward in enumerate(rewards)]
    return [replace(run, branch=Branch(tree, TURN)) for run in made]


def outcome(runs: list[Trajectory], others: list[Trajectory] | None = None) -> Outcome:
    """A group of *runs*, and of *others* that get no loss."""
    runs = [*runs, *(others or ())]
    balance = Balance(len(runs), len(runs), len(runs), "0", "1")
    balance.add(run.scored() for run in runs)
    found = balance.outcome()
    assert found is not None
    return found


def batch(*groups: Outcome) -> Batch[int]:
    return Batch(tuple(Group(number, group, 2) for number, group in enumerate(groups)), Counter())


def supervised(run: Trajectory) -> list[int]:
    assert run.tokens is not None
    return [place for place, bit in enumerate(run.tokens.loss_mask) if bit]


def branch_of(run: Trajectory) -> int:
    """The place where the shared tokens end."""
    assert run.tokens is not None
    return first_token_of(TURN, run.tokens) if run.branch else 0


def places(row: Row, runs: list[Trajectory]) -> list[tuple[str, int]]:
    """The tokens with loss: by tree where its rollouts share them, else by rollout."""
    (*_, run) = (each for each in runs if each.tokens and each.tokens.ids[: len(row.ids)] == row.ids)
    shared = branch_of(run)
    return [(run.branch.tree if run.branch and at < shared else run.trajectory_id, at) for at, bit in enumerate(row.mask) if bit]


async def test_each_token_is_in_one_row() -> None:
    trees = [await branched("a", (1.0, -1.0, -1.0)), await branched("b", (1.0, 1.0))]
    alone = await leaf("c", ["see", "do 7"], -1.0)
    lost = replace((await branched("a", (0.0,) * 4))[3], reward=None, status=Status.ABORTED, blame=Blame.INFRASTRUCTURE)
    only = await branched("d", (1.0, -1.0))
    runs = [*trees[0], *trees[1], alone, *only]
    rows = learner().rows(batch(outcome([*trees[0], *trees[1], alone], [lost]), outcome(only)))
    trained = Counter(place for row in rows for place in places(row, runs))
    assert set(trained.values()) == {1}
    wanted = {(run.trajectory_id, place) for run in runs for place in supervised(run) if place >= branch_of(run)}
    wanted |= {
        (run.branch.tree, place) for run in runs if run.branch and run not in only for place in supervised(run) if place < branch_of(run)
    }
    assert set(trained) == wanted, "the shared tokens of a group's only tree have the mean of its advantages, which is zero"
    assert sum(row.targets for row in rows) == len(wanted)
    assert len(rows) == 2 + 3 + 2 + 1 + 2
    of_group = advantages([1.0, -1.0, -1.0, 1.0, 1.0, -1.0])
    found = {tuple(places(row, runs)): row.advantage for row in rows}
    for tree, given in (("a", of_group[:3]), ("b", of_group[3:5])):
        (mean,) = (advantage for where, advantage in found.items() if where[0][0] == tree)
        assert mean == pytest.approx(math.fsum(given) / len(given))
    for name, advantage in zip(("a0", "a1", "a2", "b0", "b1", "c", "d0", "d1"), [*of_group, *advantages([1.0, -1.0])], strict=True):
        assert [value for where, value in found.items() if where[0][0] == name] == [advantage]


async def test_rollouts_without_trees_are_rows_of_their_own() -> None:
    runs = [replace(run, branch=None) for run in await branched("a", (1.0, -1.0))]
    rows = learner().rows(batch(outcome(runs)))
    assert [row.targets for row in rows] == [len(supervised(run)) for run in runs]
    assert [row.advantage for row in rows] == advantages([1.0, -1.0])


@pytest.mark.parametrize("reduce", ["token_mean", "sequence_mean"])
async def test_a_step_on_trees_moves_the_leaves_apart_and_not_what_they_share(reduce: str) -> None:
    """In a group of one tree the gradient of the shared tokens is zero: their rows have no loss there."""
    mine, runs = learner(reduce=reduce), await branched("a", (1.0, -1.0))
    rows = mine.rows(batch(outcome(runs)))
    assert len(rows) == 2
    assert all(not any(row.mask[: branch_of(run)]) for row, run in zip(rows, runs, strict=True))
    before = [chance(mine.model, run) for run in runs]
    numbers = mine.learn(batch(outcome(runs)))
    assert (mine.version, mine.refused, math.isfinite(numbers["loss"])) == (1, 0, True)
    good, bad = (chance(mine.model, run) - was for run, was in zip(runs, before, strict=True))
    assert good > bad


def chance(model: Model, run: Trajectory) -> float:
    """The log-probability of what the rollout did after the branch."""
    assert run.tokens is not None
    ids = torch.tensor([run.tokens.ids])
    with torch.no_grad():
        logits = model(ids)[0].log_softmax(-1)
    return sum(float(logits[place - 1, run.tokens.ids[place]]) for place in supervised(run) if place >= branch_of(run))
