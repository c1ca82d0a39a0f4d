"""The rollout manager on real sandboxes: groups of a scripted policy of token ids, samples for a learner, and nothing left behind."""

from __future__ import annotations

import itertools
import math
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from holdfast import AsyncSandboxClient
from holdfast_recipes.core.balance import Balance
from holdfast_recipes.harness.conversation import TokenConversation
from holdfast_recipes.harness.limits import MINI
from holdfast_recipes.harness.rollout import Capacity, Settings
from holdfast_recipes.pipeline.batching import Batching
from holdfast_recipes.pipeline.playing import continued, managed, token_answers
from holdfast_recipes.pipeline.rollouts import RolloutManager, Step
from holdfast_recipes.pipeline.samples import samples
from holdfast_recipes.policy.scripted import ScriptedTokens, written
from holdfast_recipes.policy.tokenizer import ByteTokenizer
from holdfast_recipes.prompts.swe import SUBMIT_WORD
from holdfast_recipes.swe.job import SMALL, SweJob, maker
from holdfast_recipes.swe.sources import SweTask

from tests.recipes.swe.conftest import Small, small_task
from tests.support.requires import requires
from tests.support.stack import Stack

pytestmark = requires("namespaces", "redis", "git")

TOKENIZER = ByteTokenizer()
LABELS = {"test": "managed-rollouts"}


def turn(prompt: str, seed: int | None) -> str:
    """Look; edit, rightly for every other seed; submit."""
    number = prompt.count("<|im_start|>assistant") - 1
    edit = "sed -i 's/a - b/a + b/' calc.py" if (seed or 0) % 2 else "true"
    return written("bash", command=["cat calc.py", edit, f"git diff > /tmp/p; echo {SUBMIT_WORD} && cat /tmp/p"][number])


@pytest.fixture
async def client(stack: Stack) -> AsyncIterator[AsyncSandboxClient]:
    async with AsyncSandboxClient(stack.url, stack.key) as client:
        yield client


@pytest.fixture
def small(tmp_path: Path) -> Small:
    return small_task(tmp_path / "archives")


def settings() -> Settings:
    policy = ScriptedTokens(turn, TOKENIZER, TOKENIZER.special("<|im_end|>"), version=3)
    return Settings(lambda: TokenConversation(policy, TOKENIZER), MINI, Capacity(6), run="rl")


def manager(client: AsyncSandboxClient, small: Small, **more: Any) -> RolloutManager[SweTask]:
    def job(task: SweTask) -> SweJob:
        return SweJob(task, maker(client, labels=LABELS), archives=small.archives, resources=SMALL)

    batching = Batching(itertools.repeat(small.task), batch=1, balance=lambda: Balance(2, 8, 2, "0.5", "0.5", stream=True), oversample=1)
    return RolloutManager(batching, managed(job, settings()), concurrency=4, seed=5, step_limit_s=120, **more)


async def test_two_batches_of_real_rollouts(client: AsyncSandboxClient, small: Small) -> None:
    steps: list[Step[SweTask]] = []
    weights: list[tuple[Any, int]] = []
    async with manager(client, small, report=steps.append, use=lambda *given: weights.append(given)) as running:
        for number in range(2):
            batch = await running.batch()
            assert batch is not None
            made = samples(batch)
            assert sorted(each.reward for each in made) == [-1.0, 1.0]
            assert sum(each.advantage for each in made) == pytest.approx(0, abs=1e-9)
            for each in made:
                assert len(each.ids) == len(each.mask) == len(each.logprobs)
                assert 0 < sum(each.mask) < len(each.ids)
                assert each.version == 3
            running.publish("weights", number + 1)
    assert weights == [("weights", 1), ("weights", 2)]
    assert [step.number for step in steps] == [1, 2]
    assert {"creation", "loop", "reward"} <= steps[0].seconds.keys()
    assert steps[0].mean_tokens is not None
    assert steps[0].mean_tokens > 100
    record = steps[1].to_json()
    assert record["groups"][0]["kind"] == "balanced"
    assert (record["groups"][0]["positives"], record["groups"][0]["trained"]) == (1, 2)
    assert math.isfinite(record["groups"][0]["positive_lengths"]["selected"])
    assert await client.list_sandboxes(LABELS) == []


async def test_a_learner_that_raises_leaves_no_sandbox(client: AsyncSandboxClient, small: Small) -> None:
    with pytest.raises(ZeroDivisionError):  # noqa: PT012
        async with manager(client, small) as running:
            assert await running.batch() is not None
            raise ZeroDivisionError
    assert running.running == 0
    assert await client.list_sandboxes(LABELS) == []


async def test_continued_from_recorded_token_ids(client: AsyncSandboxClient, small: Small) -> None:
    """A run that looked and changed nothing, continued from before its second turn: every other seed repairs the bug."""
    async with manager(client, small) as running:
        batch = await running.batch()
        assert batch is not None
        run = next(each.trajectory for each in samples(batch) if each.reward < 0)

    def job(task: SweTask) -> SweJob:
        return SweJob(task, maker(client, labels=LABELS), archives=small.archives, resources=SMALL)

    assert [TOKENIZER.decode(answer.ids) for answer in token_answers(run, 1)] == [written("bash", command="cat calc.py") + "<|im_end|>"]
    continue_run = continued(job, {small.task.task_id: small.task}, settings())
    assert {await continue_run(run, 1, number) for number in range(6)} == {True, False}
    assert await continue_run(run, 2, 0) is False
