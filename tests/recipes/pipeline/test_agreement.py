"""Agreement of two annotations across both conventions."""

from __future__ import annotations

import pytest
from holdfast_recipes.core.trajectory import Trajectory
from holdfast_recipes.pipeline.agreement import agreement, states
from holdfast_recipes.pipeline.errors import DataError

from tests.recipes.pipeline.made import made


def run(name: str, *values: float, value_of: str = "after", turns: int = 3) -> Trajectory:
    return made(name, turns, values=values, value_of=value_of)


def test_states_of_both_conventions() -> None:
    assert states(run("a", 0.4, 0.5, 0.1)) == {1: 0.4, 2: 0.5, 3: 0.1}
    assert states(run("a", 0.3, 0.4, 0.5, 0.1, value_of="before")) == {0: 0.3, 1: 0.4, 2: 0.5, 3: 0.1}
    assert states(run("a", 0.3, 0.4, 0.5, value_of="before")) == {0: 0.3, 1: 0.4, 2: 0.5}
    with pytest.raises(DataError, match="do not fit"):
        states(run("a", 0.3, 0.4))


def test_the_same_curve_in_both_conventions_agrees() -> None:
    left = [run("a", 0.4, 0.5, 0.1), run("b", 0.4, 0.5, 0.1), run("c", 0.4, 0.4, 0.4), run("alone", 0.4, 0.5, 0.1)]
    right = [
        run("a", 0.9, 0.4, 0.5, 0.1, value_of="before"),
        run("b", 0.9, 0.2, 0.1, 0.6, value_of="before"),
        run("c", 0.9, 0.4, 0.5, 0.1, value_of="before"),
    ]
    found = agreement(left, right)
    assert (found.runs, found.constant) == (3, 1)
    assert found.correlation is not None
    assert found.correlation.estimate == pytest.approx(0.0)  # 1 of a, -1 of b
    assert found.inverted_u == pytest.approx((2 / 3, 0.0))
    assert agreement(left[:1], right[:1]).to_json()["spearman"]["estimate"] == 1.0
    with pytest.raises(DataError, match="no run has values in both"):
        agreement(left[3:], right)
