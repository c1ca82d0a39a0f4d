"""D4, D5, D7: advantages, clipped losses, schedules, pass@k and intervals."""

from __future__ import annotations

import itertools
import math
import statistics

import pytest
from holdfast_recipes.core.advantage import advantages, broadcast, pair_weights
from holdfast_recipes.core.errors import ConfigurationError
from holdfast_recipes.core.metrics import (
    bootstrap,
    mean_pass,
    nested_bootstrap,
    paired_bootstrap,
    pass_at_k,
    pass_hat_k,
    spearman,
    strict,
    wilson,
)
from holdfast_recipes.core.objective import clipped, reduced
from holdfast_recipes.core.schedule import Schedule, saturated, steps_per_epoch
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("rewards", "population", "sample"),
    [
        ([1, 1, 1, 1, -1, -1, -1, -1], {1: 1, -1: -1}, {1: 0.935414, -1: -0.935414}),
        ([1, 1, 1, -1, -1, -1, -1, -1], {1: 1.290994, -1: -0.774597}, {1: 1.207615, -1: -0.724569}),
        ([1, -1, -1, -1, -1, -1, -1, -1], {1: 2.645751, -1: -0.377964}, {1: 2.474874, -1: -0.353553}),
        ([1, 0, 0, -1, 0], {1: 1.581139, 0: 0, -1: -1.581139}, {1: 1.414214, 0: 0, -1: -1.414214}),
        ([1, 1, None, -1, -1, -1], {1: 1.224745, -1: -0.816497, None: 0}, {1: 1.095445, -1: -0.730297, None: 0}),
    ],
)
def test_known_advantages(rewards: list[float | None], population: dict[float | None, float], sample: dict[float | None, float]) -> None:
    assert advantages(rewards, std="population") == pytest.approx([population[reward] for reward in rewards], abs=5e-7)
    assert advantages(rewards) == pytest.approx([sample[reward] for reward in rewards], abs=5e-7)


@pytest.mark.parametrize("rewards", [[], [None, None], [1.0], [None, 0.5], [0.1] * 7, [-1.0] * 8, [0.1 + 0.2, 0.3]])
def test_rewards_without_variance_have_zero_advantage(rewards: list[float | None]) -> None:
    for std in ("sample", "population"):
        assert advantages(rewards, std=std) == [0.0] * len(rewards)


def test_the_bound_of_no_variance_may_be_zero() -> None:
    assert advantages([1.0, 1.0], eps=0) == [0.0, 0.0]
    assert advantages([1.0, 1.0 + 1e-7], eps=0) != [0.0, 0.0]
    assert advantages([1.0, 1.0 + 1e-7]) == [0.0, 0.0]


def test_mean_only() -> None:
    assert advantages([1, 0, None], std="none") == [0.5, -0.5, 0.0]
    assert advantages([3], std="none") == [0.0]
    with pytest.raises(ValueError, match="finite"):
        advantages([math.nan, 1])


@given(st.lists(st.none() | st.floats(-100, 100), max_size=12))
def test_advantages_agree_with_the_statistics_module(rewards: list[float | None]) -> None:
    result = advantages(rewards)
    used = [reward for reward in rewards if reward is not None]
    assert all(value == 0 for value, reward in zip(result, rewards, strict=True) if reward is None)
    assert math.fsum(result) == pytest.approx(0, abs=1e-6)
    if len(used) > 1 and statistics.stdev(used) > 1e-3:
        expected = [(reward - statistics.mean(used)) / statistics.stdev(used) for reward in used]
        assert [value for value, reward in zip(result, rewards, strict=True) if reward is not None] == pytest.approx(expected)


def test_a_rollout_counts_once_however_many_pairs_it_left() -> None:
    assert pair_weights([3, 1, 0]) == pytest.approx([1 / 3, 1, 0])
    assert broadcast(-0.5, [0, 1, 1, 0]) == [0.0, -0.5, -0.5, 0.0]


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope"),
    [(1.5, 1, -1.28, 0), (0.5, 1, -0.5, -1), (1.5, -1, 1.5, 1), (0.5, -1, 0.8, 0), (1.0, 2, -2, -2), (1.28, 1, -1.28, -1), (0.9, 0, 0, 0)],
)
def test_clip(ratio: float, advantage: float, loss: float, slope: float) -> None:
    assert clipped(ratio, advantage) == pytest.approx((loss, slope))


@given(st.floats(0.01, 3), st.floats(-3, 3))
def test_the_slope_is_the_derivative(ratio: float, advantage: float) -> None:
    if min(abs(ratio - 0.8), abs(ratio - 1.28)) < 1e-3:
        return
    step = 1e-5
    numeric = (clipped(ratio + step, advantage).loss - clipped(ratio - step, advantage).loss) / (2 * step)
    assert clipped(ratio, advantage).slope == pytest.approx(numeric, abs=1e-6)


