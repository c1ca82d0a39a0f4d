"""Rollouts that are taken from trees: those of a task share their first turns, which are played once for every ``k`` of them.

Owns which rollout is which tree's, when a tree's sandbox is branched and when it ends, and the two adapters: for ``collect`` and for the
manager of ``rollouts``. Both ask for single rollouts, whenever they have room for one; so a tree is branched once for all that wait at the
same moment. What a branch does is ``branching``'s, and which of its tokens get loss is decided by ``samples``, ``curate`` and the engines'
rows, from ``Trajectory.branch``.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self

from holdfast import AsyncSandbox, HoldfastError, UnsupportedError

from holdfast_recipes.core.scored import Blame, Status
from holdfast_recipes.core.trajectory import Branch, Harness, Message, PolicyName, Trajectory
from holdfast_recipes.harness.conversation import Conversation
from holdfast_recipes.harness.layers import FaultError, completed, fault_of
from holdfast_recipes.harness.limits import Layer
from holdfast_recipes.harness.loop import Episode
from holdfast_recipes.harness.rollout import Settings, play
from holdfast_recipes.swe.sources import SweTask

from . import collect, rollouts
from .branching import BranchableJobs, Stem
from .errors import SettingError
from .playing import Replay, Tracked, collected
from .trees import beginning

MOST_IDLE = 4
"""Trees that are kept for further rollouts while none of theirs runs."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request for one rollout; the settings are its own."""

    task: SweTask
    settings: Settings
    seed: int
    name: str


