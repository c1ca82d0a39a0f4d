"""Success rates of collected runs with their intervals, infrastructure faults counted separately, and the cost of a solved task.

Owns the choice of the runs that count as trials, and the report; the estimators are in ``core.metrics``. A run that timed out or was
aborted because of the policy or its commands is a failure. A run that failed because of infrastructure or the environment is not a trial
and is counted separately.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from holdfast_recipes.core.metrics import Interval, bootstrap, paired_bootstrap, pass_at_k, pass_hat_k, wilson
from holdfast_recipes.core.scored import Blame
from holdfast_recipes.core.trajectory import Trajectory

from .errors import DataError, SettingError


class Trial(StrEnum):
    """How a run counts in the evaluation of a policy. Only the first two are trials."""

    SOLVED = "solved"
    FAILED = "failed"
    INFRASTRUCTURE = "infrastructure"
    ENVIRONMENT = "environment"
    UNGRADED = "ungraded"

    @property
    def counts(self) -> bool:
        return self in (Trial.SOLVED, Trial.FAILED)


def trial_of(run: Trajectory) -> Trial:
    """A reward decides; without one the blame does. Without either a run that was cut off failed, and one that completed was not graded."""
    if run.reward is not None:
        return Trial.SOLVED if run.resolved else Trial.FAILED
    if run.blame is Blame.INFRASTRUCTURE:
        return Trial.INFRASTRUCTURE
    if run.blame is Blame.ENVIRONMENT:
        return Trial.ENVIRONMENT
    if run.blame is None and run.status.value in ("completed", "aborted"):
        return Trial.UNGRADED
    return Trial.FAILED


@dataclass(frozen=True, slots=True)
class Prices:
    """US dollars: per hour of a sandbox. What a policy's tokens cost is in the attempts."""

    sandbox_hour: float = 0.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.sandbox_hour) and self.sandbox_hour >= 0):
            raise SettingError(f"a price cannot be below zero: {self.sandbox_hour}")


@dataclass(frozen=True, slots=True)
class Cost:
    """Of all runs, those that infrastructure spoiled included. ``per_solved_usd`` None: nothing was solved."""

    sandbox_hours: float
    sandbox_usd: float
    policy_usd: float
    solved_tasks: int

    @property
    def total_usd(self) -> float:
        return self.sandbox_usd + self.policy_usd

    @property
    def per_solved_usd(self) -> float | None:
        return self.total_usd / self.solved_tasks if self.solved_tasks else None


@dataclass(frozen=True, slots=True)
class Rate:
    """``tasks`` are those with enough trials for ``k``."""

    k: int
    pass_at: Interval
    pass_hat: float
    tasks: int


@dataclass(frozen=True, slots=True)
class Report:
    """``by_task`` holds (solved, trials) of every task, also of those without a trial, which are in no rate."""

    name: str
    by_task: Mapping[str, tuple[int, int]]
    trials: Mapping[Trial, int]
    rates: tuple[Rate, ...]
    statuses: Mapping[str, int]
    reasons: Mapping[str, int]
    cost: Cost
    mean_turns: float | None
    confidence: float = 0.95

    @property
    def shares(self) -> dict[str, float]:
        """Share of solved trials by task."""
        return {task: solved / n for task, (solved, n) in self.by_task.items() if n}

    def to_json(self) -> dict[str, Any]:
        rates = [{"k": rate.k, "pass_at_k": asdict(rate.pass_at), "pass_hat_k": rate.pass_hat, "tasks": rate.tasks} for rate in self.rates]
        return {
            "name": self.name,
            "confidence": self.confidence,
            "tasks": len(self.by_task),
            "tasks_without_trial": sum(n == 0 for _, n in self.by_task.values()),
            "trials": {str(kind): self.trials.get(kind, 0) for kind in Trial},
            "rates": rates,
            "statuses": dict(self.statuses),
            "reasons": dict(self.reasons),
            "mean_turns": self.mean_turns,
            "cost": {**asdict(self.cost), "total_usd": self.cost.total_usd, "per_solved_usd": self.cost.per_solved_usd},
        }


def evaluate(
    runs: Iterable[Trajectory],
    *,
    name: str = "",
    ks: Sequence[int] = (1,),
    attempts: Iterable[Mapping[str, Any]] | None = None,
    prices: Prices | None = None,
    confidence: float = 0.95,
    seed: int = 0,
) -> Report:
    """The report of some runs. pass@1 is the mean over tasks of each one's share of solved trials; its interval is a bootstrap over
    tasks, Wilson's where each task had one trial or all tasks came out alike. Tasks with fewer than k trials are left out of pass@k, and
    its ``tasks`` determines this.

    ``attempts`` are those of a collection, with seconds and dollars; without them the turns' times stand for the sandboxes'.
    """
    if not ks or min(ks) < 1:
        raise SettingError(f"k is at least 1: {list(ks)}")
    by_task: dict[str, list[int]] = {}
    trials: Counter[Trial] = Counter()
    statuses: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    seconds, turns, counted = 0.0, 0, 0
    for run in runs:
        kind = trial_of(run)
        trials[kind] += 1
        statuses[str(run.status)] += 1
        if run.reason:
            reasons[run.reason] += 1
        counts = by_task.setdefault(run.task_id, [0, 0])
        if kind.counts:
            counts[0] += kind is Trial.SOLVED
            counts[1] += 1
            turns += len(run.turns)
            counted += 1
        seconds += max((turn.started_s + turn.seconds for turn in run.turns), default=0.0)
    if not by_task:
        raise DataError("there are no runs to evaluate", hint="give a run's folder with at least one finished rollout")
    tasks = {task: (solved, n) for task, (solved, n) in by_task.items()}
    rates = tuple(_rate(list(tasks.values()), k, confidence, seed) for k in sorted(set(ks)))
    cost = _cost(attempts, seconds, prices or Prices(), sum(solved > 0 for solved, _ in tasks.values()))
    mean_turns = turns / counted if counted else None
    return Report(name, tasks, trials, rates, statuses, dict(reasons.most_common()), cost, mean_turns, confidence)


