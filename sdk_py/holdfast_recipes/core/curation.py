"""Filters that turn collected trajectories into a data set, in a fixed order, each with its count (P §3.2, §4.3, App. E).

Owns the filters of Orchard-SWE, the choice of one success per task, caps per site, the p̂ band, and the counts that go on a data card.
A row that two filters would drop is counted by the first. Near-duplicates are in ``dedup``, choices of a size in ``selection``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Generic, TypeVar

from .balance import Share, exact
from .calls import CallFault, parse_message
from .template import render, text_of
from .trajectory import Trajectory

Row = TypeVar("Row")

SWE_TOKEN_LIMIT = 64_000


@dataclass(frozen=True, slots=True)
class Filter(Generic[Row]):
    """A named reason to drop a row."""

    name: str
    drops: Callable[[Row], bool]


@dataclass(frozen=True, slots=True)
class Curated(Generic[Row]):
    """The remaining runs, in order, and how many each filter dropped (in the order of the filters, zeros included)."""

    kept: list[Row]
    dropped: dict[str, int]


def curate(rows: Iterable[Row], filters: Sequence[Filter[Row]]) -> Curated[Row]:
    """Apply filters in order: a row meets a filter only if none before dropped it."""
    if len({each.name for each in filters}) < len(filters):
        raise ValueError("two filters have the same name, so their counts could not be separated")
    kept: list[Row] = []
    dropped = {each.name: 0 for each in filters}
    for row in rows:
        hit = next((each.name for each in filters if each.drops(row)), None)
        if hit is None:
            kept.append(row)
        else:
            dropped[hit] += 1
    return Curated(kept, dropped)


def swe_filters(count_tokens: Callable[[Trajectory], int], limit: int = SWE_TOKEN_LIMIT) -> list[Filter[Trajectory]]:
    """The three filters of P §3.2: more than ``limit`` tokens of the whole serialized trajectory under the student's tokenizer; a call
    of a tool that the harness does not define; a call that cannot be parsed.

    A call that parses but breaks the tool's schema is kept: the harness answered it with an error, which is worth learning from.
    """
    return [
        Filter("too_long", lambda trajectory: count_tokens(trajectory) > limit),
        Filter("undefined_tool", lambda trajectory: CallFault.UNDEFINED_TOOL in call_faults(trajectory)),
        Filter("unparsable", lambda trajectory: CallFault.BAD_JSON in call_faults(trajectory)),
    ]


def token_counter(tokenize: Callable[[str], Sequence[int]]) -> Callable[[Trajectory], int]:
    """Counts the tokens of a whole trajectory, tools included, as the student's template writes it."""
    return lambda trajectory: len(tokenize(text_of(render(trajectory.messages, trajectory.tools))))


def call_faults(trajectory: Trajectory) -> frozenset[CallFault]:
    """Every kind of fault in the calls of a trajectory's assistant messages."""
    parsed = [parse_message(message, trajectory.tools) for message in trajectory.messages if message["role"] == "assistant"]
    return frozenset(error.fault for each in parsed for error in each.errors)


def shortest_success(
    rows: Iterable[Row], *, task: Callable[[Row], Hashable], success: Callable[[Row], bool], length: Callable[[Row], tuple[int, ...]]
) -> list[Row]:
    """One success per task: the least ``length`` (turns, then total response length: P §4.3), the first of equals; tasks in the order
    in which they first appear with a success."""
    best: dict[Hashable, Row] = {}
    for row in rows:
        if success(row) and (task(row) not in best or length(row) < length(best[task(row)])):
            best[task(row)] = row
    return list(best.values())


def cap_per(rows: Iterable[Row], key: Callable[[Row], Hashable], most: int) -> list[Row]:
    """The first ``most`` rows of each key, in the order given (at most 20 tasks per website: P §4.3)."""
    if most < 0:
        raise ValueError("a cap cannot be negative")
    seen: Counter[Hashable] = Counter()
    kept = []
    for row in rows:
        seen[key(row)] += 1
        if seen[key(row)] <= most:
            kept.append(row)
    return kept


def in_band(successes: int, trials: int, low: Share = 0, high: Share = "0.5") -> bool:
    """Whether a task is of trainable difficulty: low < p̂ ≤ high (P §3.3.3: 0 < p̂ ≤ 0.5 of 8 rollouts). Untried tasks are not."""
    if not 0 <= successes <= trials:
        raise ValueError(f"{successes} successes of {trials} trials")
    return trials > 0 and exact(low) < Fraction(successes, trials) <= exact(high)


@dataclass(frozen=True, slots=True)
class CardLine:
    """One line of a data card (the form of P Table 5)."""

    source: str
    teacher: str
    harness: str
    resolved: int
    unresolved: int

    @property
    def total(self) -> int:
        return self.resolved + self.unresolved


def card(trajectories: Iterable[Trajectory]) -> list[CardLine]:
    """Resolved and unresolved runs by source, teacher and harness, in the order of first appearance."""
    counts: dict[tuple[str, str, str], list[int]] = {}
    for each in trajectories:
        counts.setdefault((each.source, each.policy.name, each.harness.name), [0, 0])[not each.resolved] += 1
    return [CardLine(*key, resolved, unresolved) for key, (resolved, unresolved) in counts.items()]
