"""What was registered: seeds, sizes and arms, from `plan.json` (the twin) and `plan_repair.json` (E1).

Nothing of an experiment is chosen anywhere else.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast_recipes.core.presets import Optimiser
from holdfast_recipes.core.schedule import Schedule
from holdfast_recipes.miniature.teacher import Teacher
from holdfast_recipes.miniature.twin import Bug, World, bugs

PATH = Path(__file__).with_name("plan.json")
REPAIR = Path(__file__).with_name("plan_repair.json")


@dataclass(frozen=True, slots=True)
class Job:
    """One run: an arm of an experiment with a seed."""

    experiment: str
    arm: str
    seed: int
    settings: dict[str, Any]

    @property
    def key(self) -> str:
        return f"{self.experiment}/{self.arm}/{self.seed}"


def load(path: Path = PATH) -> dict[str, Any]:
    plan: dict[str, Any] = json.loads(path.read_text())
    return plan


def digest(path: Path = PATH) -> str:
    """Of the registered plan: results carry it, so that a figure can be held against what was announced."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def jobs(plan: dict[str, Any], experiments: list[str], seeds: list[int] | None = None) -> list[Job]:
    """Every arm with every seed. Seeds are the outer loop: a run that is cut short has whole rows of arms."""
    made = []
    for experiment in experiments:
        common = plan["common"] | {name: value for name, value in plan[experiment].items() if name != "arms"}
        for seed in seeds or common["seeds"]:
            made += [Job(experiment, name, seed, common | arm) for name, arm in plan[experiment]["arms"].items()]
    return made


def world(settings: dict[str, Any], seed: int) -> World:
    return World.make(seed, operators=settings["operators"], numbers=settings["numbers"])


def teacher(settings: dict[str, Any], seed: int) -> Teacher:
    """It knows every second operator's fix."""
    known = frozenset(range(0, settings["operators"], 2))
    return Teacher(world(settings, seed), known, settings["wander"], settings["check"], most_steps=settings["most_steps"])


def held_out(settings: dict[str, Any], seed: int) -> list[Bug]:
    """The tasks of an evaluation, the same for all arms of a seed."""
    return [bug for _, bug in zip(range(settings["evaluation_tasks"]), bugs(world(settings, seed), 900_000 + seed), strict=False)]


def optimiser(settings: dict[str, Any], rows: int) -> tuple[Optimiser, Schedule]:
    """Of supervised training: cosine to a tenth after a warm-up of 5 %, as the SWE preset but for its rate. The number of epochs is the
    same for all arms, as in the paper, so more rows are more steps; an arm may fix its steps instead."""
    peak = settings["sft_rate"]
    steps = settings.get("sft_steps") or math.ceil(rows * settings["sft_epochs"] / settings["sft_batch"])
    return Optimiser(peak, peak / 10), Schedule(peak, steps, peak / 10, 0.05)
