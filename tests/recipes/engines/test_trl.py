"""TRL's real GRPOTrainer: three steps on real sandboxes with a model of random weights, and its records of known rollouts."""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
import math
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from datasets import Dataset
from holdfast_recipes.core.balance import Balance
from holdfast_recipes.core.errors import ConfigurationError
from holdfast_recipes.core.trajectory import Trajectory
from holdfast_recipes.engines.groups import Recipe
from holdfast_recipes.engines.rows import rows_of
from holdfast_recipes.engines.trl import REWARD, GroupRollouts, Request, TrainerPolicy, episode_reward, groups_of, outputs, sample
from holdfast_recipes.pipeline.rollouts import Rollout
from holdfast_recipes.policy.base import Policy
from trl import GRPOConfig, GRPOTrainer

from tests.recipes.engines import cases, models, tiny


def settings(folder: Path, **more: Any) -> GRPOConfig:
    given: dict[str, Any] = {
        "output_dir": str(folder),
        "per_device_train_batch_size": 8,
        "num_generations": 4,
        "max_completion_length": 64,
        "max_steps": 3,
        "learning_rate": 1e-2,
        "lr_scheduler_type": "constant",
        "logging_steps": 1,
        "report_to": [],
        "save_strategy": "no",
        "use_cpu": True,
        "bf16": False,
        "beta": 0.0,
        "disable_tqdm": True,
        "gradient_checkpointing": False,
    }
    return GRPOConfig(**given | more)


def trainer(rollouts: GroupRollouts, folder: Path, words: int = 64, **more: Any) -> GRPOTrainer:
    return GRPOTrainer(
        model=models.model(words=words),
        reward_funcs=episode_reward,
        args=settings(folder, **more),
        train_dataset=Dataset.from_dict({"prompt": ["t0", "t1", "t2", "t3"] * 4}),
        processing_class=models.tokenizer(),
        rollout_func=rollouts,
    )


