"""A suite from its tasks to its result: rollouts into a folder, resumably, then rates, cost and the digests of the images.

Owns the order, and ``images.json`` in the run's folder. Rollouts are ``pipeline.collect``'s: a run that was killed goes on with the same
command, and repeats nothing that it finished.
"""

from __future__ import annotations

import argparse
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path

from holdfast import AsyncSandboxClient

from holdfast_recipes.core.records import from_json
from holdfast_recipes.pipeline import files, runs
from holdfast_recipes.pipeline.collect import Collected
from holdfast_recipes.pipeline.collect import collect as collected
from holdfast_recipes.pipeline.errors import DataError, SettingError
from holdfast_recipes.pipeline.evaluate import Prices, evaluate
from holdfast_recipes.pipeline.images import Images
from holdfast_recipes.pipeline.progress import Progress
from holdfast_recipes.pipeline.runs import Plan, Run, Task
from holdfast_recipes.pipeline.service import PAIRS, limits_of, service

from .kinds import KINDS
from .registry import Suite
from .results import Result

IMAGES = "images.json"
NO_IMAGE = "none"
"""The digest of what the service has no image for: the machine's own files."""


async def play(name: str, suite: Suite, arguments: argparse.Namespace) -> tuple[Result, Collected]:
    """Play what is left of a suite. Raises DataError where none of its tasks can be run here."""
    kind = KINDS[suite.kind]
    found = kind.read(suite, arguments)[: arguments.most]
    problems = {task.task_id: why for task in found if (why := kind.problem(task))}
    tasks = [task for task in found if task.task_id not in problems]
    if not tasks:
        first = next((f": {task}: {why}" for task, why in problems.items()), "")
        raise DataError(f"no task of the suite can be run here{first}", hint="--image and --pass-env help with some reasons")
    plan = plan_of(name, arguments)
    progress = Progress(False if arguments.quiet or arguments.json else None)
    with Run.open(arguments.out, plan, tasks) as run:
        async with service(arguments, plan.name, arguments.tasks, arguments.out / PAIRS) as open_service:
            rollout = kind.rollout(open_service, arguments)
            images = Images(None if arguments.no_pull else open_service.pull)
            done = await collected(run, rollout, concurrency=arguments.concurrency, images=images, progress=progress)
            digests = await note_images(open_service.client, arguments.out / IMAGES, tasks)
    return result_of(name, suite, arguments, tasks, problems, digests), done


def plan_of(name: str, arguments: argparse.Namespace) -> Plan:
    """The settings that every part of the run must share."""
    words = re.sub(r"[^A-Za-z0-9._-]+", "-", arguments.out.resolve().name).strip("._-")[:60]
    shaping = {
        "suite": name,
        "harness": arguments.harness,
        "policy": arguments.policy if arguments.policy in ("gold", "nothing") else "endpoint",
        "model": arguments.model,
        "temperature": arguments.temperature,
        "limits": repr(limits_of(arguments).rollout),
        "command_timeout": arguments.command_timeout,
        "network": not arguments.no_network,
        "cpu": arguments.cpu,
        "memory": arguments.memory,
    }
    return Plan(words or name, arguments.rollouts, arguments.seed, arguments.tries, shaping)


async def note_images(client: AsyncSandboxClient, path: Path, tasks: Sequence[Task]) -> dict[str, list[str]]:
    """The digests of the tasks' images now, added to those that earlier parts of the run noted: a tag that moved in between is seen by its
    two digests."""
    now = {image.name: image.digest for image in await client.images.list()}
    known: dict[str, list[str]] = json.loads(path.read_text()) if path.is_file() else {}
    for name in sorted({task.image for task in tasks}):
        digest = digest_of(name, now) or NO_IMAGE
        known.setdefault(name, [])
        if digest not in known[name]:
            known[name].append(digest)
    part = path.with_suffix(f".{os.getpid()}")
    part.write_text(json.dumps(known, indent=1, sort_keys=True))
    part.replace(path)
    return known


def digest_of(image: str, known: dict[str, str]) -> str:
    """Of an image by any of the ways in which its name may be written."""
    bare = image.removeprefix("docker.io/").removeprefix("library/")
    for name in (image, bare, f"{bare}:latest", f"docker.io/{bare}", f"docker.io/library/{bare}", f"docker.io/library/{bare}:latest"):
        if known.get(name):
            return known[name]
    return ""


def result_of(
    name: str, suite: Suite, arguments: argparse.Namespace, tasks: Sequence[Task], problems: dict[str, str], digests: dict[str, list[str]]
) -> Result:
    """The result of what is in the run's folder."""
    if not 0 < arguments.confidence < 1:
        raise SettingError(f"a confidence must be between 0 and 1, not {arguments.confidence}")
    found = [*files.trajectories(arguments.out), *map(from_json, runs.faults(arguments.out))]
    report = evaluate(
        found,
        name=suite.title,
        ks=[k for k in sorted({1, arguments.rollouts}) if k >= 1],
        attempts=runs.attempts(arguments.out),
        prices=Prices(arguments.sandbox_hour),
        confidence=arguments.confidence,
        seed=arguments.seed,
    )
    harness = next((run.harness for run in found if run.harness.name), None)
    return Result(
        suite=name,
        title=suite.title,
        agent=arguments.policy if arguments.policy in ("gold", "nothing") else arguments.harness,
        agent_version=harness.version if harness else "",
        model=arguments.model or "",
        seed=arguments.seed,
        rollouts=arguments.rollouts,
        report=report,
        images={task.task_id: task.image for task in tasks},
        digests=digests,
        left_out=problems,
    )
