"""E4: does credit-assignment SFT help, and if so through what? One arm and seed at a time, on the twin.

Owns what an arm is: which runs, which of their turns get loss, where values come from and how they were spoilt. All arms of a seed share
the world, the teacher's runs, the initial weights and the tasks of the evaluation.
"""

from __future__ import annotations

import math
import random
import time
from collections import Counter
from dataclasses import replace
from typing import Any

from holdfast_recipes.miniature import estimators
from holdfast_recipes.miniature.estimators import Estimate
from holdfast_recipes.miniature.teacher import Episode, Teacher, collect, runs
from holdfast_recipes.training.batches import Row

from . import plan, student


def run(job: plan.Job) -> dict[str, Any]:
    """Train and evaluate one arm."""
    settings, seed, started = job.settings, job.seed, time.monotonic()
    rows, counts = arm_rows(settings, seed)
    if settings.get("sft_tokens"):  # so many steps that the arm sees as many tokens with loss as every other arm
        per_step = settings["sft_batch"] * sum(row.targets for row in rows) / len(rows)
        settings = settings | {"sft_steps": math.ceil(settings["sft_tokens"] / per_step)}
    if settings.get("equal_tokens_of"):
        settings = settings | {"sft_steps": _steps_for_equal_tokens(settings, seed, rows)}
    model, training = student.supervised(settings, rows, seed)
    trained_s = time.monotonic() - started
    tasks = plan.held_out(settings, seed)
    sampled = student.evaluated(model, settings, seed, tasks)
    greedy = student.evaluated(model, settings, seed, tasks, temperature=0.0)
    return {
        "training": training | {"seconds": round(trained_s, 1)},
        "data": dict(counts),
        "rollouts": rollouts(settings, seed),
        "sampled": sampled,
        "greedy": greedy,
    }


def rollouts(settings: dict[str, Any], seed: int) -> int:
    """How many runs of the teacher an arm needs until it has its resolved and unresolved ones."""
    mine, size = plan.teacher(settings, seed), settings["runs"]
    wanted = {True: size * settings.get("resolved_times", 1), False: size if settings.get("unresolved_turns") else 0}
    for count, run in enumerate(runs(mine, seed), 1):
        wanted[run.solved] -= 1
        if max(wanted.values()) <= 0:
            return count
    raise AssertionError("the runs of a teacher have no end")


def arm_rows(settings: dict[str, Any], seed: int) -> tuple[list[Row], Counter[str]]:
    """The rows of an arm, and counts of turns, credited turns and dropped runs."""
    mine = plan.teacher(settings, seed)
    size = settings["runs"]
    wins, losses = collect(mine, seed, resolved=size * 2, unresolved=size)
    wins = wins[: size * settings.get("resolved_times", 1)]
    counts: Counter[str] = Counter()
    rows = [_row(settings, mine, run, settings.get("resolved_turns", "all"), seed, index, counts) for index, run in enumerate(wins)]
    if settings.get("unresolved_turns"):
        rows += [_row(settings, mine, run, settings["unresolved_turns"], seed, 100_000 + index, counts) for index, run in enumerate(losses)]
    return [row for row in rows if row is not None and row.targets], counts


def _row(settings: dict[str, Any], teacher: Teacher, run: Episode, which: str, seed: int, index: int, counts: Counter[str]) -> Row | None:
    kind = "resolved" if run.solved else "unresolved"
    turns: frozenset[int] | None = None
    if which in ("rises", "random"):
        credit = estimate(settings, teacher, run, seed + 7919 * index).credit(len(run.steps), settings.get("eps", 0.05))
        turns = credit.turns
        if credit.reason and run.solved and not credit.turns and credit.segments:
            # the calibration rules are about runs that failed: of a resolved run only the segments count
            turns = _uncalibrated(settings, teacher, run, seed + 7919 * index)
        elif credit.reason:
            counts[f"{kind}_dropped_{credit.reason}"] += 1
            return None
        if which == "random":
            turns = frozenset(random.Random(f"mask-{seed}-{index}").sample(range(len(run.steps)), len(turns)))
    counts[f"{kind}_runs"] += 1
    counts[f"{kind}_turns"] += len(run.steps)
    counts[f"{kind}_turns_with_loss"] += len(run.steps) if turns is None else len(turns)
    for turn, move in enumerate(run.moves):
        if turns is None or turn in turns:
            counts[f"{kind}_loss_on_{move.value.replace(' ', '_')}"] += 1
    return student.row(run, turns)


def estimate(settings: dict[str, Any], teacher: Teacher, run: Episode, seed: int) -> Estimate:
    """The values of a run as this arm gets them."""
    match settings.get("values", "milestone"):
        case "exact":
            made = estimators.exact(run, teacher)
        case "monte_carlo":
            made = estimators.by_rollouts(run, teacher, settings["continuations"], seed)
        case _:
            made = estimators.milestone(run)
    if settings.get("sigma"):
        made = estimators.noisy(made, settings["sigma"], seed)
    if settings.get("every", 1) > 1:
        made = estimators.sparse(made, settings["every"], settings["interpolation"])
    return estimators.misread(made) if settings.get("misread") else made


def _uncalibrated(settings: dict[str, Any], teacher: Teacher, run: Episode, seed: int) -> frozenset[int]:
    made = estimate(settings, teacher, run, seed)
    return replace(made, values=made.curve, value_of="before", first=None).credit(len(run.steps), settings.get("eps", 0.05)).turns


def _steps_for_equal_tokens(settings: dict[str, Any], seed: int, rows: list[Row]) -> int:
    """So many steps that this arm sees as many supervised tokens as the arm that it is compared with does in its own."""
    other, _ = arm_rows({name: value for name, value in settings.items() if not name.startswith("unresolved")}, seed)
    mean = [sum(row.targets for row in each) / len(each) for each in (other, rows)]
    return math.ceil(plan.optimiser(settings, len(other))[1].total * mean[0] / mean[1])
