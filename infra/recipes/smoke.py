"""`make recipes`: everything that trains, small enough for minutes; each part says what it saw, and fails when that is not what must be.

Owns the parts and their limits. Nothing here is a result: the figures are of a handful of steps. The engines' environments are installed
while the other parts run.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from holdfast_server.embed import EmbeddedStack, running_stack

TOP = Path(__file__).resolve().parents[2]
CACHE = Path(os.environ.get("HOLDFAST_DATA", ".holdfast")) / "recipes"
ENGINES = {
    "trl": ["trl", "trl_async", "slime", "datasets", "masks", "masks_trl"],
    "verifiers": ["verifiers"],
    "verl": ["verl", "masks_verl"],
}
"""Engines with their files of tests, each in an environment of its own (`infra/scripts/engine_venv`). slime has none: its records import
torch, so they are tested beside TRL, the real ones where HOLDFAST_SLIME_PATH names a checkout."""
SANDBOX_PART_S = 90.0


class PartFailedError(AssertionError):
    """A part ran and did not give what it must."""


def must(held: bool, what: str) -> None:
    if not held:
        raise PartFailedError(what)


def twin() -> str:
    """SFT, then three RL steps on the twin."""
    import torch

    from . import balance_ablation, plan

    torch.set_num_threads(1)
    common = plan.load()["common"] | {"runs": 96, "sft_epochs": 70, "evaluation_tasks": 40}
    settings = common | {"prompts": 4, "size": 8, "rl_rate": 1e-3, "trials": 8, "candidates": 60, "pool": 20, "most_success": "0.75"}
    settings |= {"updates": 3, "evaluate_every": 3, "budget": 16, "stride": 4, "share": ["0.375", "0.625"], "keep_all": True}
    made = balance_ablation.run(plan.Job("smoke", "BAR", 1, settings))
    must("refused" not in made, f"only {made['pool']} tasks were of trainable difficulty after SFT")
    must(made["updates"] == 3 and made["totals"]["refused"] == 0, f"three optimiser steps, not {made['updates']}")
    must(math.isfinite(made["totals"]["loss"]) and made["totals"]["gradient"] > 0, "a finite loss and a gradient")
    first = made["initial"]["final_loss"]
    must(first < 2.0, f"SFT ended with a loss of {first:.2f} for each token; nothing was learned")
    return f"SFT {made['initial']['steps']:.0f} steps to a loss of {first:.2f}, 3 RL steps, {made['totals']['generated']:.0f} rollouts"


def sandboxes(stack: EmbeddedStack) -> str:
    """Teacher runs, SFT and three RL steps of 16 rollouts in real sandboxes, a part of which is taken away on purpose."""
    import torch

    from .repair import learning, material, run
    from .repair.job import Faults

    torch.set_num_threads(1)
    library = material.fetch(CACHE)

    async def steps() -> str:
        async with run.lab(stack.url, stack.key, library) as lab:
            tasks = await run.tasks_of(lab, CACHE, limit=6)
            teacher = await learning.collected(lab, tasks, 16, seed=1)
            resolved = sum(each.resolved for each in teacher)
            must(resolved > 0, "the teacher solved nothing")
            model = learning.supervised(teacher, epochs=30, seed=1)
            lab.faults = Faults(0.1, 3)
            trained = await learning.reinforced(lab, model, tasks, updates=3, prompts=2, size=8, seed=1, keep_all=True)
            must(len(trained.steps) == 3 and trained.refused == 0, f"three updates, not {len(trained.steps)}")
            generated = sum(each["generated"] for each in trained.steps)
            lost = sum(each.get("infrastructure", 0.0) for each in trained.steps)
            must(generated >= 3 * 16, f"48 rollouts, not {generated:.0f}")
            injected = lab.faults.counts
            for kind in ("creation", "sandbox"):
                must(injected[kind] > 0, f"at least one injected fault of the kind {kind}; injected: {dict(injected)}")
            most = injected["sandbox"] + injected["creation"] // 3  # a rollout is lost after three creations that fail (harness.limits)
            must(0 < lost <= most, f"what is lost was deleted on purpose, or never made: {lost:.0f} lost, injected: {dict(injected)}")
            return (
                f"{len(tasks)} tasks, teacher {resolved} of {len(teacher)}, 3 RL steps on {generated:.0f} rollouts "
                f"in {trained.seconds:.0f} s, {lost:.0f} lost; injected {lab.faults.counts}"
            )

    return asyncio.run(steps())


class Environments:
    """Makes the engines' environments while other parts run: their packages clash, and installing takes longest."""

    def __init__(self) -> None:
        self._made = {name: threading.Event() for name in ENGINES}
        self._failures: dict[str, str] = {}
        self._seconds: dict[str, float] = {}
        for name in ENGINES:
            threading.Thread(target=self._make, args=(name,), daemon=True).start()

    def python(self, name: str) -> tuple[Path, float]:
        """The Python of an engine's environment and the seconds that making it took; waits for it."""
        self._made[name].wait()
        must(not self._failures[name], f"its environment could not be made: {self._failures[name]}")
        return TOP / f".venv-{name}" / "bin" / "python", self._seconds[name]

    def _make(self, name: str) -> None:
        started = time.monotonic()
        result = subprocess.run([TOP / "infra/scripts/engine_venv", name], cwd=TOP, check=False, capture_output=True, text=True)
        self._failures[name] = result.stderr.strip()[-2000:] or "it failed" if result.returncode else ""
        self._seconds[name] = time.monotonic() - started
        self._made[name].set()


