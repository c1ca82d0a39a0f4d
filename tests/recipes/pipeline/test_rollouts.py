"""D11: the rollout manager with scripted rollouts that end when the test says so."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from holdfast_recipes.core.balance import Balance
from holdfast_recipes.core.scored import Blame, Status
from holdfast_recipes.core.trajectory import SandboxNote, Tokens, Trajectory
from holdfast_recipes.harness.limits import Layer
from holdfast_recipes.pipeline.batching import Batching
from holdfast_recipes.pipeline.errors import SettingError, StallError
from holdfast_recipes.pipeline.rollouts import RolloutManager, Step, Ticket
from holdfast_recipes.pipeline.samples import samples, trained_tokens

from tests.recipes.pipeline.made import lost, made

TOKENS = Tokens((5, 6, 7), (0, 1, 1), (0.0, -0.5, -0.25), (), (0,))


def solved(name: str = "g", **changes: Any) -> Trajectory:
    return made(name, 1, resolved=True, **{"tokens": TOKENS} | changes)


def unsolved(name: str = "b", **changes: Any) -> Trajectory:
    return made(name, 1, **{"tokens": TOKENS} | changes)


def pair() -> Balance:
    return Balance(2, 2, 2, "0.5", "0.5")


class Script:
    """Rollouts wait until the test ends them. ``open`` are those that run, by prompt; ``ended`` those that were cancelled."""

    def __init__(self) -> None:
        self.open: dict[str, list[tuple[asyncio.Future[Trajectory], Ticket]]] = {}
        self.began: list[str] = []
        self.cancelled: list[str] = []

    async def __call__(self, prompt: str, ticket: Ticket) -> Trajectory:
        self.began.append(prompt)
        future: asyncio.Future[Trajectory] = asyncio.get_running_loop().create_future()
        entry = (future, ticket)
        self.open.setdefault(prompt, []).append(entry)
        try:
            return await future
        except asyncio.CancelledError:
            self.cancelled.append(prompt)
            raise
        finally:
            self.open[prompt].remove(entry)

    async def end(self, prompt: str, *runs: Trajectory | Exception) -> None:
        """End the oldest rollouts of a prompt, in order, and let the manager act."""
        for run in runs:
            future = self.open[prompt][0][0]
            if isinstance(run, Exception):
                future.set_exception(run)
            else:
                future.set_result(run)
            await until_idle()


async def until_idle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def manager(
    script: Any, prompts: str = "ABCDE", *, concurrency: int = 64, limit_s: float | None = 60, **settings: Any
) -> RolloutManager[str]:
    made_of: dict[str, Any] = {"batch": 2, "balance": pair, "oversample": "1.5"} | settings
    return RolloutManager(Batching(iter(prompts), **made_of), script, concurrency=concurrency, step_limit_s=limit_s)


async def following(steps: Any) -> Step[str] | None:
    return await anext(steps, None)


async def test_the_trace_of_two_batches() -> None:
    """Batch 2, over-sampling 1.5: three prompts in flight. B has no variance, D takes its place; then E, C fills the batch."""
    script = Script()
    async with manager(script) as running:
        steps = running.steps()
        first = asyncio.ensure_future(following(steps))
        await until_idle()
        assert sorted(script.began) == ["A", "A", "B", "B", "C", "C"]
        await script.end("A", solved())
        await script.end("B", solved(), solved())
        assert script.began[6:] == ["D", "D"]
        await script.end("A", unsolved())
        assert script.began[8:] == ["E", "E"]
        await script.end("C", unsolved(), solved())
        step = await first
        assert step is not None
        assert [group.prompt for group in step.batch.groups] == ["A", "C"]
        assert step.batch.counts == {"generated": 6, "usable": 6, "balanced": 2, "relaxed": 1, "dropped_zero_variance": 1}
        assert (step.number, step.version, step.staleness, step.mean_tokens) == (1, 0, {0: 2}, 3.0)
        assert running.running == 4
        running.published()
        second = asyncio.ensure_future(following(steps))
        await script.end("D", solved(), unsolved())
        await script.end("E", solved(), unsolved())
        step = await second
        assert step is not None
        assert (step.number, step.version, step.staleness) == (2, 1, {1: 2})
        assert await following(steps) is None


async def test_a_balanced_group_cancels_the_rest_of_its_prompt() -> None:
    script = Script()
    stream: dict[str, Any] = {"batch": 1, "balance": lambda: Balance(2, 4, 4, "0.5", "0.5", stream=True), "oversample": 1}
    async with manager(script, "AB", **stream) as running:
        steps = running.steps()
        first = asyncio.ensure_future(following(steps))
        await until_idle()
        assert script.began == ["A"] * 4
        await script.end("A", solved(), unsolved())
        step = await first
        await until_idle()
        assert step is not None
        assert script.cancelled == ["A", "A"]
        second = asyncio.ensure_future(following(steps))
        await until_idle()
        await script.end("B", solved(), unsolved())
        step = await second
        assert step is not None
        assert step.batch.counts["cancelled"] == 2


async def test_rollouts_that_were_not_started_yet_are_forgotten() -> None:
    script = Script()
    stream: dict[str, Any] = {"batch": 1, "balance": lambda: Balance(2, 4, 4, "0.5", "0.5", stream=True), "oversample": 1}
    async with manager(script, "A", concurrency=2, **stream) as running:
        first = asyncio.ensure_future(following(running.steps()))
        await until_idle()
        await script.end("A", solved())
        assert script.began == ["A"] * 3
        await script.end("A", unsolved())
        await first
        assert script.began == ["A"] * 3
        await until_idle()
        assert (running.running, script.cancelled) == (0, ["A"])


async def test_weights_that_move_twice_during_a_rollout() -> None:
    script = Script()
    async with manager(script, "AB", batch=1, oversample=1) as running:
        first = asyncio.ensure_future(following(running.steps()))
        await until_idle()
        await script.end("A", solved())
        running.published()
        running.published()
        await script.end("A", unsolved())
        await script.end("B", solved(), unsolved())
        step = await first
        assert step is not None
        assert step.batch.groups[0].prompt == "B"
        assert step.batch.counts["stale"] == 1


async def test_a_batch_that_waits_is_never_staler_than_allowed() -> None:
    """It was full when the weights moved twice: it is dropped, and other prompts take its place."""
    script = Script()
    async with manager(script, "ABC", batch=1, oversample=1) as running:
        steps = running.steps()
        first = asyncio.ensure_future(following(steps))
        await until_idle()
        await script.end("A", solved(), unsolved())
        assert (await first) is not None
        await until_idle()
        await script.end("B", solved(), unsolved())
        running.published()
        running.published()
        second = asyncio.ensure_future(following(steps))
        await until_idle()
        await script.end("C", solved(), unsolved())
        step = await second
        assert step is not None
        assert (step.batch.groups[0].prompt, step.batch.counts["dropped_stale"], step.staleness) == ("C", 1, {0: 1})


async def test_nothing_more_is_started_while_a_batch_waits_for_the_learner() -> None:
    script = Script()
    endless: Iterator[str] = (f"P{number}" for number in range(10_000))
    batching = Batching(endless, batch=1, balance=pair, oversample=1)
    async with RolloutManager(batching, script, step_limit_s=60) as running:
        steps = running.steps()
        first = asyncio.ensure_future(following(steps))
        await until_idle()
        await script.end("P0", solved(), unsolved())
        await first
        await until_idle()
        await script.end("P1", solved(), unsolved())
        assert running.running == 0
        assert script.began[-1] == "P1"


async def test_what_a_rollout_raises_is_a_failed_rollout() -> None:
    script = Script()
    group: dict[str, Any] = {"batch": 1, "balance": lambda: Balance(2, 4, 4, "0.5", "0.5"), "oversample": 1}
    async with manager(script, "A", **group) as running:
        first = asyncio.ensure_future(following(running.steps()))
        await until_idle()
        script.open["A"][0][1].layer = Layer.CREATION
        script.open["A"][0][1].seconds["creation"] += 2.5  # type: ignore[assignment]
        await script.end("A", OSError("no"), lost(), solved(sandbox=SandboxNote("s", "", True)), unsolved())
        step = await first
        assert step is not None
        assert step.events == {"raised_OSError": 1, "infrastructure_node_lost": 1, "escalated": 1}
        assert step.seconds == {"creation": 2.5}
        assert (step.batch.counts["generated"], step.batch.counts["infrastructure"], step.batch.counts["balanced"]) == (4, 2, 1)
        assert step.to_json()["counts"]["generated"] == 4


async def test_one_of_sixteen_sandboxes_lost_leaves_fifteen_to_train_on() -> None:
    """D8. The group of eight in which it was keeps seven with loss, and the step happens."""
    script = Script()
    group: dict[str, Any] = {"batch": 2, "balance": lambda: Balance(8, 8, 8, "0.375", "0.625"), "oversample": 1}
    async with manager(script, "AB", **group) as running:
        first = asyncio.ensure_future(following(running.steps()))
        await until_idle()
        await script.end("A", *[solved() if n % 2 else unsolved() for n in range(7)], lost())
        await script.end("B", *[solved() if n % 2 else unsolved() for n in range(8)])
        step = await first
    assert step is not None
    made_of = samples(step.batch)
    assert (len(made_of), step.batch.counts["infrastructure"], step.events["infrastructure_node_lost"]) == (15, 1, 1)
    assert trained_tokens(made_of) == 30
    assert math.isclose(sum(each.advantage for each in made_of if each.group == 0), 0, abs_tol=1e-9)


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
async def test_numbers_that_are_not_finite_never_reach_the_learner(broken: float) -> None:
    script = Script()
    tokens = replace(TOKENS, logprobs=(0.0, broken, -0.5))
    async with manager(script, "AB", batch=1, oversample=1) as running:
        first = asyncio.ensure_future(following(running.steps()))
        await until_idle()
        await script.end("A", solved(tokens=tokens) if broken > 0 else solved(reward=broken), unsolved())
        await script.end("B", solved(), unsolved())
        step = await first
    assert step is not None
    assert (step.events["not_finite"], step.batch.groups[0].prompt) == (1, "B")
    assert all(math.isfinite(each.advantage) for each in samples(step.batch))


async def test_an_error_of_the_learner_ends_every_rollout() -> None:
    script = Script()
    with pytest.raises(ZeroDivisionError):  # noqa: PT012
        async with manager(script, "ABCD") as running:
            steps = running.steps()
            first = asyncio.ensure_future(following(steps))
            await until_idle()
            await script.end("A", solved(), unsolved())
            await script.end("B", solved(), unsolved())
            await first
            raise ZeroDivisionError
    assert running.running == 0
    assert sorted(script.cancelled) == ["C", "C", "D", "D"]


async def test_tasks_that_never_ran_a_step_are_ended_too() -> None:
    script = Script()
    async with manager(script, "A") as running:
        running._launch()
        assert running.running == 2
    assert (running.running, script.began) == (0, [])


async def test_a_step_that_stalls_names_the_layer() -> None:
    async def never_ending(prompt: str, ticket: Ticket) -> Trajectory:
        ticket.layer = Layer.REWARD if prompt == "A" else Layer.OBSERVATION
        await asyncio.Event().wait()
        raise AssertionError

    async with manager(never_ending, "AAB", limit_s=0.05) as running:
        with pytest.raises(StallError, match="4 in reward, 2 in observation") as caught:
            await following(running.steps())
    assert caught.value.layer == "reward"
    with pytest.raises(SettingError):
        manager(never_ending, limit_s=0)


async def test_a_policy_of_messages_cannot_be_trained_on() -> None:
    script = Script()
    async with manager(script, "A", batch=1, oversample=1) as running:
        first = asyncio.ensure_future(following(running.steps()))
        await until_idle()
        for run in (solved(), unsolved()):
            await script.end("A", replace(run, tokens=replace(TOKENS)))
        step = await first
    assert step is not None
    for member in step.batch.groups[0].outcome.members:
        object.__setattr__(member.rollout, "payload", replace(member.rollout.payload, tokens=None))
    with pytest.raises(ValueError, match="no token ids"):
        samples(step.batch)


async def test_aborted_rollouts_only_fill_up() -> None:
    script = Script()
    group: dict[str, Any] = {"batch": 1, "balance": lambda: Balance(2, 4, 4, "0.5", "0.5"), "oversample": 1}
    async with manager(script, "A", **group) as running:
        first = asyncio.ensure_future(following(running.steps()))
        await until_idle()
        late = unsolved(status=Status.TIMEOUT, blame=Blame.POLICY, reason="wall_clock", reward=None)
        await script.end("A", late, late, solved(), unsolved())
        step = await first
    assert step is not None
    assert step.events == {"policy_wall_clock": 2}
    assert [each.reward for each in samples(step.batch)] == [1.0, -1.0]
