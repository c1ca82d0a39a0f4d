"""A harness with a subshell per call, like mini-swe-agent 2.4: one tool, ``bash``, in the work directory (A2.1).

Owns running a command and describing its result. Only files are kept from call to call. The policy submits its work by a command whose
first line of output is the submission word; the rest of the output is the patch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from holdfast import CommandResult

from holdfast_recipes.core.calls import ToolCall
from holdfast_recipes.core.trajectory import Observation
from holdfast_recipes.policy.base import Tool

from . import tools
from .machine import Machine
from .observations import KEPT_AT_EACH_END, WHOLE_BELOW, shown, submission
from .toolset import ANSWERED, Result, cause_of, refused

QUIET = {"PAGER": "cat", "MANPAGER": "cat", "LESS": "-R", "PIP_PROGRESS_BAR": "off", "TQDM_DISABLE": "1"}
"""Variables that keep programs from waiting for a reader or drawing bars."""
MOST_BYTES = 16 * 1024 * 1024
"""Of one output, this much is fetched: both of its ends."""


def described(result: CommandResult) -> str:
    """The observation of a command: its end, then its output, including stderr."""
    lines = [f"[the command was ended after its time of {result.duration_s:.0f} s]"] if result.timed_out else []
    if result.cause is not None and not result.timed_out:
        lines = [f"[the command was ended: {result.cause.reason}]"]
    output = shown(result.output)
    if result.truncated:
        output += f"\n[of {sum(count.seen for count in result.streams.values())} bytes, the middle is not here]"
    return "\n".join([*lines, f"[exit code {result.exit_code}]", output])


class ShellToolset:
    """``bash`` in one sandbox. ``env`` is added to ``QUIET``; ``user`` None is the image's. ``describe`` writes the observation.

    ``definitions`` replaces the tool's own, for harnesses with other descriptions of it; the tool's name stays. ``oom_ends``: a
    command that runs out of memory ends the rollout, which is then run again with more.
    """

    name = "mini"
    version = "1"
    strict = True

    def __init__(
        self,
        sandbox: Machine,
        workdir: str = "/testbed",
        *,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        describe: Callable[[CommandResult], str] = described,
        definitions: tuple[Tool, ...] = tools.MINI,
        oom_ends: bool = False,
    ) -> None:
        self.tools = definitions
        self._oom_ends = oom_ends
        self._sandbox, self._workdir, self._env, self._user = sandbox, workdir, QUIET | dict(env or {}), user
        self._describe = describe

    @property
    def config(self) -> dict[str, Any]:
        return {"workdir": self._workdir, "env": self._env, "user": self._user, "whole_below": WHOLE_BELOW, "kept": KEPT_AT_EACH_END}

    async def run(self, call: ToolCall, *, timeout_s: float) -> Result:
        try:
            result = await self._sandbox.exec(
                str(call.arguments["command"]),
                cwd=self._workdir,
                env=self._env,
                user=self._user,
                timeout=timeout_s,
                stderr="stdout",
                max_output_bytes=MOST_BYTES,
                keep="both",
            )
        except ANSWERED as error:
            return refused(call, error)
        cause = cause_of(result, oom_ends=self._oom_ends)
        seen = Observation(self._describe(result), call.id, result.exit_code, cause)
        patch = None if result.truncated else submission(result.output, result.exit_code)
        return Result(seen, patch is not None, patch)

    async def close(self) -> None:
        """Nothing lives between calls."""
