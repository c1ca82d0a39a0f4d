"""The interface of a third-party harness that replaces the agent loop in ``rollout.play`` (C2, C4.2).

Owns the protocol ``Agent`` and the conversion of a ``ProgramRun`` into an ``Episode``. ``program`` and ``mini_swe_agent`` run the
program. The calls of the policy are passed to ``record`` as pairs: each response once, with its branch.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from holdfast import AsyncSandbox

from holdfast_recipes.core.trajectory import Tokens, turns_of
from holdfast_recipes.policy.base import Message

from .limits import Limits
from .loop import Episode
from .program import ProgramRun

Record = Callable[[Sequence[Mapping[str, Any]]], None]


class Run(Protocol):
    """Plays a prompt in a sandbox: ``run_program`` and ``run_mini`` with all else given."""

    def __call__(
        self,
        sandbox: AsyncSandbox,
        prompt: str,
        *,
        limits: Limits,
        rollout_id: str,
        seed: int | None,
        workdir: str,
        user: str | int | None,
    ) -> Awaitable[ProgramRun]: ...


@dataclass(frozen=True, slots=True)
class Agent:
    """``name`` and ``version`` of the harness; ``policy`` is the name of what answers it."""

    name: str
    version: str
    policy: str
    run: Run
    record: Record = lambda pairs: None

    async def play(
        self,
        sandbox: AsyncSandbox,
        messages: Sequence[Message],
        limits: Limits,
        *,
        seed: int | None,
        rollout_id: str,
        workdir: str = "/testbed",
        user: str | int | None = None,
    ) -> Episode:
        """One rollout, in the task's work directory and as its user. The prompt is the text of the first messages; what the program changed
        is the submission."""
        prompt = "\n\n".join(str(message["content"]) for message in messages)
        run = await self.run(sandbox, prompt, limits=limits, rollout_id=rollout_id, seed=seed, workdir=workdir, user=user)
        self.record(run.pairs)
        return episode_of(run, messages)


def episode_of(run: ProgramRun, asked: Sequence[Message] = ()) -> Episode:
    """Tokens are there where the calls are one sequence; of several the pairs have them."""
    messages: tuple[Message, ...] = tuple(dict(message) for message in run.messages or asked)
    tokens = None
    if len(run.samples) == 1:
        (sample,) = run.samples
        tokens = Tokens(sample.ids, sample.loss_mask, sample.logprobs, (), sample.versions)
    versions = tuple(call.version for call in run.calls)
    end = run.end
    tools = tuple(dict(tool) for tool in run.tools)
    return Episode(
        messages,
        tools,
        turns_of(messages, tools),
        end.status,
        end.blame,
        end.reason,
        run.patch,
        tokens,
        run.seconds,
        0.0,
        versions,
        end.oom,
    )
