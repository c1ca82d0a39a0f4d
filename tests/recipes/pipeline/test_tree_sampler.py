"""Rollouts from trees, for the manager and for a collection: who shares turns, which token gets loss where, and that nothing is left."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from holdfast import AsyncSandboxClient
from holdfast_recipes.core.balance import Balance
from holdfast_recipes.core.records import from_json, to_json
from holdfast_recipes.core.trajectory import Branch, Trajectory
from holdfast_recipes.engines.rows import row_of, rows_of
from holdfast_recipes.harness.agent import Agent
from holdfast_recipes.harness.conversation import TokenConversation
from holdfast_recipes.harness.limits import MINI, RolloutLimits
from holdfast_recipes.harness.program import ProgramRun
from holdfast_recipes.harness.rollout import Capacity, Settings
from holdfast_recipes.pipeline.batching import Batching
from holdfast_recipes.pipeline.collect import collect
from holdfast_recipes.pipeline.curate import SHARED, Curation, Curator
from holdfast_recipes.pipeline.errors import SettingError
from holdfast_recipes.pipeline.export import credited, masked
from holdfast_recipes.pipeline.files import TRAJECTORIES, trajectories
from holdfast_recipes.pipeline.rollouts import RolloutManager
from holdfast_recipes.pipeline.runs import Plan, Run
from holdfast_recipes.pipeline.samples import Sample, samples
from holdfast_recipes.pipeline.tree_sampler import TreeSampler
from holdfast_recipes.pipeline.validate import problems_of
from holdfast_recipes.policy.scripted import ScriptedTokens, written
from holdfast_recipes.policy.tokenizer import ByteTokenizer
from holdfast_recipes.prompts.swe import SUBMIT_WORD
from holdfast_recipes.swe.job import SMALL, SweJob, maker
from holdfast_recipes.swe.sources import SweTask

from tests.recipes.pipeline.made import made
from tests.recipes.swe.conftest import Small, small_task
from tests.support.requires import requires
from tests.support.stack import Stack

in_sandboxes = requires("namespaces", "root", "redis", "git")
TOKENIZER = ByteTokenizer()
LABELS = {"test": "tree-sampler"}


def turn(prompt: str, seed: int | None) -> str:
    """Look; edit, rightly for every other seed; submit. What the first turn prints differs each time that it is run."""
    number = prompt.count("<|im_start|>assistant") - 1
    edit = "sed -i 's/a - b/a + b/' calc.py" if (seed or 0) % 2 else "true"
    return written("bash", command=["cat calc.py; date +%N", edit, f"git diff > /tmp/p; echo {SUBMIT_WORD} && cat /tmp/p"][number])


@pytest.fixture
async def client(stack: Stack) -> AsyncIterator[AsyncSandboxClient]:
    async with AsyncSandboxClient(stack.url, stack.key) as client:
        yield client


@pytest.fixture
def small(tmp_path: Path) -> Small:
    return small_task(tmp_path / "archives")


def settings() -> Settings:
    policy = ScriptedTokens(turn, TOKENIZER, TOKENIZER.special("<|im_end|>"), version=3)
    return Settings(lambda: TokenConversation(policy, TOKENIZER), MINI, Capacity(6), run="trees")


def sampler(client: AsyncSandboxClient, small: Small, *, turn: int = 1, k: int = 3) -> TreeSampler:
    def job(task: SweTask) -> SweJob:
        return SweJob(task, maker(client, labels=LABELS), archives=small.archives, resources=SMALL)

    return TreeSampler(job, settings(), turn=turn, k=k)


def by_tree(runs: Iterable[Trajectory]) -> dict[str, list[Trajectory]]:
    found = defaultdict[str, list[Trajectory]](list)
    for run in runs:
        assert run.branch is not None
        found[run.branch.tree].append(run)
    return found


def places(sample: Sample, shared: dict[str, int]) -> list[tuple[str, int]]:
    """The tokens that get loss: by tree where its rollouts share them, else by rollout."""
    run = sample.trajectory
    assert run.branch is not None
    own = [place for place, bit in enumerate(sample.mask) if bit]
    return [(run.branch.tree if place < shared[run.branch.tree] else run.trajectory_id, place) for place in own]


@in_sandboxes
async def test_the_manager_takes_rollouts_from_trees_and_each_token_is_in_one_loss(client: AsyncSandboxClient, small: Small) -> None:
    batching = Batching(itertools.repeat(small.task), batch=1, balance=lambda: Balance(6, 12, 6, "1/6", "5/6"), oversample=1)
    async with (
        sampler(client, small) as trees,
        RolloutManager(batching, trees.managed(), concurrency=6, seed=5, step_limit_s=120) as manager,
    ):
        batch = await manager.batch()
    assert batch is not None
    (group,) = batch.groups
    runs = [member.rollout.payload for member in group.outcome.members]
    found = by_tree(runs)
    assert len(found) >= 2
    assert max(map(len, found.values())) <= 3
    for leaves in found.values():
        assert len({leaf.turns[0].observations for leaf in leaves}) == 1, "the first turn ran once"
        assert len({leaf.trajectory_id for leaf in leaves}) == len(leaves)
    assert len({leaf.turns[0].observations for leaf in runs}) == len(found)
    made = samples(batch)
    shared = {
        leaves[0].branch.tree: min(span.start for span in leaves[0].tokens.spans if span.turn == 1 and span.supervised)  # type: ignore[union-attr]
        for leaves in found.values()
    }
    trained = Counter(place for sample in made for place in places(sample, shared))
    assert set(trained.values()) == {1}
    wanted = {
        (tree if place < shared[tree] else leaf.trajectory_id, place)
        for tree, leaves in found.items()
        for leaf in leaves
        for place, bit in enumerate(leaf.tokens.loss_mask)  # type: ignore[union-attr]
        if bit
    }
    assert set(trained) == wanted
    for row in rows_of(group.outcome):
        assert "cat calc.py" not in TOKENIZER.decode([number for number, bit in zip(row.response_ids, row.mask, strict=True) if bit])
    assert await client.list_sandboxes(LABELS) == []


@in_sandboxes
async def test_a_collection_from_trees(client: AsyncSandboxClient, small: Small, tmp_path: Path) -> None:
    async with sampler(client, small, k=2) as trees:
        with Run.open(tmp_path / "run", Plan("run", 5), [small.task]) as run:
            done = await collect(run, trees.collected(), concurrency=4)
    assert (done.finished, done.outcomes["infrastructure"]) == (5, 0)
    assert done.seconds["branch"] > 0
    runs = list(trajectories(tmp_path / "run" / TRAJECTORIES))
    assert sorted(len(leaves) for leaves in by_tree(runs).values()) == [1, 2, 2]
    assert sorted(run.trajectory_id for run in runs) == [f"run/{small.task.task_id}/{index}" for index in range(5)]
    for leaves in by_tree(runs).values():
        assert len({leaf.turns[0].observations for leaf in leaves}) == 1
        assert {leaf.branch.turn for leaf in leaves if leaf.branch} == {1}
    curator, turns = Curator(lambda run: 1, Curation("all")), Counter[tuple[str, int]]()
    for each in map(curator.take, runs):
        assert each is not None
        assert each.branch is not None
        found = credited(each)
        for number in range(3) if found is None else found:
            turns[each.branch.tree if number < each.branch.turn else each.trajectory_id, number] += 1
    assert set(turns.values()) == {1}
    assert len(turns) == 3 + 5 * 2, "the first turn of each tree, and two turns of each rollout"
    assert await client.list_sandboxes(LABELS) == []


@in_sandboxes
async def test_rollouts_that_end_before_the_branch_are_played_alone(client: AsyncSandboxClient, small: Small, tmp_path: Path) -> None:
    async with sampler(client, small, turn=7) as trees:
        with Run.open(tmp_path / "run", Plan("run", 3), [small.task]) as run:
            done = await collect(run, trees.collected(), concurrency=3)
    assert done.finished == 3
    runs = list(trajectories(tmp_path / "run" / TRAJECTORIES))
    assert [each.branch for each in runs] == [None] * 3
    assert all(each.reward is not None and len(each.turns) == 3 for each in runs)
    assert len({each.turns[0].observations for each in runs}) == 3
    assert await client.list_sandboxes(LABELS) == []


@in_sandboxes
async def test_cancelled_rollouts_and_idle_trees_leave_nothing(client: AsyncSandboxClient, small: Small) -> None:
    """One of three places of each of seven trees is used, so the others wait; then a manager is left while its rollouts run."""
    batching = Batching(itertools.repeat(small.task), batch=1, balance=lambda: Balance(1, 1, 1, "0", "1"), oversample=7)
    async with sampler(client, small) as trees, RolloutManager(batching, trees.managed(), concurrency=7, step_limit_s=120) as manager:
        stepping = asyncio.ensure_future(manager.batch())
        while len(await client.list_sandboxes(LABELS)) < 3:  # no event says so
            await asyncio.sleep(0.02)
        stepping.cancel()
        await asyncio.gather(stepping, return_exceptions=True)
    assert await client.list_sandboxes(LABELS) == []
    async with sampler(client, small) as trees:
        for number in range(7):
            task = replace(small.task, task_id=f"{small.task.task_id}-{number}")
            with Run.open(small.archives.folder / f"run-{number}", Plan("run", 1), [task]) as run:
                await collect(run, trees.collected(), concurrency=1)
        assert len(await client.list_sandboxes(LABELS)) <= 5
    assert await client.list_sandboxes(LABELS) == []


def test_what_cannot_branch_is_refused() -> None:
    async def never(*given: object, **more: object) -> ProgramRun:
        raise AssertionError("no program is started")

    def job(task: SweTask) -> Any:
        raise AssertionError("no job is made")

    limited = replace(settings(), limits=replace(MINI, rollout=RolloutLimits(steps=4)))
    for given, words, message in (
        (settings(), {"turn": 0, "k": 2}, "at least one turn"),
        (settings(), {"turn": 1, "k": 1}, "two rollouts"),
        (replace(settings(), agent=Agent("program", "1", "policy", never)), {"turn": 1, "k": 2}, "a program cannot"),
        (limited, {"turn": 4, "k": 2}, "at most 4 turns"),
    ):
        with pytest.raises(SettingError, match=message):
            TreeSampler(job, given, **words)


def test_each_shared_turn_gets_loss_in_the_first_run_that_is_kept_with_it() -> None:
    tree = Branch("tree", 2)
    curator = Curator(lambda run: 1)
    failed = curator.take(made("a", 4, values=(0.1, 0.5, 0.6, 0.7), value_of="before", branch=tree))
    assert failed is not None
    assert failed.credited is not None
    first = set(failed.credited)
    won = curator.take(made("b", 4, resolved=True, branch=tree))
    assert won is not None
    assert credited(won) == (frozenset({0, 1} - first) | {2, 3})
    again = curator.take(made("c", 4, resolved=True, branch=tree))
    assert again is not None
    assert credited(again) == frozenset({2, 3})
    assert credited(curator.take(made("d", 4, resolved=True)) or won) is None
    for run in (failed, won, again):
        assert problems_of(run) == []
        assert from_json(to_json(run)) == run
    row = masked(again, lambda text: text.encode())
    assert not isinstance(row, str)
    text = bytes(number for number, bit in zip(row.ids, row.mask, strict=True) if bit).decode()
    assert [f"thought {number}" in text for number in range(4)] == [False, False, True, True]
    alone = Curator(lambda run: 1, Curation("all"))
    assert [alone.take(made(name, 2, branch=tree)) is not None for name in "ab"] == [True, False]
    assert alone.dropped[SHARED] == 1
    assert problems_of(made("e", 1, branch=tree)) == ["it shares 2 turns with the rollouts of the tree 'tree', but has 1"]


async def test_a_row_of_an_engine_has_no_loss_before_the_branch() -> None:
    from tests.recipes.pipeline.test_trees import leaf

    run = await leaf("a", ["look", "do"], 1.0)
    whole, of_tree = row_of(run), row_of(replace(run, branch=Branch("tree", 1)))
    assert (whole.ids, whole.logprobs, whole.reward) == (of_tree.ids, of_tree.logprobs, of_tree.reward)
    assert sum(of_tree.mask) < sum(whole.mask)
    text = TOKENIZER.decode([number for number, bit in zip(of_tree.response_ids, of_tree.mask, strict=True) if bit])
    assert ("look" in text, "do" in text) == (False, True)
