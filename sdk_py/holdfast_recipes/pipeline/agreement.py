"""Agreement of two annotations of the same runs: rank correlation of their values, run by run (C4.6, E5).

Owns the alignment of the two conventions: the value after turn t is that of the state before turn t + 1. A run whose values are all
the same on one side has no rank correlation, and is counted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from holdfast_recipes.core.metrics import Interval, bootstrap, spearman
from holdfast_recipes.core.trajectory import Trajectory
from holdfast_recipes.core.values import is_inverted_u

from .annotate import turns_with_results
from .errors import DataError


@dataclass(frozen=True, slots=True)
class Agreement:
    """``correlation`` is the mean over runs of Spearman's ρ, with a bootstrap interval over runs; None where no run has one.
    ``inverted_u`` are the shares of curves of that shape on either side."""

    runs: int
    constant: int
    correlation: Interval | None
    inverted_u: tuple[float, float]

    def to_json(self) -> dict[str, Any]:
        found = self.correlation
        spans = None if found is None else {"estimate": found.estimate, "low": found.low, "high": found.high}
        return {"runs": self.runs, "constant": self.constant, "spearman": spans, "inverted_u": list(self.inverted_u)}


def states(run: Trajectory) -> dict[int, float]:
    """Value by state, numbered by the turns before it: 0 is the start, L the end."""
    values, turns = run.values or (), len(turns_with_results(run))
    if run.value_of not in ("before", "after") or len(values) - turns not in ((0, 1) if run.value_of == "before" else (0,)):
        raise DataError(f"{run.trajectory_id}: its values do not fit its turns", hint="run holdfast recipes validate for details")
    first = 1 if run.value_of == "after" else 0
    return {first + index: value for index, value in enumerate(values)}


def agreement(left: Iterable[Trajectory], right: Iterable[Trajectory], *, seed: int = 0) -> Agreement:
    """Of the runs that both have values of. Raises DataError where there are none."""
    first = {run.trajectory_id: run for run in left if run.values}
    pairs = [(first[run.trajectory_id], run) for run in right if run.values and run.trajectory_id in first]
    if not pairs:
        raise DataError("no run has values in both", hint="annotate the same run twice")
    found = []
    for one, other in pairs:
        mine, its = states(one), states(other)
        shared = sorted(mine.keys() & its.keys())
        found.append(spearman([mine[state] for state in shared], [its[state] for state in shared]))
    known = [value for value in found if not math.isnan(value)]
    shapes = [sum(is_inverted_u(pair[side].values or ()) for pair in pairs) / len(pairs) for side in (0, 1)]
    return Agreement(len(pairs), len(found) - len(known), bootstrap(known, seed=seed) if known else None, (shapes[0], shapes[1]))
