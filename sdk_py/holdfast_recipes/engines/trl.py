"""TRL's GRPOTrainer on Holdfast: ``GroupRollouts`` is its ``rollout_func``, ``episode_reward`` its reward function.

Owns what the trainer is handed: for each prompt, which arrives ``num_generations`` times in a row, the group that Algorithm 1 chose, with
exact ids, ``env_mask`` zero on everything the policy did not sample, and rewards of which None keeps a row out of mean and loss. Also owns
sampling from the trainer's own model, for small models and tests. Read against TRL 1.16. Asynchronous GRPO is ``trl_async``.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import Any

from holdfast_recipes.core.balance import Balance
from holdfast_recipes.core.errors import ConfigurationError
from holdfast_recipes.policy.base import ContextLengthError, Finish, Generation, Policy

from .groups import GroupPlayer, LoopThread, Recipe, cycle
from .rows import Row, rows_of

REWARD = "holdfast_reward"
"""The field of the rollouts' output that carries rewards to ``episode_reward``."""


def episode_reward(completions: Sequence[Any], **given: Any) -> list[float | None]:
    """The trainer's reward function: what the rollouts were worth. None: the row carries no loss and is no part of its group's mean."""
    rewards: list[float | None] = given[REWARD]
    return rewards


class GroupRollouts:
    """``GRPOTrainer(rollout_func=GroupRollouts(recipe), reward_funcs=episode_reward, …)``; its data set's ``prompt`` column holds task ids.

    ``recipe`` is opened at the first call and stays open until ``close``. ``num_generations`` of the trainer must be the recipe's group
    size, and each process must get whole groups. ``spares``: task ids that replace prompts whose group the filter drops, at most
    ``most_spares`` in a call (the recipe's own prompts by default); a group that is dropped all the same is masked. ``policy`` None samples
    from the trainer's model: with vLLM give one that queries the server. ``limit_s`` bounds a call.
    """

    def __init__(
        self,
        recipe: AbstractAsyncContextManager[Recipe],
        *,
        spares: Iterable[str] | None = None,
        most_spares: int = 16,
        policy: Policy | None = None,
        limit_s: float | None = None,
        seed: int = 0,
    ) -> None:
        self._opening, self._policy, self._limit_s, self._seed = recipe, policy, limit_s, seed
        self._spares, self._most_spares = spares, most_spares
        self._thread: LoopThread | None = None
        self._player: GroupPlayer | None = None
        self.counts: Counter[str] = Counter()
        """Of all calls: rollouts generated, lost to infrastructure, groups by assembly, admitted, and dropped by reason."""

    def __call__(self, prompts: Sequence[Any], trainer: Any) -> dict[str, list[Any]]:
        player = self._opened(trainer)
        training = bool(trainer.model.training)
        size = int(trainer.num_generations if training else trainer.num_generations_eval)
        tasks = groups_of(prompts, size)
        if training and player.recipe.size != size:
            raise ConfigurationError(f"num_generations is {size}, and the recipe makes groups of {player.recipe.size}: they must be equal")
        if not training:
            whole = replace(player.recipe, balance=lambda: Balance(size, size, size, "0", "1"))
            player = GroupPlayer(whole, player.policy, counts=player.counts)
        if isinstance(player.policy, TrainerPolicy):
            player.policy.version = int(trainer.state.global_step)
        assert self._thread is not None
        groups = self._thread.run(player.play(tasks), self._limit_s)
        filler = int(trainer.processing_class.pad_token_id)
        return outputs([row for group in groups for row in rows_of(group.outcome, group.dropped if training else None, filler=filler)])

    def close(self) -> None:
        """End the recipe, and with it every sandbox that is left."""
        if self._thread is not None:
            self._thread.close()
        self._thread = self._player = None

    def _opened(self, trainer: Any) -> GroupPlayer:
        if self._player is None:
            if self._policy is None and trainer.use_vllm:
                raise ConfigurationError("with vLLM the rollouts need policy=…: one that queries the server, such as engines.vllm")
            self._thread = LoopThread()
            try:
                recipe = self._thread.enter(self._opening)
            except BaseException:
                self.close()
                raise
            spares = cycle(recipe.prompts if self._spares is None else self._spares, self._seed)
            self._player = GroupPlayer(recipe, self._policy or TrainerPolicy(trainer), spares, self._most_spares, self._seed, self.counts)
        return self._player


