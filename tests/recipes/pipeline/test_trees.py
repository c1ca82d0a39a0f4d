"""Tree rollouts: which token is in which sample with which advantage, and whole trees in real sandboxes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from holdfast import AsyncSandboxClient
from holdfast_recipes.core.advantage import advantages
from holdfast_recipes.core.scored import Blame, Status
from holdfast_recipes.core.trajectory import Trajectory
from holdfast_recipes.harness.agent import Agent
from holdfast_recipes.harness.conversation import TokenConversation
from holdfast_recipes.harness.limits import MINI
from holdfast_recipes.harness.loop import run as run_loop
from holdfast_recipes.harness.program import ProgramRun
from holdfast_recipes.harness.rollout import Capacity, Settings
from holdfast_recipes.pipeline.errors import SettingError
from holdfast_recipes.pipeline.samples import Sample, trained_tokens
from holdfast_recipes.pipeline.trees import Tree, grow_tree, tree_samples
from holdfast_recipes.policy.scripted import ScriptedTokens, written
from holdfast_recipes.policy.tokenizer import ByteTokenizer
from holdfast_recipes.prompts.swe import SUBMIT_WORD
from holdfast_recipes.swe.job import SMALL, Style, SweJob, maker

from tests.recipes.harness.fakes import SUBMIT, FakeToolset
from tests.recipes.pipeline.made import made
from tests.recipes.swe.conftest import Small, small_task
from tests.support.requires import requires
from tests.support.stack import Stack

TOKENIZER = ByteTokenizer()
END = TOKENIZER.special("<|im_end|>")
LABELS = {"test": "trees"}


async def leaf(name: str, commands: Sequence[str], reward: float | None, **changes: object) -> Trajectory:
    """A rollout whose tokens are those of the loop."""
    script = [written("bash", command=command) for command in (*commands, "submit")]
    talk = TokenConversation(ScriptedTokens(script, TOKENIZER, END, version=2), TOKENIZER)
    episode = await run_loop(talk, FakeToolset({"submit": SUBMIT}), [{"role": "user", "content": "Fix it"}], MINI, seed=1)
    return replace(made(name), reward=reward, tokens=episode.tokens, turns=episode.turns, **changes)  # type: ignore[arg-type]


def trained(sample: Sample) -> list[int]:
    return [place for place, bit in enumerate(sample.mask) if bit]


def whole(sample: Sample) -> bool:
    return len(sample.ids) == len(sample.mask) == len(sample.logprobs)


async def test_each_token_is_in_one_loss_with_the_mean_of_its_leaves_before_the_branch() -> None:
    one = Tree(2, tuple([await leaf(f"a{n}", ["look", "think", f"do {n}"], reward) for n, reward in enumerate((1.0, -1.0, -1.0))]))
    two = Tree(2, tuple([await leaf(f"b{n}", ["look", "other", f"try {n}"], reward) for n, reward in enumerate((1.0, 1.0))]))
    found = tree_samples([[one, two]])
    assert all(map(whole, found))
    of_leaf = advantages([1.0, -1.0, -1.0, 1.0, 1.0])
    first, *leaves = found[:4]
    assert first.advantage == pytest.approx(sum(of_leaf[:3]) / 3)
    assert first.reward == pytest.approx(-1 / 3)
    assert [each.advantage for each in leaves] == of_leaf[:3]
    assert [each.advantage for each in found[5:]] == of_leaf[3:]
    for prefix, tree, samples in ((found[0], one, found[1:4]), (found[4], two, found[5:])):
        for sample, run in zip(samples, tree.leaves, strict=True):
            assert run.tokens is not None
            assert sample.ids == run.tokens.ids
            assert sample.ids[: len(prefix.ids)] == prefix.ids
            assert sorted((*trained(prefix), *trained(sample))) == [place for place, bit in enumerate(run.tokens.loss_mask) if bit]
    distinct = {(number, place) for number, prefix in ((0, found[0]), (4, found[4])) for place in trained(prefix)}
    distinct |= {(number, place) for number in (1, 2, 3, 5, 6) for place in trained(found[number])}
    assert trained_tokens(found) == len(distinct)
    assert TOKENIZER.decode([first.ids[place] for place in trained(first)]).count("<|im_end|>") == 2
    assert {sample.group for sample in found} == {0}
    assert {sample.version for sample in found} == {2}


async def test_the_sum_over_the_group_is_that_of_whole_rollouts() -> None:
    """With the samples' weights (leaves of a prefix), each token has the advantage that it has in all rollouts that contain it."""
    trees = [
        Tree(1, tuple([await leaf(f"{tree}{n}", [f"look {tree}", f"do {n}"], float(reward)) for n, reward in enumerate(rewards)]))
        for tree, rewards in enumerate(((1, 0, 0, 1), (0, 0, 0)))
    ]
    of_leaf = advantages([1.0, 0, 0, 1.0, 0, 0, 0])
    expected: Counter[tuple[int, int]] = Counter()
    for number, run, advantage in zip((0,) * 4 + (1,) * 3, [run for tree in trees for run in tree.leaves], of_leaf, strict=True):
        assert run.tokens is not None
        start = min(span.start for span in run.tokens.spans if span.turn == 1 and span.supervised)
        expected.update({(number, place): advantage for place, bit in enumerate(run.tokens.loss_mask[:start]) if bit})
    found = tree_samples([trees])
    for number, prefix, count in ((0, found[0], 4), (1, found[5], 3)):
        for place in trained(prefix):
            assert prefix.advantage * count == pytest.approx(expected[number, place])


