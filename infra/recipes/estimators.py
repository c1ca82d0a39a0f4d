"""E5: how near estimates of values come to the exact ones, on the teacher's unresolved runs. No training; seconds."""

from __future__ import annotations

import math
from itertools import chain
from typing import Any

from holdfast_recipes.core.metrics import spearman
from holdfast_recipes.core.values import is_inverted_u
from holdfast_recipes.miniature import estimators
from holdfast_recipes.miniature.teacher import collect

from . import plan


def run(job: plan.Job) -> dict[str, Any]:
    """Rank correlation with the exact values over all states and within runs, share of inverted-U curves, and how much of the credit
    falls on the same turns."""
    settings, seed = job.settings, job.seed
    teacher = plan.teacher(settings, seed)
    _, runs = collect(teacher, seed, resolved=0, unresolved=settings["runs"])
    truth = [estimators.exact(each, teacher) for each in runs]
    match settings["values"]:
        case "monte_carlo":
            made = [
                estimators.by_rollouts(each, teacher, settings["continuations"], seed * 1009 + index) for index, each in enumerate(runs)
            ]
        case "exact":
            made = truth
        case _:
            made = [estimators.milestone(each) for each in runs]
    within = [value for mine, its in zip(made, truth, strict=True) if not math.isnan(value := spearman(mine.curve, its.curve))]
    agree = total = 0
    for each, mine, its in zip(runs, made, truth, strict=True):
        ours, theirs = mine.credit(len(each.steps)).turns, its.credit(len(each.steps)).turns
        agree, total = agree + len(ours & theirs), total + len(ours | theirs)
    return {
        "spearman": spearman(
            list(chain.from_iterable(each.curve for each in made)), list(chain.from_iterable(each.curve for each in truth))
        ),
        "spearman_within": sum(within) / len(within) if within else math.nan,
        "inverted_u": sum(is_inverted_u(each.curve) for each in made) / len(made),
        "credited_share": sum(len(each.credit(len(episode.steps)).turns) for each, episode in zip(made, runs, strict=True))
        / sum(len(episode.steps) for episode in runs),
        "credit_overlap": agree / total if total else math.nan,
    }
