"""A task in Harbor's format as a ``Job``: its sandbox, the agent's tools in it, and its tests, which run in the same sandbox afterwards.

Owns the places that the format fixes (``/tests``, ``/solution``, ``/logs``) and what a reward means. The format grades in the machine
that the agent has worked in, so what the agent left there can influence the tests: a reward is worth no more than that.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal

from holdfast import AsyncGroup, AsyncSandbox, AsyncSandboxClient, HoldfastError, RemoteFileError

from holdfast_recipes.core.scored import Blame, Status
from holdfast_recipes.core.trajectory import Verdict
from holdfast_recipes.harness.agent import Agent
from holdfast_recipes.harness.editor import EditorToolset
from holdfast_recipes.harness.layers import FaultError
from holdfast_recipes.harness.limits import MINI, Layer, Limits, Resources
from holdfast_recipes.harness.loop import Episode
from holdfast_recipes.harness.program import End, ProgramRun
from holdfast_recipes.harness.rollout import Graded
from holdfast_recipes.harness.shell import ShellToolset
from holdfast_recipes.harness.toolset import Toolset
from holdfast_recipes.policy.base import Message
from holdfast_recipes.prompts import terminal as prompts

from .tasks import HarborTask

Maker = Callable[[HarborTask, Resources], Awaitable[AsyncSandbox]]
_REWARDS = ("/logs/verifier/reward.json", "/logs/verifier/reward.txt")
_REWARD_BYTES = 64 * 1024
_LOG_BYTES = 1024 * 1024
_STEP_S = 60.0
_PROMPTS = {
    "mini": (prompts.MINI, prompts.mini),
    "editor": (prompts.EDITOR, prompts.editor),
    "program": (prompts.PROGRAM, prompts.program),
}


def maker(client: AsyncSandboxClient, *, group: AsyncGroup | None = None, labels: Mapping[str, str] | None = None) -> Maker:
    """Sandboxes of a Holdfast service with the resources, variables and network that a task asks for."""

    async def make(task: HarborTask, resources: Resources) -> AsyncSandbox:
        return await client.create_sandbox(
            task.image,
            cpu=resources.cpu,
            memory=round(resources.memory_gib * 1024**3),
            disk=None if task.disk_mib is None else task.disk_mib * 1024**2,
            env=task.env,
            network=task.network,
            group=group,
            labels=dict(labels or {}),
        )

    return make


class HarborJob:
    """One task for one rollout at a time. ``command_s`` is the time of a command, which the prompt names."""

    def __init__(
        self,
        task: HarborTask,
        make: Maker,
        *,
        style: Literal["mini", "editor", "program"] = "mini",
        command_s: float = MINI.layers[Layer.OBSERVATION].timeout_s,
    ) -> None:
        self.task = task
        self.task_id, self.repo, self.source = task.task_id, "", "harbor"
        self.resources = Resources(task.cpu, task.memory_gib)
        self.verify_s = task.verifier_s + 2 * _STEP_S
        self._prompt, self._fill = _PROMPTS[style]
        self.prompts: Mapping[str, str] = {self._prompt.name: self._prompt.sha256}
        self._make, self._style, self._command_s = make, style, command_s
        self.messages: Sequence[Message] = self._messages(task.workdir or "the directory that it starts in")
        self._workdirs: dict[str, str] = {}

    def _messages(self, workdir: str) -> list[Message]:
        return [{"role": "user", "content": self._fill(self.task.instruction, workdir, self._command_s)}]

    async def create(self, resources: Resources) -> AsyncSandbox:
        return await self._make(self.task, resources)

    async def open(self, sandbox: AsyncSandbox, *, oom_ends: bool) -> Toolset:
        for folder in ("/logs/agent", "/logs/verifier", "/logs/artifacts"):
            await sandbox.files.mkdir(folder, mode=0o777)
        workdir = self.task.workdir or await _default_directory(sandbox)
        self._workdirs[sandbox.id] = workdir
        self.messages = self._messages(workdir)
        await self._healthy(sandbox)
        if self._style == "editor":
            user = None if self.task.agent_user is None else str(self.task.agent_user)
            return EditorToolset(sandbox, workdir, user=user, oom_ends=oom_ends)
        return ShellToolset(sandbox, workdir, user=None if self.task.agent_user is None else str(self.task.agent_user), oom_ends=oom_ends)

    async def _healthy(self, sandbox: AsyncSandbox) -> None:
        """Wait until the check of the environment succeeds. Raises FaultError where it never does."""
        check = self.task.health
        if check is None:
            return
        clock = asyncio.get_running_loop().time
        began, failed = clock(), 0
        while True:
            result = await sandbox.exec(["sh", "-c", check.command], timeout=check.timeout_s, stderr="stdout")
            if result.ok:
                return
            failed += clock() - began >= check.start_period_s
            if failed >= check.retries:
                raise FaultError(Layer.CREATION, Blame.ENVIRONMENT, "healthcheck", result.output[-300:])
            await asyncio.sleep(check.interval_s)

    async def collect(self, sandbox: AsyncSandbox, episode: Episode) -> str:
        """The result of the tests as JSON. They run here, because they look at the machine itself."""
        return json.dumps(await verified(sandbox, self.task, self._workdirs.pop(sandbox.id)))

    async def grade(self, work: str) -> Graded:
        """+1 where the whole reward was earned, −1 otherwise. Tests that gave no reward are the agent's failure: it had the machine."""
        found = json.loads(work)
        reward, reason = found["reward"], found["reason"]
        solved = reward is not None and reward >= 1
        verdict = Verdict((int(solved), 1), (0, 0), found["log_sha256"], () if solved else ("tests/test.sh",))
        return Graded(1.0 if solved else -1.0, verdict, None, reason or f"reward {reward:g}")