def test_reductions_differ_where_lengths_do() -> None:
    losses, masks = [[1.0] * 13, [4.0, 4.0, 9.0]], [[1] * 13, [1, 1, 0]]
    assert reduced(losses, masks, "token_mean") == pytest.approx(1.4)
    assert reduced(losses, masks, "sequence_mean") == pytest.approx(2.5)
    assert reduced(losses, masks, "token_sum") == pytest.approx(21)
    assert reduced(losses, masks, "token_sum", const=42) == pytest.approx(0.5)
    assert reduced([[1.0]], [[0]], "token_mean") == reduced([], [], "sequence_mean") == 0.0
    assert reduced([[4.0], [5.0]], [[1], [0]], "sequence_mean") == 4.0
    for shapes in (([[1.0]], [[1, 1]]), ([[1.0]], [])):
        with pytest.raises(ValueError, match="shape"):
            reduced(*shapes, "token_mean")
    assert reduced([[3.0]], [[1]], "token_sum", const=0.5) == 6.0
    for how, const in (("token_mean", 2.0), ("token_sum", 0.0), ("token_sum", -1.0)):
        with pytest.raises(ValueError, match="constant"):
            reduced([[1.0]], [[1]], how, const)  # type: ignore[arg-type]


def test_schedules() -> None:
    schedule = Schedule(1e-5, 1000, 1e-6)
    assert [schedule.at(step) for step in (0, 500, 1000, 5000)] == pytest.approx([1e-5, 5.5e-6, 1e-6, 1e-6])
    warm = Schedule(1e-5, 100, warmup=0.1)
    assert [warm.at(step) for step in (0, 5, 10, 55, 100)] == pytest.approx([0, 5e-6, 1e-5, 5e-6, 0])
    assert Schedule(1e-6, 150, 1e-6, shape="constant").at(900) == 1e-6
    assert Schedule(1.0, 0).at(0) == 0.0
    for wrong in ({"peak": 1.0, "total": 10, "floor": 2.0}, {"peak": 1.0, "total": 10, "warmup": 11}, {"peak": 1.0, "total": -1}):
        with pytest.raises(ConfigurationError):
            Schedule(**wrong)  # type: ignore[arg-type]


def test_steps() -> None:
    assert [steps_per_epoch(*pair) for pair in [(107_185, 128), (4_537, 16), (3_070, 128), (128, 128), (0, 8)]] == [838, 284, 24, 1, 0]
    assert steps_per_epoch(5, 1) == 5
    for pair in ((-1, 8), (8, 0)):
        with pytest.raises(ValueError, match="at least"):
            steps_per_epoch(*pair)


def test_saturation_needs_a_flat_stretch() -> None:
    assert not saturated([0.5] * 9)
    assert saturated([0.5] * 10)
    assert not saturated([0.4 + 0.02 * i for i in range(12)])
    assert saturated([0.4 + 0.001 * i for i in range(12)])


@pytest.mark.parametrize(
    ("n", "c", "k", "at", "hat"),
    [(3, 1, 3, 1, 0), (3, 2, 3, 1, 0), (5, 2, 3, 0.9, 0), (8, 4, 3, 0.928571, 0.071429), (3, 3, 3, 1, 1), (4, 0, 2, 0, 0)],
)
def test_known_pass_rates(n: int, c: int, k: int, at: float, hat: float) -> None:
    assert (pass_at_k(n, c, k), pass_hat_k(n, c, k)) == pytest.approx((at, hat), abs=5e-7)


@given(st.integers(1, 7).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_pass_rates_are_what_drawing_gives(case: tuple[int, int, int]) -> None:
    n, c, k = case
    draws = list(itertools.combinations([True] * c + [False] * (n - c), k))
    assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, draws)) / len(draws))
    assert pass_hat_k(n, c, k) == pytest.approx(sum(map(all, draws)) / len(draws))


@pytest.mark.parametrize("case", [(3, 4, 1), (3, 1, 4), (3, -1, 1), (3, 1, 0), (0, 0, 0)])
def test_impossible_trials(case: tuple[int, int, int]) -> None:
    for function in (pass_at_k, pass_hat_k):
        with pytest.raises(ValueError, match="needs"):
            function(*case)


def test_strict_counts_tasks() -> None:
    trials = [[True] * 3, [True, False, True], [False] * 3]
    assert strict(trials) == pytest.approx((2 / 3, 1 / 3))
    assert mean_pass(trials) == pytest.approx(5 / 9)
    assert round(100 * strict([[True]] * 51 + [[False]] * 110)[1], 1) == 31.7
    assert round(100 * strict([[True]] * 119 + [[False]] * 42)[1], 1) == 73.9
    for nothing in ([], [[True], []]):  # all() of nothing would be a success
        with pytest.raises(ValueError, match="trial"):
            strict(nothing)


def test_wilson() -> None:
    interval = wilson(8, 10)
    assert (interval.estimate, interval.low, interval.high) == pytest.approx((0.8, 0.4901625, 0.9433178), abs=1e-6)
    assert wilson(0, 10).low == 0.0
    assert wilson(10, 10).high == 1.0
    assert (wilson(0, 0).low, wilson(0, 0).high) == (0.0, 1.0)
    with pytest.raises(ValueError, match="successes"):
        wilson(3, 2)


