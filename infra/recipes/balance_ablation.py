"""E6: what Balanced Adaptive Rollout changes, against plain groups and filtered fixed groups, on the twin.

Owns what an arm is: how the group of a prompt is made, which pool of tasks, whether rewards are flipped. All arms of a seed share the
initial policy, the pool and the tasks of the evaluation. Costs are counted in rollouts, not in seconds.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from typing import Any

from holdfast_recipes.core.balance import Balance
from holdfast_recipes.core.curation import in_band
from holdfast_recipes.core.groups import GroupRules
from holdfast_recipes.core.presets import Optimiser
from holdfast_recipes.core.schedule import Schedule
from holdfast_recipes.core.scored import Scored
from holdfast_recipes.miniature.teacher import collect
from holdfast_recipes.miniature.twin import Bug, Twin
from holdfast_recipes.pipeline.batching import Batching
from holdfast_recipes.training.model import Model
from holdfast_recipes.training.policy import Played, play
from holdfast_recipes.training.rl import Learner, Lockstep, Objective, endless, train

from . import plan, student


def run(job: plan.Job) -> dict[str, Any]:
    """Train one arm from the seed's initial policy and evaluate it along the way."""
    settings, seed = job.settings, job.seed
    model, training = initial(settings, seed)
    pool = task_pool(model, settings, seed)
    tasks = plan.held_out(settings, seed)
    curve: list[dict[str, Any]] = [_point(model, settings, seed, tasks, pool, 0, 0)]
    if len(pool) < settings["prompts"]:
        return {"initial": training, "pool": len(pool), "refused": "too few tasks in the pool", "curve": curve}
    started = time.monotonic()
    learner = Learner(
        model,
        Optimiser(settings["rl_rate"], settings["rl_rate"], weight_decay=0.0),
        Schedule(settings["rl_rate"], settings["updates"], settings["rl_rate"], shape="constant"),
        lambda episode, advantage: episode.row(advantage),
        objective=Objective(),
    )
    source = Lockstep(batching(settings, pool, seed), rollouts(settings, seed), learner.weights(), seed)
    steps: list[dict[str, float]] = []

    def report(numbers: dict[str, float]) -> None:
        steps.append(numbers)
        if len(steps) % settings["evaluate_every"] == 0:
            generated = int(sum(each.get("generated", 0.0) for each in steps))
            curve.append(_point(learner.model, settings, seed, tasks, pool, len(steps), generated))

    asyncio.run(train(learner, source, settings["updates"], report=report, overlap=False))
    totals = {name: sum(each.get(name, 0.0) for each in steps) for name in sorted({name for each in steps for name in each})}
    return {
        "initial": training,
        "pool": len(pool),
        "curve": curve,
        "updates": len(steps),
        "totals": {name: value for name, value in totals.items() if name not in ("version", "rate")},
        "seconds": round(time.monotonic() - started, 1),
    }


def initial(settings: dict[str, Any], seed: int) -> tuple[Model, dict[str, float]]:
    """The policy that every arm of a seed starts from: supervised on resolved runs of the teacher."""
    teacher = plan.teacher(settings, seed)
    wins, _ = collect(teacher, seed, resolved=settings["runs"], unresolved=0, tasks=plan.trained(settings, teacher.world, seed))
    return student.supervised(settings, [student.row(each) for each in wins], seed)


def task_pool(model: Model, settings: dict[str, Any], seed: int) -> list[Bug]:
    """Tasks whose success rate over so many trial rollouts of the initial policy lies in the band (0, most] (P §3.3.3)."""
    world, trials = plan.world(settings, seed), settings["trials"]
    candidates = [bug for _, bug in zip(range(settings["candidates"]), plan.trained(settings, world, 500_000 + seed), strict=False)]
    twins = [Twin(bug, world, settings["most_steps"]) for bug in candidates for _ in range(trials)]
    episodes = play(model, twins, [seed * 7_000_003 + index for index in range(len(twins))])
    successes = [sum(each.twin.solved for each in episodes[start : start + trials]) for start in range(0, len(episodes), trials)]
    return [bug for bug, count in zip(candidates, successes, strict=True) if in_band(count, trials, 0, settings["most_success"])][
        : settings["pool"]
    ]


def batching(settings: dict[str, Any], pool: Sequence[Bug], seed: int) -> Batching[Bug]:
    """Prompts of the pool in groups as the arm makes them. ``keep_all``: plain GRPO, where a group without variance stays, with
    advantages of zero."""
    low, high = settings.get("share", ["0", "1"])
    size, budget, stride = settings["size"], settings.get("budget", settings["size"]), settings.get("stride", settings["size"])
    rules = GroupRules(tolerance=-1.0, least_usable=1) if settings.get("keep_all") else None

    def balance() -> Balance:
        return Balance(size, budget, stride, low, high, rank_negative=settings.get("rank_negative", "shortest"), seed=seed)

    return Batching(endless(pool, seed), batch=settings["prompts"], balance=balance, oversample="1", rules=rules)


def rollouts(settings: dict[str, Any], seed: int) -> Any:
    """Plays tasks; flips a share of the rewards where the arm asks for label noise."""
    world, noise = plan.world(settings, seed), settings.get("label_noise", 0.0)
    draw = random.Random(f"flips-{seed}")

    def many(model: Model, tasks: Sequence[Bug], seeds: Sequence[int]) -> list[Scored]:
        played: list[Played] = play(model, [Twin(task, world, settings["most_steps"]) for task in tasks], seeds)
        made = []
        for episode in played:
            right = episode.twin.solved != (draw.random() < noise)
            made.append(episode.scored(1.0 if right else -1.0))
        return made

    return many


def _point(
    model: Model, settings: dict[str, Any], seed: int, tasks: Sequence[Bug], pool: Sequence[Bug], updates: int, generated: int
) -> dict[str, Any]:
    """Where a policy stands: on held-out tasks, and on those of its pool (four rollouts each)."""
    fresh = student.evaluated(model, settings, seed, tasks)
    own = student.evaluated(model, settings, seed + 17, [task for task in pool for _ in range(4)]) if pool else {"solved": [0]}
    return {
        "updates": updates,
        "generated": generated,
        "solved": fresh["solved"],
        "localised": sum(fresh["localised"]) / len(tasks),
        "pool_solved": sum(own["solved"]) / len(own["solved"]),
    }
