"""Collection: so many rollouts of each task, from many sandboxes at once, into a run's folder (C5, C7).

Owns which rollouts run when, further tries after infrastructure's faults, and the counts. What a rollout is was given; images are pulled
ahead by ``images``; what is on disk is ``runs``'s. Ending it at any time is safe: the next collection goes on.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from .errors import InfrastructureError, SettingError
from .evaluate import Trial, trial_of
from .images import Images
from .progress import Progress
from .runs import Attempt, RolloutSlot, Run

Rollout = Callable[[RolloutSlot, int, str], Awaitable[Attempt]]
"""Roll a slot out with a seed, as a trajectory of that id. A rollout that failed is a trajectory too; what this raises ends the run."""


@dataclass(frozen=True, slots=True)
class Collected:
    """The results that one process added to a run. ``seconds`` and ``events`` are summed over its attempts; ``left`` rollouts are neither
    done nor given up (it was ended)."""

    total: int
    finished: int
    given_up: int
    outcomes: dict[str, int]
    wall_s: float
    cost_usd: float
    seconds: dict[str, float]
    events: dict[str, int]
    images_not_pulled: tuple[str, ...] = ()
    cut_bytes: int = 0
    left: int = field(default=0)

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


async def collect(
    run: Run,
    rollout: Rollout,
    *,
    concurrency: int = 16,
    images: Images | None = None,
    progress: Progress | None = None,
    most_in_a_row: int = 32,
) -> Collected:
    """Do what is left of a run. Rollouts that infrastructure spoiled are tried again after all others.

    Raises InfrastructureError when ``most_in_a_row`` rollouts in a row were spoiled and none finished: further tries would only be used up.
    """
    if concurrency < 1 or most_in_a_row < 1:
        raise SettingError(f"concurrency and most_in_a_row must be at least 1: {concurrency}, {most_in_a_row}")
    collection = _Collection(run, rollout, images or Images(None), progress, most_in_a_row)
    return await collection.all(concurrency)


class _Collection:
    def __init__(self, run: Run, rollout: Rollout, images: Images, progress: Progress | None, most_in_a_row: int) -> None:
        self._run, self._rollout, self._images, self._progress = run, rollout, images, progress
        self._most_in_a_row, self._in_a_row = most_in_a_row, 0
        self._slots = run.slots()
        self._again: deque[RolloutSlot] = deque()
        self._running = 0
        self._changed = asyncio.Event()
        self._seconds: Counter[str] = Counter()
        self._events: Counter[str] = Counter()
        self._wall_s = self._cost_usd = 0.0

    async def all(self, concurrency: int) -> Collected:
        self._images.expect(slot.task.image for slot in self._run.slots())
        if self._progress is not None:
            self._progress.begin(self._run.finished + self._run.given_up, self._run.total)
        try:
            async with asyncio.TaskGroup() as group:
                for number in range(min(concurrency, self._run.total)):
                    group.create_task(self._work(), name=f"collect-{number}")
        except ExceptionGroup as errors:
            raise _first(errors) from None
        finally:
            await self._images.close()
            if self._progress is not None:
                self._progress.end()
        return self._collected()

    async def _work(self) -> None:
        while (slot := await self._next()) is not None:
            self._running += 1
            try:
                await self._one(slot)
            finally:
                self._running -= 1
                self._changed.set()

    async def _next(self) -> RolloutSlot | None:
        """A slot that was not tried yet, else one to try again; None when nothing is left or can be left over by those that run."""
        while True:
            if (slot := next(self._slots, None)) is not None:
                return slot
            if self._again:
                return self._again.popleft()
            if not self._running:
                return None
            self._changed.clear()
            await self._changed.wait()

    async def _one(self, slot: RolloutSlot) -> None:
        await self._images.ready(slot.task.image)
        plan = self._run.plan
        attempt = await self._rollout(slot, plan.seed_of(slot), plan.id_of(slot))
        again = self._run.record(slot, attempt)
        self._wall_s += attempt.wall_s
        self._cost_usd += attempt.cost_usd
        self._seconds.update(attempt.seconds)
        self._events.update(attempt.events)
        if again is not None:
            self._again.append(again)
        self._in_a_row = self._in_a_row + 1 if trial_of(attempt.trajectory) is Trial.INFRASTRUCTURE else 0
        if self._progress is not None:
            self._progress.step(self._run.outcomes, self._run.finished + self._run.given_up)
        if self._in_a_row >= self._most_in_a_row:
            reason = attempt.trajectory.reason or "unknown"
            raise InfrastructureError(
                f"{self._in_a_row} rollouts in a row were spoiled by infrastructure, the last one: {reason}",
                hint="holdfast doctor looks at the service; the same command goes on where this one ended",
            )

    def _collected(self) -> Collected:
        run = self._run
        return Collected(
            run.total,
            run.finished,
            run.given_up,
            {str(kind): run.outcomes[kind] for kind in Trial},
            round(self._wall_s, 3),
            self._cost_usd,
            {name: round(value, 3) for name, value in sorted(self._seconds.items())},
            dict(sorted(self._events.items())),
            tuple(self._images.failed),
            run.cut_bytes,
            run.total - run.finished - run.given_up,
        )


def _first(errors: ExceptionGroup[Exception]) -> Exception:
    first = errors.exceptions[0]
    return _first(first) if isinstance(first, ExceptionGroup) else first