@given(st.integers(1, 60).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_ends_are_where_the_score_test_turns(case: tuple[int, int]) -> None:
    successes, n = case
    interval = wilson(successes, n)
    z = statistics.NormalDist().inv_cdf(0.975)
    assert 0 <= interval.low <= interval.estimate <= interval.high <= 1
    for end in (interval.low, interval.high):
        if 0 < end < 1:
            assert abs(successes / n - end) / math.sqrt(end * (1 - end) / n) == pytest.approx(z, rel=1e-6)


def test_bootstrap_is_repeatable_and_near_theory() -> None:
    values = [1.0] * 40 + [0.0] * 60
    interval = bootstrap(values, seed=7)
    assert interval == bootstrap(values, seed=7)
    assert interval != bootstrap(values, seed=8)
    half = 1.96 * math.sqrt(0.4 * 0.6 / 100)
    assert (interval.estimate, interval.low, interval.high) == pytest.approx((0.4, 0.4 - half, 0.4 + half), abs=0.015)
    assert bootstrap([2.0]) == bootstrap([2.0, 2.0]) == type(interval)(2.0, 2.0, 2.0)
    assert bootstrap([0.0, 1.0], resamples=1).low == bootstrap([0.0, 1.0], resamples=1).high
    with pytest.raises(ValueError, match="nothing"):
        bootstrap([])
    with pytest.raises(ValueError, match="resample"):
        bootstrap([1.0], resamples=0)
    with pytest.raises(ValueError, match="confidence"):
        bootstrap([1.0], confidence=1.0)


def test_bootstrap_agrees_with_all_resamples() -> None:
    values = [0.0, 1.0, 5.0]
    means = sorted(statistics.mean(sample) for sample in itertools.product(values, repeat=3))
    interval = bootstrap(values, resamples=40_000, confidence=0.8)
    assert interval.low == pytest.approx(means[round(0.1 * 26)], abs=0.35)
    assert interval.high == pytest.approx(means[round(0.9 * 26)], abs=0.35)


def test_pairs_cancel_what_makes_tasks_hard() -> None:
    control = [place / 100 for place in range(100)]
    treated = [value + 0.05 for value in control]
    paired = paired_bootstrap(treated, control)
    assert (paired.estimate, paired.low, paired.high) == pytest.approx((0.05,) * 3)
    with pytest.raises(ValueError, match="each task"):
        paired_bootstrap([1.0], [1.0, 2.0])


def test_rank_correlation() -> None:
    assert spearman([1, 2, 3], [10, 20, 90]) == pytest.approx(1)
    assert spearman([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    assert spearman([1, 2, 2, 4], [1, 3, 2, 4]) == pytest.approx(0.948683, abs=1e-6)
    assert math.isnan(spearman([1, 1], [1, 2]))
    assert math.isnan(spearman([], []))


@pytest.mark.parametrize("rewards", [[0.1, 0.1, 0.1], [0.7] * 7, [-1e300, -1e300]])
def test_equal_rewards_give_zeros_without_a_divisor_too(rewards: list[float]) -> None:
    assert advantages(rewards, std="none") == advantages(rewards) == [0.0] * len(rewards)


def test_unknown_options_and_invalid_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="std must be one of"):
        advantages([1, -1], std="samples")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="must lie within"):
        advantages([1e200, 0.0])
    with pytest.raises(ValueError, match="a reduction must be one of"):
        reduced([[1.0]], [[1]], "mean")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="positive constant"):
        reduced([[1.0]], [[1]], "token_sum", math.nan)
    with pytest.raises(ConfigurationError, match="shape of a schedule"):
        Schedule(1e-5, 100, shape="linear")  # type: ignore[arg-type]
    for peak, warmup in ((math.inf, 0), (math.nan, 0), (1e-5, math.nan), (1e-5, math.inf)):
        with pytest.raises(ConfigurationError):
            Schedule(peak, 100, warmup=warmup)
    with pytest.raises(ValueError, match="at least 1"):
        saturated([0.5] * 20, window=0)


def test_statistics_refuse_what_has_no_order() -> None:
    with pytest.raises(ValueError, match="finite"):
        bootstrap([1.0, math.nan], resamples=10)
    with pytest.raises(ValueError, match="NaN"):
        spearman([1.0, math.nan, 2.0], [1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match="same number of trials"):
        strict([[True, True, True], [True]])


def test_an_interval_over_seeds_is_as_wide_as_the_seeds_differ() -> None:
    groups = [[1.0] * 300 + [0.0] * 300, [1.0] * 60 + [0.0] * 540, [1.0] * 540 + [0.0] * 60]
    nested = nested_bootstrap(groups, resamples=500)
    flat = bootstrap([value for group in groups for value in group], resamples=500)
    assert nested.estimate == pytest.approx(flat.estimate) == pytest.approx(0.5)
    assert flat.high - flat.low < 0.06 < 0.3 < nested.high - nested.low
    assert nested_bootstrap(groups, resamples=500) == nested
    with pytest.raises(ValueError, match="each group needs a value"):
        nested_bootstrap([[1.0], []])
    with pytest.raises(ValueError, match="finite"):
        nested_bootstrap([[float("nan")]])
