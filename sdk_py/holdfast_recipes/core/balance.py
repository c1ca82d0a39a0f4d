"""Balanced Adaptive Rollout: Algorithm 1 (P §3.3.2) for one prompt, as a state machine.

Owns the choice of the rollouts that form a prompt's group, and when to stop generating. Does not run rollouts, drop groups (``groups``) or
compute advantages (``advantage``). The driver calls ``wants()`` for the number to start, passes each finished rollout to ``add()``, and
uses ``outcome()`` as soon as it is not None.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from fractions import Fraction
from typing import Literal, TypeAlias, get_args

from .errors import ConfigurationError
from .scored import Scored, is_usable

Share: TypeAlias = Fraction | Decimal | str | float
Tie: TypeAlias = Literal["negative", "positive"]
Usable: TypeAlias = Callable[[Scored], bool]
Rank: TypeAlias = Callable[[Scored], tuple[float, ...]]


class Assembly(StrEnum):
    """Which of the three ways of Algorithm 1 gave the group."""

    BALANCED = "balanced"
    RELAXED = "relaxed"
    TOP = "top"


@dataclass(frozen=True, slots=True)
class Member:
    """One place of a group. ``index`` counts the rollouts in the order they were added; ``remove_sample`` keeps the loss off it."""

    index: int
    rollout: Scored
    remove_sample: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """The group of a prompt: ``size`` members, those that carry loss first, out of all that were generated for it."""

    kind: Assembly
    members: tuple[Member, ...]
    pool: tuple[Scored, ...]

    @property
    def generated(self) -> int:
        return len(self.pool)

    @property
    def positives(self) -> int:
        """n₊: members with loss and a reward above zero."""
        return sum(member.rollout.positive for member in self.members if not member.remove_sample)

    @property
    def rewards(self) -> list[float | None]:
        """[N] rewards as ``advantage.advantages`` takes them: None for a member without loss."""
        return [None if member.remove_sample else member.rollout.reward for member in self.members]


@dataclass(frozen=True, slots=True)
class LengthBias:
    """Mean response lengths of one class: of the members with loss, and of all usable rollouts they were chosen from (B9)."""

    selected: float
    pool: float


def length_bias(outcome: Outcome, *, positive: bool, usable: Usable = is_usable) -> LengthBias | None:
    """The effect of choosing the shortest on the lengths of successes or of failures; None if the group has none of them."""
    selected = [each.rollout.length for each in outcome.members if not each.remove_sample and each.rollout.positive == positive]
    pool = [each.length for each in outcome.pool if usable(each) and each.positive == positive]
    return LengthBias(sum(selected) / len(selected), sum(pool) / len(pool)) if selected else None


def exact(share: Share) -> Fraction:
    """A share as the decimal number it was written as: 0.375 is 3/8, and 0.1 is 1/10 rather than its nearest binary fraction."""
    return Fraction(str(share)) if isinstance(share, float) else Fraction(share)


def round_half_up(value: Fraction) -> int:
    """2.5 → 3: what the paper's round(ρ*N) is taken to mean."""
    return math.floor(value + Fraction(1, 2))


def by_status_and_length(rollout: Scored) -> tuple[float, ...]:
    """The ranking of the paper, ascending: completed before truncated before timed out before aborted, then the shorter response."""
    return (rollout.status.rank, rollout.length)


def candidates(size: int, low: Share, high: Share, target: Share | None = None, tie: Tie = "negative") -> list[int]:
    """Numbers of positives ⌈low·N⌉ … ⌊high·N⌋ in the order in which they are tried: nearest to n* = round(target·N) first.

    ``target`` is the middle of the interval unless given. Of two equally near, ``tie`` names the class that has more: "negative"
    tries the lower number first. N = 8 on [3/8, 5/8] gives 4, 3, 5.
    """
    if tie not in get_args(Tie):
        raise ConfigurationError(f"tie must be one of {', '.join(get_args(Tie))}, not {tie!r}")
    low, high = exact(low), exact(high)
    wanted = round_half_up((exact(target) if target is not None else (low + high) / 2) * size)
    sign = 1 if tie == "negative" else -1
    return sorted(range(math.ceil(low * size), math.floor(high * size) + 1), key=lambda n: (abs(n - wanted), sign * n))


def try_assemble(
    pool: Sequence[Scored],
    size: int,
    low: Share,
    high: Share,
    target: Share | None = None,
    *,
    tie: Tie = "negative",
    usable: Usable = is_usable,
    rank: Rank = by_status_and_length,
    rank_negative: Rank | None = None,
) -> tuple[int, ...] | None:
    """TryAssemble of Algorithm 1: indices into ``pool`` of a group of ``size`` with a share of positives in [low, high], or None.

    The best-ranked positives come first, then the best-ranked negatives; of equals the one that finished earlier.
    """
    positives = [index for index, rollout in enumerate(pool) if usable(rollout) and rollout.positive]
    negatives = [index for index, rollout in enumerate(pool) if usable(rollout) and not rollout.positive]
    if len(positives) + len(negatives) < size:
        return None
    for count in candidates(size, low, high, target, tie):
        if count <= len(positives) and size - count <= len(negatives):
            positives.sort(key=lambda index: rank(pool[index]))
            negatives.sort(key=lambda index: (rank_negative or rank)(pool[index]))
            return (*positives[:count], *negatives[: size - count])
    return None