async def test_a_group_of_one_tree_trains_nothing_before_the_branch() -> None:
    tree = Tree(1, tuple([await leaf(f"a{n}", ["look", f"do {n}"], reward) for n, reward in enumerate((1.0, -1.0))]))
    found = tree_samples([[tree]])
    assert [sample.advantage for sample in found] == advantages([1.0, -1.0])
    for sample in found:
        assert "look" not in TOKENIZER.decode([sample.ids[place] for place in trained(sample)])


async def test_a_rollout_that_ended_before_the_branch_is_trained_on_whole() -> None:
    alone = await leaf("a", ["look"], 1.0)
    tree = Tree(1, tuple([await leaf(f"b{n}", ["see", f"do {n}"], -1.0) for n in range(2)]))
    found = tree_samples([[Tree(5, (alone,)), tree]])
    assert alone.tokens is not None
    assert (found[0].ids, found[0].mask) == (alone.tokens.ids, alone.tokens.loss_mask)
    assert len(found) == 4


async def test_failed_leaves_get_no_loss_and_the_group_filter_applies() -> None:
    lost = await leaf("x", ["look", "do 9"], None, status=Status.ABORTED, blame=Blame.INFRASTRUCTURE)
    bad = await leaf("y", ["look", "do 8"], float("nan"))
    good = [await leaf(f"a{n}", ["look", f"do {n}"], reward) for n, reward in enumerate((1.0, -1.0, 1.0))]
    found = tree_samples([[Tree(1, (lost, *good))]])
    assert [sample.trajectory.trajectory_id for sample in found] == ["a0", "a1", "a2"]
    assert [sample.advantage for sample in found] == advantages([1.0, -1.0, 1.0])
    assert len(tree_samples([[Tree(1, (bad, *good, *good))]])) == 6
    equal = [replace(each, reward=1.0) for each in good]
    assert tree_samples([[Tree(1, tuple(equal))], [Tree(1, ())]]) == []


async def test_leaves_that_differ_before_the_branch_are_refused() -> None:
    leaves = [await leaf("a", ["look", "do"], 1.0), await leaf("b", ["see", "do"], -1.0)]
    with pytest.raises(ValueError, match="differ before turn 1"):
        tree_samples([[Tree(1, tuple(leaves))]])
    with pytest.raises(ValueError, match="no token ids"):
        tree_samples([[Tree(1, tuple(replace(each, tokens=None) for each in leaves))]])


