"""slime on Holdfast: functions whose import paths its command line takes, and its ``Sample`` of a rollout.

Owns ``generate_rollout`` (the rollout manager with Algorithm 1), ``generate`` (one rollout, for slime's own loop), ``reward``,
``keep_group``, ``remove_samples`` and ``group_advantages``. slime gives each of them ``args``; the recipe's settings are the file that
``args.holdfast_recipe`` names (``--custom-config-path``). Read against slime 0.3.1 (624b824).

Partial rollouts are refused: a sequence of tokens can wait in slime's buffer for the next step, the sandbox it belongs to cannot.
"""

from __future__ import annotations

import asyncio
import atexit
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast_recipes.core.advantage import advantages
from holdfast_recipes.core.balance import Balance
from holdfast_recipes.core.errors import ConfigurationError
from holdfast_recipes.core.groups import admit
from holdfast_recipes.core.scored import Blame, Scored, Status
from holdfast_recipes.core.trajectory import Trajectory
from holdfast_recipes.pipeline.batching import Batching
from holdfast_recipes.pipeline.rollouts import RolloutManager, Step, Ticket
from holdfast_recipes.policy.base import Policy
from holdfast_recipes.policy.endpoint import Sampling
from holdfast_recipes.policy.sglang import SGLang

from .groups import GroupPlayer, LoopThread, Recipe
from .rows import Row, row_of, rows_of
from .swe import SweSettings, opened
from .tokenizer import HfTokenizer

STEP_LIMIT_S = 7200.0


@dataclass(slots=True)
class Attached:
    """The objects that one process of slime keeps open: the recipe, its loop, a policy, and a decoder of ids."""

    recipe: Recipe
    thread: LoopThread
    policy: Policy
    decode: Callable[[Sequence[int]], str] = field(default=lambda ids: "")
    filler: int = 0


_attached: dict[str, Attached] = {}


def attach(
    opening: AbstractAsyncContextManager[Recipe],
    policy: Callable[[], Policy],
    *,
    name: str = "",
    decode: Callable[[Sequence[int]], str] = lambda ids: "",
    filler: int = 0,
) -> Attached:
    """Open a recipe of one's own for this process, instead of the one that ``args.holdfast_recipe`` names (``name``)."""
    thread = LoopThread()

    async def made() -> Policy:
        return policy()

    try:
        _attached[name] = Attached(thread.enter(opening), thread, thread.run(made()), decode, filler)
    except BaseException:
        thread.close()
        raise
    return _attached[name]


def detach() -> None:
    """End all recipes of this process, and with them every sandbox that is left."""
    while _attached:
        _attached.popitem()[1].thread.close()


atexit.register(detach)


def generate_rollout(args: Any, rollout_id: int, data_source: Any, evaluation: bool = False) -> Any:
    """``--rollout-function-path``: ``rollout_batch_size`` groups of ``n_samples_per_prompt`` that the filter admitted, each chosen by
    Algorithm 1 out of up to N_max rollouts. What still runs then is cancelled; its prompts go back to a data source that takes them."""
    from slime.rollout.base_types import RolloutFnEvalOutput, RolloutFnTrainOutput

    made = _of(args)
    if evaluation:
        return RolloutFnEvalOutput(*made.thread.run(_evaluated(args, rollout_id, made)))
    if made.recipe.size != args.n_samples_per_prompt:
        raise ConfigurationError(f"n_samples_per_prompt is {args.n_samples_per_prompt}, and the recipe makes groups of {made.recipe.size}")
    return RolloutFnTrainOutput(*made.thread.run(_generated(args, rollout_id, data_source, made)))


async def generate(args: Any, sample: Any, sampling_params: dict[str, Any], evaluation: bool = False) -> Any:
    """``--custom-generate-function-path``: one rollout into ``sample``, with its reward. slime's own loop makes the groups then; give it
    ``keep_group``, ``remove_samples`` and ``group_advantages`` too."""
    made = _of(args)
    seed = sampling_params.get("sampling_seed")
    drawn = random.getrandbits(31) if seed is None else seed + 7919 * int(sample.index or 0)
    ticket = Ticket(drawn, 0)

    async def play() -> Row:
        try:
            return row_of(await made.recipe.rollouts(made.policy)(task_of(sample), ticket), filler=made.filler)
        except Exception as error:  # noqa: BLE001  a rollout that raises is a value
            return row_of(None, filler=made.filler, reason=type(error).__name__)

    row = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(play(), made.thread.loop))
    return fill(sample, row, made.decode)


