"""slime's functions on known rollouts, with the real package's records where it can be had and with those of its facts elsewhere."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from holdfast_recipes.core.balance import Balance
from holdfast_recipes.core.errors import ConfigurationError
from holdfast_recipes.core.trajectory import Trajectory
from holdfast_recipes.engines import slime as adapter
from holdfast_recipes.engines.groups import Recipe
from holdfast_recipes.engines.rows import row_of
from holdfast_recipes.pipeline.rollouts import Rollout
from holdfast_recipes.policy.base import Policy
from holdfast_recipes.policy.scripted import ScriptedTokens
from holdfast_recipes.policy.sglang import SGLang
from holdfast_recipes.policy.tokenizer import ByteTokenizer

from tests.recipes.engines import cases, slime_package
from tests.recipes.engines.launching import LAUNCH, launched

package = slime_package.load()
Sample = package.Sample


def arguments(**more: Any) -> SimpleNamespace:
    return SimpleNamespace(**{"n_samples_per_prompt": 4, "rollout_batch_size": 2, "rollout_seed": 1, "holdfast_recipe": "", **more})


class Source:
    """As slime's data source with a buffer: groups of samples, each a copy of its prompt's."""

    def __init__(self, *tasks: str, size: int = 4) -> None:
        self._tasks, self._size = iter(tasks), size
        self._groups, self._samples = itertools.count(), itertools.count()
        self.buffer: list[list[Any]] = []

    def get_samples(self, count: int) -> list[list[Any]]:
        made = []
        for task in itertools.islice(self._tasks, count):
            group = next(self._groups)
            made.append(
                [Sample(group_index=group, index=next(self._samples), prompt="p", metadata={"task_id": task}) for _ in range(self._size)]
            )
        return made

    def add_samples(self, groups: list[list[Any]]) -> None:
        self.buffer += groups


@pytest.fixture
def attached() -> Iterator[Callable[..., adapter.Attached]]:
    def attach(play: Callable[[str, int], Trajectory], size: int = 4, budget: int = 4, stride: int = 4) -> adapter.Attached:
        numbers = itertools.count()

        def rollouts(policy: Policy) -> Rollout[str]:
            async def rollout(prompt: str, ticket: Any) -> Trajectory:
                return play(prompt, next(numbers))

            return rollout

        @asynccontextmanager
        async def opened() -> AsyncIterator[Recipe]:
            yield Recipe(rollouts, lambda: Balance(size, budget, stride, "0.25", "0.75"), prompts=("task-1", "task-2"))

        policy = ScriptedTokens([], ByteTokenizer(), 257)
        return adapter.attach(opened(), lambda: policy, decode=lambda ids: " ".join(map(str, ids)), filler=9)

    yield attach
    adapter.detach()


MIXED = {0: cases.MULTI, 1: cases.FAILED, 2: cases.TRUNCATED, 3: cases.LOST}


def test_the_real_package() -> None:
    """Skips if the package is missing; otherwise the stand-ins must match the real package."""
    if (why := slime_package.real()) is not None:
        pytest.skip(why)
    for fact in itertools.chain(*slime_package.STAND_INS.values()):
        real = {item.name: item for item in dataclasses.fields(getattr(package, fact.__name__))}
        for item in dataclasses.fields(fact):
            assert item.name in real
            if not isinstance(item.default, slime_package.Status):
                assert (item.default, item.default_factory) == (real[item.name].default, real[item.name].default_factory)
    assert {each.name: each.value for each in Sample.Status} == {each.name: each.value for each in slime_package.Status}


def test_functions_have_the_parameters_that_slime_calls_them_with() -> None:
    def parameters(function: Any) -> list[str]:
        return [
            f"{'**' if each.kind is each.VAR_KEYWORD else ''}{each.name}{'' if each.default is each.empty else f'={each.default}'}"
            for each in inspect.signature(function).parameters.values()
        ]

    assert parameters(adapter.generate_rollout) == ["args", "rollout_id", "data_source", "evaluation=False"]
    assert parameters(adapter.generate) == ["args", "sample", "sampling_params", "evaluation=False"]
    assert inspect.iscoroutinefunction(adapter.generate)
    assert parameters(adapter.reward) == ["args", "sample", "**given"]
    assert parameters(adapter.keep_group) == ["args", "samples", "**given"]
    assert parameters(adapter.remove_samples) == ["args", "groups"]
    assert parameters(adapter.group_advantages) == ["args", "samples"]


def test_a_rollout_becomes_a_sample_with_exact_ids_and_masks() -> None:
    sample = adapter.fill(Sample(index=3), row_of(cases.MULTI), lambda ids: "text")
    assert sample.tokens == list(cases.IDS)
    assert (sample.response_length, sample.response) == (len(cases.RESPONSE), "text")
    assert sample.loss_mask == list(cases.RESPONSE_MASK)
    assert sample.rollout_log_probs == list(cases.RESPONSE_LOGPROBS)
    assert (sample.reward, sample.remove_sample, sample.status) == (1.0, False, Sample.Status.COMPLETED)
    assert sample.weight_versions == ["3", "3"]
    truncated = adapter.fill(Sample(), row_of(cases.TRUNCATED))
    assert (truncated.status, truncated.reward, truncated.loss_mask) == (Sample.Status.TRUNCATED, -1.0, [1, 1, 1])
    lost = adapter.fill(Sample(metadata={"mine": 1}), row_of(cases.LOST))
    assert (lost.status, lost.remove_sample, lost.loss_mask, lost.reward) == (Sample.Status.ABORTED, True, [0], 0.0)
    assert lost.metadata["mine"] == 1
    assert (lost.metadata["holdfast"]["reason"], lost.metadata["holdfast"]["blame"]) == ("node-lost", "infrastructure")
    never = adapter.fill(Sample(), row_of(cases.NEVER, filler=9))
    assert (never.tokens, never.response_length) == ([9, 9], 1)
    if hasattr(sample, "_validate_response_metadata_lengths"):
        for each in (sample, truncated, lost, never):
            each._validate_response_metadata_lengths()


def test_generate_rollout_gives_admitted_groups_and_returns_other_prompts(attached: Callable[..., Any]) -> None:
    def play(prompt: str, number: int) -> Trajectory:
        return cases.MULTI if prompt == "same" else MIXED[number % 4]

    attached(play)
    source = Source("same", "a", "b", *"cdefgh")
    output = adapter.generate_rollout(arguments(), 7, source)
    assert isinstance(output, package.RolloutFnTrainOutput)
    assert [len(group) for group in output.samples] == [4, 4]
    assert "same" not in {sample.metadata["task_id"] for group in output.samples for sample in group}
    assert output.metrics["holdfast/dropped_zero_variance"] == 1
    for group in output.samples:
        assert len({sample.group_index for sample in group}) == 1
        assert len({sample.index for sample in group}) == 4
        for sample in group:
            assert sample.remove_sample == (not any(sample.loss_mask))
            assert sample.reward is not None
    for group in source.buffer:
        assert all(sample.tokens == [] and sample.status is Sample.Status.PENDING for sample in group)


def test_more_rollouts_than_a_group_has_places_are_played_to_balance_it(attached: Callable[..., Any]) -> None:
    signs = [-1.0] * 4 + [1.0, 1.0, -1.0, -1.0]
    attached(lambda prompt, number: replace(cases.MULTI, reward=signs[number]), budget=8)
    output = adapter.generate_rollout(arguments(rollout_batch_size=1), 0, Source("a"))
    assert sorted(sample.reward for sample in output.samples[0]) == [-1.0, -1.0, 1.0, 1.0]
    assert output.metrics["holdfast/generated"] == 8


async def test_advantages_leave_removed_samples_out_and_count_a_rollout_once(attached: Callable[..., Any]) -> None:
    attached(lambda prompt, number: MIXED[number % 4])
    samples = [sample for group in adapter.generate_rollout(arguments(), 0, Source("a", "b", "c")).samples for sample in group]
    raw, normalised = adapter.group_advantages(arguments(), samples)
    assert sorted(normalised[:4]) == pytest.approx([-0.57735, -0.57735, 0.0, 1.1547], abs=1e-5)
    assert sorted(raw[:4]) == [-1.0, -1.0, 0.0, 1.0]
    parts = [replace(row_of(cases.MULTI), reward=value) for value in (1.0, 1.0, 1.0, -1.0)]
    fanned = [adapter.fill(Sample(group_index=0, rollout_id=number), part) for number, part in zip((0, 0, 0, 1), parts, strict=True)]
    assert adapter.group_advantages(arguments(), fanned)[1] == pytest.approx([0.7071, 0.7071, 0.7071, -0.7071], abs=1e-4)
    apart = [adapter.fill(Sample(), replace(row_of(cases.MULTI), reward=value)) for value in (1.0, -1.0, 1.0, 1.0)]
    assert adapter.group_advantages(arguments(n_samples_per_prompt=2), apart)[1] == pytest.approx([0.7071, -0.7071, 0, 0], abs=1e-4)


async def test_slimes_own_loop_with_generate_filter_and_removal(attached: Callable[..., Any]) -> None:
    def play(prompt: str, number: int) -> Trajectory:
        if number == 3:
            raise OSError("gone")
        return MIXED[number]

    attached(play)
    (group,) = Source("a").get_samples(1)
    made = [await adapter.generate(arguments(), sample, {"sampling_seed": 5}) for sample in group]
    assert [sample.status.value for sample in made] == ["completed", "completed", "truncated", "aborted"]
    assert [sample.remove_sample for sample in made] == [False, False, False, True]
    assert await adapter.reward(arguments(), made[1]) == -1.0
    verdict = adapter.keep_group(arguments(), made)
    assert isinstance(verdict, package.DynamicFilterOutput)
    assert (verdict.keep, verdict.reason, verdict.keep_when_insufficient) == (True, None, False)
    same = [adapter.fill(Sample(), row_of(cases.MULTI)) for _ in range(4)]
    assert (adapter.keep_group(arguments(), same).keep, adapter.keep_group(arguments(), same).reason) == (False, "zero_variance")
    spoiled = [adapter.fill(Sample(), row_of(run)) for run in (cases.MULTI, cases.FAILED, cases.LOST, cases.NEVER)]
    assert adapter.keep_group(arguments(), spoiled).reason == "infrastructure"
    made[0].status = Sample.Status.ABORTED
    adapter.remove_samples(arguments(), [made])
    assert [sample.remove_sample for sample in made] == [True, False, False, True]
    with pytest.raises(ConfigurationError, match="without a reward"):
        await adapter.reward(arguments(), Sample())


def test_evaluation_counts_what_infrastructure_spoiled_apart(attached: Callable[..., Any]) -> None:
    attached(lambda prompt, number: MIXED[number % 4])
    output = adapter.generate_rollout(arguments(n_samples_per_eval_prompt=4), 0, Source(), evaluation=True)
    assert isinstance(output, package.RolloutFnEvalOutput)
    data = output.data["holdfast"]
    assert sorted(data["rewards"]) == [-1.0] * 4 + [1.0] * 2
    assert sum(data["truncated"]) == 2
    assert len(data["samples"]) == 6
    assert output.metrics["holdfast/eval_spoiled"] == 2


def test_settings_that_cannot_work_are_refused(attached: Callable[..., Any]) -> None:
    with pytest.raises(ConfigurationError, match="names no file"):
        adapter.generate_rollout(arguments(), 0, Source("a"))
    attached(lambda prompt, number: cases.MULTI)
    with pytest.raises(ConfigurationError, match="groups of 4"):
        adapter.generate_rollout(arguments(n_samples_per_prompt=8), 0, Source("a"))
    with pytest.raises(ConfigurationError, match="partial"):
        adapter.generate_rollout(arguments(partial_rollout=True), 0, Source("a"))
    with pytest.raises(ConfigurationError, match="no more prompts"):
        adapter.generate_rollout(arguments(), 0, Source())
    with pytest.raises(ConfigurationError, match="names no task"):
        adapter.task_of(Sample(prompt=[{"role": "user"}]))
    assert adapter.task_of(Sample(label="by-label")) == "by-label"


async def test_the_policy_is_slimes_router() -> None:
    args = arguments(sglang_router_ip="127.0.0.1", sglang_router_port=3000, rollout_temperature=0.8, rollout_top_p=0.9, rollout_top_k=20)
    policy = adapter.policy_of(args)
    assert isinstance(policy, SGLang)
    assert str(policy._http.base_url) == "http://127.0.0.1:3000/"
    await policy.aclose()


def test_the_launch_file_names_functions_that_are_there_and_arguments_that_slime_has(tmp_path: Path) -> None:
    models = tmp_path / "model.sh"
    models.write_text("MODEL_ARGS=(--num-layers 2)\n")
    given = launched(
        "slime.sh", "ray", tmp_path, SLIME="/slime", MODEL_SCRIPT=str(models), CHECKPOINT="c", HOLDFAST_URL="u", HOLDFAST_API_KEY="k"
    )
    words = given[given.index("/slime/train.py") + 1 :]
    options = {word: words[place + 1] for place, word in enumerate(words[:-1]) if word.startswith("--")}
    for name, value in options.items():
        if value.startswith("holdfast_recipes."):
            assert name.endswith("-path")
            assert callable(getattr(adapter, value.rpartition(".")[2]))
    assert (options["--n-samples-per-prompt"], options["--custom-config-path"]) == ("8", "slime.yaml")
    assert yaml.safe_load((LAUNCH / "slime.yaml").read_text()) == {"holdfast_recipe": "recipe.json"}
    checkout = os.environ.get("HOLDFAST_SLIME_PATH")
    if slime_package.real() is None and checkout:
        known = (Path(checkout) / "slime" / "utils" / "arguments.py").read_text()
        of_megatron = {
            "--num-layers",
            "--optimizer",
            "--lr",
            "--lr-decay-style",
            "--min-lr",
            "--adam-beta1",
            "--adam-beta2",
            "--weight-decay",
        }
        assert [name for name in options if name not in of_megatron and f'"{name}"' not in known] == []
