"""The decisions of the rollout manager (C7): what to start, what to cancel, when a batch is full. A state machine without a clock.

Owns over-sampling of prompts, one ``Balance`` per prompt, the group filter, staleness and the counts of a step. Its driver runs rollouts:
it starts those that ``launches()`` returns, passes each finished one to ``finished()``, cancels those that this returns, and takes full
batches for the learner. A failed rollout is passed like any other; no function here raises because of a rollout.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from holdfast_recipes.core.balance import Balance, Member, Outcome, Share, exact
from holdfast_recipes.core.errors import ConfigurationError
from holdfast_recipes.core.groups import GroupRules, admit
from holdfast_recipes.core.scored import Blame, Scored, Status

Prompt = TypeVar("Prompt")


@dataclass(frozen=True, slots=True)
class Launch(Generic[Prompt]):
    """Start ``count`` more rollouts of a prompt. ``key`` distinguishes two uses of the same prompt."""

    key: int
    prompt: Prompt
    count: int


@dataclass(frozen=True, slots=True)
class Group(Generic[Prompt]):
    """A prompt's group that was admitted; ``version`` is the oldest of the weights that made the rollouts with loss."""

    prompt: Prompt
    outcome: Outcome
    version: int


@dataclass(frozen=True, slots=True)
class Batch(Generic[Prompt]):
    """Groups for one optimiser step, and the counts since the batch before: rollouts generated, usable, stale and late, groups by
    assembly (``balanced``, …) and by reason of being dropped (``dropped_…``)."""

    groups: tuple[Group[Prompt], ...]
    counts: Counter[str]


@dataclass(slots=True)
class _Flight(Generic[Prompt]):
    prompt: Prompt
    balance: Balance
    running: int = 0
    versions: list[int] = field(default_factory=list)


class Batching(Generic[Prompt]):
    """One run of training, batch after batch.

    ``batch`` groups make a batch; ⌈batch × oversample⌉ prompts are in flight as long as there are prompts. ``most_staleness``: a rollout
    may be trained on if the weights moved at most that often since it started; an older one only fills up, and a group that waited too
    long is dropped. ``admit`` judges groups by ``rules``.
    """

    def __init__(
        self,
        prompts: Iterator[Prompt],
        *,
        batch: int,
        balance: Callable[[], Balance],
        oversample: Share = "1.25",
        rules: GroupRules | None = None,
        most_staleness: int = 1,
    ) -> None:
        if batch < 1 or exact(oversample) < 1 or most_staleness < 0:
            raise ConfigurationError(f"batch and oversample must be at least 1, staleness 0: {batch}, {oversample}, {most_staleness}")
        self.version = 0
        self.exhausted = False
        """There are no more prompts."""
        self._prompts, self._balance, self._rules = prompts, balance, rules
        self._batch, self._places, self._most_staleness = batch, math.ceil(batch * exact(oversample)), most_staleness
        self._flights: dict[int, _Flight[Prompt]] = {}
        self._ready: list[Group[Prompt]] = []
        self._counts: Counter[str] = Counter()
        self._next_key = 0

    @property
    def in_flight(self) -> int:
        """Prompts that are being worked on."""
        return len(self._flights)

    def launches(self) -> list[Launch[Prompt]]:
        """The rollouts to start now. Each is returned once; the driver must call ``finished`` or ``cancelled`` once for it."""
        while len(self._flights) < self._places and not self.exhausted:
            try:
                prompt = next(self._prompts)
            except StopIteration:
                self.exhausted = True
            else:
                self._flights[self._next_key] = _Flight(prompt, self._balance())
                self._next_key += 1
        made = []
        for key, flight in self._flights.items():
            if (more := flight.balance.wants() - flight.running) > 0:
                flight.running += more
                made.append(Launch(key, flight.prompt, more))
        return made

    def finished(self, key: int, rollout: Scored, started_version: int) -> int:
        """Take a finished rollout of a prompt, with the version of the weights when it started. Returns how many rollouts of this prompt
        still run and are to be cancelled, because its group stands."""
        self._counts["generated"] += 1
        flight = self._flights.get(key)
        if flight is None:
            self._counts["late"] += 1
            return 0
        if self.version - started_version > self._most_staleness:
            self._counts["stale"] += 1
            rollout = replace(rollout, reward=None, status=Status.ABORTED)
        elif rollout.finished and rollout.reward is not None:
            self._counts["usable"] += 1
        if rollout.blame is Blame.INFRASTRUCTURE:
            self._counts["infrastructure"] += 1
        flight.running -= 1
        flight.versions.append(started_version)
        flight.balance.add(rollout)
        if (outcome := flight.balance.outcome()) is None:
            return 0
        del self._flights[key]
        self._settle(flight, outcome)
        return flight.running

    def cancelled(self, key: int) -> None:
        """A rollout was ended by the driver before it finished. Of a prompt that still wants it, another will be started."""
        self._counts["cancelled"] += 1
        if (flight := self._flights.get(key)) is not None:
            flight.running -= 1

    @property
    def full(self) -> bool:
        """Whether ``take`` would give a batch now."""
        return sum(self._is_fresh(group) for group in self._ready) >= self._batch

    def take(self) -> Batch[Prompt] | None:
        """A full batch, oldest groups first, or None. What is left over waits for the next one."""
        fresh = [group for group in self._ready if self._is_fresh(group)]
        self._counts["dropped_stale"] += len(self._ready) - len(fresh)
        self._ready = fresh
        if len(fresh) < self._batch:
            return None
        groups, self._ready = tuple(fresh[: self._batch]), fresh[self._batch :]
        counts, self._counts = +self._counts, Counter()
        return Batch(groups, counts)

    def published(self) -> int:
        """The learner has put new weights in place; returns their version."""
        self.version += 1
        return self.version

    def _is_fresh(self, group: Group[Prompt]) -> bool:
        return self.version - group.version <= self._most_staleness

    def _settle(self, flight: _Flight[Prompt], outcome: Outcome) -> None:
        self._counts[str(outcome.kind)] += 1
        verdict = admit([member.rollout for member in outcome.members], self._rules)
        if verdict.reason is not None:
            self._counts[f"dropped_{verdict.reason}"] += 1
            return
        self._ready.append(Group(flight.prompt, outcome, _oldest(outcome.members, flight.versions)))


def _oldest(members: Sequence[Member], versions: Sequence[int]) -> int:
    return min(versions[member.index] for member in members if not member.remove_sample)
