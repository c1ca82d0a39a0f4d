"""How the tasks of each kind of suite are read and played: repository repair, and tasks in Harbor's format.

Owns ``KINDS``, the table of them. A kind reads a file or folder, and gives the rollouts of its tasks with an open service; everything else
of a suite (resuming, images, the table) is the same for all.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

from holdfast_recipes.harbor import job as harbor_job
from holdfast_recipes.harbor import tasks as harbor_tasks
from holdfast_recipes.harness.limits import Layer
from holdfast_recipes.harness.rollout import Settings
from holdfast_recipes.pipeline import collect, files
from holdfast_recipes.pipeline.baselines import BASELINES
from holdfast_recipes.pipeline.errors import DataError, SettingError
from holdfast_recipes.pipeline.playing import collected
from holdfast_recipes.pipeline.runs import Task
from holdfast_recipes.pipeline.service import OWN, Service

from .registry import Suite


@dataclass(frozen=True, slots=True)
class Kind:
    """``read`` gives the tasks; ``problem`` why one cannot be run here ("" if it can); ``rollout`` plays them."""

    read: Callable[[Suite, argparse.Namespace], Sequence[Task]]
    problem: Callable[[Any], str]
    rollout: Callable[[Service, argparse.Namespace], collect.Rollout]


def _swe_tasks(suite: Suite, arguments: argparse.Namespace) -> Sequence[Task]:
    return files.tasks(arguments.tasks, suite.source or None)


def _swe_rollout(service: Service, arguments: argparse.Namespace) -> collect.Rollout:
    return collected(service.jobs, service.settings, None if service.settings.agent else service.talk)


def _harbor_tasks(suite: Suite, arguments: argparse.Namespace) -> Sequence[Task]:
    passed = {}
    for name in arguments.pass_env:
        if name not in os.environ:
            raise SettingError(f"--pass-env {name}: there is no such variable here")
        passed[name] = os.environ[name]
    try:
        return harbor_tasks.read(arguments.tasks, image=arguments.image, variables=passed)
    except harbor_tasks.HarborTaskError as error:
        raise DataError(str(error), hint="give a folder of tasks in Harbor's format") from error


def _harbor_rollout(service: Service, arguments: argparse.Namespace) -> collect.Rollout:
    """The task's limits hold, unless the command line has others; a sandbox never gets more memory than its task says."""
    make = harbor_job.maker(service.client, group=service.group, labels={"holdfast-run": service.settings.run})
    style = cast("Literal['mini', 'editor', 'program']", arguments.harness if arguments.harness in OWN else "program")
    command_s = arguments.command_timeout

    def jobs(task: harbor_tasks.HarborTask) -> harbor_job.HarborJob:
        mine = replace(task, network={"mode": "none"}) if arguments.no_network else task
        return harbor_job.HarborJob(mine, make, style=style, command_s=command_s)

    def shaped(task: harbor_tasks.HarborTask, settings: Settings) -> Settings:
        limits = settings.limits
        layers = {**limits.layers, Layer.OBSERVATION: replace(limits.layers[Layer.OBSERVATION], timeout_s=command_s)}
        wall_s = arguments.wall if arguments.wall is not None else task.agent_s
        limits = replace(limits, layers=layers, rollout=replace(limits.rollout, wall_s=wall_s))
        agent = {"gold": harbor_job.reference, "nothing": harbor_job.nothing}.get(arguments.policy)
        return replace(settings, limits=limits, agent=agent(task) if agent else settings.agent, most_escalations=0)

    program = service.settings.agent is not None or arguments.policy in BASELINES
    return collected(jobs, service.settings, None if program else service.talk, shaped)


KINDS: dict[str, Kind] = {
    "swe": Kind(_swe_tasks, lambda task: "", _swe_rollout),
    "harbor": Kind(_harbor_tasks, lambda task: str(task.problem), _harbor_rollout),
}


def place_of(suite: Suite, arguments: argparse.Namespace) -> Path:
    """The file or folder of the tasks. Raises SettingError without one, which names where the suite's tasks are."""
    if arguments.tasks is None:
        raise SettingError(f"--tasks is missing: the tasks of {suite.title}", hint=f"from {suite.data}")
    return cast("Path", arguments.tasks)
