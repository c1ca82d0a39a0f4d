"""A collector that a test kills: `python -m tests.recipes.pipeline.collector FOLDER LOG`. LOG gets a line for each rollout that starts."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from holdfast_recipes.pipeline.collect import collect
from holdfast_recipes.pipeline.runs import Attempt, Plan, RolloutSlot, Run

from tests.recipes.pipeline.made import made, task

TASKS = [task(f"t{number}") for number in range(6)]
PLAN = Plan("killed", 4)


def main(folder: Path, log: Path) -> None:
    with log.open("a", buffering=1) as began:

        async def rollout(slot: RolloutSlot, seed: int, name: str) -> Attempt:
            began.write(f"{name}\n")
            for _ in range(slot.index):
                await asyncio.sleep(0)
            return Attempt(made(name, 8, task_id=slot.task.task_id, seed=seed, resolved=slot.index % 2 == 0), 1.0)

        async def collect_all() -> None:
            with Run.open(folder, PLAN, TASKS) as run:
                done = await collect(run, rollout, concurrency=3)
                print(done.finished, done.cut_bytes, flush=True)

        asyncio.run(collect_all())


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
