"""Success rates of repeated trials and how sure they are: pass@k, strict pass^k, Wilson and bootstrap intervals, rank correlation.

Owns the estimators that reports print. Trials that infrastructure spoiled must be left out by the caller: they are no failures.
Resampling takes a seed, so a report can be made again.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with the ends of its confidence interval."""

    estimate: float
    low: float
    high: float


def pass_at_k(n: int, c: int, k: int) -> float:
    """Chance that at least one of k trials drawn from n, c of them successes, succeeds: 1 − C(n−c, k)/C(n, k)."""
    _check_trials(n, c, k)
    return 1 - math.comb(n - c, k) / math.comb(n, k)


def pass_hat_k(n: int, c: int, k: int) -> float:
    """pass^k: chance that all of k trials drawn from n succeed, C(c, k)/C(n, k). With k = n it is the strict count of P §5.4;
    (c/n)^k, which a benchmark's helper computes, is biased upwards (2 of 3 would give 0.296 instead of 0)."""
    _check_trials(n, c, k)
    return math.comb(c, k) / math.comb(n, k)


def strict(trials: Sequence[Sequence[bool]]) -> tuple[float, float]:
    """(pass@k, pass^k) over tasks [M][k]: the share of tasks with at least one success, and with nothing else. Raises ValueError where
    tasks differ in their number of trials: there is no one k then (``pass_at_k`` and ``pass_hat_k`` compare at a common k)."""
    _check_tasks(trials)
    if len(set(map(len, trials))) > 1:
        raise ValueError(f"every task needs the same number of trials, not {sorted(set(map(len, trials)))}")
    return sum(map(any, trials)) / len(trials), sum(map(all, trials)) / len(trials)


def mean_pass(trials: Sequence[Sequence[bool]]) -> float:
    """pass@1: the mean over tasks of each task's share of successes; tasks may have different numbers of trials."""
    _check_tasks(trials)
    return math.fsum(sum(map(bool, task)) / len(task) for task in trials) / len(trials)


def wilson(successes: int, n: int, confidence: float = 0.95) -> Interval:
    """Wilson's score interval of a share. Without trials nothing is known: 0 to 1, and the estimate is NaN."""
    if not 0 <= successes <= n:
        raise ValueError(f"{successes} successes of {n} trials")
    z = _quantile(confidence)
    if n == 0:
        return Interval(math.nan, 0.0, 1.0)
    share = successes / n
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    low = 0.0 if successes == 0 else centre - half
    return Interval(share, low, 1.0 if successes == n else centre + half)


def bootstrap(values: Sequence[float], *, resamples: int = 10_000, confidence: float = 0.95, seed: int = 0) -> Interval:
    """Percentile bootstrap of a mean over tasks [M]. Give one value per task (the mean of its trials): tasks are what was sampled."""
    if not values:
        raise ValueError("a mean of nothing has no interval")
    if resamples < 1:
        raise ValueError("at least one resample")
    if not all(map(math.isfinite, values)):
        raise ValueError("values must be finite")
    _quantile(confidence)
    draw = random.Random(seed)  # noqa: S311  reproducible resampling, no secret
    count = len(values)
    means = sorted(math.fsum(draw.choices(values, k=count)) / count for _ in range(resamples))
    tail = (1 - confidence) / 2
    return Interval(math.fsum(values) / count, _percentile(means, tail), _percentile(means, 1 - tail))


def paired_bootstrap(
    treated: Sequence[float], control: Sequence[float], *, resamples: int = 10_000, confidence: float = 0.95, seed: int = 0
) -> Interval:
    """Interval of the mean difference treated − control over the same tasks [M], resampled as pairs, so that what makes a task hard
    for both cancels out."""
    if len(treated) != len(control):
        raise ValueError("both arms must have a value for each task")
    differences = [after - before for after, before in zip(treated, control, strict=True)]
    return bootstrap(differences, resamples=resamples, confidence=confidence, seed=seed)


def nested_bootstrap(groups: Sequence[Sequence[float]], *, resamples: int = 10_000, confidence: float = 0.95, seed: int = 0) -> Interval:
    """Interval of the mean of the groups' means ([seeds][tasks]): groups are drawn, and within each drawn one its values. It holds for
    a new group (a training run with another seed), which an interval over the values alone does not."""
    if not groups or not all(groups):
        raise ValueError("each group needs a value, and there must be a group")
    if not all(math.isfinite(value) for group in groups for value in group):
        raise ValueError("values must be finite")
    _quantile(confidence)
    draw = random.Random(seed)  # noqa: S311  reproducible resampling, no secret

    def mean(values: Sequence[float]) -> float:
        return math.fsum(values) / len(values)

    means = sorted(
        mean([mean(draw.choices(group, k=len(group))) for group in draw.choices(groups, k=len(groups))]) for _ in range(resamples)
    )
    tail = (1 - confidence) / 2
    return Interval(mean([mean(group) for group in groups]), _percentile(means, tail), _percentile(means, 1 - tail))


def spearman(left: Sequence[float], right: Sequence[float]) -> float:
    """Rank correlation, ties sharing their mean rank; NaN where one side is constant or there are fewer than two points. Raises
    ValueError for values that are NaN, which have no rank."""
    if len(left) != len(right):
        raise ValueError("both sides must have the same length")
    if any(map(math.isnan, (*left, *right))):
        raise ValueError("NaN has no rank")
    first, second = _ranks(left), _ranks(right)
    centre = (len(left) + 1) / 2
    spread = math.sqrt(math.fsum((a - centre) ** 2 for a in first) * math.fsum((b - centre) ** 2 for b in second))
    if not spread:
        return math.nan
    return math.fsum((a - centre) * (b - centre) for a, b in zip(first, second, strict=True)) / spread


def _ranks(values: Sequence[float]) -> list[float]:
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0.0] * len(values)
    start = 0
    while start < len(order):
        end = start
        while end < len(order) and values[order[end]] == values[order[start]]:
            end += 1
        for index in order[start:end]:
            ranks[index] = (start + end + 1) / 2
        start = end
    return ranks


def _percentile(ordered: Sequence[float], share: float) -> float:
    """Linear between the two nearest of the ordered values."""
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def _quantile(confidence: float) -> float:
    if not 0 < confidence < 1:
        raise ValueError(f"a confidence must be between 0 and 1, not {confidence}")
    return NormalDist().inv_cdf((1 + confidence) / 2)


def _check_trials(n: int, c: int, k: int) -> None:
    if not (0 <= c <= n and 1 <= k <= n):
        raise ValueError(f"needs 0 <= c <= n and 1 <= k <= n: n={n}, c={c}, k={k}")


def _check_tasks(trials: Sequence[Sequence[bool]]) -> None:
    if not trials or not all(len(task) for task in trials):
        raise ValueError("each task needs at least one trial, and there must be a task")
