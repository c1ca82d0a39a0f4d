"""Values of the turns of a teacher's run, as a recipe could get them: by rules, by Monte Carlo, exactly; and disturbances of them.

Owns the estimators of E5 and the disturbances of the sweeps of E4 (noise, sparse annotation). ``core.credit`` uses
the values. Each estimator gives an ``Estimate``, which names its convention (V1).
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from holdfast_recipes.core.credit import Credit, CreditRules, ValueOf, credit
from holdfast_recipes.core.values import Interpolation, interpolate, monte_carlo

from .teacher import Episode, Move, Phase, Teacher

BASE = 0.35
"""The value at the start that rules give, before anything was found out."""
_FOUND = {Move.TEST: 0.10, Move.FIND: 0.10, Move.VIEW: 0.10}
_WRONG_EDIT = -0.15
_FINAL = 0.10


@dataclass(frozen=True, slots=True)
class Estimate:
    """``values`` [L] after each turn with ``first`` at the start, or [L + 1] before each turn and at the end."""

    values: tuple[float, ...]
    value_of: ValueOf
    first: float | None = None

    @property
    def curve(self) -> tuple[float, ...]:
        """[L + 1] the value of each state, whichever the convention."""
        return self.values if self.first is None else (self.first, *self.values)

    def credit(self, turns: int, eps: float = 0.05) -> Credit:
        """Calibration is asked only of rules, which imitate an annotator; estimates of states are what they are."""
        rules = CreditRules(eps=eps, value_of=self.value_of, check=self.value_of == "after")
        return credit(self.values, turns, rules, first=self.first)


def milestone(episode: Episode) -> Estimate:
    """Rules that use the solution of the task: +0.1 for the first sight of the failure, of the function and of the line, −0.15 for a
    wrong edit, and at most 0.1 at the end of a run that failed. Wandering changes nothing. Values are of what a turn led to."""
    values, value = [], BASE
    for move, before in zip(episode.moves, episode.states, strict=False):
        if move is Move.TEST and before.phase is Phase.EDITED:
            value += 0.0 if not before.right else _FOUND[move]
        elif move is Move.RIGHT:
            value += 0.2
        elif move is Move.WRONG:
            value = max(value + _WRONG_EDIT, 0.1)
        else:
            value += _FOUND.get(move, 0.0)
        values.append(round(min(value, 0.99), 6))
    values[-1] = 0.99 if episode.solved else _FINAL
    return Estimate(tuple(values), "after", BASE)


def exact(episode: Episode, teacher: Teacher) -> Estimate:
    return Estimate(tuple(teacher.value(state) for state in episode.states), "before")


def by_rollouts(episode: Episode, teacher: Teacher, k: int, seed: int) -> Estimate:
    """Monte Carlo: from each state ``k`` continuations by the teacher itself."""
    draw = random.Random(f"continuations-{seed}")  # noqa: S311
    outcomes = [[teacher.finish(state, draw) for _ in range(k)] for state in episode.states]
    return Estimate(tuple(monte_carlo(outcomes)), "before")


def noisy(estimate: Estimate, sigma: float, seed: int) -> Estimate:
    """Each value with Gaussian noise, kept in [0, 1]; the first and the last stay, as the calibration rules bind them."""
    draw = random.Random(f"noise-{seed}")  # noqa: S311
    values = list(estimate.values)
    for index in range(1, len(values) - 1):
        values[index] = min(1.0, max(0.0, values[index] + draw.gauss(0, sigma)))
    return replace(estimate, values=tuple(values))


def sparse(estimate: Estimate, every: int, how: Interpolation) -> Estimate:
    """Only each ``every``-th value and the last are annotated, the rest is filled up (V2)."""
    values = estimate.values
    points = {index: values[index] for index in range(0, len(values), every)} | {len(values) - 1: values[-1]}
    if len(points) < 2:
        return estimate
    return replace(estimate, values=tuple(interpolate(points, len(values), how)))


def misread(estimate: Estimate) -> Estimate:
    """The same numbers taken for the other convention: credit falls on the turn beside the right one."""
    return Estimate(estimate.values, "before" if estimate.value_of == "after" else "after")