class _Tree:
    """One sandbox with the first turns, and the branches of it."""

    def __init__(self, name: str, stem: Stem, turn: int, first: _Asked) -> None:
        self.name, self.stem, self.first = name, stem, first
        self.claimed = self.running = 0
        """How many rollouts have a place in it, and how many of them are under way."""
        self._turn = turn
        self._begun = asyncio.create_task(self._begin(), name=f"tree-{name}")
        self._waiting: list[asyncio.Future[AsyncSandbox]] = []
        self._branching: asyncio.Task[None] | None = None

    async def _begin(self) -> Episode:
        return await self.stem.play(self.first.settings.conversation(), self._turn, self.first.seed)

    async def begun(self) -> Episode:
        """The first turns. Raises FaultError and HoldfastError; a caller that is cancelled does not end them for the others."""
        return await asyncio.shield(self._begun)

    @property
    def takes_no_more(self) -> bool:
        """Whether its first turns failed, or ended the rollout."""
        return self._begun.done() and (
            self._begun.cancelled() or self._begun.exception() is not None or self.has_ended(self._begun.result())
        )

    def has_ended(self, episode: Episode) -> bool:
        """Whether the rollout ended within these turns."""
        return len(episode.turns) < self._turn or episode.status is Status.COMPLETED

    async def branch(self) -> AsyncSandbox:
        """A branch after the first turns, made together with those of all others that wait now. Raises HoldfastError."""
        wanted: asyncio.Future[AsyncSandbox] = asyncio.get_running_loop().create_future()
        self._waiting.append(wanted)
        if self._branching is None:
            self._branching = asyncio.create_task(self._branch(), name=f"branches-{self.name}")
        return await wanted

    async def _branch(self) -> None:
        try:
            while waiting := [each for each in self._waiting if not each.done()]:
                self._waiting.clear()
                try:
                    made = await self.stem.branch(len(waiting))
                except HoldfastError as error:
                    for each in waiting:
                        if not each.done():
                            each.set_exception(error)
                    continue
                for each, sandbox in zip(waiting, made, strict=True):
                    if not each.done():  # otherwise its rollout was cancelled; the sandbox ends with the tree
                        each.set_result(sandbox)
        finally:
            self._branching = None

    async def close(self) -> None:
        """End what is under way, then delete the sandbox and all branches."""
        tasks = [task for task in (self._begun, self._branching) if task is not None and not task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if not self._begun.cancelled():
            self._begun.exception()  # every rollout that wanted to know has seen it
        await self.stem.__aexit__(None, None, None)


class TreeSampler:
    """``async with TreeSampler(jobs, settings, turn=5, k=8) as sampler``: leaving it ends every tree.

    ``k`` rollouts share their first ``turn`` turns; where these end a rollout, the others of its tree are played alone. One that runs out
    of memory in a branch is not played again with more. Raises SettingError for less than one turn, less than two rollouts, and programs.
    """

    def __init__(self, jobs: BranchableJobs, settings: Settings, *, turn: int, k: int) -> None:
        if turn < 1 or k < 2:
            raise SettingError(f"a tree needs at least one turn before the branch and two rollouts: {turn}, {k}")
        if settings.agent is not None:
            raise SettingError("a program cannot continue in a branch", hint="use the harness mini")
        steps = settings.limits.rollout.steps
        if steps is not None and turn >= steps:
            raise SettingError(f"a rollout has at most {steps} turns, so it cannot branch after {turn}")
        self._jobs, self._settings, self._turn, self._k = jobs, settings, turn, k
        self._open: dict[Hashable, _Tree] = {}
        """The tree of each group that has places left, the one used last at the end."""
        self._trees: set[_Tree] = set()

    def collected(self, talk: Callable[[Any], Conversation[Any]] | None = None) -> collect.Rollout:
        """Rollouts for a collection, in trees of the rollouts of a task; ``talk`` as for ``playing.collected``."""

        async def played(task: Any, settings: Settings, seed: int, name: str) -> Trajectory:
            return await self._rollout(task.task_id, _Asked(task, settings, seed, name))

        return collected(self._jobs, self._settings, talk, played=played)

    def managed(self) -> rollouts.Rollout[SweTask]:
        """Rollouts for the manager, in trees of the rollouts of a group that begin with the same weights."""

        async def rollout(task: SweTask, ticket: rollouts.Ticket) -> Trajectory:
            counts = Tracked(ticket)
            name = f"{task.task_id}-{ticket.key}-{ticket.seed}"
            try:
                asked = _Asked(task, replace(self._settings, counts=counts), ticket.seed, name)
                return await self._rollout((task.task_id, ticket.key, ticket.version), asked)
            finally:
                counts.hand_over()

        return rollout

    async def _rollout(self, group: Hashable, asked: _Asked) -> Trajectory:
        tree = await self._claim(group, asked)
        try:
            episode = await tree.begun()
            if episode.status in (Status.ABORTED, Status.TIMEOUT):
                return _failed(asked, episode.messages, episode.status, episode.blame, episode.reason)
            alone = tree.has_ended(episode)
            if not alone or tree.first is asked:
                run = await self._continue(tree, episode, asked)
                return run if alone else replace(run, branch=Branch(tree.name, self._turn))
        except FaultError as fault:
            return _failed(asked, (), Status.ABORTED, fault.blame, fault.reason)
        except UnsupportedError:
            raise
        except HoldfastError as error:
            found = fault_of(Layer.CREATION, error)
            return _failed(asked, (), Status.ABORTED, found.blame, found.reason)
        finally:
            await completed(self._unclaim(group, tree))
        return await play(self._jobs(asked.task), asked.settings, seed=asked.seed, trajectory_id=asked.name)

    async def _continue(self, tree: _Tree, episode: Episode, asked: _Asked) -> Trajectory:
        prefix = beginning(tree.name, asked.task.task_id, episode, tree.first.seed)
        talk = asked.settings.conversation
        sandbox = await tree.branch()
        return await tree.stem.continue_in(
            sandbox, lambda: Replay(talk(), prefix, len(prefix.turns)), asked.seed, asked.name, asked.settings.counts
        )

    async def _claim(self, group: Hashable, asked: _Asked) -> _Tree:
        """A place in the group's tree, or in a new one."""
        idle = [other for other, each in self._open.items() if not each.running and other != group]
        for other in idle[: max(0, len(idle) - MOST_IDLE)]:
            await completed(self._end(self._open.pop(other)))
        tree = self._open.pop(group, None)
        if tree is None:
            tree = _Tree(f"{asked.name}@{secrets.token_hex(4)}", Stem(self._jobs(asked.task), asked.settings), self._turn, asked)
            self._trees.add(tree)
        tree.claimed += 1
        tree.running += 1
        if tree.claimed < self._k:
            self._open[group] = tree
        return tree

    async def _unclaim(self, group: Hashable, tree: _Tree) -> None:
        tree.running -= 1
        if tree.takes_no_more and self._open.get(group) is tree:
            del self._open[group]
        if not tree.running and self._open.get(group) is not tree:
            await self._end(tree)

    async def _end(self, tree: _Tree) -> None:
        self._trees.discard(tree)
        await tree.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._open.clear()
        for tree in list(self._trees):
            with contextlib.suppress(HoldfastError):
                await completed(self._end(tree))


def _failed(asked: _Asked, messages: Sequence[Message], status: Status, blame: Blame | None, reason: str) -> Trajectory:
    """A rollout whose first turns could not be played, or whose sandbox could not be branched."""
    asked.settings.counts.events[f"{status}_{blame}_{reason}"] += 1
    nothing = Trajectory(asked.name, asked.task.task_id, Harness(""), PolicyName(""), tuple(messages), seed=asked.seed)
    return replace(nothing, status=status, blame=blame, reason=reason, run=asked.settings.run)