def turn(prompt: str, seed: int | None) -> str:
    """Look; edit, rightly for every other seed; submit."""
    number = prompt.count("<|im_start|>assistant") - 1
    edit = "sed -i 's/a - b/a + b/' calc.py" if (seed or 0) % 2 else "true"
    commands = [
        "cat calc.py; date +%N",
        edit,
        f"git diff > /tmp/p; echo {SUBMIT_WORD} && cat /tmp/p",
    ]
    return written("bash", command=commands[number])


@pytest.fixture
def small(tmp_path: Path) -> Small:
    return small_task(tmp_path / "archives")


@pytest.fixture
async def client(stack: Stack) -> AsyncIterator[AsyncSandboxClient]:
    async with AsyncSandboxClient(stack.url, stack.key) as client:
        yield client


def settings() -> Settings:
    return Settings(lambda: TokenConversation(ScriptedTokens(turn, TOKENIZER, END, version=3), TOKENIZER), MINI, Capacity(6), run="rl")


def job(client: AsyncSandboxClient, small: Small, style: Style | None = None) -> SweJob:
    return SweJob(small.task, maker(client, labels=LABELS), archives=small.archives, resources=SMALL, style=style)


@requires("namespaces", "redis", "git")
async def test_a_program_cannot_continue_in_a_branch(client: AsyncSandboxClient, small: Small) -> None:
    async def never(*given: object, **more: object) -> ProgramRun:
        raise AssertionError("no program is started")

    with pytest.raises(SettingError, match="a program cannot continue in a branch"):
        await grow_tree(job(client, small), replace(settings(), agent=Agent("program", "1", "policy", never)), k=2, turn=1)


@requires("namespaces", "root", "redis", "git")
async def test_trees_in_sandboxes(client: AsyncSandboxClient, small: Small) -> None:
    trees = await asyncio.gather(*(grow_tree(job(client, small), settings(), k=6, turn=1, seed=seed) for seed in (1, 2)))
    for tree in trees:
        assert [(run.status, run.reason) for run in tree.leaves] == [(Status.COMPLETED, "submitted")] * 6
        assert len({run.trajectory_id for run in tree.leaves}) == 6
        assert len({run.turns[0].observations for run in tree.leaves}) == 1, "the first turn ran once"
    assert {run.reward for tree in trees for run in tree.leaves} == {1.0, -1.0}
    found = tree_samples([trees])
    assert len(found) == 14
    assert all(map(whole, found))
    assert sum(found[place].advantage for place in range(14) if place not in (0, 7)) == pytest.approx(0, abs=1e-9)
    assert await client.list_sandboxes(LABELS) == []


@requires("namespaces", "root", "redis", "git")
async def test_a_rollout_that_submits_before_the_branch_is_one_leaf(client: AsyncSandboxClient, small: Small) -> None:
    for wanted in (3, 9):
        tree = await grow_tree(job(client, small), settings(), k=3, turn=wanted, seed=1)
        (only,) = tree.leaves
        assert (only.status, len(only.turns), only.reward is not None) == (Status.COMPLETED, 3, True)
    assert await client.list_sandboxes(LABELS) == []


@requires("namespaces", "root", "redis", "git")
async def test_what_cannot_be_branched_leaves_no_sandbox(client: AsyncSandboxClient, small: Small) -> None:
    tree = await grow_tree(job(client, small, Style("editor")), settings(), k=2, turn=1, seed=1)
    assert [run.status for run in tree.leaves] == [Status.ABORTED] * 2
    with pytest.raises(ValueError, match="turn=0"):
        await grow_tree(job(client, small), settings(), k=2, turn=0)
    assert await client.list_sandboxes(LABELS) == []
