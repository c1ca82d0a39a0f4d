"""Values without a model's opinion: rules about milestones, and the success of continuations (C4.6).

Owns ``Milestones``, ``MonteCarlo`` and ``BranchedMonteCarlo``, all of states *before* turns with the final state's value last. How a run
is continued from a state is given: ``playing`` repeats its commands in fresh sandboxes, ``branching`` branches one sandbox at each state.
The interface they share with the model's annotation is in ``annotate``.
"""

from __future__ import annotations

import abc
import asyncio
import re
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

from holdfast_recipes.core.trajectory import Trajectory, Turn
from holdfast_recipes.core.values import Interpolation, interpolate, monte_carlo

from .annotate import Estimate, turns_with_results


@dataclass(frozen=True, slots=True)
class Milestone:
    """Something that a turn may reach, once in a run. ``worth`` is added to the value of every later state; below zero for a mistake."""

    name: str
    worth: float
    reached: Callable[[Turn], bool]


class Milestones:
    """Rules instead of a model: the value of a state is ``base`` plus the worth of what was reached before it, within [0, 1]."""

    name = "milestones"
    value_of: Literal["before"] = "before"
    prompts: ClassVar[Mapping[str, str]] = {}

    def __init__(self, milestones: Sequence[Milestone] | Callable[[Trajectory], Sequence[Milestone]], base: float = 0.3) -> None:
        if not 0 <= base <= 1:
            raise ValueError(f"a value must be in [0, 1], not {base}")
        self._milestones, self._base = milestones, base

    async def estimate(self, trajectory: Trajectory) -> Estimate:
        left = list(self._milestones(trajectory) if callable(self._milestones) else self._milestones)
        value, values = self._base, [self._base]
        for turn in turns_with_results(trajectory):
            reached = [each for each in left if each.reached(turn)]
            left = [each for each in left if each not in reached]
            value += sum(each.worth for each in reached)
            values.append(min(1.0, max(0.0, value)))
        return Estimate(tuple(values), tries=1)


def repair_milestones(paths: Sequence[str]) -> list[Milestone]:
    """For repository repair, from the files that the gold patch changes: one was seen, one was changed, a run of tests failed, one
    passed."""

    def acted(turn: Turn) -> str:
        return "\n".join(str(value) for call in turn.calls for value in call.arguments.values())

    def shown(turn: Turn) -> str:
        return acted(turn) + "\n".join(seen.text for seen in turn.observations)

    def changes(turn: Turn) -> bool:
        text = acted(turn)
        return any(path in text and (_EDIT.search(text) or re.search(rf">\s*\S*{re.escape(path)}", text)) for path in paths)

    def tests(turn: Turn, *, passing: bool) -> bool:
        ran = any(word in acted(turn) for word in _TESTS)
        return ran and any((seen.exit_code == 0) is passing for seen in turn.observations if seen.exit_code is not None)

    return [
        Milestone("located", 0.1, lambda turn: any(path in shown(turn) for path in paths)),
        Milestone("reproduced", 0.1, lambda turn: tests(turn, passing=False)),
        Milestone("changed", 0.1, changes),
        Milestone("tests_pass", 0.1, lambda turn: tests(turn, passing=True)),
    ]


_EDIT = re.compile(r"\bsed -i|\bstr_replace\b|\binsert\b|\bgit apply\b|\bpatch -|\bwrite_text\b|\btee ")
_TESTS = ("pytest", "unittest", "tox", "nox", "make test", "npm test", "go test", "cargo test")

Outcomes = dict[int, list[bool]]
"""By state: whether each continuation that was played to its end resolved the task."""

Continue = Callable[[Trajectory, int, int], Awaitable[bool | None]]
"""Continue a run from the state before turn ``state`` with a seed: whether it resolves the task; None where infrastructure failed or the
state could not be reached again."""


