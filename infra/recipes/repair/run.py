"""One whole run of E1 on a stack: tasks (validated once and kept), SFT, RL, evaluation on train and held-out functions.

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

from holdfast import AsyncSandboxClient
from holdfast_recipes.swe.mutation import Mutant

from . import learning, tasks
from .job import Faults
from .learning import Lab
from .material import Library
from .tasks import HELPER, Task


@contextlib.asynccontextmanager
async def lab(url: str, key: str, library: Library, concurrency: int = 4) -> AsyncIterator[Lab]:
    async with AsyncSandboxClient(url, key) as client:
        yield Lab(client, library, concurrency)


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


async def learn(made: Lab, found: list[Task], settings: dict[str, Any], seed: int, fault_rate: float = 0.0) -> dict[str, Any]:
    """SFT and RL with a seed. Faults are injected into the rollouts of RL, not into evaluation."""
    started = time.monotonic()
    train, held = tasks.split(found)
    teacher = await learning.collected(made, train, settings["teacher_runs"], seed)
    collected_s = time.monotonic() - started
    model = await asyncio.to_thread(learning.supervised, teacher, epochs=settings["sft_epochs"], seed=seed)
    before = {
        name: await learning.evaluated(made, model, part, tries=settings["tries"], seed=seed)
        for name, part in (("train", train), ("held", held))
    }
    made.faults = Faults(fault_rate, seed) if fault_rate else None
    trained = await learning.reinforced(
        made,
        model,
        train,
        updates=settings["updates"],
        prompts=settings["prompts"],
        size=settings["size"],
        seed=seed,
        rate=settings["rl_rate"],
    )
    faults = made.faults.counts if made.faults else {}
    made.faults = None
    after = {
        name: await learning.evaluated(made, trained.model, part, tries=settings["tries"], seed=seed)
        for name, part in (("train", train), ("held", held))
    }
    return {
        "tasks": {"train": len(train), "held": len(held)},
        "teacher": {"runs": len(teacher), "solved": sum(run.resolved for run in teacher), "seconds": round(collected_s, 1)},
        "sft": before,
        "rl": after,
        "updates": len(trained.steps),
        "optimiser_steps": trained.optimiser_steps,
        "refused": trained.refused,
        "generated": sum(step["generated"] for step in trained.steps),
        "infrastructure": sum(step.get("infrastructure", 0.0) for step in trained.steps),
        "injected": faults,
        "curve": [
            {name: round(step.get(name, 0.0), 4) for name in ("pool_reward", "generated", "infrastructure")} for step in trained.steps
        ],
        "layers_s": _sum(report["seconds"] for report in trained.managed),
        "events": _sum(report["events"] for report in trained.managed),
        "counts": {"events": dict(made.counts.events), "seconds": {name: round(value, 1) for name, value in made.counts.seconds.items()}},
        "rl_seconds": round(trained.seconds, 1),
        "seconds": round(time.monotonic() - started, 1),
    }


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
