"""Which tasks of a set enter a pool: each is validated in sandboxes, with the count of every reason for which tasks were left out.

Owns the run over many tasks and its journal, so that it can go on after it was ended; what is checked is ``validation``'s. A task whose
sandbox was lost has no line and is checked again by the next run.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast_recipes.core.scored import Blame
from holdfast_recipes.harness.layers import FaultError, completed, fault_of
from holdfast_recipes.harness.limits import Layer, Resources

from .archives import Archives
from .job import PAPER, Maker, delete
from .sources import SweTask
from .validation import Validation, validate

LEAK, FLAKY, UNFINISHED, NOT_APPLIED, NOT_FIXED, NOT_KEPT, NO_TESTS, ENVIRONMENT = (
    *("leak", "flaky", "tests_do_not_finish", "patch_does_not_apply", "not_fixed_by_gold", "not_passing_in_both", "no_tests"),
    "environment",
)
_REASONS = {
    "leak: ": LEAK,
    "flaky: ": FLAKY,
    "the tests do not finish": UNFINISHED,
    "the tests do not apply": NOT_APPLIED,
    "the gold patch does not apply": NOT_APPLIED,
    "does not go from failing to passing": NOT_FIXED,
    "does not pass in both states": NOT_KEPT,
    "no test fails before the fix": NOT_FIXED,
    "no test was parsed": NO_TESTS,
    "environment: ": ENVIRONMENT,
}


@dataclass(slots=True)
class PoolCounts:
    """``reasons`` counts tasks by the first reason for which they were left out; ``lost`` are those that infrastructure failed."""

    kept: int = 0
    lost: int = 0
    reasons: Counter[str] = field(default_factory=Counter)

    def add(self, problems: Sequence[str]) -> None:
        if problems:
            self.reasons[reason(problems[0])] += 1
        else:
            self.kept += 1


def reason(problem: str) -> str:
    """The kind of a line of ``Validation.problems``."""
    return next((name for start, name in _REASONS.items() if problem.startswith(start)), ENVIRONMENT)


async def screened(
    tasks: Sequence[SweTask],
    make: Maker,
    archives: Callable[[SweTask], Archives | None],
    *,
    runs: int = 3,
    timeout_s: float = 500.0,
    concurrency: int = 4,
    resources: Resources = PAPER,
) -> AsyncIterator[tuple[SweTask, Validation | None]]:
    """Each task with its validation as it ends; None where infrastructure failed. At most ``concurrency`` sandboxes at a time."""
    gate = asyncio.Semaphore(concurrency)

    async def once(task: SweTask) -> tuple[SweTask, Validation | None]:
        async with gate:
            try:
                return task, await _validated(task, make, archives(task), runs, timeout_s, resources)
            except FaultError as fault:
                if fault.blame is not Blame.ENVIRONMENT:
                    return task, None
                return task, Validation((f"environment: {fault.reason}: {fault.message}"[:500],))

    running = [asyncio.ensure_future(once(task)) for task in tasks]
    try:
        for each in asyncio.as_completed(running):
            yield await each
    finally:
        for job in running:
            job.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def _validated(
    task: SweTask, make: Maker, archives: Archives | None, runs: int, timeout_s: float, resources: Resources
) -> Validation:
    try:
        sandbox = await make(task, resources)
    except Exception as error:
        raise fault_of(Layer.CREATION, error) from error
    try:
        return await validate(sandbox, task, archives, runs=runs, timeout_s=timeout_s)
    except Exception as error:
        raise fault_of(Layer.OBSERVATION, error) from error
    finally:
        await completed(delete(sandbox))


def record(task: SweTask, found: Validation) -> dict[str, Any]:
    """The line of a task in the journal."""
    flaky = list(found.screened.flaky) if found.screened else []
    return {"task_id": task.task_id, "problems": list(found.problems), "flaky": flaky, "seconds": round(found.seconds, 1)}


def counted(lines: Sequence[Mapping[str, Any]]) -> PoolCounts:
    """The counts of a journal's lines."""
    counts = PoolCounts()
    for line in lines:
        counts.add(line["problems"])
    return counts