class _Shares(abc.ABC):
    """The share of up to ``k`` continuations from a state that resolve the task. The final state's value is the run's own outcome.

    ``stride`` estimates every so many states and interpolates between. A continuation that infrastructure spoiled counts for nothing; a
    state without any other has no value of its own.
    """

    value_of: Literal["before"] = "before"
    prompts: ClassVar[Mapping[str, str]] = {}

    def __init__(self, k: int, stride: int, concurrency: int, interpolation: Interpolation) -> None:
        if min(k, stride, concurrency) < 1:
            raise ValueError(f"k, stride and concurrency must be at least 1: k={k}, stride={stride}, concurrency={concurrency}")
        self._k, self._stride, self._interpolation = k, stride, interpolation
        self._room = asyncio.Semaphore(concurrency)

    async def estimate(self, trajectory: Trajectory) -> Estimate:
        turns = len(turns_with_results(trajectory))
        outcomes = await self.outcomes(trajectory, range(0, turns, self._stride))
        known = {state: found for state, found in outcomes.items() if found}
        points = dict(zip(known, monte_carlo(list(known.values())), strict=True)) | {turns: float(trajectory.resolved)}
        lost = self._k * len(outcomes) - sum(map(len, outcomes.values()))
        if len(points) < 2:
            return Estimate(reason="no_continuations", passing=True, tries=lost)
        return Estimate(
            tuple(interpolate(points, turns + 1, self._interpolation)), tries=self._k * len(outcomes), refused=("infrastructure",) * lost
        )

    @abc.abstractmethod
    async def outcomes(self, trajectory: Trajectory, states: Sequence[int]) -> Outcomes:
        """The outcomes of up to ``k`` continuations from each state, in rising order; of a single turn, for example."""


class MonteCarlo(_Shares):
    """From each state ``k`` continuations that each repeat the turns before it; at most ``concurrency`` of them run at once."""

    name = "monte_carlo"

    def __init__(
        self, continue_run: Continue, k: int = 8, *, stride: int = 1, concurrency: int = 8, interpolation: Interpolation = "linear"
    ) -> None:
        super().__init__(k, stride, concurrency, interpolation)
        self._continue = continue_run

    async def outcomes(self, trajectory: Trajectory, states: Sequence[int]) -> Outcomes:
        outcomes: Outcomes = {state: [] for state in states}

        async def one(state: int, number: int) -> None:
            async with self._room:
                resolved = await self._continue(trajectory, state, number)
            if resolved is not None:
                outcomes[state].append(resolved)

        async with asyncio.TaskGroup() as group:
            for state in states:
                for number in range(self._k):
                    group.create_task(one(state, number), name=f"monte-carlo-{state}-{number}")
        return outcomes


class Trunk(Protocol):
    """One sandbox in which a run is repeated once, turn by turn, for all of its states."""

    async def advance(self, state: int) -> bool:
        """Repeat the turns up to ``state``, which never decreases. False if it could not be reached: no later one can then."""
        ...

    async def branch(self, state: int, numbers: Sequence[int]) -> Sequence[Coroutine[Any, Any, bool | None]]:
        """Branch at ``state``, which was reached: a continuation for each number, as of ``Continue``; none where it cannot be branched."""
        ...


class BranchedMonteCarlo(_Shares):
    """Each run's turns are repeated once, in one sandbox, which is branched at each state for the ``k`` continuations from it.

    States are reached one after the other, while the continuations of earlier ones still run. At most ``concurrency`` branches exist at
    once, and beside them one sandbox for each run that is being estimated.
    """

    name = "branched_monte_carlo"

    def __init__(
        self,
        grow: Callable[[Trajectory], AbstractAsyncContextManager[Trunk]],
        k: int = 8,
        *,
        stride: int = 1,
        concurrency: int = 8,
        interpolation: Interpolation = "linear",
    ) -> None:
        super().__init__(k, stride, concurrency, interpolation)
        self._grow = grow

    async def outcomes(self, trajectory: Trajectory, states: Sequence[int]) -> Outcomes:
        outcomes: Outcomes = {state: [] for state in states}

        async def one(state: int, continuation: Coroutine[Any, Any, bool | None]) -> None:
            if (resolved := await continuation) is not None:
                outcomes[state].append(resolved)

        async with self._grow(trajectory) as trunk, asyncio.TaskGroup() as group:
            for state in states:
                if not await trunk.advance(state):
                    break
                left = list(range(self._k))
                while left:
                    numbers = await self._reserve(left)
                    try:
                        continuations = await trunk.branch(state, numbers)
                    except BaseException:
                        self._release(len(numbers))
                        raise
                    self._release(len(numbers) - len(continuations))
                    for number, continuation in enumerate(continuations):
                        task = group.create_task(one(state, continuation), name=f"monte-carlo-{state}-{number}")
                        task.add_done_callback(lambda _: self._room.release())
        return outcomes

    async def _reserve(self, left: list[int]) -> list[int]:
        """Remove as many numbers as there is room for, at least one. It waits only for the first, since two runs that wait for more, each
        with some, would wait for ever."""
        await self._room.acquire()
        numbers = [left.pop(0)]
        while left and not self._room.locked():
            await self._room.acquire()
            numbers.append(left.pop(0))
        return numbers

    def _release(self, places: int) -> None:
        for _ in range(places):
            self._room.release()