def groups_of(prompts: Sequence[Any], size: int) -> list[str]:
    """The task ids of a call: TRL repeats each prompt ``size`` times in a row. Raises ConfigurationError for anything else."""
    heads = list(prompts[::size])
    if len(prompts) % size or any(prompts[index] != heads[index // size] for index in range(len(prompts))):
        raise ConfigurationError(f"the batch of a process is not whole groups of {size}: make it a multiple of num_generations")
    if not all(isinstance(head, str) for head in heads):
        raise ConfigurationError("the data set's prompt column must hold task ids, not messages: the recipe writes the messages")
    return heads


def outputs(rows: Sequence[Row]) -> dict[str, list[Any]]:
    """The result of ``rollout_func``."""
    return {
        "prompt_ids": [list(row.prompt_ids) for row in rows],
        "completion_ids": [list(row.response_ids) for row in rows],
        "logprobs": [list(row.logprobs) for row in rows],
        "env_mask": [list(row.mask) for row in rows],
        REWARD: [row.reward for row in rows],
    }


@dataclass(frozen=True, slots=True)
class Request:
    """One question to the model."""

    ids: tuple[int, ...]
    seed: int
    most: int
    stop: frozenset[int]


class TrainerPolicy:
    """The trainer's model as a policy. Questions that wait while the model works are answered together in the next pass."""

    def __init__(self, trainer: Any, *, most_together: int = 64) -> None:
        self.name, self.version = "trl", 0
        self._trainer, self._most = trainer, most_together
        self._waiting: list[tuple[Request, asyncio.Future[tuple[list[int], list[float]]]]] = []
        self._working: asyncio.Task[None] | None = None

    async def generate(self, prompt_ids: Sequence[int], *, seed: int | None, max_new_tokens: int, stop: Collection[int]) -> Generation:
        room = min(max_new_tokens, _context(self._trainer.model) - len(prompt_ids))
        if room < 1:
            raise ContextLengthError(f"{len(prompt_ids)} tokens leave no room for an answer")
        drawn = random.getrandbits(31) if seed is None else seed
        answered: asyncio.Future[tuple[list[int], list[float]]] = asyncio.get_running_loop().create_future()
        self._waiting.append((Request(tuple(prompt_ids), drawn, room, frozenset(stop)), answered))
        if self._working is None or self._working.done():
            self._working = asyncio.create_task(self._work(), name="trl-policy")
        ids, logprobs = await answered
        return Generation(tuple(ids), tuple(logprobs), Finish.STOP if ids and ids[-1] in stop else Finish.LENGTH, self.version)

    async def _work(self) -> None:
        while self._waiting:
            await asyncio.sleep(0)  # let every rollout that is ready ask first
            taken, self._waiting = self._waiting[: self._most], self._waiting[self._most :]
            try:
                answers = await asyncio.to_thread(self._sample, [request for request, _ in taken])
            except Exception as error:  # noqa: BLE001  each rollout that asked sees it
                for _, answered in taken:
                    if not answered.done():
                        answered.set_exception(error)
                continue
            for (_, answered), answer in zip(taken, answers, strict=True):
                if not answered.done():
                    answered.set_result(answer)

    def _sample(self, requests: Sequence[Request]) -> list[tuple[list[int], list[float]]]:
        model = self._trainer.accelerator.unwrap_model(self._trainer.model)
        return sample(model, requests, temperature=float(self._trainer.temperature))


def sample(model: Any, requests: Sequence[Request], *, temperature: float = 1.0) -> list[tuple[list[int], list[float]]]:
    """Ids and log-probabilities for each request, at ``temperature``, which TRL divides by as well. Chance is a seed for each request, so
    what is sampled does not depend on what else is asked."""
    import torch

    training = model.training
    model.eval()
    draws = [random.Random(request.seed) for request in requests]  # noqa: S311
    longest = max(len(request.ids) for request in requests)
    device = model.device
    ids = torch.tensor([[0] * (longest - len(each.ids)) + list(each.ids) for each in requests], device=device)
    mask = torch.tensor([[0] * (longest - len(each.ids)) + [1] * len(each.ids) for each in requests], device=device)
    answers: list[tuple[list[int], list[float]]] = [([], []) for _ in requests]
    going = [True] * len(requests)
    cache: Any = None
    try:
        with torch.no_grad():
            while any(going):
                positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, -ids.shape[1] :]
                seen = model(input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True)
                cache, logits = seen.past_key_values, seen.logits[:, -1].float() / temperature
                logprobs = logits.log_softmax(-1)
                shares = logprobs.double().exp().cumsum(-1)
                marks = torch.tensor([draw.random() for draw in draws], dtype=torch.double, device=device)[:, None] * shares[:, -1:]
                tokens = (shares <= marks).sum(-1).clamp_max(logits.shape[-1] - 1)
                taken = logprobs.gather(1, tokens[:, None]).squeeze(1).tolist()
                for index, token in enumerate(tokens.tolist()):
                    if going[index]:
                        answers[index][0].append(token)
                        answers[index][1].append(taken[index])
                        going[index] = token not in requests[index].stop and len(answers[index][0]) < requests[index].most
                ids = tokens[:, None]
                mask = torch.cat([mask, torch.ones_like(ids)], dim=1)
    finally:
        model.train(training)
    return answers


def _context(model: Any) -> int:
    return int(getattr(getattr(model, "config", None), "max_position_embeddings", None) or 1 << 30)
