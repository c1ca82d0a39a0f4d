"""verl on Holdfast: ``HoldfastAgentLoop`` plays a rollout in a sandbox, ``HoldfastAgentLoopManager`` fills each group by Algorithm 1.

Owns both, the manager's worker, and the advantage estimator ``holdfast_grpo``. They are named in verl's configuration: the loop in the
file of ``agent_loop_config_path`` (with ``recipe``, the file of the recipe's settings), the manager as ``agent_loop_manager_class``, which
also registers the estimator in the trainer's process. Read against verl 0.9.1 and its trainer V1, the default one, whose rollouts go into
a TransferQueue: a rollout without loss is not put there, and a group that the filter drops is a failed group, which verl replaces.

With verl's own manager the loop gives a row for such a rollout too, with a response mask of zeros and a score of 0.0; the estimator leaves
it out of mean and deviation, which verl's ``grpo`` would not.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import ray
import torch
import transfer_queue
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput, _agent_loop_registry, register
from verl.trainer.ppo.core_algos import register_adv_est
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopManagerTQ, AgentLoopWorkerTQ

from holdfast_recipes.core.advantage import advantages
from holdfast_recipes.core.errors import ConfigurationError
from holdfast_recipes.core.groups import admit
from holdfast_recipes.core.scored import Blame, Scored, Status
from holdfast_recipes.pipeline.rollouts import Ticket
from holdfast_recipes.policy.base import ContextLengthError, Finish, Generation, PolicyUnavailableError

from .rows import Row, fit, row_of
from .shared import recipe_of
from .tokenizer import HfTokenizer

NOTE = "holdfast"
"""The extra field with the data of a row that the worker needs."""
_log = logging.getLogger(__name__)


class ServerPolicy:
    """verl's inference servers as a policy. ``request_id`` keeps the turns of a rollout on the same server."""

    def __init__(self, server: Any, sampling: Mapping[str, Any], request_id: str) -> None:
        self.name, self.version = "verl", 0
        self.seconds = 0.0
        self._server, self._sampling, self._request_id = server, dict(sampling), request_id

    async def generate(self, prompt_ids: Sequence[int], *, seed: int | None, max_new_tokens: int, stop: Collection[int]) -> Generation:
        if max_new_tokens < 1:
            raise ContextLengthError("the prompt leaves no room for an answer")
        sampling = self._sampling | {"max_tokens": max_new_tokens, "stop_token_ids": sorted(stop)}
        clock = asyncio.get_running_loop().time
        began = clock()
        answer = await self._server.generate(request_id=self._request_id, prompt_ids=list(prompt_ids), sampling_params=sampling)
        self.seconds += clock() - began
        if answer.stop_reason == "aborted":
            raise PolicyUnavailableError("the server aborted the request")
        if answer.log_probs is None:
            raise ConfigurationError("set actor_rollout_ref.rollout.calculate_log_probs=True: rollouts keep the policy's log-probabilities")
        version = answer.extra_fields.get("max_global_steps")
        self.version = self.version if version is None else int(version)
        ids = tuple(int(token) for token in answer.token_ids)
        finish = Finish.STOP if ids and ids[-1] in stop else Finish.LENGTH
        return Generation(ids, tuple(float(each) for each in answer.log_probs), finish, self.version)


