"""The interface between the loop and a harness's tools, which run a policy's calls.

Owns ``Toolset`` and ``Result``, and which failures of a sandbox are an answer to the policy and which end the rollout. The two SWE
toolsets are in ``shell`` and ``editor``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from holdfast import CommandResult, HoldfastError, InvalidArgumentError, RemoteFileError, ShellLostError, SpawnError

from holdfast_recipes.core.calls import ToolCall
from holdfast_recipes.core.scored import Blame
from holdfast_recipes.core.trajectory import Observation
from holdfast_recipes.policy.base import Tool

from .layers import FaultError
from .limits import Layer


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a call. ``final``: the call submits the work, and no later call is run; ``submission`` is that work where the
    call carries it (a patch), None where it is read from the sandbox."""

    observation: Observation
    final: bool = False
    submission: str | None = None


class Toolset(Protocol):
    """The tools of one rollout, with the sandbox they act on.

    ``strict``: a turn with one malformed call is refused whole, as mini-swe-agent does; otherwise its other calls are run.
    ``timeout_s`` is the time a call has. What the sandbox refuses is a ``Result``; what means that the sandbox or its answer is lost is
    raised as it comes.
    """

    name: str
    version: str
    strict: bool

    @property
    def tools(self) -> Sequence[Tool]: ...
    @property
    def config(self) -> dict[str, Any]:
        """Further settings of the toolset; their digest is recorded."""
        ...

    async def run(self, call: ToolCall, *, timeout_s: float) -> Result: ...

    async def close(self) -> None:
        """Let go of what runs in the sandbox. Called once, also after a failure; raises nothing that matters."""
        ...


ANSWERED = (InvalidArgumentError, SpawnError, ShellLostError, RemoteFileError)
"""Refusals that concern one call: text that cannot be a command, no process left, a file that is not there."""


def refused(call: ToolCall, error: HoldfastError) -> Result:
    """The answer to a call that the sandbox refused."""
    return Result(Observation(f"Error: {error.message or error.code}", call.id, None, error.code))


def cause_of(result: CommandResult, *, oom_ends: bool) -> str | None:
    """The external cause of a command's end, as a word for the record. Raises FaultError where that ends the rollout: infrastructure
    failed, or memory ran out and (``oom_ends``) there is more to be had."""
    if result.timed_out:
        return "timeout"
    if result.cause is None:
        return None
    if result.cause.is_infrastructure:
        raise FaultError(Layer.OBSERVATION, Blame.INFRASTRUCTURE, result.cause.reason, result.cause.message)
    if result.cause.reason == "oom" and oom_ends:
        raise FaultError(Layer.OBSERVATION, Blame.WORKLOAD, "oom", result.cause.message, oom=True)
    return result.cause.reason