async def verified(sandbox: AsyncSandbox, task: HarborTask, workdir: str) -> dict[str, Any]:
    """Run the tests of a task: ``reward`` (None without one), ``reason`` for that, digest and end of the log. Raises FaultError, and
    what the sandbox raises, where infrastructure failed."""
    await _step(sandbox, ["rm", "-rf", "/tests", *_REWARDS])
    await sandbox.files.upload(task.folder / "tests", "/tests")
    await sandbox.files.chmod("/tests/test.sh", 0o755)
    result = await sandbox.exec(
        ["/tests/test.sh"],
        cwd=workdir,
        env=task.verifier_env,
        user=task.verifier_user,
        timeout=task.verifier_s,
        stderr="stdout",
        max_output_bytes=_LOG_BYTES,
        keep="tail",
    )
    if result.cause is not None and result.cause.is_infrastructure:
        raise FaultError(Layer.REWARD, Blame.INFRASTRUCTURE, result.cause.reason, result.cause.message)
    log = {"log_sha256": hashlib.sha256(result.output.encode("utf-8", "replace")).hexdigest(), "log": result.output[-2000:]}
    if result.timed_out:
        return {"reward": None, "reason": "verifier: timeout", **log}
    reward, reason = await _reward(sandbox)
    return {"reward": reward, "reason": reason, **log}


async def _reward(sandbox: AsyncSandbox) -> tuple[float | None, str]:
    for path in _REWARDS:
        try:
            data = await sandbox.files.read(path, length=_REWARD_BYTES)
        except RemoteFileError:
            continue
        try:
            return reward_of(data.decode(), is_json=path.endswith(".json")), ""
        except ValueError as error:
            return None, f"verifier: {error}"
    return None, "verifier: no reward"


def reward_of(text: str, *, is_json: bool) -> float:
    """The reward that a file holds: a number, or an object of numbers, of which ``reward`` counts where it is there, else the least.
    Raises ValueError for anything else."""
    if not text.strip():
        raise ValueError("the reward is empty")
    value: Any = json.loads(text) if is_json else float(text)
    numbers = list(value.values()) if isinstance(value, dict) else [value]
    if not numbers or not all(isinstance(each, int | float) and math.isfinite(each) for each in numbers):
        raise ValueError("the reward is not a finite number")
    return float(value["reward"] if isinstance(value, dict) and "reward" in value else min(numbers))


def reference(task: HarborTask) -> Agent:
    """The task's own solution as an agent: it must solve every sound task."""

    async def run(
        sandbox: AsyncSandbox, prompt: str, *, limits: Limits, rollout_id: str, seed: int | None, workdir: str, user: str | int | None
    ) -> ProgramRun:
        if not (task.folder / "solution" / "solve.sh").is_file():
            return _ran(End(Status.ABORTED, Blame.ENVIRONMENT, "no_solution"))
        await sandbox.files.upload(task.folder / "solution", "/solution")
        await sandbox.files.chmod("/solution/solve.sh", 0o755)
        env = {"DEBIAN_FRONTEND": "noninteractive", **task.solution_env}
        result = await sandbox.exec(
            ["/solution/solve.sh"], cwd=workdir, env=env, user=user, timeout=task.agent_s, stderr="stdout", max_output_bytes=_LOG_BYTES
        )
        if result.cause is not None and result.cause.is_infrastructure:
            return _ran(End(Status.ABORTED, Blame.INFRASTRUCTURE, result.cause.reason))
        return _ran(End(Status.TIMEOUT, Blame.POLICY, "wall_clock") if result.timed_out else End(Status.COMPLETED), result.output)

    return Agent("gold", "1", "gold", guarded(run))


def nothing(task: HarborTask) -> Agent:
    """An agent that does nothing: it must solve no sound task."""

    async def run(
        sandbox: AsyncSandbox, prompt: str, *, limits: Limits, rollout_id: str, seed: int | None, workdir: str, user: str | int | None
    ) -> ProgramRun:
        return _ran(End(Status.COMPLETED))

    return Agent("nothing", "1", "nothing", run)


def guarded(run: Callable[..., Awaitable[ProgramRun]]) -> Callable[..., Awaitable[ProgramRun]]:
    """A failure of the sandbox as a value, as ``run_program`` gives it."""

    async def safely(*words: Any, **more: Any) -> ProgramRun:
        try:
            return await run(*words, **more)
        except HoldfastError as error:
            blame = Blame.WORKLOAD if error.fault == "workload" else Blame.INFRASTRUCTURE
            return _ran(End(Status.ABORTED, blame, error.reason or error.code))

    return safely


def _ran(end: End, output: str = "") -> ProgramRun:
    return ProgramRun(end, None, output[-2000:], None, (), (), (), 0.0)


async def _default_directory(sandbox: AsyncSandbox) -> str:
    result = await sandbox.exec(["sh", "-c", "pwd"], timeout=_STEP_S)
    return result.stdout.strip() if result.ok and result.stdout.startswith("/") else "/"


async def _step(sandbox: AsyncSandbox, command: list[str]) -> None:
    """A command of ours, as root. What the agent did to the machine may make it fail, and the tests then say so."""
    result = await sandbox.exec(command, user="root", timeout=_STEP_S)
    if result.cause is not None and result.cause.is_infrastructure:
        raise FaultError(Layer.REWARD, Blame.INFRASTRUCTURE, result.cause.reason, result.cause.message)
