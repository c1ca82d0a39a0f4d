"""E1's figures: RL against SFT, with faults against without, and where the seconds of a training step went.

Owns the pairing: of each task of each seed the share that was solved before and after, so that intervals are over tasks. Lines of the
file of results in, plain values out.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast_recipes.core.metrics import bootstrap, paired_bootstrap

SFT = "sft"
Lines = Sequence[Mapping[str, Any]]
RESAMPLES = 5_000
SERVICE = ("create", "delete", "round trips")
"""Seconds of rollouts that are Holdfast's: its sandboxes, and of each command what is not the command."""


def arm_of(rate: float) -> str:
    return f"faults {rate:g}"


def summary(lines: Lines, rates: Sequence[float]) -> dict[str, Any]:
    """``arms``: figures of each fault rate over its seeds; ``differences``: what the hypotheses are about."""
    by_arm = {arm: {line["seed"]: line["result"] for line in lines if line["arm"] == arm} for arm in (SFT, *map(arm_of, rates))}
    before = by_arm.pop(SFT)
    made: dict[str, Any] = {"sft": _sft(before), "arms": {}, "differences": {}}
    for arm, runs in by_arm.items():
        if runs:
            made["arms"][arm] = _arm(runs)
            for part in ("train", "held"):
                made["differences"][f"{arm}, {part}: RL over SFT"] = _difference(runs, before, part)
    plain, *spoilt = (by_arm[arm_of(rate)] for rate in rates)
    for rate, runs in zip(rates[1:], spoilt, strict=True):
        made["differences"][f"{arm_of(rate)} over {arm_of(rates[0])}, train"] = _difference(runs, plain, "train")
    return made


def _sft(runs: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    return {
        "seeds": sorted(runs),
        "solved": {part: _mean(runs, part) for part in ("train", "held")} if runs else {},
        "solved_by_seed": [_mean({seed: runs[seed]}, "train") for seed in sorted(runs)],
        "interval": _interval(runs),
        "teacher": [[run["teacher"]["solved"], run["teacher"]["runs"]] for _, run in sorted(runs.items())],
        "tasks": next((run["tasks"] for run in runs.values()), {}),
    }


def _arm(runs: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    generated, wall_s = sum(run["generated"] for run in runs.values()), sum(run["rl_seconds"] for run in runs.values())
    seconds = {
        name: sum(run["seconds_of_rollouts"].get(name, 0.0) for run in runs.values())
        for name in ("create", "delete", "round trips", "commands", "policy", "rollouts")
    }
    learner_s = sum(point["learn_s"] for run in runs.values() for point in run["curve"])
    whole = max(seconds["rollouts"], 1e-9)
    updates = sum(run["updates"] for run in runs.values())
    return {
        "seeds": sorted(runs),
        "solved": {part: _mean(runs, part) for part in ("train", "held")},
        "solved_by_seed": [_mean({seed: runs[seed]}, "train") for seed in sorted(runs)],
        "interval": _interval(runs),
        "updates": updates,
        "updates_by_seed": [run["updates"] for _, run in sorted(runs.items())],
        "optimiser_steps": sum(run["optimiser_steps"] for run in runs.values()),
        "refused": sum(run["refused"] for run in runs.values()),
        "generated": generated,
        "infrastructure": round(sum(run["infrastructure"] for run in runs.values())),
        "spoilt_in_evaluation": sum(run["solved"][part]["spoilt"] for run in runs.values() for part in ("train", "held")),
        "injected": {name: sum(run["injected"].get(name, 0) for run in runs.values()) for name in _names(runs)},
        "rollouts_per_second": round(generated / max(wall_s, 1e-9), 3),
        "seconds_of_a_step": round(wall_s / max(updates, 1), 2),
        "learner_seconds_of_a_step": round(learner_s / max(updates, 1), 2),
        "holdfast_seconds_of_a_step": round(wall_s / max(updates, 1) * sum(seconds[name] for name in SERVICE) / whole, 2),
        "shares_of_a_rollout": {
            "holdfast": round(sum(seconds[name] for name in SERVICE) / whole, 3),
            **{name: round(seconds[name] / whole, 3) for name in ("create", "delete", "round trips", "commands", "policy")},
        },
        "learning": _learning([run["curve"] for run in runs.values()]),
    }


def _learning(curves: Sequence[Sequence[Mapping[str, float]]]) -> list[dict[str, float]]:
    """By update: the share of all graded rollouts since the update before that solved their task, those of dropped groups among them.
    Mean, lowest and highest over seeds, and the rollouts generated up to there."""
    made: list[dict[str, float]] = []
    generated = 0.0
    for points in zip(*curves, strict=False):
        generated += statistics.fmean(point["generated"] for point in points)
        shares = [point["solved"] / point["graded"] for point in points if point["graded"]]
        if shares:
            ends = {"solved": statistics.fmean(shares), "low": min(shares), "high": max(shares)}
            made.append({name: round(value, 4) for name, value in ends.items()} | {"generated": round(generated)})
    return made


def _names(runs: Mapping[int, Mapping[str, Any]]) -> list[str]:
    return sorted({name for run in runs.values() for name in run["injected"]})


def _shares(runs: Mapping[int, Mapping[str, Any]], part: str) -> dict[tuple[int, str], float]:
    """Of each task of each seed the share of its trials that were solved; a task whose trials were all spoilt has none."""
    return {(seed, task): statistics.fmean(trials) for seed, run in runs.items() for task, trials in run["solved"][part]["by_task"].items()}


def _mean(runs: Mapping[int, Mapping[str, Any]], part: str) -> float:
    shares = _shares(runs, part)
    return round(statistics.fmean(shares.values()), 4) if shares else 0.0


def _interval(runs: Mapping[int, Mapping[str, Any]]) -> list[float] | None:
    """What is solved of the train functions, with its 95 % interval over tasks."""
    shares = list(_shares(runs, "train").values())
    if not shares:
        return None
    made = bootstrap(shares, resamples=RESAMPLES)
    return [round(each, 4) for each in (made.estimate, made.low, made.high)]


def _difference(after: Mapping[int, Mapping[str, Any]], before: Mapping[int, Mapping[str, Any]], part: str) -> dict[str, Any] | None:
    """The paired difference over the tasks of the seeds that both have, with its 95 % interval."""
    mine, its = _shares(after, part), _shares(before, part)
    both = sorted(mine.keys() & its.keys())
    if not both:
        return None
    made = paired_bootstrap([mine[key] for key in both], [its[key] for key in both], resamples=RESAMPLES)
    seeds = sorted({seed for seed, _ in both})
    by_seed = [statistics.fmean(mine[key] - its[key] for key in both if key[0] == seed) for seed in seeds]
    return {
        "seeds": len(seeds),
        "interval": [round(each, 4) for each in (made.estimate, made.low, made.high)],
        "by_seed": [round(each, 4) for each in by_seed],
    }
