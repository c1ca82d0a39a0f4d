"""E1 as jobs: each seed once as it is and once with injected faults, one after the other on a stack of its own.

Owns the loop over runs and their lines in the file of results; what a run is, is `repair.run`'s.
"""

from __future__ import annotations

import asyncio
import json
import time
import traceback
from pathlib import Path
from typing import Any

from . import jobs, plan, smoke


def main(results: Path, seeds: list[int] | None = None, limit_s: float | None = None) -> int:
    """Run what has no line yet; 1 when a run failed."""
    import torch

    from .repair import material

    torch.set_num_threads(1)
    settings = plan.load(plan.REPAIR)
    done = {(line["arm"], line["seed"]) for line in jobs.read(results) if line["experiment"] == "e1" and "error" not in line}
    library = material.fetch(smoke.CACHE)
    started, failed = time.monotonic(), 0
    results.parent.mkdir(parents=True, exist_ok=True)
    with smoke.stack() as stack:
        for seed in seeds or settings["seeds"]:
            for rate in settings["fault_rates"]:
                arm = f"faults {rate:g}"
                if (arm, seed) in done or (limit_s is not None and time.monotonic() - started > limit_s):
                    continue
                line = _line(stack.url, stack.key, library, settings, arm, seed, rate)
                failed += "error" in line
                with results.open("a") as file:
                    file.write(json.dumps(line) + "\n")
                print(f"{time.monotonic() - started:7.0f} s  e1/{arm}/{seed}{'  FAILED' if 'error' in line else ''}", flush=True)
    return 1 if failed else 0


def _line(url: str, key: str, library: Any, settings: dict[str, Any], arm: str, seed: int, rate: float) -> dict[str, Any]:
    from .repair import run

    async def whole() -> dict[str, Any]:
        async with run.lab(url, key, library, settings["concurrency"]) as lab:
            tasks = await run.tasks_of(lab, smoke.CACHE, settings["most_tasks"])
            return await run.learn(lab, tasks, settings, seed, rate)

    line: dict[str, Any] = {"experiment": "e1", "arm": arm, "seed": seed, "fault_rate": rate, "plan": plan.digest(plan.REPAIR)}
    started = time.monotonic()
    try:
        line["result"] = asyncio.run(whole())
    except Exception:  # noqa: BLE001  a failed run is a line
        line["error"] = traceback.format_exc()
    return line | {"seconds": round(time.monotonic() - started, 1)}
