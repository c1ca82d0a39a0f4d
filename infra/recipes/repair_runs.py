"""E1 as jobs: for each seed SFT, then RL from it twice, as it is and with injected faults, one after the other on a stack of its own.

Owns the loop over runs, their lines in the file of results, the weights between them, and the proxy that spoils the gateway's answers.
What a run is, is `repair.run`'s. A run that has a line is not repeated, and one that was killed goes on after its last update or rollout.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Coroutine
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast import AsyncSandboxClient
from holdfast_server.embed import EmbeddedStack

from tests.faults.proxy import FaultProxy, Weather

from . import jobs, plan, smoke
from .repair.material import Library, fetch
from .repair_report import SFT, arm_of

if TYPE_CHECKING:
    from .repair.run import Kept

LOST_ANSWERS = 0.1
"""Of the fault rate: the share of the gateway's answers that are lost together with their connection. A rollout reads some forty."""


def main(results: Path, seeds: list[int] | None = None, limit_s: float | None = None) -> int:
    """Run what has no line yet, and start nothing after ``limit_s``; 1 when a run failed. Several seeds run at once, each in a process
    and on a stack of its own: a rollout waits more than it works."""
    settings = plan.load(plan.REPAIR)
    chosen = seeds or settings["seeds"]
    if len(chosen) > 1:
        return _apart(results, chosen, limit_s)
    import torch

    torch.set_num_threads(1)
    started, failed = time.monotonic(), 0
    results.parent.mkdir(parents=True, exist_ok=True)
    with smoke.stack() as stack:
        runs = Runs(stack, fetch(smoke.CACHE), settings, results)
        for seed in chosen:
            for rate in (None, *settings["fault_rates"]):
                late = limit_s is not None and time.monotonic() - started > limit_s
                if late or runs.is_done(seed, rate):
                    continue
                line = runs.line(seed, rate)
                jobs.append(results, line)
                failed += "error" in line
                suffix = "  FAILED" if "error" in line else ""
                print(f"{time.monotonic() - started:7.0f} s  e1/{line['arm']}/{seed}{suffix}", flush=True)
    return 1 if failed else 0


def _apart(results: Path, seeds: list[int], limit_s: float | None) -> int:
    limit = [] if limit_s is None else ["--limit-s", str(limit_s)]
    command = [sys.executable, "-m", "infra.recipes", "repair", "--results", str(results), *limit, "--seeds"]
    environment = os.environ | {jobs.PARENT: str(os.getpid())}
    running = [subprocess.Popen([*command, str(seed)], cwd=smoke.TOP, env=environment) for seed in seeds]
    try:
        return max(each.wait() for each in running)
    finally:
        for each in running:
            each.terminate()
            each.wait()


@dataclass(frozen=True, slots=True)
class Runs:
    """A fault rate of None is SFT, which the two runs of RL of a seed begin with."""

    stack: EmbeddedStack
    library: Library
    settings: dict[str, Any]
    results: Path

    def kept(self, seed: int, arm: str) -> Kept:
        from .repair.run import Kept

        return Kept(self.results.parent, plan.digest(plan.REPAIR), seed, arm)

    def is_done(self, seed: int, rate: float | None) -> bool:
        """SFT is done when its weights are there as well. Runs of another registration count for nothing."""
        arm = SFT if rate is None else arm_of(rate)
        mine = [line for line in jobs.read(self.results) if (line["experiment"], line["arm"], line["seed"]) == ("e1", arm, seed)]
        done = any("error" not in line and line["plan"] == plan.digest(plan.REPAIR) for line in mine)
        return done and (rate is not None or self.kept(seed, arm).weights.exists())

    def line(self, seed: int, rate: float | None) -> dict[str, Any]:
        line: dict[str, Any] = {"experiment": "e1", "arm": SFT if rate is None else arm_of(rate), "seed": seed}
        line |= {"fault_rate": rate or 0.0, "plan": plan.digest(plan.REPAIR)}
        work: Coroutine[Any, Any, dict[str, Any]] = self._taught(seed) if rate is None else self._reinforced(seed, rate)
        started = time.monotonic()
        try:
            line["result"] = asyncio.run(work)
        except Exception:  # noqa: BLE001  a failed run is a line
            line["error"] = traceback.format_exc()
        return line | jobs.ended(started)

    async def _taught(self, seed: int) -> dict[str, Any]:
        from .repair import run

        async with run.lab(self.stack.url, self.stack.key, self.library, self.settings["concurrency"], self.settings["most_steps"]) as lab:
            found = await run.tasks_of(lab, smoke.CACHE, self.settings["most_tasks"])
            return await run.taught(lab, found, self.settings, seed, self.kept(seed, SFT))

    async def _reinforced(self, seed: int, rate: float) -> dict[str, Any]:
        """With faults the rollouts of RL go through the proxy; evaluation does not."""
        from .repair import run
        from .repair.job import Faults

        weather = Weather(lose=rate * LOST_ANSWERS)
        with FaultProxy(self.stack.url.replace("http", "tcp"), seed=seed, weather=weather) as proxy:
            async with (
                run.lab(self.stack.url, self.stack.key, self.library, self.settings["concurrency"], self.settings["most_steps"]) as plain,
                AsyncSandboxClient(proxy.url if rate else self.stack.url, self.stack.key) as client,
            ):
                found = await run.tasks_of(plain, smoke.CACHE, self.settings["most_tasks"])
                faults = Faults(rate, seed, lambda: proxy.faults.cuts) if rate else None
                own = replace(plain, client=client, faults=faults)
                return await run.learn(own, plain, found, self.settings, seed, self.kept(seed, arm_of(rate)))