async def reward(args: Any, sample: Any, **given: Any) -> float:
    """``--custom-rm-path``: what grading in a clean sandbox gave, which is part of the rollout."""
    if sample.reward is None:
        raise ConfigurationError("a sample without a reward did not come from this adapter's rollouts")
    return float(sample.reward)


def keep_group(args: Any, samples: Sequence[Any], **given: Any) -> Any:
    """``--dynamic-sampling-filter-path``: the group filter, with its reason."""
    from slime.rollout.filter_hub.base_types import DynamicFilterOutput

    verdict = admit([_scored(sample) for sample in _flat(samples)])
    return DynamicFilterOutput(keep=verdict.keep, reason=None if verdict.reason is None else str(verdict.reason))


def remove_samples(args: Any, groups: Sequence[Sequence[Any]]) -> None:
    """``--rollout-sample-filter-path``: no loss for what carries none."""
    for sample in _flat(groups):
        if not _usable(sample):
            sample.remove_sample = True


def group_advantages(args: Any, samples: Sequence[Any]) -> tuple[list[float], list[float]]:
    """``--custom-reward-post-process-path``: raw rewards, and group-relative advantages that leave removed samples out of mean and
    deviation. Samples of one rollout (``rollout_id``) count once and share its advantage: slime divides their loss by their number itself.

    Without it slime takes the whole batch as one group when groups are uneven, and counts removed samples."""
    flat = _flat(samples)
    groups: dict[Any, dict[Any, list[int]]] = defaultdict(lambda: defaultdict(list))
    for place, sample in enumerate(flat):
        rollout = ("sample", place) if sample.rollout_id is None else ("rollout", sample.rollout_id)
        group = ("place", place // args.n_samples_per_prompt) if sample.group_index is None else ("group", sample.group_index)
        groups[group][rollout].append(place)
    normalised = [0.0] * len(flat)
    for rollouts in groups.values():
        usable = [[place for place in places if _usable(flat[place])] for places in rollouts.values()]
        each = advantages([float(flat[places[0]].reward) if places else None for places in usable])
        for places, advantage in zip(usable, each, strict=True):
            for place in places:
                normalised[place] = advantage
    return [float(sample.reward or 0.0) for sample in flat], normalised


def fill(sample: Any, row: Row, decode: Callable[[Sequence[int]], str] = lambda ids: "") -> Any:
    """A row into slime's sample. A masked row is aborted and removed; its reward is 0.0, which nothing counts."""
    statuses = type(sample).Status
    sample.tokens = list(row.ids)
    sample.response, sample.response_length = decode(row.response_ids), len(row.response_ids)
    sample.loss_mask, sample.rollout_log_probs = list(row.mask), list(row.logprobs)
    sample.weight_versions = [str(version) for version in row.versions]
    sample.reward = 0.0 if row.reward is None else row.reward
    sample.remove_sample = row.masked
    sample.status = statuses.ABORTED if row.masked else statuses.TRUNCATED if row.status is Status.TRUNCATED else statuses.COMPLETED
    note = {"rollout": row.rollout, "status": str(row.status), "reason": row.reason, "turns": row.turns}
    note |= {"blame": None if row.blame is None else str(row.blame)}
    sample.metadata = {**(sample.metadata or {}), "holdfast": note}
    return sample


def task_of(sample: Any) -> str:
    """The id of a sample's task: ``metadata["task_id"]``, else its label, else its prompt."""
    found = (sample.metadata or {}).get("task_id") or sample.label or sample.prompt
    if not isinstance(found, str) or not found:
        raise ConfigurationError("a row of the prompt data names no task: put its id into metadata.task_id")
    return found


async def _generated(args: Any, rollout_id: int, data_source: Any, made: Attached) -> tuple[list[list[Any]], dict[str, Any]]:
    groups: dict[int, list[Any]] = {}
    batching: Batching[tuple[int, str]] = Batching(
        _prompts(data_source, groups), batch=args.rollout_batch_size, balance=made.recipe.balance, rules=made.recipe.rules
    )
    play = made.recipe.rollouts(made.policy)

    async def rollout(prompt: tuple[int, str], ticket: Ticket) -> Trajectory:
        return await play(prompt[1], ticket)

    seed = int(getattr(args, "rollout_seed", 0)) * 1_000_003 + rollout_id
    manager = RolloutManager(batching, rollout, concurrency=made.recipe.concurrency, step_limit_s=STEP_LIMIT_S, seed=seed)
    async with manager:
        step = await manager.step()
    if step is None:
        raise ConfigurationError("the data source gave no more prompts")
    samples = []
    for group in step.batch.groups:
        templates = groups.pop(group.prompt[0])
        rows = rows_of(group.outcome, filler=made.filler)
        samples.append([fill(sample, row, made.decode) for sample, row in zip(templates, rows, strict=True)])
    if groups and hasattr(data_source, "add_samples") and not _read_only(data_source):
        data_source.add_samples(list(groups.values()))
    return samples, measured(step)


def _prompts(data_source: Any, groups: dict[int, list[Any]]) -> Iterator[tuple[int, str]]:
    number = 0
    while taken := data_source.get_samples(1):
        groups[number] = taken[0]
        yield number, task_of(taken[0][0])
        number += 1


def _read_only(data_source: Any) -> bool:
    """slime's plain source has ``add_samples`` and raises in it; those with a buffer have one."""
    return not hasattr(data_source, "buffer")


async def _evaluated(args: Any, rollout_id: int, made: Attached) -> tuple[dict[str, dict[str, list[Any]]], dict[str, Any]]:
    """Every task of the recipe ``n_samples_per_eval_prompt`` times, without Algorithm 1. What infrastructure spoiled is counted apart."""
    from slime.utils.types import Sample

    count = int(getattr(args, "n_samples_per_eval_prompt", 1) or 1)
    whole = Recipe(made.recipe.rollouts, lambda: Balance(count, count, count, "0", "1"), made.recipe.rules, made.recipe.concurrency)
    groups = await GroupPlayer(whole, made.policy, seed=rollout_id).play(made.recipe.prompts)
    rows = [(group.prompt, row) for group in groups for row in rows_of(group.outcome, filler=made.filler)]
    kept = [fill(Sample(prompt=prompt, metadata={"task_id": prompt}), row, made.decode) for prompt, row in rows if not row.masked]
    truncated = [sample.status is Sample.Status.TRUNCATED for sample in kept]
    data = {"holdfast": {"rewards": [sample.reward for sample in kept], "truncated": truncated, "samples": kept}}
    return data, {"holdfast/eval_spoiled": len(rows) - len(kept)}


def measured(step: Step[Any]) -> dict[str, Any]:
    """Counts of a step as slime logs them."""
    counts: dict[str, Any] = {f"holdfast/{name}": count for name, count in step.batch.counts.items()}
    return counts | {f"holdfast/seconds_{name}": value for name, value in step.seconds.items()}


def _of(args: Any) -> Attached:
    if getattr(args, "partial_rollout", False):
        raise ConfigurationError("start without --partial-rollout: the sandbox of a rollout cannot wait in the buffer")
    name = str(getattr(args, "holdfast_recipe", "") or "")
    if name not in _attached:
        if not name:
            raise ConfigurationError("args.holdfast_recipe names no file: set holdfast_recipe in the file of --custom-config-path")
        from transformers import AutoTokenizer

        tokenizer = HfTokenizer(AutoTokenizer.from_pretrained(args.hf_checkpoint, trust_remote_code=True))
        opening = opened(SweSettings.read(Path(name)), tokenizer)
        attach(opening, lambda: policy_of(args), name=name, decode=tokenizer.decode, filler=tokenizer.filler)
    return _attached[name]


def policy_of(args: Any) -> SGLang:
    """slime's router, with the sampling options of its command line."""
    extra = {"top_k": args.rollout_top_k} if getattr(args, "rollout_top_k", -1) not in (-1, None) else {}
    sampling = Sampling(args.rollout_temperature, args.rollout_top_p, extra)
    return SGLang(f"http://{args.sglang_router_ip}:{args.sglang_router_port}", sampling=sampling)


def _flat(samples: Sequence[Any]) -> list[Any]:
    return [each for sample in samples for each in (_flat(sample) if isinstance(sample, list) else [sample])]


def _usable(sample: Any) -> bool:
    return not sample.remove_sample and sample.reward is not None and sample.status.value in ("completed", "truncated")


def _scored(sample: Any) -> Scored:
    usable = _usable(sample)
    status = Status.ABORTED if not usable else Status(sample.status.value)
    blame = ((sample.metadata or {}).get("holdfast") or {}).get("blame")
    length = sum(sample.loss_mask) if sample.loss_mask is not None else sample.response_length
    return Scored(float(sample.reward) if usable else None, status, length, Blame(blame) if blame else None)
