"""Groups of rollouts for engines that request them prompt by prompt: Algorithm 1 for each, the group filter, and spare prompts.

Owns running the rollouts of a call and its limits. ``core.balance`` and ``core.groups`` make the decisions. An engine that lets the rollout
manager choose (slime, asynchronous TRL) takes ``pipeline.rollouts`` instead. Also owns the thread of an event loop for engines whose own
code does not wait for coroutines.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from holdfast_recipes.core.balance import Balance, Outcome
from holdfast_recipes.core.groups import GroupRules, Reason, admit
from holdfast_recipes.core.scored import Blame, Scored, Status
from holdfast_recipes.harness.layers import fault_of
from holdfast_recipes.harness.limits import Layer
from holdfast_recipes.pipeline.rollouts import Rollout, Ticket
from holdfast_recipes.pipeline.samples import is_finite
from holdfast_recipes.policy.base import ChatPolicy, Policy

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Recipe:
    """The settings for an engine: how a prompt (the id of a task) is run with the engine's policy, how groups are formed and judged.

    ``rollouts`` gets a policy of token ids, ``chats`` one of messages. ``concurrency`` rollouts run at a time; ``balance`` is called once
    for each group; ``prompts`` are all there are."""

    rollouts: Callable[[Policy], Rollout[str]]
    balance: Callable[[], Balance]
    rules: GroupRules = field(default_factory=GroupRules)
    concurrency: int = 16
    prompts: tuple[str, ...] = ()
    chats: Callable[[ChatPolicy], Rollout[str]] | None = None

    @property
    def size(self) -> int:
        return self.balance().size


@dataclass(frozen=True, slots=True)
class Group:
    """The group of one prompt. ``dropped`` None: it may be trained on."""

    prompt: str
    outcome: Outcome
    dropped: Reason | None


@dataclass(slots=True)
class GroupPlayer:
    """Plays groups with one policy. ``spares`` are further prompts: one replaces each dropped group, at most ``most_spares`` in a call;
    with none left the dropped group is returned. ``counts`` are of all calls."""

    recipe: Recipe
    policy: Policy
    spares: Iterator[str] = field(default_factory=lambda: iter(()))
    most_spares: int = 16
    seed: int = 0
    counts: Counter[str] = field(default_factory=Counter)

    async def play(self, prompts: Sequence[str]) -> list[Group]:
        """One group for each prompt, in order. A rollout that raises is a failed rollout."""
        room = asyncio.Semaphore(self.recipe.concurrency)
        draw = random.Random(f"{self.seed}-{self.counts['calls']}")  # noqa: S311  sampling, no secret
        self.counts["calls"] += 1
        left = [self.most_spares]

        async def one(prompt: str) -> Group:
            while True:
                group = await self._group(prompt, room, draw)
                if group.dropped is None or left[0] < 1 or (spare := next(self.spares, None)) is None:
                    return group
                left[0] -= 1
                prompt = spare

        async with asyncio.TaskGroup() as tasks:
            made = [tasks.create_task(one(prompt), name=f"group-{prompt}") for prompt in prompts]
        return [task.result() for task in made]

    async def _group(self, prompt: str, room: asyncio.Semaphore, draw: random.Random) -> Group:
        balance, running = self.recipe.balance(), list[asyncio.Task[Scored]]()
        rollout = self.recipe.rollouts(self.policy)
        try:
            while (outcome := balance.outcome()) is None:
                for _ in range(balance.wants() - len(running)):
                    ticket = Ticket(draw.getrandbits(31), getattr(self.policy, "version", 0))
                    running.append(asyncio.create_task(self._rollout(rollout, prompt, ticket, room)))
                done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                balance.add([task.result() for task in running if task in done])
                running = [task for task in running if task not in done]
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
        self.counts[str(outcome.kind)] += 1
        dropped = admit([member.rollout for member in outcome.members], self.recipe.rules).reason
        self.counts[f"dropped_{dropped}" if dropped else "admitted"] += 1
        return Group(prompt, outcome, dropped)

    async def _rollout(self, rollout: Rollout[str], prompt: str, ticket: Ticket, room: asyncio.Semaphore) -> Scored:
        async with room:
            try:
                run = await rollout(prompt, ticket)
            except Exception as error:  # noqa: BLE001  a rollout that raises is a value
                fault = fault_of(Layer.OBSERVATION, error)
                scored = Scored(None, Status.ABORTED, 0, fault.blame)
            else:
                scored = run.scored() if is_finite(run) else Scored(None, Status.ABORTED, 0, Blame.INFRASTRUCTURE, run)
        self.counts["generated"] += 1
        self.counts["infrastructure"] += scored.blame is Blame.INFRASTRUCTURE
        return scored


def cycle(prompts: Iterable[str], seed: int = 0) -> Iterator[str]:
    """The prompts without end, each round in an order of its own."""
    known = list(dict.fromkeys(prompts))
    draw = random.Random(f"spares-{seed}")  # noqa: S311
    while known:
        yield from draw.sample(known, len(known))


class LoopThread:
    """An event loop in a thread of its own, and what was opened on it. ``close`` closes that and ends the thread."""

    def __init__(self, name: str = "holdfast-recipes") -> None:
        self.loop = asyncio.new_event_loop()
        self._stack = contextlib.AsyncExitStack()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """The result of a coroutine, from any other thread. An interruption of the wait cancels it."""
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result(timeout_s)
        except BaseException:
            future.cancel()
            raise

    def enter(self, opened: AbstractAsyncContextManager[T]) -> T:
        """Open something that stays open until ``close``."""
        return self.run(self._stack.enter_async_context(opened))

    def close(self) -> None:
        if not self._thread.is_alive():
            return
        try:
            self.run(self._stack.aclose())
        finally:
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(10)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
            pending = asyncio.all_tasks(self.loop)
            for task in pending:
                task.cancel()
            self.loop.run_until_complete(asyncio.gather(*pending, return_exceptions=True))
        finally:
            self.loop.close()
