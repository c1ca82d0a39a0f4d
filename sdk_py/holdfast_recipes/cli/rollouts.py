"""``holdfast recipes collect`` and ``annotate``: rollouts of tasks into a run's folder, and values of the states of unresolved runs.

Owns arguments, what goes on where it ended, and printing. The work is done in ``pipeline.collect`` and ``pipeline.annotate``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Literal

from holdfast_recipes.core import diffs
from holdfast_recipes.core.records import to_json
from holdfast_recipes.core.trajectory import Trajectory
from holdfast_recipes.pipeline import files
from holdfast_recipes.pipeline.annotate import Estimate, LlmRetrospective, ValueEstimator, first_user_text
from holdfast_recipes.pipeline.annotate import annotate as annotated
from holdfast_recipes.pipeline.baselines import BASELINES
from holdfast_recipes.pipeline.branching import grown
from holdfast_recipes.pipeline.collect import Collected
from holdfast_recipes.pipeline.collect import collect as collected
from holdfast_recipes.pipeline.errors import SettingError
from holdfast_recipes.pipeline.estimators import BranchedMonteCarlo, Milestones, MonteCarlo, repair_milestones
from holdfast_recipes.pipeline.images import Images
from holdfast_recipes.pipeline.playing import collected as rollouts_of
from holdfast_recipes.pipeline.playing import continued
from holdfast_recipes.pipeline.progress import Progress
from holdfast_recipes.pipeline.runs import Plan, Run
from holdfast_recipes.pipeline.service import (
    OWN,
    PAIRS,
    add_policy,
    add_sandboxes,
    chat_policy,
    check_policy,
    limits_of,
    run_until_ended,
    service,
)
from holdfast_recipes.pipeline.tree_sampler import TreeSampler
from holdfast_recipes.policy.openai_chat import OpenAIChat
from holdfast_recipes.swe.sources import READERS, SweTask

ESTIMATORS = ("llm", "milestones", "monte-carlo", "branched-monte-carlo")


def add_collect(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("tasks", metavar="TASKS", type=Path, help="tasks as JSON lines or parquet")
    parser.add_argument(
        "--source", choices=[*READERS, "mutation"], help="the published format of the rows; without it they are our own records"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="the run's folder; an unfinished run goes on")
    parser.add_argument("--rollouts", type=int, default=5, metavar="N", help="of each task (%(default)s)")
    parser.add_argument("--most", type=int, metavar="N", help="only the first tasks")
    parser.add_argument(
        "--branch-turn",
        type=int,
        metavar="N",
        help="rollouts of a task share their first N turns, played once in a sandbox that is then branched (only --harness mini)",
    )
    parser.add_argument("--branches", type=int, metavar="K", help="with --branch-turn: so many rollouts share them (all of a task)")
    parser.add_argument("--seed", type=int, default=0, help="(%(default)s)")
    parser.add_argument("--name", help="of the run (the folder's name)")
    parser.add_argument("--tries", type=int, default=3, metavar="N", help="of a rollout that infrastructure spoils (%(default)s)")
    parser.add_argument("--no-pull", action="store_true", help="leave images to the creation of sandboxes")
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    add_policy(parser)
    add_sandboxes(parser)
    parser.epilog = (
        parser.epilog or ""
    ) + f"\n--policy may also be {' or '.join(BASELINES)}: the gold patch, or none, to check tasks without a model."


def collect(arguments: argparse.Namespace) -> int:
    """125 where infrastructure has spoiled every rollout."""
    if not arguments.policy:
        raise SettingError("--policy is missing", hint=f"an endpoint's address, or one of {', '.join(BASELINES)}")
    tasks = files.tasks(arguments.tasks, arguments.source)[: arguments.most]
    if not tasks:
        raise SettingError("--most leaves no task")
    if arguments.policy not in BASELINES and arguments.harness in OWN:
        check_policy(arguments, arguments.model or "")  # before the run's folder keeps the settings
    _check_trees(arguments)
    name = arguments.name or re.sub(r"[^A-Za-z0-9._-]+", "-", arguments.out.resolve().name).strip("._-")[:60]
    baseline = arguments.policy in BASELINES
    shaping = {"model": arguments.policy if baseline else arguments.model, "temperature": arguments.temperature}
    shaping |= {
        "harness": arguments.harness,
        "limits": repr(limits_of(arguments).rollout),
        "cpu": arguments.cpu,
        "memory": arguments.memory,
    }
    if arguments.branch_turn is not None:
        shaping |= {"branch_turn": arguments.branch_turn, "branches": arguments.branches}
    plan = Plan(name, arguments.rollouts, arguments.seed, arguments.tries, shaping)
    return run_until_ended(_collect(arguments, plan, tasks))


def _check_trees(arguments: argparse.Namespace) -> None:
    """Also chooses how many rollouts share their first turns, where that was not given."""
    if arguments.branch_turn is None:
        if arguments.branches is not None:
            raise SettingError("--branches needs --branch-turn", hint="say after which turn the sandbox is branched")
        return
    if arguments.harness != "mini":
        raise SettingError(f"--branch-turn cannot use --harness {arguments.harness}", hint="use mini")
    arguments.branches = arguments.rollouts if arguments.branches is None else arguments.branches
    if arguments.branch_turn < 1 or arguments.branches < 2:
        raise SettingError("--branch-turn must be at least 1, and --branches (or --rollouts) at least 2")


async def _collect(arguments: argparse.Namespace, plan: Plan, tasks: list[SweTask]) -> int:
    progress = Progress(False if arguments.quiet or arguments.json else None)
    with Run.open(arguments.out, plan, tasks) as run:
        async with service(arguments, plan.name, arguments.tasks, arguments.out / PAIRS) as open_service:
            images = Images(None if arguments.no_pull else open_service.pull)
            talk = None if open_service.settings.agent is not None else open_service.talk
            async with contextlib.AsyncExitStack() as stack:
                if arguments.branch_turn is None:
                    rollout = rollouts_of(open_service.jobs, open_service.settings, talk)
                else:
                    trees = TreeSampler(open_service.jobs, open_service.settings, turn=arguments.branch_turn, k=arguments.branches)
                    rollout = (await stack.enter_async_context(trees)).collected(talk)
                done = await collected(run, rollout, concurrency=arguments.concurrency, images=images, progress=progress)
    print(json.dumps({"folder": str(arguments.out), **done.to_json()}, indent=2) if arguments.json else _summary(done, arguments.out))
    return 125 if done.given_up and not done.finished else 0


def _summary(done: Collected, folder: Path) -> str:
    now = ", ".join(f"{count} {name}" for name, count in done.outcomes.items() if count) or "nothing"
    lines = [f"{done.finished} of {done.total} rollouts are in {folder}; now: {now}"]
    if done.given_up:
        lines.append(f"{done.given_up} were given up: every try failed because of infrastructure (see faults.jsonl)")
    if done.events:
        lines.append("events: " + ", ".join(f"{name} {count}" for name, count in done.events.items()))
    if done.images_not_pulled:
        lines.append(f"images that could not be pulled ahead: {', '.join(done.images_not_pulled[:5])}")
    if done.seconds:
        lines.append("seconds by layer: " + ", ".join(f"{name} {value:.1f}" for name, value in done.seconds.items()))
    return "\n".join(lines)


def add_annotate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", type=Path, help="a run's folder, or a file of trajectories")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="trajectories with values; what is there already is kept")
    parser.add_argument("--estimator", choices=ESTIMATORS, default="llm", help="(%(default)s)")
    parser.add_argument("--tasks", type=Path, metavar="FILE", help="the tasks: for issue texts, and needed by all estimators but llm")
    parser.add_argument("--source", choices=[*READERS, "mutation"], help="of the tasks' rows")
    parser.add_argument("--tries", type=int, default=3, metavar="N", help="answers that a model may give for a run (%(default)s)")
    parser.add_argument("--interpolation", choices=("linear", "previous"), default="linear", help="between annotated steps (%(default)s)")
    parser.add_argument("--every-step", action="store_true", help="refuse answers that leave steps out")
    parser.add_argument("--k", type=int, default=8, help="monte-carlo: continuations from a state (%(default)s)")
    parser.add_argument("--stride", type=int, default=1, help="monte-carlo: estimate every so many states (%(default)s)")
    add_policy(parser)
    add_sandboxes(parser)
    parser.epilog = (
        parser.epilog or ""
    ) + "\nWithout --model each run is annotated by the model that made it. Runs that a model could not annotate are in FILE.refused."


def annotate(arguments: argparse.Namespace) -> int:
    """125 where runs are left because the endpoint or sandboxes were not there: the same command goes on."""
    if arguments.out.resolve() == arguments.run.resolve():
        raise SettingError("--out is the file that is read", hint="give another one")
    tasks = {task.task_id: task for task in files.tasks(arguments.tasks, arguments.source)} if arguments.tasks else {}
    if arguments.estimator != "llm" and not tasks:
        raise SettingError(f"--estimator {arguments.estimator} needs --tasks", hint="the file that the run was collected from")
    if arguments.estimator != "milestones" and not arguments.policy:
        raise SettingError(f"--estimator {arguments.estimator} needs --policy", hint="an endpoint's address")
    if arguments.estimator == "branched-monte-carlo" and arguments.harness != "mini":
        raise SettingError(f"--estimator branched-monte-carlo cannot use --harness {arguments.harness}", hint="use mini, or monte-carlo")
    if min(arguments.tries, arguments.k, arguments.stride, arguments.concurrency) < 1:
        raise SettingError("--tries, --k, --stride and --concurrency must be at least 1")
    return run_until_ended(_annotate(arguments, tasks))


async def _annotate(arguments: argparse.Namespace, tasks: Mapping[str, SweTask]) -> int:
    counts: Counter[str] = Counter()
    left = 0
    refused = arguments.out.with_name(arguments.out.name + ".refused")
    with files.Journal(arguments.out) as done, files.Journal(refused) as refusals:
        ids = {str(record["trajectory_id"]) for _, record in files.lines(arguments.out)}
        counts["done_before"] = len(ids)
        async with contextlib.AsyncExitStack() as stack:
            estimator = await _estimator(arguments, tasks, stack)
            async for each in annotated(_fresh(arguments.run, ids), estimator, concurrency=arguments.concurrency):
                counts[each.outcome] += 1
                if each.estimate is not None and each.estimate.values is None:
                    record = {"trajectory_id": each.trajectory.trajectory_id, "reason": each.estimate.reason}
                    refusals.append(record | {"refused": list(each.estimate.refused)})
                    if each.estimate.passing:
                        left += 1
                        continue
                done.append(to_json(each.trajectory))
    shown = {name: count for name, count in counts.items() if count}
    if arguments.json:
        print(json.dumps({"file": str(arguments.out), "counts": shown, "left": left}, indent=2))
    else:
        print(f"wrote {arguments.out}: " + (", ".join(f"{name} {count}" for name, count in sorted(shown.items())) or "no runs"))
        print(*([f"{left} runs are left: the same command goes on"] if left else []), sep="\n", end="\n" if left else "")
    return 125 if left else 0


def _fresh(path: Path, ids: set[str]) -> Iterator[Trajectory]:
    for run in files.trajectories(path):
        if run.trajectory_id not in ids:
            ids.add(run.trajectory_id)
            yield run


async def _estimator(arguments: argparse.Namespace, tasks: Mapping[str, SweTask], stack: contextlib.AsyncExitStack) -> ValueEstimator:
    if arguments.estimator == "milestones":
        return Milestones(lambda run: repair_milestones(diffs.touched(_task(tasks, run).gold_patch)))
    if arguments.estimator in ("monte-carlo", "branched-monte-carlo"):
        assert arguments.tasks is not None
        open_service = await stack.enter_async_context(service(arguments, "monte-carlo", arguments.tasks))
        settings = replace(open_service.settings, conversation=lambda: open_service.talk(next(iter(tasks.values()))))
        more = {"stride": arguments.stride, "concurrency": arguments.concurrency, "interpolation": arguments.interpolation}
        if arguments.estimator == "monte-carlo":
            return MonteCarlo(continued(open_service.jobs, tasks, settings), arguments.k, **more)
        return BranchedMonteCarlo(grown(open_service.jobs, tasks, settings), arguments.k, **more)
    return _Teachers(arguments, tasks, stack)


def _task(tasks: Mapping[str, SweTask], run: Trajectory) -> SweTask:
    if run.task_id not in tasks:
        raise SettingError(f"--tasks lacks the task {run.task_id}", hint="give the file that the run was collected from")
    return tasks[run.task_id]


class _Teachers:
    """Each run is annotated by the model that made it, unless one was named."""

    name = LlmRetrospective.name
    value_of: Literal["after"] = LlmRetrospective.value_of
    prompts: ClassVar[Mapping[str, str]] = LlmRetrospective.prompts

    def __init__(self, arguments: argparse.Namespace, tasks: Mapping[str, SweTask], stack: contextlib.AsyncExitStack) -> None:
        self._arguments, self._tasks, self._stack = arguments, tasks, stack
        self._made: dict[str, LlmRetrospective] = {}

    async def estimate(self, trajectory: Trajectory) -> Estimate:
        model = self._arguments.model or trajectory.policy.name
        if model not in self._made:
            policy: OpenAIChat = chat_policy(self._arguments, model)
            self._stack.push_async_callback(policy.aclose)
            self._made[model] = LlmRetrospective(
                policy,
                tries=self._arguments.tries,
                sparse=not self._arguments.every_step,
                interpolation=self._arguments.interpolation,
                issue=self._issue,
            )
        return await self._made[model].estimate(trajectory)

    def _issue(self, run: Trajectory) -> str:
        return self._tasks[run.task_id].prompt if run.task_id in self._tasks else first_user_text(run)
