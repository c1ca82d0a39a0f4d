"""What was registered: seeds, sizes and arms, from `plan.json` and `plan_equal.json` (the twin) and `plan_repair.json` (E1).

Nothing of an experiment is chosen anywhere else.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from holdfast_recipes.core.presets import Optimiser
from holdfast_recipes.core.schedule import Schedule
from holdfast_recipes.miniature.teacher import Teacher
from holdfast_recipes.miniature.twin import Bug, World, bugs

PATH = Path(__file__).with_name("plan.json")
EQUAL = Path(__file__).with_name("plan_equal.json")
REPAIR = Path(__file__).with_name("plan_repair.json")


@dataclass(frozen=True, slots=True)
class Job:
    """One run: an arm of an experiment with a seed."""

    experiment: str
    arm: str
    seed: int
    settings: dict[str, Any]
    plan: str = ""
    """The digest of the file that registered it."""

    @property
    def key(self) -> str:
        return f"{self.experiment}/{self.arm}/{self.seed}"


def load(path: Path = PATH) -> dict[str, Any]:
    plan: dict[str, Any] = json.loads(path.read_text())
    return plan


def digest(path: Path = PATH) -> str:
    """Of the registered plan: results carry it, so that a figure can be held against what was announced."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def jobs(path: Path, experiments: list[str], seeds: list[int] | None = None) -> list[Job]:
    """Every arm with every seed. Seeds are the outer loop: a run that is cut short has whole rows of arms."""
    plan, made = load(path), []
    for experiment in experiments:
        common = plan["common"] | {name: value for name, value in plan[experiment].items() if name != "arms"}
        for seed in seeds or common["seeds"]:
            made += [Job(experiment, name, seed, common | arm, digest(path)) for name, arm in plan[experiment]["arms"].items()]
    return made


def world(settings: dict[str, Any], seed: int) -> World:
    return World.make(seed, operators=settings["operators"], numbers=settings["numbers"])


def teacher(settings: dict[str, Any], seed: int) -> Teacher:
    """It knows every second operator's fix."""
    known = frozenset(range(0, settings["operators"], 2))
    return Teacher(world(settings, seed), known, settings["wander"], settings["check"], most_steps=settings["most_steps"])


def is_held_out(settings: dict[str, Any], bug: Bug) -> bool:
    """Whether no training data may hold a task of this kind. With ``split`` n it is one in n pairs of function and operator, so that
    everything that such a task needs occurs in training, but never together."""
    split: int | None = settings.get("split")
    return split is not None and (bug.symbol + bug.seen) % split == 0


def trained(settings: dict[str, Any], world: World, seed: int) -> Iterator[Bug]:
    """Tasks without end that training may use."""
    return (bug for bug in bugs(world, seed) if not is_held_out(settings, bug))


def held_out(settings: dict[str, Any], seed: int) -> list[Bug]:
    """The tasks of an evaluation, the same for all arms of a seed; with ``split`` only those of a kind that training never saw."""
    found = (bug for bug in bugs(world(settings, seed), 900_000 + seed) if not settings.get("split") or is_held_out(settings, bug))
    return list(islice(found, settings["evaluation_tasks"]))


def optimiser(settings: dict[str, Any], rows: int) -> tuple[Optimiser, Schedule]:
    """Of supervised training: cosine to a tenth after a warm-up of 5 %, as the SWE preset but for its rate. The number of epochs is the
    same for all arms, as in the paper, so more rows are more steps; an arm may fix its steps instead."""
    peak = settings["sft_rate"]
    steps = settings.get("sft_steps") or math.ceil(rows * settings["sft_epochs"] / settings["sft_batch"])
    return Optimiser(peak, peak / 10), Schedule(peak, steps, peak / 10, 0.05)
