"""A repair task as a ``Job``: its sandboxes, its tools, the patch that comes out, and its grade in a second, clean sandbox (C4.4, D9).

Owns which sandbox is made and the order of grading: start state, the counted part of the patch, the task's tests over it, the run.
Infrastructure is a grade of its own; a test run out of memory gets one more try with more of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import shlex
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, cast

from holdfast import AsyncGroup, AsyncSandbox, AsyncSandboxClient, CommandResult, UnsupportedError

from holdfast_recipes.core.scored import Blame
from holdfast_recipes.harness.editor import EditorToolset
from holdfast_recipes.harness.layers import FaultError, completed, fault_of
from holdfast_recipes.harness.limits import Escalation, Layer, Resources
from holdfast_recipes.harness.loop import Episode
from holdfast_recipes.harness.machine import Machine
from holdfast_recipes.harness.rollout import Graded
from holdfast_recipes.harness.shell import ShellToolset, described
from holdfast_recipes.harness.tools import MINI
from holdfast_recipes.harness.toolset import Toolset
from holdfast_recipes.policy.base import Message, Tool
from holdfast_recipes.prompts import swe as prompts

from . import workspace
from .archives import Archives
from .grading import Grade, Resolution, grade, infrastructure, rejected, submission
from .sources import SweTask

Maker = Callable[[SweTask, Resources], Awaitable[Machine]]
PAPER = Resources(2, 8)
"""Of a sandbox, as in the paper."""
SMALL = Resources(1, 0.5)
"""Enough for the tests of a small library."""


def maker(
    client: AsyncSandboxClient, *, group: AsyncGroup | None = None, labels: Mapping[str, str] | None = None, record: bool = False
) -> Maker:
    """Sandboxes of a Holdfast service, without network, in a group that ends with the run. ``record``: the service records them."""

    async def make(task: SweTask, resources: Resources) -> Machine:
        sandbox: Machine = await client.create_sandbox(
            task.image,
            cpu=resources.cpu,
            memory=round(resources.memory_gib * 1024**3),
            group=group,
            labels=dict(labels or {}),
            record=record,
        )
        return sandbox

    return make


@dataclass(frozen=True, slots=True)
class Style:
    """The presentation of a task to the policy. ``describe`` and ``definitions`` are those of the shell toolset; ``messages`` None: the
    prompts of the recipes."""

    harness: Literal["mini", "editor", "program"] = "mini"
    describe: Callable[[CommandResult], str] = described
    definitions: tuple[Tool, ...] = MINI
    messages: Callable[[SweTask], Sequence[Message]] | None = None


_PROMPTS = {
    "mini": (prompts.MINI, prompts.mini),
    "editor": (prompts.EDITOR, prompts.editor),
    "program": (prompts.PROGRAM, prompts.program),
}


class SweJob:
    """One task for one rollout at a time. ``archives`` holds what its start state names."""

    def __init__(
        self,
        task: SweTask,
        make: Maker,
        *,
        archives: Archives | None = None,
        style: Style | None = None,
        resources: Resources = PAPER,
        test_timeout_s: float = 500.0,
    ) -> None:
        self.task = task
        self.task_id, self.repo, self.source = task.task_id, task.repo, task.source
        self.resources = resources
        self._style = style or Style()
        prompt, fill = _PROMPTS[self._style.harness]
        ask = [{"role": "user", "content": fill(task.prompt, task.workdir)}]
        self.messages: Sequence[Message] = self._style.messages(task) if self._style.messages else ask
        self.prompts: Mapping[str, str] = {prompt.name: prompt.sha256} if self._style.messages is None else {}
        self._make, self._archives, self._test_timeout_s = make, archives, test_timeout_s
        self._trees: dict[str, str] = {}

    async def create(self, resources: Resources) -> Machine:
        return await self._make(self.task, resources)

    async def open(self, sandbox: Machine, *, oom_ends: bool) -> Toolset:
        self._trees[sandbox.id] = await workspace.start(sandbox, self.task, self._archives)
        return self._tools(sandbox, oom_ends=oom_ends)

    def open_branch(self, sandbox: Machine, parent: Machine) -> Toolset:
        """The tools in a branch of a sandbox that ``open`` has prepared. Raises UnsupportedError for the editor harness, whose running
        command and history of edits do not continue in a branch."""
        if self._style.harness == "editor":
            raise UnsupportedError("unsupported", "the editor harness cannot continue in a branch", hint="use the harness mini")
        self._trees[sandbox.id] = self._trees[parent.id]
        return self._tools(sandbox, oom_ends=False)

    def _tools(self, sandbox: Machine, *, oom_ends: bool) -> Toolset:
        env = workspace.environment(self.task)
        if self._style.harness == "editor":
            return EditorToolset(cast(AsyncSandbox, sandbox), self.task.workdir, oom_ends=oom_ends)
        style = self._style
        return ShellToolset(sandbox, self.task.workdir, env=env, describe=style.describe, definitions=style.definitions, oom_ends=oom_ends)

    async def collect(self, sandbox: Machine, episode: Episode) -> str:
        """The submitted patch, or the changes in the repository if the harness submits none or the budget ended the rollout."""
        tree = self._trees.pop(sandbox.id)
        return episode.submission if episode.submission is not None else await workspace.capture(sandbox, self.task, tree)

    async def grade(self, work: str) -> Graded:
        """The grade of a patch. Never raises for what happens in a sandbox."""
        found, log_sha256 = await self.graded(work)
        blame = Blame.INFRASTRUCTURE if found.resolution is Resolution.INFRASTRUCTURE else None
        if found.reason.startswith("environment:"):
            blame = Blame.ENVIRONMENT
        return Graded(found.reward, found.verdict(log_sha256), blame, found.reason or str(found.resolution))

    async def graded(self, patch: str) -> tuple[Grade, str]:
        """The grade with the digest of the test log, which is "" where no test was run."""
        counted = submission(patch, self.task.gold_patch, self.task.test_patch)
        if counted.reason:
            return _nothing(self.task, counted.reason), ""
        resources: Resources | None = self.resources
        given = self.resources
        while True:
            try:
                run = await self.tested(counted.patch, given)
            except FaultError as fault:
                if fault.layer is Layer.REWARD and fault.blame is Blame.POLICY:
                    return _nothing(self.task, f"malformed: {fault.message}"), ""
                reason = f"environment: {fault.reason}" if fault.blame is Blame.ENVIRONMENT else fault.reason
                return infrastructure(reason), ""
            resources = Escalation().after(run.cause or "", given) if given == self.resources else None
            if resources is None:
                break
            given = resources
        if not run.started:
            return infrastructure("environment: no_tests"), run.log_sha256
        found = grade(run.outcomes, self.task.fail_to_pass, self.task.pass_to_pass)
        if run.signed is not None and (run.signed.tampered or (run.finished and not run.signed.ended)):
            why = f"tampered: {run.signed.tampered}" if run.signed.tampered else "tests: ended_early"
            return replace(found, resolution=Resolution.NO, reason=why), run.log_sha256
        if not run.finished and found.resolution is not Resolution.RESOLVED:
            found = Grade(found.resolution, found.fixed, found.kept, f"tests: {run.cause}")
        return found, run.log_sha256

    async def tested(self, patch: str, resources: Resources) -> workspace.TestRun:
        """The tests over a patch ("" for none) in a fresh sandbox. Raises FaultError, of the policy where its patch does not apply."""
        sandbox: Machine | None = None
        try:
            sandbox = await self._make(self.task, resources)
            await workspace.start(sandbox, self.task, self._archives)
            if patch and (problem := await workspace.apply(sandbox, self.task, patch)) is not None:
                raise FaultError(Layer.REWARD, Blame.POLICY, "patch", problem)
            await self._bring_tests(sandbox)
            return await workspace.run_tests(sandbox, self.task, timeout_s=self._test_timeout_s)
        except Exception as error:
            raise fault_of(Layer.OBSERVATION, error) from error
        finally:
            if sandbox is not None:
                await completed(delete(sandbox))

    async def _bring_tests(self, sandbox: Machine) -> None:
        task = self.task
        if task.test_patch and (problem := await workspace.apply(sandbox, task, task.test_patch)) is not None:
            raise FaultError(Layer.REWARD, Blame.ENVIRONMENT, "test_patch", problem)
        if task.test_script:
            path = shlex.quote(workspace.script_path(task))
            command = f'mkdir -p "$(dirname {path})" && cat > {path}'
            result = await sandbox.exec(["bash", "-c", command], cwd=task.workdir, input=task.test_script)
            workspace.raise_if_lost(result)
            if not result.ok:
                raise FaultError(Layer.REWARD, Blame.ENVIRONMENT, "test_script", result.output[-300:])


def _nothing(task: SweTask, reason: str) -> Grade:
    """The grade of a patch of which no test was run: none was fixed; those to keep were not looked at."""
    counts = (0, len(task.fail_to_pass)), (0, len(task.pass_to_pass))
    return Grade(rejected(reason).resolution, *counts, reason, tuple(task.fail_to_pass))


async def delete(sandbox: Machine, *, timeout_s: float = 15.0) -> None:
    """Delete a sandbox, within a time. What cannot be deleted ends with its lease; what was found out in it stands."""
    with contextlib.suppress(Exception):
        await asyncio.wait_for(sandbox.delete(), timeout_s)