def engine(name: str, made: Environments, stack: EmbeddedStack) -> str:
    """The contract of an engine's adapter with the real package; what needs sandboxes gets them from the stack."""
    python, installed_s = made.python(name)
    files = [f"tests/recipes/engines/test_{file}.py" for file in ENGINES[name]]
    options = ["--confcutdir=tests/recipes/engines", "-p", "no:cacheprovider", "-o", "addopts=--import-mode=importlib"]
    options += ["-o", "filterwarnings=default", "-q", "-rs", "--timeout=170"]
    environment = os.environ | {"HOLDFAST_URL": stack.url, "HOLDFAST_API_KEY": stack.key, "HF_HUB_OFFLINE": "1"}
    result = subprocess.run(
        [python, "-m", "pytest", *options, *files], cwd=TOP, check=False, capture_output=True, text=True, env=environment
    )
    must(result.returncode == 0, result.stdout[-4000:] + result.stderr[-1000:])
    skipped = [line for line in result.stdout.splitlines() if line.startswith("SKIPPED")]
    return "\n".join([f"{result.stdout.strip().rpartition(chr(10))[2]} (environment {installed_s:.0f} s)", *skipped])


def tests() -> str:
    """What needs torch among the tests, and the miniature's."""
    folders = ["tests/recipes/training", "tests/recipes/miniature"]
    result = subprocess.run([sys.executable, "-m", "pytest", "-q", *folders], cwd=TOP, check=False, capture_output=True, text=True)
    must(result.returncode == 0, result.stdout[-3000:] + result.stderr[-1000:])
    return result.stdout.strip().rpartition("\n")[2]


@contextlib.contextmanager
def stack() -> Iterator[EmbeddedStack]:
    with tempfile.TemporaryDirectory(prefix="holdfast-recipes-") as data, running_stack(Path(data)) as made:
        yield made


def main() -> int:
    """Run all parts and print a line for each; 1 when one failed."""
    failed = 0

    def part(name: str, action: Callable[[], str], limit_s: float | None = None) -> None:
        nonlocal failed
        started = time.monotonic()
        try:
            result = action()
        except (PartFailedError, subprocess.CalledProcessError) as error:
            failed += 1
            result = f"FAILED: {error}"
        seconds = time.monotonic() - started
        slow = f"  (more than its {limit_s:.0f} s)" if limit_s and seconds > limit_s else ""
        print(f"{name:12}{seconds:6.1f} s{slow}  {result}", flush=True)

    environments = Environments()
    part("tests", tests)
    part("twin", twin)
    with stack() as running:
        part("sandboxes", lambda: sandboxes(running), SANDBOX_PART_S)
        for name in ENGINES:
            part(name, lambda: engine(name, environments, running))  # noqa: B023  called at once
    print("recipes: a miniature; no figure here is a result", flush=True)
    return 1 if failed else 0