@register("holdfast")
class HoldfastAgentLoop(AgentLoopBase):
    """One rollout of one task. The task's id is ``extra_info["task_id"]`` of the data set's row, or a column ``task_id``. ``recipe`` is
    that of ``shared.recipe_of``."""

    def __init__(self, *args: Any, recipe: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._recipe = recipe

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> AgentLoopOutput:
        tokenizer = HfTokenizer(self.tokenizer)
        recipe = await recipe_of(self._recipe, tokenizer)
        task, clock = task_of(kwargs), asyncio.get_running_loop().time
        seed = random.getrandbits(31)
        policy = ServerPolicy(self.server_manager, sampling_params, f"holdfast-{seed:08x}-{random.getrandbits(64):016x}")
        began = clock()
        try:
            row = row_of(await recipe.rollouts(policy)(task, Ticket(seed, 0)), filler=tokenizer.filler)
        except ConfigurationError:
            raise
        except Exception as error:  # noqa: BLE001  a rollout that raises is a value
            row = row_of(None, filler=tokenizer.filler, reason=type(error).__name__)
        metrics = AgentLoopMetrics(generate_sequences=policy.seconds, tool_calls=max(0.0, clock() - began - policy.seconds))
        return output_of(fit(row, self.rollout_config.prompt_length, self.rollout_config.response_length), metrics)


def output_of(row: Row, metrics: AgentLoopMetrics | None = None) -> AgentLoopOutput:
    """verl's record of a row."""
    note = {"status": str(row.status), "blame": None if row.blame is None else str(row.blame), "reason": row.reason, "reward": row.reward}
    versions = {"min_global_steps": min(row.versions, default=None), "max_global_steps": max(row.versions, default=None)}
    return AgentLoopOutput(
        prompt_ids=list(row.prompt_ids),
        response_ids=list(row.response_ids),
        response_mask=list(row.mask),
        response_logprobs=list(row.logprobs),
        reward_score=0.0 if row.reward is None else row.reward,
        num_turns=2 * row.turns + 1,
        metrics=metrics or AgentLoopMetrics(),
        extra_fields={NOTE: note, "turn_scores": [], "tool_rewards": [], **versions},
    )


def task_of(row: Mapping[str, Any]) -> str:
    """The id of a row's task. Raises ConfigurationError for a row without one."""
    info = row.get("extra_info")
    found = row.get("task_id") or (info.get("task_id") if isinstance(info, Mapping) else None)
    if not found:
        raise ConfigurationError("a row of the data set names no task: put its id into extra_info.task_id")
    return str(found)


class HoldfastAgentLoopWorker(AgentLoopWorkerTQ.__ray_metadata__.modified_class):  # type: ignore[misc]  # the class under ray's decorator
    """verl's worker, with rollouts of a prompt chosen by Algorithm 1. Validation is verl's own."""

    async def _agent_loop_postprocess(self, output: Any, validate: bool, **kwargs: Any) -> Any:
        """Postpone verl's processing of a finished rollout until the rollout was chosen."""
        if validate or kwargs.get("session_id") is None:
            return await super()._agent_loop_postprocess(output, validate, **kwargs)
        return output, kwargs

    async def _run_prompt(
        self, prompt: dict[str, Any], sampling_params: dict[str, Any], trajectory: dict[str, Any], trace: bool = False
    ) -> None:
        if trajectory["validate"]:
            await super()._run_prompt(prompt, sampling_params, trajectory, trace)
            return
        uid, status = prompt["uid"], "failure"
        await transfer_queue.async_kv_put(key=uid, partition_id="train", tag={"status": "running"})
        try:
            kept = await self._group(prompt, sampling_params, trajectory, trace)
            for output, kwargs in kept:
                await super()._agent_loop_postprocess(output, False, **kwargs)
            status = "finished" if kept else "failure"
        except Exception:  # noqa: BLE001  as verl's own: a failed group is a status
            _log.exception("the group of prompt %s failed", uid)
        finally:
            await transfer_queue.async_kv_put(key=uid, partition_id="train", tag={"status": status})

    async def _group(
        self, prompt: dict[str, Any], sampling_params: dict[str, Any], trajectory: dict[str, Any], trace: bool
    ) -> list[tuple[AgentLoopOutput, dict[str, Any]]]:
        """The rollouts of a group that carry loss; none of a group that the filter dropped."""
        own = dict(prompt)
        size = int(own.pop("__rollout_n__", self.config.actor_rollout_ref.rollout.n))
        own.pop("__do_sample__", None)
        named = _agent_loop_registry.get(own.get("agent_name"), {})
        recipe = await recipe_of(str(named.get("recipe", "")), HfTokenizer(self.tokenizer))
        balance = recipe.balance()
        if balance.size != size:
            raise ConfigurationError(f"rollout.n is {size}, and the recipe makes groups of {balance.size}: they must be equal")
        running: list[asyncio.Task[Any]] = []
        started = 0
        try:
            while (outcome := balance.outcome()) is None:
                for _ in range(balance.wants() - len(running)):
                    play = self._run_agent_loop(dict(sampling_params), trajectory=trajectory, trace=trace, session_id=started, **own)
                    running.append(asyncio.create_task(play))
                    started += 1
                done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                balance.add([_scored(task) for task in running if task in done])
                running = [task for task in running if task not in done]
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
        if (dropped := admit([member.rollout for member in outcome.members], recipe.rules).reason) is not None:
            _log.info("the group of prompt %s is dropped: %s", own["uid"], dropped)
            return []
        return [member.rollout.payload for member in outcome.members if not member.remove_sample]


class HoldfastAgentLoopManager(AgentLoopManagerTQ):
    """verl's manager with our workers. For replacing dropped groups in the synchronous trainer set
    ``trainer.v1.sampler.sync_refill_failed_groups``; the asynchronous ones always do."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.agent_loop_workers_class = ray.remote(HoldfastAgentLoopWorker)


def _scored(task: asyncio.Task[Any]) -> Scored:
    """A finished rollout as the group algorithms see it; its payload is what verl stores."""
    if (error := task.exception()) is not None:
        _log.error("a rollout raised", exc_info=error)
        return Scored(None, Status.ABORTED, 0, Blame.INFRASTRUCTURE)
    output, kwargs = task.result()
    note = output.extra_fields[NOTE]
    blame = None if note["blame"] is None else Blame(note["blame"])
    status = Status(note["status"])
    if note["reward"] is None and status in (Status.COMPLETED, Status.TRUNCATED) and blame is None:
        status = Status.ABORTED  # without a token to train on
    return Scored(note["reward"], status, sum(output.response_mask), blame, (output, kwargs))


@register_adv_est("holdfast_grpo")
def holdfast_grpo(
    token_level_rewards: torch.Tensor, response_mask: torch.Tensor, index: Any, config: Any = None, **given: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """[B, R] advantages relative to the group (``index``), on sampled tokens. A row whose mask is all zero is in no mean and has none."""
    scores, live = token_level_rewards.sum(-1).tolist(), response_mask.sum(-1) > 0
    std = "sample" if config is None or config.get("norm_adv_by_std_in_grpo", True) else "none"
    groups: dict[Any, list[int]] = defaultdict(list)
    for place, uid in enumerate(index):
        groups[uid].append(place)
    each = torch.zeros_like(token_level_rewards[:, 0])
    for places in groups.values():
        made = advantages([scores[place] if bool(live[place]) else None for place in places], std=std)  # type: ignore[arg-type]
        each[places] = torch.tensor(made, dtype=each.dtype, device=each.device)
    spread = each[:, None] * response_mask
    return spread, spread
