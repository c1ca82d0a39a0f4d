"""Rollouts that continue in branches of a sandbox: the turns before the branch run once, and each branch plays on from there.

Owns the sandbox in which a run's turns are played (``Stem``), the jobs and tools of its branches, and the trunk of a recorded run for
``estimators.BranchedMonteCarlo``. ``trees`` uses it for new rollouts. What one branch does from then on is ``harness.rollout.play``.
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any, Protocol, Self, cast

from holdfast import AsyncSandbox, HoldfastError, UnsupportedError

from holdfast_recipes.core.calls import ToolCall
from holdfast_recipes.core.scored import Blame, Status
from holdfast_recipes.core.trajectory import Trajectory
from holdfast_recipes.harness.conversation import Conversation
from holdfast_recipes.harness.layers import FaultError, attempt, completed, fault_of, may_create_again
from holdfast_recipes.harness.limits import Layer, Resources
from holdfast_recipes.harness.loop import Episode
from holdfast_recipes.harness.loop import run as run_loop
from holdfast_recipes.harness.machine import Machine
from holdfast_recipes.harness.rollout import Counts, Graded, Job, Settings, play
from holdfast_recipes.harness.toolset import Result, Toolset
from holdfast_recipes.policy.base import Message, Tool
from holdfast_recipes.swe.job import delete
from holdfast_recipes.swe.sources import SweTask

from .annotate import turns_with_results
from .errors import SettingError
from .estimators import Trunk
from .evaluate import Trial, trial_of
from .playing import Replay, continuation_seed, same


class BranchableJob(Job[Machine], Protocol):
    """A job whose tools work in a branch too."""

    def open_branch(self, sandbox: Machine, parent: Machine) -> Toolset:
        """The tools in a branch of a sandbox that ``open`` has prepared."""
        ...


BranchableJobs = Callable[[SweTask], BranchableJob]


class Remembered:
    """Tools that answer the first calls with results of an earlier play of the same turns, and run the others."""

    def __init__(self, inner: Toolset, results: Sequence[Result]) -> None:
        self.name, self.version, self.strict = inner.name, inner.version, inner.strict
        self.given: list[Result] = []
        """All results, in order."""
        self._inner, self._left = inner, deque(results)

    @property
    def tools(self) -> Sequence[Tool]:
        return self._inner.tools

    @property
    def config(self) -> dict[str, Any]:
        return self._inner.config

    async def run(self, call: ToolCall, *, timeout_s: float) -> Result:
        self.given.append(self._left.popleft() if self._left else await self._inner.run(call, timeout_s=timeout_s))
        return self.given[-1]

    async def close(self) -> None:
        await self._inner.close()


class _BranchJob:
    """The job of one branch, which exists already."""

    def __init__(self, job: BranchableJob, sandbox: AsyncSandbox, parent: Machine, results: Sequence[Result]) -> None:
        self._job, self._sandbox, self._parent, self._results = job, sandbox, parent, results
        self.task_id, self.repo, self.source = job.task_id, job.repo, job.source
        self.messages: Sequence[Message] = job.messages
        self.prompts: Mapping[str, str] = job.prompts
        self.resources: Resources = job.resources

    async def create(self, resources: Resources) -> Machine:
        return self._sandbox

    async def open(self, sandbox: Machine, *, oom_ends: bool) -> Toolset:
        try:
            return Remembered(self._job.open_branch(sandbox, self._parent), self._results)
        except HoldfastError as error:  # another try would be given the same branch
            raise fault_of(Layer.CREATION, error) from error

    async def collect(self, sandbox: Machine, episode: Episode) -> str:
        return await self._job.collect(sandbox, episode)

    async def grade(self, work: str) -> Graded:
        return await self._job.grade(work)


class Stem:
    """A sandbox in which the first turns of a rollout are played, and its branches. ``async with``: leaving it deletes all of them."""

    def __init__(self, job: BranchableJob, settings: Settings) -> None:
        if settings.agent is not None:
            raise SettingError("a program cannot continue in a branch", hint="use the harness mini")
        self.job, self.settings = job, settings
        self.turns = 0
        """How many turns were played."""
        self._results: list[Result] = []
        self._sandbox: AsyncSandbox | None = None
        self._toolset: Toolset | None = None
        self._branches: list[AsyncSandbox] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for sandbox in (*self._branches, *([self._sandbox] if self._sandbox else [])):
            await completed(delete(sandbox))

    async def play(self, conversation: Conversation[Any], turns: int, seed: int | None) -> Episode:
        """Play up to ``turns`` turns, of which those that were played are not repeated. Raises FaultError if no sandbox can be created."""
        toolset = await self.open()
        limits = replace(self.settings.limits, rollout=replace(self.settings.limits.rollout, steps=turns))
        tools = Remembered(toolset, self._results)
        episode = await run_loop(conversation, tools, self.job.messages, limits, seed=seed, turn_tokens=self.settings.turn_tokens)
        self.turns, self._results = len(episode.turns), tools.given
        return episode

    async def branch(self, count: int) -> list[AsyncSandbox]:
        """So many branches after the turns that were played. Raises HoldfastError."""
        assert self._sandbox is not None
        with self.settings.counts.timing("branch"):
            found = (await self._sandbox.branch(count, turn=self.turns)).sandboxes
        self._branches += found
        return found

    async def continue_in(
        self,
        sandbox: AsyncSandbox,
        conversation: Callable[[], Conversation[Any]],
        seed: int | None,
        trajectory_id: str,
        counts: Counts | None = None,
    ) -> Trajectory:
        """One rollout that plays on in a branch, with its grade; ``counts`` are its own, else those of the settings.

        A branch that runs out of memory is not played again with more.
        """
        assert self._sandbox is not None
        job = _BranchJob(self.job, sandbox, self._sandbox, self._results)
        own = replace(self.settings, conversation=conversation, most_escalations=0, counts=counts or self.settings.counts)
        try:
            return await play(job, own, seed=seed, trajectory_id=trajectory_id)
        finally:
            await completed(delete(sandbox))
            self._branches.remove(sandbox)

    async def open(self) -> Toolset:
        """Create the sandbox in its start state, unless it exists. Raises FaultError."""
        if self._toolset is not None:
            return self._toolset

        async def once() -> Toolset:
            sandbox = cast(AsyncSandbox, await self.job.create(self.job.resources))
            try:
                toolset = await self.job.open(sandbox, oom_ends=False)
            except BaseException:
                await completed(delete(sandbox))
                raise
            self._sandbox = sandbox
            return toolset

        layers, capacity = self.settings.limits.layers, self.settings.capacity
        draw = random.Random(0)  # noqa: S311  pauses, no secret
        with self.settings.counts.timing("creation"):
            self._toolset = await attempt(
                Layer.CREATION, layers[Layer.CREATION], once, draw=draw, again=may_create_again, before_s=lambda: 0.0, gate=capacity.boot
            )
        return self._toolset


class _Recorded:
    """A trunk that repeats a recorded run."""

    def __init__(self, stem: Stem, run: Trajectory, diverged: Counter[str] | None) -> None:
        self._stem, self._run, self._diverged = stem, run, diverged

    async def advance(self, state: int) -> bool:
        settings = self._stem.settings
        try:
            if state == 0:
                await self._stem.open()
                return True
            episode = await self._stem.play(Replay(settings.conversation(), self._run, state), state, self._run.seed)
        except FaultError:
            return False
        ended = episode.status is not Status.TRUNCATED
        if ended and episode.blame is Blame.INFRASTRUCTURE:
            return False
        if ended or not same(turns_with_results(self._run)[:state], episode.turns):
            if self._diverged is not None:
                self._diverged[self._run.task_id] += 1
            return False
        return True

    async def branch(self, state: int, numbers: Sequence[int]) -> Sequence[Coroutine[Any, Any, bool | None]]:
        try:
            sandboxes = await self._stem.branch(len(numbers))
        except UnsupportedError:
            raise
        except HoldfastError:
            return []
        return [self._go_on(sandbox, state, number) for sandbox, number in zip(sandboxes, numbers, strict=True)]

    async def _go_on(self, sandbox: AsyncSandbox, state: int, number: int) -> bool | None:
        run = self._run
        talk = self._stem.settings.conversation
        name = f"{run.trajectory_id}@{state}.{number}"
        played = await self._stem.continue_in(sandbox, lambda: Replay(talk(), run, state), continuation_seed(run, state, number), name)
        kind = trial_of(played)
        return kind is Trial.SOLVED if kind.counts else None


def grown(
    jobs: BranchableJobs, tasks: Mapping[str, SweTask], settings: Settings, diverged: Counter[str] | None = None
) -> Callable[[Trajectory], AbstractAsyncContextManager[Trunk]]:
    """For ``estimators.BranchedMonteCarlo``: the recorded turns once more in one sandbox, which is branched at each state.

    A run whose calls end otherwise than they did gets no value from that state on, and ``diverged`` counts it by task.
    """

    @contextlib.asynccontextmanager
    async def trunk(run: Trajectory) -> AsyncIterator[Trunk]:
        own = replace(settings, counts=Counts())
        async with Stem(jobs(tasks[run.task_id]), own) as stem:
            yield _Recorded(stem, run, diverged)

    return trunk