def top_ranked(pool: Sequence[Scored], size: int, *, usable: Usable = is_usable, rank: Rank = by_status_and_length) -> tuple[int, ...]:
    """TopRanked of Algorithm 1: indices of the ``size`` best-ranked rollouts, usable ones before those that only fill up."""
    order = sorted(range(len(pool)), key=lambda index: (not usable(pool[index]), rank(pool[index])))
    return tuple(order[:size])


class Balance:
    """Algorithm 1 for one prompt.

    ``size`` N, ``budget`` N_max, ``stride`` s (a divisor of the budget), ``low`` and ``high`` the interval of the share of positives
    (taken as exact decimals). With ``stream`` a group is looked for after every finished rollout instead of after every stride:
    the driver still starts a stride at once, and cancels what runs when the outcome is there.

    Options beyond the paper, off by default: ``tie`` (see ``candidates``), ``rank_negative="random"`` chooses failures of equal
    status by ``seed`` instead of the shortest (choosing the shortest punishes short failures only), ``stop_when_mastered`` stops at a
    stride after which so many succeeded that the failures are too few for balance (prose of P §3.3.3; Algorithm 1 goes on).
    Raises ``ConfigurationError`` for settings that no rollouts could satisfy.
    """

    def __init__(
        self,
        size: int,
        budget: int,
        stride: int,
        low: Share = Fraction(3, 8),
        high: Share = Fraction(5, 8),
        tie: Tie = "negative",
        usable: Usable = is_usable,
        rank: Rank = by_status_and_length,
        *,
        rank_negative: Literal["shortest", "random"] = "shortest",
        seed: int = 0,
        stop_when_mastered: bool = False,
        stream: bool = False,
    ) -> None:
        self.size, self.budget, self.stride = size, budget, stride
        self.low, self.high = exact(low), exact(high)
        if size < 1 or stride < 1:
            raise ConfigurationError(f"size and stride must be at least 1, not {size} and {stride}")
        if budget < size:
            raise ConfigurationError(f"a budget of {budget} rollouts can never fill a group of {size}")
        if budget % stride:
            raise ConfigurationError(f"the stride {stride} must divide the budget {budget}")
        if not 0 <= self.low <= self.high <= 1:
            raise ConfigurationError(f"the share of positives must be an interval within [0, 1], not [{low}, {high}]")
        if rank_negative not in ("shortest", "random"):
            raise ConfigurationError(f"rank_negative must be shortest or random, not {rank_negative!r}")
        if not candidates(size, self.low, self.high, tie=tie):
            raise ConfigurationError(f"no group of {size} has a share of positives in [{low}, {high}]")
        self._target = (self.low + self.high) / 2
        self._tie, self._usable, self._rank = tie, usable, rank
        self._random_negatives, self._seed = rank_negative == "random", seed
        self._stop_when_mastered, self._stream = stop_when_mastered, stream
        self._pool: list[Scored] = []
        self._outcome: Outcome | None = None
        self.late = 0
        """Rollouts that were handed in after the outcome stood; they change nothing."""

    def wants(self) -> int:
        """The number of further finished rollouts that the present stride needs, running ones included; 0 once the outcome is decided."""
        return 0 if self._outcome else self.stride - len(self._pool) % self.stride

    def add(self, finished: Scored | Iterable[Scored]) -> None:
        """Take one finished rollout, or several in the order they finished. A failed one counts too: it fills up."""
        for rollout in [finished] if isinstance(finished, Scored) else finished:
            if self._outcome:
                self.late += 1
                continue
            self._pool.append(rollout)
            if self._stream or len(self._pool) % self.stride == 0:
                self._outcome = self._look()

    def outcome(self) -> Outcome | None:
        """The group, or None while more rollouts are wanted."""
        return self._outcome

    def _look(self) -> Outcome | None:
        if (chosen := self._assemble(self.low, self.high)) is not None:
            return self._group(Assembly.BALANCED, chosen)
        spent = len(self._pool) == self.budget
        if not spent and not (self._stop_when_mastered and self._mastered()):
            return None
        if (chosen := self._assemble(Fraction(0), Fraction(1))) is not None:
            return self._group(Assembly.RELAXED, chosen)
        return self._group(Assembly.TOP, top_ranked(self._pool, self.size, usable=self._usable, rank=self._rank))

    def _assemble(self, low: Fraction, high: Fraction) -> tuple[int, ...] | None:
        return try_assemble(
            self._pool,
            self.size,
            low,
            high,
            self._target,
            tie=self._tie,
            usable=self._usable,
            rank=self._rank,
            rank_negative=self._shuffled() if self._random_negatives else None,
        )

    def _shuffled(self) -> Rank:
        draw = random.Random(self._seed)  # noqa: S311  a seeded choice, no secret
        places = {id(rollout): draw.random() for rollout in self._pool}
        return lambda rollout: (rollout.status.rank, places[id(rollout)])

    def _mastered(self) -> bool:
        usable = [rollout for rollout in self._pool if self._usable(rollout)]
        failures = sum(not rollout.positive for rollout in usable)
        return len(usable) >= self.size and failures < self.size - math.floor(self.high * self.size)

    def _group(self, kind: Assembly, chosen: Sequence[int]) -> Outcome:
        members = (Member(index, self._pool[index], not self._usable(self._pool[index])) for index in chosen)
        return Outcome(kind, tuple(members), tuple(self._pool))
