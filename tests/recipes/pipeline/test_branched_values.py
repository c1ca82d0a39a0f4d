"""The value of a turn by branches beside that by replays: on the twin, whose values are known exactly, and in real sandboxes."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import math
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from holdfast import AsyncSandbox, AsyncSandboxClient
from holdfast_recipes.core.trajectory import Trajectory
from holdfast_recipes.harness.conversation import TokenConversation
from holdfast_recipes.harness.limits import MINI, Resources
from holdfast_recipes.harness.machine import Machine
from holdfast_recipes.harness.rollout import Capacity, Settings, play
from holdfast_recipes.miniature import language
from holdfast_recipes.miniature.language import OPERATORS
from holdfast_recipes.miniature.teacher import Episode, Move, Teacher, collect
from holdfast_recipes.miniature.twin import Twin, World
from holdfast_recipes.pipeline.annotate import Estimate
from holdfast_recipes.pipeline.branching import grown
from holdfast_recipes.pipeline.estimators import BranchedMonteCarlo, MonteCarlo
from holdfast_recipes.pipeline.playing import continued
from holdfast_recipes.policy.scripted import ScriptedTokens, written
from holdfast_recipes.policy.tokenizer import ByteTokenizer
from holdfast_recipes.prompts.swe import SUBMIT_WORD
from holdfast_recipes.swe.job import SMALL, SweJob, maker
from holdfast_recipes.swe.sources import SweTask

from tests.recipes.pipeline.made import made
from tests.recipes.swe.conftest import Small, small_task
from tests.support.requires import requires
from tests.support.stack import Stack

WORLD = World.make(3, operators=8, numbers=24)
TEACHER = Teacher(WORLD)
TOKENIZER = ByteTokenizer()
LABELS = {"test": "branched-values"}


@dataclass
class TwinRuns:
    """Continues an episode of the twin by both ways, and counts the steps that were taken."""

    episode: Episode
    seed: int
    steps: int = 0

    def _draw(self, state: int, number: int) -> random.Random:
        return random.Random(f"{self.seed}-{state}-{number}")

    def _tried(self, state: int) -> list[int]:
        edits = [step.action[1] for step, move in zip(self.episode.steps[:state], self.episode.moves, strict=False) if move is Move.WRONG]
        return [OPERATORS.index(str(language.operator_name(word))) for word in edits]

    def _finish(self, twin: Twin, state: int, number: int) -> bool:
        end = TEACHER.play_on(twin, self.episode.states[state], self._tried(state), self._draw(state, number))
        self.steps += len(end.steps)
        return end.solved

    def repeat(self, twin: Twin, begin: int, end: int) -> None:
        for step in self.episode.steps[begin:end]:
            assert twin.step(step.action) == step.observation
            self.steps += 1

    async def replay(self, run: Trajectory, state: int, number: int) -> bool | None:
        twin = Twin(self.episode.bug, WORLD, TEACHER.most_steps)
        self.repeat(twin, 0, state)
        return self._finish(twin, state, number)

    @contextlib.asynccontextmanager
    async def grow(self, run: Trajectory) -> AsyncIterator[TwinTrunk]:
        yield TwinTrunk(self)


class TwinTrunk:
    """A copy of the twin is a branch of it."""

    def __init__(self, runs: TwinRuns) -> None:
        self._runs, self._at = runs, 0
        self._twin = Twin(runs.episode.bug, WORLD, TEACHER.most_steps)

    async def advance(self, state: int) -> bool:
        self._runs.repeat(self._twin, self._at, state)
        self._at = state
        return True

    async def branch(self, state: int, numbers: Sequence[int]) -> Sequence[Coroutine[Any, Any, bool | None]]:
        twins = [copy.deepcopy(self._twin) for _ in numbers]

        async def finish(twin: Twin, number: int) -> bool | None:
            return self._runs._finish(twin, state, number)

        return [finish(twin, number) for twin, number in zip(twins, numbers, strict=True)]


async def test_both_agree_with_the_exact_values_of_the_twin() -> None:
    k = 200
    steps: Counter[str] = Counter()
    differences = []
    for number, episode in enumerate(collect(TEACHER, 5, resolved=0, unresolved=6)[1]):
        run = made(turns=len(episode.steps))
        replayed, branched = TwinRuns(episode, 2 * number), TwinRuns(episode, 2 * number + 1)
        by_replay = (await MonteCarlo(replayed.replay, k).estimate(run)).values
        by_branch = (await BranchedMonteCarlo(branched.grow, k).estimate(run)).values
        assert by_replay is not None
        assert by_branch is not None
        for state in range(len(episode.steps)):
            exact = TEACHER.value(episode.states[state])
            error = math.sqrt(exact * (1 - exact) / k)
            assert abs(by_branch[state] - exact) <= 4 * error + 1e-9
            assert abs(by_branch[state] - by_replay[state]) <= 4 * math.sqrt(2) * error + 1e-9
            differences.append(by_branch[state] - by_replay[state])
        steps["replay"] += replayed.steps
        steps["branch"] += branched.steps
    assert steps["branch"] < steps["replay"]
    assert abs(sum(differences) / len(differences)) < 0.02, "neither is above the other"


async def test_with_the_same_seeds_both_are_equal_on_the_twin() -> None:
    (episode,) = collect(TEACHER, 7, resolved=0, unresolved=1)[1]
    run = made(turns=len(episode.steps))
    for stride in (1, 2):
        by_replay = await MonteCarlo(TwinRuns(episode, 1).replay, 6, stride=stride).estimate(run)
        assert (await BranchedMonteCarlo(TwinRuns(episode, 1).grow, 6, stride=stride, concurrency=4).estimate(run)) == by_replay


async def test_one_late_state_costs_a_fraction_of_the_steps() -> None:
    (episode,) = collect(TEACHER, 7, resolved=0, unresolved=1)[1]
    run, state = made(turns=len(episode.steps)), len(episode.steps) - 1
    replayed, branched = TwinRuns(episode, 1), TwinRuns(episode, 1)
    by_replay = await MonteCarlo(replayed.replay, 50).outcomes(run, [state])
    by_branch = await BranchedMonteCarlo(branched.grow, 50).outcomes(run, [state])
    assert sorted(by_branch[state]) == sorted(by_replay[state])
    assert len(by_branch[state]) == 50
    assert replayed.steps - branched.steps == 49 * state
    assert branched.steps * 5 < replayed.steps


class FakeTrunk:
    """Branches that wait until they are let go; some states cannot be reached or branched."""

    def __init__(self, most: int, *, unreachable: int = 99, unbranchable: int = 99) -> None:
        self.most, self.unreachable, self.unbranchable = most, unreachable, unbranchable
        self.live = self.highest = 0

    async def advance(self, state: int) -> bool:
        return state < self.unreachable

    async def branch(self, state: int, numbers: Sequence[int]) -> Sequence[Coroutine[Any, Any, bool | None]]:
        if state == self.unbranchable:
            return []
        self.live += len(numbers)
        self.highest = max(self.highest, self.live)

        async def finish(number: int) -> bool | None:
            await asyncio.sleep(0)
            self.live -= 1
            return None if number == 0 else True

        return [finish(number) for number in numbers]

    @contextlib.asynccontextmanager
    async def grow(self, run: Trajectory) -> AsyncIterator[FakeTrunk]:
        yield self


async def test_what_cannot_be_reached_or_branched_has_no_value_and_places_are_returned() -> None:
    trunk = FakeTrunk(3, unbranchable=1, unreachable=3)
    estimator = BranchedMonteCarlo(trunk.grow, 5, concurrency=3)
    estimates = await asyncio.gather(*(estimator.estimate(made(turns=5)) for _ in range(4)))
    for estimate in estimates:
        assert estimate.values == pytest.approx((1, 1, 1, 2 / 3, 1 / 3, 0))
        assert len(estimate.refused) == 25 - 2 * 4
    assert trunk.live == 0
    assert trunk.highest <= 3
    assert estimator._room._value == 3
    nothing = await BranchedMonteCarlo(FakeTrunk(3, unreachable=0).grow, 2).estimate(made(turns=2))
    assert (nothing.reason, nothing.passing) == ("no_continuations", True)
    with pytest.raises(ValueError, match="k=0"):
        BranchedMonteCarlo(trunk.grow, 0)


EDIT = "sed -i 's/a - b/a + b/' calc.py"
TURNS = 12


def turn(prompt: str, seed: int | None) -> str:
    """Look many times; repair the bug in a late turn with a chance that sinks from turn to turn; submit."""
    number = prompt.count("<|im_start|>assistant") - 1
    if number == TURNS - 1:
        return written("bash", command=f"git diff > /tmp/p; echo {SUBMIT_WORD} && cat /tmp/p")
    edits = number >= TURNS - 4 and random.Random(f"edit-{seed}").random() < 0.3
    return written("bash", command=EDIT if edits else f"cat calc.py; echo {number} >> /tmp/turns; wc -l < /tmp/turns")


@pytest.fixture
def small(tmp_path: Path) -> Small:
    return small_task(tmp_path / "archives")


@pytest.fixture
async def client(stack: Stack) -> AsyncIterator[AsyncSandboxClient]:
    async with AsyncSandboxClient(stack.url, stack.key) as client:
        yield client


class Counted:
    """Jobs whose sandboxes, and the commands in them, are counted."""

    def __init__(self, client: AsyncSandboxClient, small: Small, monkeypatch: pytest.MonkeyPatch) -> None:
        self.counts: Counter[str] = Counter()
        self._make, self._archives = maker(client, labels=LABELS), small.archives
        run, branch = AsyncSandbox.exec, AsyncSandbox.branch

        async def counted_exec(sandbox: AsyncSandbox, *words: Any, **options: Any) -> Any:
            self.counts["commands"] += 1
            return await run(sandbox, *words, **options)

        async def counted_branch(sandbox: AsyncSandbox, *given: Any, **options: Any) -> Any:
            found = await branch(sandbox, *given, **options)
            self.counts["branches"] += len(found)
            return found

        monkeypatch.setattr(AsyncSandbox, "exec", counted_exec)
        monkeypatch.setattr(AsyncSandbox, "branch", counted_branch)

    def job(self, task: SweTask) -> SweJob:
        async def make(task: SweTask, resources: Resources) -> Machine:
            self.counts["creates"] += 1
            return await self._make(task, resources)

        return SweJob(task, make, archives=self._archives, resources=SMALL)


def settings() -> Settings:
    policy = ScriptedTokens(turn, TOKENIZER, TOKENIZER.special("<|im_end|>"), version=3)
    return Settings(lambda: TokenConversation(policy, TOKENIZER), MINI, Capacity(6), run="mc")


@requires("namespaces", "root", "redis", "git")
async def test_both_agree_in_sandboxes_and_branches_run_fewer_commands(
    client: AsyncSandboxClient, small: Small, monkeypatch: pytest.MonkeyPatch, record_property: Any
) -> None:
    """The policy is the same function of prompt and seed, so both must find the same values."""
    counted = Counted(client, small, monkeypatch)
    tasks = {small.task.task_id: small.task}
    attempts = [await play(counted.job(small.task), settings(), seed=seed, trajectory_id=f"run-{seed}") for seed in range(4)]
    run = next(each for each in attempts if not each.resolved)
    assert len(run.turns) == TURNS
    diverged: Counter[str] = Counter()
    found: dict[str, Estimate] = {}
    cost: dict[str, dict[str, float]] = {}
    by_replay = MonteCarlo(continued(counted.job, tasks, settings(), diverged), 3, stride=4, concurrency=3)
    by_branch = BranchedMonteCarlo(grown(counted.job, tasks, settings(), diverged), 3, stride=4, concurrency=3)
    for name, estimator in (("replay", by_replay), ("branch", by_branch)):
        counted.counts.clear()
        began = time.perf_counter()
        found[name] = await estimator.estimate(run)
        cost[name] = {"seconds": time.perf_counter() - began, **counted.counts}
        record_property(name, cost[name])
    print(cost)
    assert found["branch"].values == found["replay"].values
    assert found["branch"].refused == ()
    assert not diverged
    assert cost["branch"]["branches"] == 9
    assert cost["branch"]["commands"] < cost["replay"]["commands"]
    assert await client.list_sandboxes(LABELS) == []


@requires("namespaces", "root", "redis", "git")
async def test_a_run_that_cannot_be_repeated_has_no_values_and_leaves_no_sandbox(client: AsyncSandboxClient, small: Small) -> None:
    def job(task: SweTask) -> SweJob:
        return SweJob(task, maker(client, labels=LABELS), archives=small.archives, resources=SMALL)

    run = await play(job(small.task), settings(), seed=1, trajectory_id="run")
    seen = run.turns[1].observations[0]
    other = replace(run.turns[1], observations=(replace(seen, exit_code=9),))
    changed = replace(run, reward=-1.0, turns=(run.turns[0], other, *run.turns[2:]))
    diverged: Counter[str] = Counter()
    grow = grown(job, {small.task.task_id: small.task}, settings(), diverged)
    estimate = await BranchedMonteCarlo(grow, 1, stride=4, concurrency=1).estimate(changed)
    assert diverged == {small.task.task_id: 1}
    assert len(estimate.refused) == 2, "only the first state was reached"
    assert await client.list_sandboxes(LABELS) == []
