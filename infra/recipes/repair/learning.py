"""SFT on the teacher's runs, RL on rollouts in sandboxes, evaluation: E1, whole, from tasks to a curve.

Owns the order and the numbers of one run. Rollouts come from the rollout manager while the learner works; weights are at most one step old.
Injected faults differ between runs in nothing else.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from holdfast import AsyncSandboxClient
from holdfast_recipes.core.balance import Balance
from holdfast_recipes.core.groups import GroupRules
from holdfast_recipes.core.metrics import wilson
from holdfast_recipes.core.presets import Optimiser
from holdfast_recipes.core.records import from_json, to_json
from holdfast_recipes.core.schedule import Schedule
from holdfast_recipes.core.trajectory import Trajectory
from holdfast_recipes.harness.conversation import TokenConversation
from holdfast_recipes.harness.limits import MINI, Limits, RolloutLimits
from holdfast_recipes.harness.rollout import Capacity, Counts, Settings, play
from holdfast_recipes.miniature import language
from holdfast_recipes.pipeline.batching import Batching
from holdfast_recipes.pipeline.rollouts import RolloutManager, Ticket
from holdfast_recipes.policy.base import ContextLengthError, Finish, Generation, Policy
from holdfast_recipes.training.batches import Row
from holdfast_recipes.training.model import Model, Shape
from holdfast_recipes.training.policy import generate
from holdfast_recipes.training.rl import Learner, Objective, endless, train
from holdfast_recipes.training.sft import Sft

from infra.recipes import jobs

from .job import FORMAT, Faults, RepairJob, Words
from .material import Library
from .tasks import Task
from .teacher import RepairTeacher


def limits(steps: int) -> Limits:
    """The wall clock is for what hangs: on a busy machine a rollout's commands take as long as they take."""
    return replace(MINI, rollout=RolloutLimits(steps=steps, wall_s=900, tokens=180))


class TinyPolicy:
    """A model as a policy of token ids. New weights take effect at the next turn."""

    def __init__(self, model: Model, temperature: float = 1.0, seconds: Counter[str] | None = None) -> None:
        self.name, self.version = "tiny", 0
        self.model, self._temperature = model, temperature
        self._seconds = Counter() if seconds is None else seconds

    async def generate(self, prompt_ids: Sequence[int], *, seed: int | None, max_new_tokens: int, stop: Collection[int]) -> Generation:
        if len(prompt_ids) >= self.model.shape.context:
            raise ContextLengthError(f"{len(prompt_ids)} tokens, and the model reads {self.model.shape.context}")
        drawn = random.getrandbits(31) if seed is None else seed
        started = time.monotonic()
        ids, logprobs = generate(
            self.model, prompt_ids, seed=drawn, most_tokens=max_new_tokens, stop=list(stop), temperature=self._temperature
        )
        self._seconds["policy"] += time.monotonic() - started  # type: ignore[assignment]  # a Counter adds floats as well
        return Generation(tuple(ids), tuple(logprobs), Finish.STOP if ids[-1] in stop else Finish.LENGTH, self.version)

    def publish(self, model: Model, version: int) -> None:
        self.model, self.version = model, version


@dataclass
class Lab:
    """What the parts of a run share. ``concurrency`` sandboxes at a time."""

    client: AsyncSandboxClient
    library: Library
    concurrency: int = 4
    most_steps: int = 16
    faults: Faults | None = None
    counts: Counts = field(default_factory=Counts)
    seconds: Counter[str] = field(default_factory=Counter)
    """Of all rollouts: creating and deleting sandboxes, commands, what their round trips took beside, the policy, whole rollouts."""

    def settings(self, policy: Policy) -> Settings:
        return Settings(
            lambda: TokenConversation(policy, Words(), FORMAT),
            limits(self.most_steps),
            self.capacity,
            self.counts,
            turn_tokens=language.MOST_ACTION_TOKENS,
        )

    def __post_init__(self) -> None:
        self.capacity = Capacity(self.concurrency * 2, self.concurrency)

    def job(self, task: Task, faults: Faults | None = None) -> RepairJob:
        return RepairJob(self.client, self.library, task, faults=faults, seconds=self.seconds)

    async def rollout(self, policy: Policy, task: Task, seed: int, faults: Faults | None = None) -> Trajectory:
        started = time.monotonic()
        try:
            return await play(self.job(task, faults), self.settings(policy), seed=seed)
        finally:
            self.seconds["rollouts"] += time.monotonic() - started  # type: ignore[assignment]

    async def rollouts(self, policy: Policy, tasks: Sequence[Task], seeds: Sequence[int], kept: Path | None = None) -> list[Trajectory]:
        """One rollout for each task and seed, in order; a failed one is a trajectory too. Finished ones are added to the file ``kept``,
        and those that are in it are not played again."""
        gate = asyncio.Semaphore(self.concurrency)
        done = {line["place"]: from_json(line["run"]) for line in jobs.read(kept)} if kept else {}

        async def one(place: int, task: Task, seed: int) -> Trajectory:
            if place in done:
                return done[place]
            async with gate:
                run = await self.rollout(policy, task, seed)
            if kept:
                jobs.append(kept, {"place": place, "run": to_json(run)})
            return run

        return list(await asyncio.gather(*(one(place, *each) for place, each in enumerate(zip(tasks, seeds, strict=True)))))


def row(run: Trajectory, advantage: float = 0.0) -> Row:
    """The tokens of a run as they were sampled."""
    assert run.tokens is not None
    return Row(run.tokens.ids, run.tokens.loss_mask, run.tokens.logprobs, advantage)