def _rate(tasks: Sequence[tuple[int, int]], k: int, confidence: float, seed: int) -> Rate:
    enough = [(solved, n) for solved, n in tasks if n >= k]
    if not enough:
        return Rate(k, Interval(math.nan, 0.0, 1.0), math.nan, 0)
    values = [pass_at_k(n, solved, k) for solved, n in enough]
    # with all tasks alike a bootstrap would claim certainty
    single = (k == 1 and all(n == 1 for _, n in enough)) or all(value in (0.0, 1.0) and value == values[0] for value in values)
    interval = wilson(round(sum(values)), len(enough), confidence) if single else bootstrap(values, confidence=confidence, seed=seed)
    return Rate(k, interval, math.fsum(pass_hat_k(n, solved, k) for solved, n in enough) / len(enough), len(enough))


def _cost(attempts: Iterable[Mapping[str, Any]] | None, seconds: float, prices: Prices, solved: int) -> Cost:
    policy = 0.0
    if attempts is not None:
        seconds = 0.0
        for attempt in attempts:
            seconds += float(attempt.get("wall_s") or 0.0)
            policy += float(attempt.get("cost_usd") or 0.0)
    hours = seconds / 3600
    return Cost(hours, hours * prices.sandbox_hour, policy, solved)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Mean difference of pass@1 over the tasks that both have trials of, resampled as pairs."""

    treated: str
    control: str
    difference: Interval
    tasks: int
    left_out: int = field(default=0)


def compare(treated: Report, control: Report, *, seed: int = 0) -> Comparison:
    """``treated`` − ``control``. Raises DataError where they share no task."""
    first, second = treated.shares, control.shares
    shared = sorted(first.keys() & second.keys())
    if not shared:
        raise DataError("the two have no task in common", hint="evaluate both on the same tasks")
    difference = paired_bootstrap(
        [first[task] for task in shared], [second[task] for task in shared], confidence=treated.confidence, seed=seed
    )
    return Comparison(treated.name, control.name, difference, len(shared), len(first.keys() ^ second.keys()))


def text(report: Report, comparison: Comparison | None = None) -> str:
    """The report for people."""
    trials = report.trials
    missing = sum(n == 0 for _, n in report.by_task.values())
    lines = [f"{report.name or 'runs'}: {len(report.by_task)} tasks, {sum(trials[kind] for kind in Trial if kind.counts)} trials"]
    for rate in report.rates:
        low = f", of {rate.tasks} tasks with {rate.k} trials" if rate.tasks < len(report.by_task) else ""
        if rate.tasks == 0:
            lines.append(f"  pass@{rate.k:<3} no task has {rate.k} trials")
            continue
        hat = f"; pass^{rate.k} {rate.pass_hat:.1%}" if rate.k > 1 else ""
        lines.append(f"  pass@{rate.k:<3} {rate.pass_at.estimate:.1%} [{rate.pass_at.low:.1%}, {rate.pass_at.high:.1%}]{hat}{low}")
    if comparison is not None:
        found = comparison.difference
        lines.append(
            f"  against {comparison.control or 'the other'}: {100 * found.estimate:+.1f} points "
            f"[{100 * found.low:+.1f}, {100 * found.high:+.1f}] on {comparison.tasks} shared tasks"
        )
    apart = ", ".join(f"{trials[kind]} {kind}" for kind in Trial if not kind.counts and trials[kind])
    lines.append(f"  left out of all rates: {apart or 'nothing'}" + (f"; {missing} tasks have no trial" if missing else ""))
    lines.append("  ended: " + ", ".join(f"{name} {count}" for name, count in sorted(report.statuses.items())))
    if report.reasons:
        lines.append("  reasons: " + ", ".join(f"{name} {count}" for name, count in list(report.reasons.items())[:8]))
    cost = report.cost
    per_solved = "nothing was solved" if cost.per_solved_usd is None else f"${cost.per_solved_usd:.4f} per solved task"
    per_solved = per_solved if cost.total_usd or cost.per_solved_usd is None else "no price was given"
    lines.append(f"  cost: {cost.sandbox_hours:.2f} sandbox-hours ${cost.sandbox_usd:.2f}, policy ${cost.policy_usd:.2f}; {per_solved}")
    return "\n".join(lines)


def dumped(report: Report, comparison: Comparison | None = None) -> str:
    """The report as JSON; NaN is null."""
    record = report.to_json() | ({"comparison": asdict(comparison)} if comparison else {})
    return json.dumps(_finite(record), indent=2, ensure_ascii=False)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
