"""verifiers on Holdfast: a taskset of the recipe's tasks and a harness that plays them in sandboxes, for its evaluation and for prime-rl.

Owns both classes, and the trace (message nodes with token ids) of a rollout that was made elsewhere. The harness runs the recipe's own loop
in this process; every model call goes through verifiers' interception server, so traces, token ids and log-probabilities are recorded by
verifiers itself, and its runtime stays empty: take ``subprocess``. Read against verifiers 0.4.0 (``verifiers.v1``), which finds plugins
by the name of a top-level module: export ``HoldfastTaskset`` and ``HoldfastHarness`` from one, as ``infra/recipes/engines`` does.

There the trainer forms the groups: prime-rl requests a fixed number of rollouts of each task, so Algorithm 1 is not used.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import verifiers.v1 as vf

from holdfast_recipes.core.balance import Outcome
from holdfast_recipes.core.scored import Blame, Status
from holdfast_recipes.core.trajectory import Trajectory
from holdfast_recipes.pipeline import files
from holdfast_recipes.pipeline.rollouts import Ticket
from holdfast_recipes.policy.endpoint import Sampling
from holdfast_recipes.policy.openai_chat import OpenAIChat

from .rows import row_of, rows_of
from .shared import recipe_of
from .swe import SweSettings

__all__ = ["HoldfastHarness", "HoldfastTaskset"]

STOPS = {"steps": "max_turns", "tokens": "max_total_tokens", "cost": "max_total_tokens"}
"""verifiers' names of the budgets that cut a rollout off."""


class HoldfastTaskData(vf.TaskData):
    recipe: str = ""
    """That of ``shared.recipe_of``; the harness opens it."""


class HoldfastTask(vf.Task[HoldfastTaskData, vf.State, vf.TaskConfig]):
    """One task. Its reward is part of the rollout: grading in a clean sandbox."""

    @property
    def key(self) -> str:
        return str(self.data.id)

    @vf.reward
    async def solved(self, trace: vf.Trace) -> float:
        return float(trace.info["holdfast"]["reward"])


class HoldfastTasksetConfig(vf.TasksetConfig):
    recipe: str = ""
    """A file of the SWE recipe's settings, or ``package.module:function``."""
    tasks: tuple[str, ...] = ()
    """Ids of tasks; those of the file's tasks by default."""


class HoldfastTaskset(vf.Taskset[HoldfastTask, HoldfastTasksetConfig]):
    def load(self) -> Iterable[HoldfastTask]:
        known = {}
        if not self.config.tasks or Path(self.config.recipe).is_file():
            known = {task.task_id: task.prompt for task in files.tasks(SweSettings.read(Path(self.config.recipe)).tasks)}
        for name in self.config.tasks or known:
            prompt = known.get(name, name)
            yield HoldfastTask(HoldfastTaskData(id=name, name=name, prompt=prompt, recipe=self.config.recipe), self.config.task)


class HoldfastHarness(vf.Harness[vf.HarnessConfig]):
    """The recipe's loop as a harness: its prompts, tools and limits; sandboxes are Holdfast's."""

    APPENDS_SYSTEM_PROMPT = True
    EXECUTES_CODE = False  # not in verifiers' runtime
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: vf.ModelContext,
        trace: vf.Trace,
        runtime: vf.Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: vf.TaskData,
    ) -> vf.ProgramResult:
        """Raises SandboxError where infrastructure spoiled the rollout, HarnessError where it has no reward for another reason: verifiers
        records both, and neither is trained on or counted as a failure of the policy."""
        recipe = await recipe_of(str(getattr(data, "recipe", "")))
        if recipe.chats is None:
            raise vf.HarnessError("the recipe plays no policies of messages")
        async with OpenAIChat(endpoint, ctx.model, secret, sampling=Sampling(None), timeout_s=3600.0) as policy:
            ticket = Ticket(0, 0)
            run = await recipe.chats(policy)(str(data.id), ticket)
        trace.info["holdfast"] = note_of(run)
        if run.reward is None or run.status not in (Status.COMPLETED, Status.TRUNCATED):
            error = vf.SandboxError if run.blame is Blame.INFRASTRUCTURE else vf.HarnessError
            raise error(f"{run.status}: {run.reason or 'no reward'}")
        if run.status is Status.TRUNCATED:
            trace.stop(STOPS.get(run.reason, "max_turns"))
        return vf.ProgramResult(exit_code=0, stdout=run.reason, stderr="")