class Recorded(GroupRollouts):
    """Records the output that the trainer received."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.given: list[dict[str, list[Any]]] = []

    def __call__(self, prompts: Sequence[Any], trainer: Any) -> dict[str, list[Any]]:
        self.given.append(super().__call__(prompts, trainer))
        return self.given[-1]


def scripted(play: Callable[[str, int], Trajectory], size: int = 4, **more: Any) -> Any:
    """A recipe without sandboxes: rollouts are given."""
    numbers = itertools.count()

    def rollouts(policy: Policy) -> Rollout[str]:
        async def rollout(prompt: str, ticket: Any) -> Trajectory:
            return play(prompt, next(numbers))

        return rollout

    @asynccontextmanager
    async def opened() -> AsyncIterator[Recipe]:
        yield Recipe(rollouts, lambda: Balance(size, size, size, "0", "1"), **more)

    return opened()


def test_three_steps_on_real_sandboxes(tmp_path: Path) -> None:
    broken = itertools.count()
    rollouts = Recorded(tiny.on_sandboxes(breaks=lambda: next(broken) % 9 == 4), limit_s=150)
    made = trainer(rollouts, tmp_path, words=len(tiny.WORDS))
    before = [each.detach().clone() for each in made.model.parameters()]
    try:
        done = made.train()
    finally:
        rollouts.close()
    assert done.global_step == 3
    logged = [entry for entry in made.state.log_history if "loss" in entry]
    assert len(logged) == 3
    assert all(math.isfinite(entry["loss"]) and math.isfinite(entry["grad_norm"]) for entry in logged)
    assert any(entry["grad_norm"] > 0 for entry in logged)
    assert any(not torch.equal(old, new) for old, new in zip(before, made.model.parameters(), strict=True))
    assert rollouts.counts["generated"] >= 3 * 8
    assert rollouts.counts["infrastructure"] >= 1
    assert len(rollouts.given) == 3
    for output in rollouts.given:
        assert {len(column) for column in output.values()} == {8}
        for ids, mask, reward in zip(output["completion_ids"], output["env_mask"], output[REWARD], strict=True):
            assert len(ids) == len(mask)
            assert (reward is None) == (not any(mask))
            if reward is not None:  # what the tool answered, and nothing else, is masked
                given = [token for token, bit in zip(ids, mask, strict=True) if not bit]
                assert set(given) <= {tiny.IDS[">"], tiny.IDS["ok"], tiny.IDS["a"], tiny.IDS[tiny.END]}
    print(f"\ntrl: {rollouts.counts}; losses {[round(entry['loss'], 4) for entry in logged]}")


def test_the_trainer_computes_our_advantages_and_loses_nothing_on_masked_rows(tmp_path: Path) -> None:
    runs = {0: cases.MULTI, 1: cases.FAILED, 2: cases.TRUNCATED, 3: cases.LOST}
    rollouts = GroupRollouts(scripted(lambda prompt, number: runs[number % 4]), spares=())
    made = trainer(rollouts, tmp_path, max_steps=1, per_device_train_batch_size=4)
    made.train()
    rollouts.close()
    seen = made._logs["advantages"]
    # TRL adds 1e-4 to the deviation
    assert sorted(seen) == pytest.approx([-0.57735, -0.57735, 0.0, 1.1547], abs=2e-4)
    rewards = list(made._logs["rewards"]["episode_reward"])
    assert [reward for reward in rewards if not math.isnan(reward)] == [1.0, -1.0, -1.0]
    assert sum(map(math.isnan, rewards)) == 1


def test_the_output_has_the_exact_ids_masks_and_rewards() -> None:
    output = outputs(rows_of(cases.group(*cases.MIXED), filler=0))
    place = output[REWARD].index(1.0)
    assert output["prompt_ids"][place] == list(cases.PROMPT)
    assert output["completion_ids"][place] == list(cases.RESPONSE)
    assert output["env_mask"][place] == list(cases.RESPONSE_MASK)
    assert output["logprobs"][place] == list(cases.RESPONSE_LOGPROBS)
    lost = output[REWARD].index(None)
    assert (output["env_mask"][lost], output["completion_ids"][lost]) == ([0], [20])
    assert episode_reward([], **{REWARD: [1.0, None]}) == [1.0, None]


def test_a_batch_whose_groups_were_all_dropped_moves_nothing(tmp_path: Path) -> None:
    rollouts = GroupRollouts(scripted(lambda prompt, number: cases.MULTI), spares=())
    made = trainer(rollouts, tmp_path, max_steps=1)
    before = [each.detach().clone() for each in made.model.parameters()]
    made.train()
    rollouts.close()
    entry = next(entry for entry in made.state.log_history if "loss" in entry)
    assert (entry["loss"], entry["grad_norm"]) == (0.0, 0.0)
    assert all(torch.equal(old, new) for old, new in zip(before, made.model.parameters(), strict=True))
    assert rollouts.counts["dropped_zero_variance"] == 2


def test_group_sizes_must_agree_and_prompts_are_task_ids(tmp_path: Path) -> None:
    rollouts = GroupRollouts(scripted(lambda prompt, number: cases.MULTI, size=2), spares=())
    with pytest.raises(ConfigurationError, match="groups of 2"):
        trainer(rollouts, tmp_path, max_steps=1).train()
    rollouts.close()
    assert groups_of(["a", "a", "b", "b"], 2) == ["a", "b"]
    for prompts in (["a", "b"], ["a", "a", "b"]):
        with pytest.raises(ConfigurationError, match="whole groups"):
            groups_of(prompts, 2)
    with pytest.raises(ConfigurationError, match="task ids"):
        groups_of([[{"role": "user", "content": "x"}]] * 2, 2)


def test_the_launch_file_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path(__file__).parents[3] / "infra" / "recipes" / "engines" / "train_trl.py"
    spec = importlib.util.spec_from_file_location("train_trl", path)
    assert spec is not None
    assert spec.loader is not None
    launch = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(launch)
    recipe = tmp_path / "recipe.json"
    recipe.write_text('{"tasks": "tasks.jsonl", "size": 2, "budget": 4, "stride": 2, "low": "0.25", "high": "0.75"}')
    monkeypatch.setattr(launch.files, "tasks", lambda path: [SimpleNamespace(task_id=f"t{number}") for number in range(2)])
    monkeypatch.setattr(launch, "opened", lambda settings, tokenizer: tiny.without_sandboxes(settings.size))
    model = models.saved(tmp_path / "model")
    words = ["--recipe", str(recipe), "--model", str(model), "--output", str(tmp_path / "out"), "--steps", "1", "--groups", "2", "--cpu"]
    assert launch.main(words) == 0


def test_sampling_gives_the_models_own_log_probabilities_whatever_it_is_asked_with() -> None:
    model = models.model().eval()
    requests = [Request((1, 4, 5, 6), 11, 6, frozenset({2})), Request((1,), 12, 3, frozenset({2}))]
    together = sample(model, requests)
    assert [ids for ids, _ in together] == [sample(model, [request])[0][0] for request in requests]
    for request, (ids, logprobs) in zip(requests, together, strict=True):
        assert 1 <= len(ids) <= request.most
        whole = torch.tensor([[*request.ids, *ids]])
        with torch.no_grad():
            logits = model(input_ids=whole).logits[0, len(request.ids) - 1 : -1]
        expected = logits.log_softmax(-1).gather(1, torch.tensor([ids]).T).squeeze(1)
        assert logprobs == pytest.approx(expected.tolist(), abs=1e-4)


async def test_questions_that_wait_are_answered_together_and_a_failure_reaches_all() -> None:
    class Trainer:
        model = models.model()
        temperature = 1.0

    policy = TrainerPolicy(Trainer())
    calls: list[int] = []

    def answer(requests: Sequence[Request]) -> list[tuple[list[int], list[float]]]:
        calls.append(len(requests))
        if len(calls) == 2:
            raise RuntimeError("out of memory")
        return [([2], [-0.5]) for _ in requests]

    policy._sample = answer  # type: ignore[method-assign]
    generations = [policy.generate((1, 4), seed=number, max_new_tokens=3, stop={2}) for number in range(5)]
    assert {each.ids for each in await asyncio.gather(*generations)} == {(2,)}
    assert calls == [5]
    failed = await asyncio.gather(*(policy.generate((1,), seed=1, max_new_tokens=3, stop={2}) for _ in range(2)), return_exceptions=True)
    assert [str(each) for each in failed] == ["out of memory"] * 2
    assert (await policy.generate((1,), seed=1, max_new_tokens=3, stop={2})).ids == (2,)
