"""Groups that engines ask for prompt by prompt: Algorithm 1 in strides, failed rollouts as values, spare prompts for dropped groups."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest
from holdfast import SandboxLostError
from holdfast_recipes.core.balance import Assembly, Balance
from holdfast_recipes.core.groups import Reason
from holdfast_recipes.core.trajectory import Trajectory
from holdfast_recipes.engines.groups import GroupPlayer, LoopThread, Recipe, cycle
from holdfast_recipes.engines.rows import rows_of
from holdfast_recipes.pipeline.rollouts import Rollout, Ticket
from holdfast_recipes.policy.base import Policy
from holdfast_recipes.policy.scripted import ScriptedTokens
from holdfast_recipes.policy.tokenizer import ByteTokenizer

from tests.recipes.engines import cases

POLICY = ScriptedTokens([], ByteTokenizer(), 257)
LOST = SandboxLostError("sandbox_gone", "gone", reason="node-lost")


class Script:
    """Rollouts of a prompt in the order of ``+``, ``-``, ``x`` (a rollout that raises)."""

    def __init__(self, **prompts: str) -> None:
        self.left = {prompt: list(signs) for prompt, signs in prompts.items()}
        self.running = self.most = 0
        self.seeds: list[int] = []

    def rollouts(self, policy: Policy) -> Rollout[str]:
        async def rollout(prompt: str, ticket: Ticket) -> Trajectory:
            sign = self.left[prompt].pop(0)
            self.seeds.append(ticket.seed)
            self.running += 1
            self.most = max(self.most, self.running)
            await asyncio.sleep(0)
            self.running -= 1
            if sign == "x":
                raise LOST
            return replace(cases.MULTI, task_id=prompt, reward=1.0 if sign == "+" else -1.0)

        return rollout

    def recipe(self, size: int = 4, budget: int = 8, stride: int = 4, concurrency: int = 16) -> Recipe:
        return Recipe(
            self.rollouts, lambda: Balance(size, budget, stride, "0.25", "0.75"), concurrency=concurrency, prompts=tuple(self.left)
        )


async def run_groups(script: Script, prompts: Sequence[str], spares: Sequence[str] = (), **more: int) -> tuple[GroupPlayer, list[object]]:
    player = GroupPlayer(script.recipe(**more), POLICY, iter(spares))
    groups = await player.play(prompts)
    return player, [(group.prompt, group.outcome.kind, group.outcome.positives, group.outcome.generated, group.dropped) for group in groups]


async def test_a_group_stops_at_the_stride_that_balances_it() -> None:
    player, groups = await run_groups(Script(a="++--", b="----++--"), ["a", "b"])
    assert groups == [("a", Assembly.BALANCED, 2, 4, None), ("b", Assembly.BALANCED, 2, 8, None)]
    assert player.counts["generated"] == 12


async def test_rollouts_that_raise_fill_up_and_carry_no_loss() -> None:
    player, groups = await run_groups(Script(a="+x-x", b="+-x+" + "++++"), ["a"], size=4, budget=4)
    assert groups == [("a", Assembly.TOP, 1, 4, Reason.INFRASTRUCTURE)]
    player, groups = await run_groups(Script(a="+x--"), ["a"], budget=4)
    assert groups == [("a", Assembly.TOP, 1, 4, None)]
    outcome = (await GroupPlayer(Script(a="+x--").recipe(budget=4), POLICY).play(["a"]))[0].outcome
    rows = rows_of(outcome)
    found = sorted((row.masked, round(row.advantage, 6)) for row in rows)
    assert found == [(False, -0.57735), (False, -0.57735), (False, 1.154701), (True, 0)]
    assert player.counts["infrastructure"] == 1


async def test_a_spare_prompt_replaces_a_dropped_group() -> None:
    player, groups = await run_groups(Script(a="++++++++", b="++--", c="----++--"), ["a", "b"], ["c"])
    assert groups == [("c", Assembly.BALANCED, 2, 8, None), ("b", Assembly.BALANCED, 2, 4, None)]
    assert player.counts["dropped_zero_variance"] == 1
    _, groups = await run_groups(Script(a="++++++++"), ["a"])
    assert groups == [("a", Assembly.RELAXED, 4, 8, Reason.ZERO_VARIANCE)]


async def test_spares_are_bounded_in_a_call() -> None:
    script = Script(a="-" * 80)
    player = GroupPlayer(script.recipe(), POLICY, cycle(["a"]), most_spares=3)
    (group,) = await player.play(["a"])
    assert (group.dropped, player.counts["generated"]) == (Reason.ZERO_VARIANCE, 4 * 8)


async def test_concurrency_is_bounded_and_seeds_differ() -> None:
    script = Script(a="++--", b="++--", c="++--")
    player = GroupPlayer(script.recipe(concurrency=3), POLICY)
    await player.play(["a", "b", "c"])
    assert script.most == 3
    assert len(set(script.seeds)) == 12
    again = Script(a="++--", b="++--", c="++--")
    await GroupPlayer(again.recipe(concurrency=3), POLICY).play(["a", "b", "c"])
    assert again.seeds == script.seeds


async def test_a_cancelled_call_ends_its_rollouts() -> None:
    ended = asyncio.Event()
    begun = asyncio.Event()

    def rollouts(policy: Policy) -> Rollout[str]:
        async def rollout(prompt: str, ticket: Ticket) -> Trajectory:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()
            raise AssertionError

        return rollout

    task = asyncio.create_task(GroupPlayer(Recipe(rollouts, lambda: Balance(2, 2, 2)), POLICY).play(["a"]))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()


def test_the_thread_loop_runs_work_and_closes_its_contexts() -> None:
    import contextlib
    from collections.abc import AsyncIterator

    events: list[str] = []

    @contextlib.asynccontextmanager
    async def opened() -> AsyncIterator[int]:
        yield 7
        events.append("closed")

    async def failing() -> None:
        raise KeyError("k")

    thread = LoopThread()
    assert thread.enter(opened()) == 7
    assert thread.run(asyncio.sleep(0, "done")) == "done"
    with pytest.raises(KeyError):
        thread.run(failing())
    thread.close()
    thread.close()
    assert events == ["closed"]
    assert thread.loop.is_closed()


def test_a_cycle_gives_every_prompt_in_each_round() -> None:
    drawn = cycle(["a", "b", "c", "a"], seed=1)
    first, second = [next(drawn) for _ in range(3)], [next(drawn) for _ in range(3)]
    assert sorted(first) == sorted(second) == ["a", "b", "c"]
    assert list(cycle([])) == []