def note_of(run: Trajectory) -> dict[str, Any]:
    """Fields that verifiers does not record itself, as plain values."""
    blame = None if run.blame is None else str(run.blame)
    note: dict[str, Any] = {"reward": run.reward, "status": str(run.status), "blame": blame, "reason": run.reason, "turns": len(run.turns)}
    return note | {"sandbox": run.sandbox.id, "escalated": run.sandbox.escalated}


def nodes_of(run: Trajectory, advantage: float | None = None) -> list[vf.MessageNode]:
    """A rollout's messages as verifiers' graph holds them: one path, each node with the ids it adds. Concatenated, ids and masks are those
    of the rollout; a rollout that carries no loss has no trainable token."""
    masked = row_of(run).masked
    shares: dict[int, list[int]] = {number: [] for number in range(len(run.messages))}
    if run.tokens is not None:
        last = len(run.messages) - 1
        for span in run.tokens.spans:
            shares[min(span.message, last)] += range(span.start, span.end)
    nodes = []
    for number, message in enumerate(run.messages):
        ids, mask, logprobs = _own(run, shares[number])
        mask = [False] * len(mask) if masked else mask
        kept = [logprob for logprob, bit in zip(logprobs, mask, strict=True) if bit]
        made = vf.MessageNode(
            parent=number - 1 if number else None,
            message=_message(message),
            sampled=message["role"] == "assistant",
            token_ids=ids,
            mask=mask,
            logprobs=kept,
            advantages=None if advantage is None or not kept else [advantage] * len(kept),
        )
        nodes.append(made)
    return nodes


def trace_of(run: Trajectory, advantage: float | None = None) -> vf.Trace:
    """A rollout as a finished trace. Without a reward it is not ``ok`` and has an error with the reason."""
    data = HoldfastTaskData(id=run.task_id, name=run.task_id, prompt=str(run.messages[0].get("content") or "") if run.messages else "")
    trace: vf.Trace = vf.Trace(
        id=run.trajectory_id,
        task=vf.TraceTask(type=HoldfastTask.__name__, data=data, key=run.task_id),
        agent=vf.AgentInfo(config=vf.AgentConfig(model=run.policy.name)),
        nodes=nodes_of(run, advantage),
        info={"holdfast": note_of(run)},
    )
    trace.stop(STOPS.get(run.reason, "max_turns") if run.status is Status.TRUNCATED else "agent_completed")
    row = row_of(run)
    if row.reward is None:
        trace.rewards["solved"] = None
        error = vf.SandboxError if run.blame is Blame.INFRASTRUCTURE else vf.HarnessError
        trace.errors.append(vf.Error(type=error.__name__, message=f"{run.status}: {row.reason}"))
        trace.stop("sandbox_error" if error is vf.SandboxError else "harness_error", override=True)
    else:
        trace.record_reward("solved", row.reward)
        trace.ok = True
    return trace


def traces_of(outcome: Outcome) -> list[vf.Trace]:
    """The traces of a group with its advantages on the sampled tokens; of members that carry no loss there is none."""
    rows = rows_of(outcome)
    runs = [member.rollout.payload for member in outcome.members]
    return [trace_of(run, row.advantage) for run, row in zip(runs, rows, strict=True) if not row.masked]


def _own(run: Trajectory, places: Sequence[int]) -> tuple[list[int], list[bool], list[float]]:
    if run.tokens is None:
        return [], [], []
    tokens = run.tokens
    return (
        [tokens.ids[place] for place in places],
        [bool(tokens.loss_mask[place]) for place in places],
        [tokens.logprobs[place] for place in places],
    )


def _message(message: Any) -> Any:
    role, content = message["role"], message.get("content") or ""
    if role == "system":
        return vf.SystemMessage(content=content)
    if role == "tool":
        return vf.ToolMessage(tool_call_id=str(message.get("tool_call_id") or ""), content=content)
    if role != "assistant":
        return vf.UserMessage(content=content)
    calls = [
        vf.ToolCall(id=str(call.get("id") or ""), name=call["function"]["name"], arguments=call["function"]["arguments"])
        for call in message.get("tool_calls") or ()
    ]
    return vf.AssistantMessage(content=content or None, reasoning_content=message.get("reasoning_content"), tool_calls=calls or None)
