"""The real mini-swe-agent package as a harness: its loop, prompts and model client beside the sandbox, its commands inside (A2.1).

Owns the process of a Python that has the package (``pip install mini-swe-agent==2.4.6`` in an environment of its own), the running of
its commands, and what its exit statuses mean. The model is the proxy; the package needs no key and no access to the service.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
from pathlib import Path
from typing import Any

from holdfast import AsyncSandbox, CommandResult, HoldfastError

from holdfast_recipes.core.scored import Blame, Status
from holdfast_recipes.policy.base import Policy
from holdfast_recipes.proxy.server import Proxy
from holdfast_recipes.proxy.session import Session

from . import mini_inside
from .layers import fault_of
from .limits import MINI, Layer, Limits
from .program import End, ProgramRun, recorded
from .shell import MOST_BYTES
from .toolset import ANSWERED

VERSION = "2.4.6"
_LINE_BYTES = 64 * 1024 * 1024
_GRACE_S = 30.0
_LEAVING_S = 60.0
_QUIET = {"MSWEA_SILENT_STARTUP": "1", "MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT": "1", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
"""No banner; no retries, since the proxy has already retried a failed call; no list of prices from the internet."""
_ENDS = {
    "Submitted": End(Status.COMPLETED, None, "submitted"),
    "LimitsExceeded": End(Status.TRUNCATED, None, "steps"),
    "TimeExceeded": End(Status.TIMEOUT, Blame.POLICY, "wall_clock"),
    "RepeatedFormatError": End(Status.COMPLETED, Blame.POLICY, "format"),
    "ContextWindowExceededError": End(Status.TRUNCATED, None, "tokens"),
}


async def run_mini(
    python: str | os.PathLike[str],
    sandbox: AsyncSandbox,
    proxy: Proxy,
    policy: Policy,
    task: str,
    *,
    limits: Limits = MINI,
    workdir: str = "/testbed",
    user: str | int | None = None,
    rollout_id: str = "",
    seed: int | None = None,
    opens_thought: bool = False,
) -> ProgramRun:
    """One run of mini-swe-agent on ``task``. ``python`` is that of its environment; the patch is what it submitted, None without."""

    def player(session: Session) -> _Mini:
        return _Mini(str(python), sandbox, session, limits, workdir, user, task)

    return await recorded(player, proxy, policy, limits=limits, rollout_id=rollout_id, seed=seed, opens_thought=opens_thought)


class _Mini:
    """The process and the sandbox of one run."""

    def __init__(
        self, python: str, sandbox: AsyncSandbox, session: Session, limits: Limits, workdir: str, user: str | int | None, task: str
    ) -> None:
        self.exit_code: int | None = None
        self.output = ""
        self.patch: str | None = None
        self._sandbox, self._session, self._limits, self._workdir, self._user = sandbox, session, limits, workdir, user
        self._python, self._task = python, task
        self._settings: dict[str, Any] = {}
        self._wanted = True

    async def play(self, proxy: Proxy) -> End:
        rollout = self._limits.rollout
        bounds = {
            "step_limit": rollout.steps or 0,
            "wall_time_limit_seconds": 0 if rollout.wall_s is None else math.ceil(rollout.wall_s),
            "max_consecutive_format_errors": rollout.format_errors,
        }
        order = {"url": f"{proxy.url}/v1", "key": self._session.key, "model": proxy.model, "workdir": self._workdir, "task": self._task}
        try:
            process = await asyncio.create_subprocess_exec(
                self._python,
                "-I",
                str(Path(mini_inside.__file__)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env={**os.environ, **_QUIET},
                limit=_LINE_BYTES,
            )
        except OSError as error:
            return End(Status.ABORTED, Blame.ENVIRONMENT, "program_not_found" if isinstance(error, FileNotFoundError) else "program_failed")
        assert process.stderr is not None
        standard_error = asyncio.ensure_future(process.stderr.read())
        try:
            async with asyncio.timeout(None if rollout.wall_s is None else rollout.wall_s + _GRACE_S):
                return await self._serve(process, {**order, "limits": bounds})
        except TimeoutError:
            return _ENDS["TimeExceeded"]
        except HoldfastError as error:
            fault = fault_of(Layer.OBSERVATION, error)
            return End(Status.ABORTED, fault.blame, fault.reason, oom=fault.oom)
        finally:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0 if self._wanted else _LEAVING_S):
                    await process.wait()
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            self.exit_code = await process.wait()
            self.output = (await standard_error).decode("utf-8", "replace")[-64 * 1024 :]

    async def _serve(self, process: asyncio.subprocess.Process, order: dict[str, Any]) -> End:
        """Run its commands until it reports its end."""
        assert process.stdin is not None
        assert process.stdout is not None
        answer: dict[str, Any] | None = order
        while True:
            if answer is not None:
                with contextlib.suppress(ConnectionError):  # the process has ended; the end of its output reports this
                    process.stdin.write(json.dumps(answer).encode() + b"\n")
                    await process.stdin.drain()
            line = await process.stdout.readline()
            if not line:
                blame = Blame.INFRASTRUCTURE if self._session.unanswered else Blame.ENVIRONMENT
                return End(Status.ABORTED, blame, "program_failed")
            message = json.loads(line)
            if "end" in message:
                self._wanted = False
                return self._judged(message["end"])
            if "environment" in message:
                self._settings, answer = message["environment"], None
            else:
                answer = await self._run(message)

    async def _run(self, order: dict[str, Any]) -> dict[str, Any]:
        settings = self._settings
        command = [*settings.get("interpreter", ["bash", "-c"]), str(order["command"])]
        timeout_s = order["timeout"] or min(float(settings.get("timeout", 60)), self._limits.layers[Layer.OBSERVATION].timeout_s)
        try:
            result = await self._sandbox.exec(
                command,
                cwd=order["cwd"] or self._workdir,
                env=settings.get("env"),
                user=self._user,
                timeout=timeout_s,
                stderr="stdout",
                max_output_bytes=MOST_BYTES,
                keep="both",
            )
        except ANSWERED as error:
            return {"output": "", "returncode": -1, "exception_info": f"The command could not be run: {error.message}"}
        return {"output": result.output, **_outcome(result, timeout_s)}

    def _judged(self, end: dict[str, Any]) -> End:
        status = end["exit_status"]
        if status == "Submitted":
            self.patch = end["submission"]
        if status in _ENDS:
            return _ENDS[status]
        if self._session.unanswered:
            return End(Status.ABORTED, Blame.INFRASTRUCTURE, "policy_unavailable")
        if self._session.refused:
            return End(Status.TRUNCATED, None, self._session.refused)
        return End(Status.ABORTED, Blame.ENVIRONMENT, status or "program_failed")


def _outcome(result: CommandResult, timeout_s: float) -> dict[str, Any]:
    """As in the package's own environments: −1 and a message if the command was ended, else its exit code."""
    if result.timed_out:
        return {"returncode": -1, "exception_info": f"The command was ended: it timed out after {timeout_s:g} seconds"}
    if result.cause is not None:
        return {"returncode": -1, "exception_info": f"The command was ended: {result.cause.reason}"}
    return {"returncode": result.exit_code, "exception_info": ""}
