"""The parts of E1 on a stack: tasks (validated once and kept), SFT, RL from it, evaluation on train and held-out functions.

Owns what is kept between runs and the line of figures that a run leaves.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
import json
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import torch
from holdfast import AsyncSandboxClient
from holdfast_recipes.swe.mutation import Mutant
from holdfast_recipes.training.model import Model
from holdfast_recipes.training.optimisation import load_model

from . import learning, tasks
from .learning import Lab
from .material import Library
from .tasks import HELPER, Task


@dataclasses.dataclass(frozen=True, slots=True)
class Kept:
    """The files in which one run keeps what it finished, so that after a kill it goes on there: a seed of a plan (its digest), an arm."""

    folder: Path
    digest: str
    seed: int
    arm: str

    @property
    def weights(self) -> Path:
        """Those that SFT ended with: of all arms of the seed."""
        return self.folder / f"e1-{self.digest}-{self.seed}.pt"

    @property
    def checkpoint(self) -> Path:
        return self.file("updates").with_suffix(".pt")

    def file(self, part: str) -> Path:
        return self.folder / f"e1-{self.digest}-{self.seed}-{self.arm.replace(' ', '-')}-{part}.jsonl"


@contextlib.asynccontextmanager
async def lab(url: str, key: str, library: Library, concurrency: int = 4, most_steps: int = 16) -> AsyncIterator[Lab]:
    async with AsyncSandboxClient(url, key) as client:
        yield Lab(client, await tasks.compiled(client, library), concurrency, most_steps)


async def tasks_of(made: Lab, cache: Path, limit: int | None = None) -> list[Task]:
    """The validated tasks, from the cache where they were validated with this very helper and library."""
    digest = hashlib.sha256(HELPER.read_bytes() + made.library.source.encode() + Path(tasks.__file__).read_bytes()).hexdigest()[:16]
    path = cache / f"tasks-{digest}-{limit or 'all'}.json"
    if path.exists():
        return [_task(fields) for fields in json.loads(path.read_text())]
    found = await tasks.validated(made.client, made.library, limit)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([dataclasses.asdict(each) for each in found]))
    return found


async def taught(made: Lab, found: list[Task], settings: dict[str, Any], seed: int, kept: Kept) -> dict[str, Any]:
    """SFT with a seed: the policy that both runs of RL of this seed start from (in ``kept.weights``), and how well it does."""
    started = time.monotonic()
    train, held = tasks.split(found)
    teacher = await learning.collected(made, train, settings["teacher_runs"], seed, settings["wander"], kept.file("teacher"))
    collected_s = time.monotonic() - started
    if not kept.weights.exists():
        model = await asyncio.to_thread(learning.supervised, teacher, epochs=settings["sft_epochs"], seed=seed)
        draft = kept.weights.with_suffix(".part")
        torch.save(state(model), draft)
        draft.replace(kept.weights)
    return {
        "tasks": {"train": len(train), "held": len(held)},
        "teacher": {"runs": len(teacher), "solved": sum(run.resolved for run in teacher), "seconds": round(collected_s, 1)},
        "solved": await _evaluated(made, load_model(kept.weights), found, settings, seed, kept),
        "seconds": round(time.monotonic() - started, 1),
    }


async def _evaluated(made: Lab, model: Model, found: list[Task], settings: dict[str, Any], seed: int, kept: Kept) -> dict[str, Any]:
    parts = zip(("train", "held"), tasks.split(found), (settings["tries"], settings["held_tries"]), strict=True)
    return {
        name: await learning.evaluated(made, model, part, tries=tries, seed=seed, kept=kept.file(f"evaluation-{name}"))
        for name, part, tries in parts
    }


async def learn(made: Lab, plain: Lab, found: list[Task], settings: dict[str, Any], seed: int, kept: Kept) -> dict[str, Any]:
    """RL from the taught policy in ``made``, which may have faults; the evaluation after it is in ``plain``."""
    train, _ = tasks.split(found)
    made.seconds = Counter()
    trained = await learning.reinforced(
        made,
        load_model(kept.weights),
        train,
        updates=settings["updates"],
        prompts=settings["prompts"],
        size=settings["size"],
        seed=seed,
        rate=settings["rl_rate"],
        epochs=settings["rl_epochs"],
        checkpoint=kept.checkpoint,
    )
    seconds = {name: round(value, 2) for name, value in sorted(made.seconds.items())}
    curve = ("pool_reward", "generated", "infrastructure", "learn_s", "graded", "solved", "at_s")
    return {
        "updates": len(trained.steps),
        "optimiser_steps": trained.optimiser_steps,
        "refused": trained.refused,
        "generated": sum(step["generated"] for step in trained.steps),
        "infrastructure": sum(step.get("infrastructure", 0.0) for step in trained.steps),
        "injected": made.faults.counted() if made.faults else {},
        "curve": [{name: round(step.get(name, 0.0), 4) for name in curve} for step in trained.steps],
        "events": _sum(report["events"] for report in trained.managed),
        "seconds_of_rollouts": seconds,
        "rl_seconds": round(trained.seconds, 1),
        "solved": await _evaluated(plain, trained.model, found, settings, seed, kept),
    }


def state(model: Model) -> dict[str, Any]:
    """A checkpoint for ``training.optimisation.load_model``."""
    return {"shape": dataclasses.asdict(model.shape), "model": model.state_dict()}


def _sum(parts: Any) -> dict[str, float]:
    total: Counter[str] = Counter()
    for part in parts:
        total.update(part)
    return {name: round(value, 2) for name, value in sorted(total.items())}


def _task(fields: dict[str, Any]) -> Task:
    return Task(
        **fields
        | {"gold": Mutant(**fields["gold"]), "fail_to_pass": tuple(fields["fail_to_pass"]), "pass_to_pass": tuple(fields["pass_to_pass"])}
    )
