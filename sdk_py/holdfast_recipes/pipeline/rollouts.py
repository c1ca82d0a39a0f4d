"""The manager of RL rollouts: many prompts in flight, groups assembled as rollouts finish, batches for a learner (C7, D11).

Owns running and cancelling rollouts, waiting while the learner is behind, the limit of a step, and the counts. ``batching`` makes the
decisions. A rollout that raises is a failed rollout, never an error of the manager. ``samples`` makes token ids and advantages for the
learner.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from holdfast_recipes.core.balance import Outcome, length_bias
from holdfast_recipes.core.scored import Blame, Scored, Status
from holdfast_recipes.core.trajectory import Trajectory
from holdfast_recipes.harness.layers import fault_of
from holdfast_recipes.harness.limits import Layer

from .batching import Batch, Batching
from .errors import SettingError, StallError
from .samples import is_finite

Prompt = TypeVar("Prompt")


@dataclass(slots=True)
class Ticket:
    """One rollout in flight. The rollout updates ``layer``, so that the error of a stalled step can name it; it adds its own seconds
    and events. ``version`` is that of the weights when it began; ``key`` is the same for all rollouts of one group."""

    seed: int
    version: int
    layer: str = Layer.CREATION
    seconds: Counter[str] = field(default_factory=Counter)
    events: Counter[str] = field(default_factory=Counter)
    key: int = 0


Rollout = Callable[[Prompt, Ticket], Awaitable[Trajectory]]


@dataclass(frozen=True, slots=True)
class Step(Generic[Prompt]):
    """A full batch and the counts since the one before: those of ``batching``; ``events`` of layers (faults by reason, escalations),
    ``seconds`` by layer, mean tokens of the rollouts that were handed in, and how stale the batch is (versions behind, by group)."""

    number: int
    version: int
    batch: Batch[Prompt]
    events: Mapping[str, int]
    seconds: Mapping[str, float]
    mean_tokens: float | None
    staleness: Mapping[int, int]
    wall_s: float

    def to_json(self) -> dict[str, Any]:
        return {
            "step": self.number,
            "version": self.version,
            "groups": [_group(group.outcome) for group in self.batch.groups],
            "counts": dict(sorted(self.batch.counts.items())),
            "events": dict(sorted(self.events.items())),
            "seconds": {name: round(value, 3) for name, value in sorted(self.seconds.items())},
            "mean_tokens": self.mean_tokens,
            "staleness": {str(behind): count for behind, count in sorted(self.staleness.items())},
            "wall_s": round(self.wall_s, 3),
        }


def _group(outcome: Outcome) -> dict[str, Any]:
    trained = sum(not member.remove_sample for member in outcome.members)
    group: dict[str, Any] = {"kind": str(outcome.kind), "positives": outcome.positives, "trained": trained, "generated": outcome.generated}
    for name, positive in (("positive_lengths", True), ("negative_lengths", False)):
        if (bias := length_bias(outcome, positive=positive)) is not None:
            group[name] = {"selected": bias.selected, "pool": bias.pool}
    return group


class RolloutManager(Generic[Prompt]):
    """``async with RolloutManager(batching, rollout) as manager: async for step in manager.steps(): … manager.published()``.

    Rollouts run while the learner works on a batch. Once the next batch is full as well, nothing more is started until it is taken: what
    would be generated then is stale before it is used. At most ``concurrency`` rollouts run at once. ``step_limit_s`` (by C7 twice the
    wall limit of a rollout) bounds the wait for a batch: StallError, which names the layer that most rollouts wait in. Leaving the
    block, also by an error of the learner, cancels what runs and waits for its end. ``use`` takes new weights, ``report`` each step:
    with ``batch`` and ``publish`` they serve a learner that drives the manager itself.
    """

    def __init__(
        self,
        batching: Batching[Prompt],
        rollout: Rollout[Prompt],
        *,
        concurrency: int = 64,
        step_limit_s: float | None = 3600.0,
        seed: int = 0,
        use: Callable[[Any, int], None] | None = None,
        report: Callable[[Step[Prompt]], None] | None = None,
    ) -> None:
        if concurrency < 1 or (step_limit_s is not None and step_limit_s <= 0):
            raise SettingError(f"concurrency and the limit of a step must be above 0: {concurrency}, {step_limit_s}")
        self._batching, self._rollout = batching, rollout
        self._use, self._report = use, report
        self._concurrency, self._step_limit_s, self._draw = concurrency, step_limit_s, random.Random(seed)  # noqa: S311  sampling
        self._flights: dict[int, dict[asyncio.Task[Scored], Ticket]] = {}
        self._owed: dict[int, tuple[Prompt, int]] = {}
        self._changed = asyncio.Event()
        self._steps = 0
        self._closed = False
        self._events: Counter[str] = Counter()
        self._seconds: Counter[str] = Counter()
        self._tokens: list[int] = []

    @property
    def version(self) -> int:
        """Of the weights that rollouts begin with now."""
        return self._batching.version

    @property
    def running(self) -> int:
        """Rollouts in flight."""
        return sum(map(len, self._flights.values()))

    async def batch(self) -> Batch[Prompt] | None:
        """The next full batch, for a learner that needs only the batch; None once there are no more prompts. What ``report`` is given is
        the step."""
        step = await self.step()
        return None if step is None else step.batch

    def publish(self, weights: Any, version: int) -> None:
        """Hand new weights to ``use``: rollouts that begin from now on have them."""
        if self._use is not None:
            self._use(weights, version)
        self.published()

    def published(self) -> int:
        """The learner has put new weights in place; returns their version."""
        return self._batching.published()

    async def steps(self) -> AsyncIterator[Step[Prompt]]:
        """Full batches, one after the other, until the prompts are used up and nothing that runs can fill another one."""
        while (step := await self.step()) is not None:
            yield step

    async def step(self) -> Step[Prompt] | None:
        """The next full batch with its counts, or None at the end."""
        clock = asyncio.get_running_loop().time
        began = clock()
        if (batch := await self._next()) is None:
            return None
        self._steps += 1
        step = self._step(batch, clock() - began)
        if self._report is not None:
            self._report(step)
        return step

    async def _next(self) -> Batch[Prompt] | None:
        try:
            async with asyncio.timeout(self._step_limit_s) as limit:
                while True:
                    batch = self._batching.take()
                    self._launch()
                    if batch is not None:
                        return batch
                    if not self.running:
                        return None
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            if not limit.expired():
                raise
            layers = Counter(str(ticket.layer) for flight in self._flights.values() for ticket in flight.values())
            layer = layers.most_common(1)[0][0] if layers else "none"
            waiting = ", ".join(f"{count} in {name}" for name, count in layers.most_common())
            raise StallError(f"no batch within {self._step_limit_s:g} s; rollouts in flight: {waiting or 'none'}", layer=layer) from None

    def _launch(self) -> None:
        """Start what there is room for, unless a batch waits for the learner."""
        if self._closed or self._batching.full:
            return
        for launch in self._batching.launches():
            self._owed[launch.key] = (launch.prompt, self._owed.get(launch.key, (launch.prompt, 0))[1] + launch.count)
        while self._owed and self.running < self._concurrency:
            key, (prompt, count) = next(iter(self._owed.items()))
            self._start(key, prompt)
            if count > 1:
                self._owed[key] = (prompt, count - 1)
            else:
                del self._owed[key]

    def _start(self, key: int, prompt: Prompt) -> None:
        ticket = Ticket(self._draw.getrandbits(31), self._batching.version, key=key)
        task = asyncio.create_task(self._play(prompt, ticket), name=f"rollout-{key}")
        self._flights.setdefault(key, {})[task] = ticket
        task.add_done_callback(lambda done: self._ended(key, done, ticket))

    async def _play(self, prompt: Prompt, ticket: Ticket) -> Scored:
        try:
            return self._scored(await self._rollout(prompt, ticket), ticket)
        except Exception as error:  # noqa: BLE001  a rollout that raises is a value
            fault = fault_of(Layer(ticket.layer) if ticket.layer in set(Layer) else Layer.OBSERVATION, error)
            ticket.events[f"raised_{fault.reason}"] += 1
            return Scored(None, Status.ABORTED, 0, fault.blame)

    def _ended(self, key: int, task: asyncio.Task[Scored], ticket: Ticket) -> None:
        """Also of a task that was cancelled before it ran a step."""
        flight = self._flights[key]
        del flight[task]
        if not flight:
            del self._flights[key]
        self._events.update(ticket.events)
        self._seconds.update(ticket.seconds)
        if task.cancelled():
            self._batching.cancelled(key)
        elif self._batching.finished(key, task.result(), ticket.version):
            self._owed.pop(key, None)
            for other in self._flights.get(key, {}):
                other.cancel()
        self._launch()
        self._changed.set()

    def _scored(self, run: Trajectory, ticket: Ticket) -> Scored:
        """As the group algorithms see it. A number that is none would spoil the optimiser's step, so such a rollout failed."""
        if not is_finite(run):
            ticket.events["not_finite"] += 1
            return Scored(None, Status.ABORTED, 0, Blame.INFRASTRUCTURE, run)
        if run.blame is not None:
            ticket.events[f"{run.blame}_{run.reason or run.status}"] += 1
        if run.sandbox.escalated and not ticket.events["escalated"]:
            ticket.events["escalated"] += 1
        if run.tokens is not None:
            self._tokens.append(len(run.tokens.ids))
        return run.scored()

    def _step(self, batch: Batch[Prompt], wall_s: float) -> Step[Prompt]:
        staleness = Counter(self._batching.version - group.version for group in batch.groups)
        tokens, events, seconds = self._tokens, dict(self._events), dict(self._seconds)
        self._tokens, self._events, self._seconds = [], Counter(), Counter()
        mean = sum(tokens) / len(tokens) if tokens else None
        return Step(self._steps, self._batching.version, batch, events, seconds, mean, dict(staleness), wall_s)

    async def close(self) -> None:
        """Cancel what runs, and wait until it has ended."""
        self._closed = True
        self._owed.clear()
        tasks = [task for flight in self._flights.values() for task in flight]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()