async def collected(
    lab: Lab, tasks: Sequence[Task], runs: int, seed: int, wander: float = 0.15, kept: Path | None = None
) -> list[Trajectory]:
    """``runs`` runs of the teacher over the tasks in turn."""
    chosen = [tasks[index % len(tasks)] for index in range(runs)]
    return await lab.rollouts(RepairTeacher(wander), chosen, [seed * 100_003 + index for index in range(runs)], kept)


def supervised(runs: Sequence[Trajectory], *, epochs: int, seed: int, rate: float = 1e-2, batch: int = 16) -> Model:
    """A policy from scratch, trained on the resolved runs."""
    rows = [row(run) for run in runs if run.resolved and run.tokens]
    model = Model(Shape(len(language.WORDS), width=48, layers=2, heads=4, context=192), seed)
    steps = max(1, len(rows) * epochs // batch)
    Sft(model, rows, Optimiser(rate, rate / 10), Schedule(rate, steps, rate / 10, 0.05), batch=batch, seed=seed).run()
    return model


@dataclass(frozen=True, slots=True)
class Trained:
    model: Model
    steps: list[dict[str, float]]
    managed: list[dict[str, Any]]
    seconds: float
    optimiser_steps: int
    refused: int


async def reinforced(
    lab: Lab,
    model: Model,
    tasks: Sequence[Task],
    *,
    updates: int,
    prompts: int,
    size: int,
    seed: int,
    rate: float = 1e-3,
    epochs: int = 1,
    keep_all: bool = False,
    checkpoint: Path | None = None,
) -> Trained:
    """``updates`` updates of ``prompts`` groups of ``size`` rollouts, ``epochs`` optimiser steps each: fixed groups, those without variance
    dropped unless ``keep_all``. With a ``checkpoint`` each update is saved with its figures, and what was cut short goes on after the last
    one, with prompts and chance of its own: only rollouts that were in flight are made anew."""
    schedule = Schedule(rate, updates * epochs, rate, shape="constant")
    learner = Learner(model, Optimiser(rate, rate, weight_decay=0.0), schedule, row, objective=Objective(epochs=epochs))
    steps: list[dict[str, float]] = []
    reports: list[dict[str, Any]] = []
    before_s = 0.0
    if checkpoint and checkpoint.exists():
        state = learner.optimisation.load(checkpoint)
        learner.version, learner.refused, before_s = state["version"], state["refused"], state["rl_seconds"]
        steps, reports = list(state["steps"]), list(state["reports"])
        lab.seconds.update(state["seconds"])
        if lab.faults:
            lab.faults.resume(state["injected"], learner.version)
        seed += 1_000_003 * learner.version
    policy = TinyPolicy(learner.weights(), seconds=lab.seconds)
    batching = Batching(
        endless(tasks, seed),
        batch=prompts,
        balance=lambda: Balance(size, size, size, "0", "1"),
        oversample="1.25" if not keep_all else "1",
        rules=GroupRules(tolerance=-1.0, least_usable=1, most_infrastructure=size) if keep_all else None,
    )

    finished: Counter[str] = Counter()

    async def rollout(task: Task, ticket: Ticket) -> Trajectory:
        run = await lab.rollout(policy, task, ticket.seed, lab.faults)
        finished.update(graded=run.reward is not None, solved=run.resolved)
        return run

    batching.version = policy.version = learner.version
    started = time.monotonic()

    def updated(numbers: dict[str, float]) -> None:
        """``graded`` and ``solved`` are of all rollouts since the update before, also of those in groups that were dropped."""
        steps.append(numbers | dict(finished) | {"at_s": before_s + time.monotonic() - started})
        finished.clear()
        if checkpoint:
            learner.optimisation.save(
                checkpoint,
                version=learner.version,
                refused=learner.refused,
                steps=steps,
                reports=reports[: learner.version],
                seconds=dict(lab.seconds),
                injected=lab.faults.counted() if lab.faults else {},
                rl_seconds=before_s + time.monotonic() - started,
            )

    async with RolloutManager(
        batching,
        rollout,
        concurrency=lab.concurrency,
        step_limit_s=1800,
        seed=seed,
        use=policy.publish,
        report=lambda step: reports.append(step.to_json()),
    ) as manager:
        await train(learner, manager, updates - learner.version, report=updated)
    return Trained(learner.model, steps, reports, before_s + time.monotonic() - started, learner.optimisation.step, learner.refused)


async def evaluated(lab: Lab, model: Model, tasks: Sequence[Task], *, tries: int, seed: int, kept: Path | None = None) -> dict[str, Any]:
    """Solved shares over tasks; trials that infrastructure spoiled are counted apart."""
    chosen = [task for task in tasks for _ in range(tries)]
    runs = await lab.rollouts(TinyPolicy(model), chosen, [seed * 200_003 + index for index in range(len(chosen))], kept)
    graded = [run for run in runs if run.reward is not None]
    solved = sum(run.resolved for run in graded)
    made = wilson(solved, len(graded))
    by_task: dict[str, list[int]] = {}
    for run in graded:
        by_task.setdefault(run.task_id, []).append(int(run.resolved))
    return {
        "tasks": len(tasks),
        "graded": len(graded),
        "spoilt": len(runs) - len(graded),
        "solved": round(made.estimate, 4),
        "interval": [round(made.low, 4), round(made.high, 4)],
        "by_task": by_task,
        "ends": dict(Counter(f"{run.status}:{run.reason}" for run in runs)),
    }
