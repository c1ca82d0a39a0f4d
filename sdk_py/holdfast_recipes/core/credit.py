"""Credit assignment for SFT (P §3.3.1): from one value per turn to the turns of an unresolved run that get loss.

Owns the temporal difference, rise segments and both conventions for the turn that a value belongs to (V1). ``values`` reads
values; ``spans`` has the tokens of a turn.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, TypeAlias

from .values import check_annotation

ValueOf: TypeAlias = Literal["before", "after"]
Segment: TypeAlias = tuple[int, int]


def shift(values: Sequence[float], value_of: ValueOf, first: float | None = None) -> list[float]:
    """Credit of each turn whose effect the values show, in order of turns from 0 (Eq. 2).

    "before": ``values[t]`` is the value of the state in which turn t acts, credit of turn t is V[t+1] − V[t]. L values give L − 1
    credits, for turns 0 … L − 2: after the last state nothing was valued. Give L + 1 values, the final state's last, to credit all L.
    "after": ``values[t]`` is the value once turn t has acted, credit of turn t is V[t] − V[t−1]. L values give L credits; turn 0 is
    measured from ``first``, the value at the start, which is V[0] unless given. The credits sum to V[last] − V[first] either way.
    """
    _check_finite(values if first is None else [*values, first])
    if value_of == "before":
        if first is not None:
            raise ValueError("'before' needs no first value: it is values[0]")
        return [after - before for before, after in pairwise(values)]
    if value_of != "after":
        raise ValueError(f"a value must be of the state before or after a turn, not {value_of!r}")
    if not values:
        return []
    return [after - before for before, after in pairwise([values[0] if first is None else first, *values])]


def rises(values: Sequence[float], eps: float = 0.05, tol: float = 1e-9) -> list[Segment]:
    """Maximal closed intervals [i, j] of value indices, i < j, in which every step up is at least ``eps``: V[t+1] − V[t] ≥ ε for
    t = i … j − 1. ``tol`` forgives binary rounding: 0.45 − 0.40 is a rise of 0.05 (V3). Raises ValueError for values that
    are not finite."""
    if not (0 <= eps < math.inf and 0 <= tol < math.inf):
        raise ValueError(f"eps and tol must be finite and not negative: {eps}, {tol}")
    _check_finite(values)
    segments: list[Segment] = []
    start: int | None = None
    for index, (before, after) in enumerate(pairwise(values)):
        if after - before >= eps - tol:
            start = index if start is None else start
        elif start is not None:
            segments.append((start, index))
            start = None
    if start is not None:
        segments.append((start, len(values) - 1))
    return segments


def _check_finite(values: Sequence[float]) -> None:
    if not all(map(math.isfinite, values)):
        raise ValueError("values must be finite")


def merge(segments: Iterable[Segment], merge_gap: int = 0) -> list[Segment]:
    """Ordered segments, joined where at most ``merge_gap`` steps lie between the end of one and the start of the next (V4)."""
    if merge_gap < 0:
        raise ValueError("a gap cannot be negative")
    merged: list[Segment] = []
    for start, end in sorted(segments):
        if merged and start - merged[-1][1] <= merge_gap:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def credited_turns(
    segments: Iterable[Segment], *, value_of: ValueOf, closed: bool = False, merge_gap: int = 0, turns: int
) -> frozenset[int]:
    """Turns, out of ``turns``, that get loss for rise segments [i, j] of values (V1).

    "before": i … j − 1. "after": i + 1 … j. ``closed`` reproduces the literal interval i … j of the paper, whichever it is.
    A segment of "before" may end at index ``turns`` when the value of the final state was given too.
    """
    if value_of not in ("before", "after"):
        raise ValueError(f"a value must be of the state before or after a turn, not {value_of!r}")
    last = turns if value_of == "before" else turns - 1
    chosen: set[int] = set()
    for start, end in merge(segments, merge_gap):
        if not 0 <= start < end <= last:
            raise ValueError(f"the segment ({start}, {end}) does not lie within the values of {turns} turns")
        low = start + (value_of == "after" and not closed)
        high = end + (value_of == "after" or closed)
        chosen.update(range(low, min(high, turns)))
    return frozenset(chosen)


@dataclass(frozen=True, slots=True)
class CreditRules:
    """How values select turns. ``check`` requires that the prompt's calibration rules hold: for an LLM's values, not for estimates."""

    eps: float = 0.05
    tol: float = 1e-9
    value_of: ValueOf = "after"
    closed: bool = False
    merge_gap: int = 0
    check: bool = True


@dataclass(frozen=True, slots=True)
class Credit:
    """The credit of an unresolved run: its rise segments and the turns that get loss; ``reason``: why it is dropped, or None."""

    segments: tuple[Segment, ...]
    turns: frozenset[int]
    reason: str | None = None


def credit(values: Sequence[float], turns: int, rules: CreditRules | None = None, *, first: float | None = None) -> Credit:
    """Rise segments and credited turns of an unresolved run of ``turns`` turns, or why it is dropped (V5).

    ``values`` has one per turn, or for "before" optionally one more for the final state. ``first`` is the value at the start for
    "after"; with it, a rise from the start to the first value credits turn 0, and segments are indices into [first, *values].
    Reasons: ``no_rise``, or the broken rules of ``check_annotation`` joined by commas.
    """
    rules = rules or CreditRules()
    if len(values) - turns not in ((0, 1) if rules.value_of == "before" else (0,)):
        raise ValueError(f"{len(values)} values do not fit {turns} turns")
    if first is not None and rules.value_of == "before":
        raise ValueError("'before' needs no first value: it is values[0]")
    segments = tuple(rises(values if first is None else [first, *values], rules.eps, rules.tol))
    if not segments:
        return Credit((), frozenset(), "no_rise")
    broken = check_annotation(values) if rules.check else []
    if broken:
        return Credit(segments, frozenset(), ",".join(broken))
    if first is None:
        return Credit(
            segments, credited_turns(segments, value_of=rules.value_of, closed=rules.closed, merge_gap=rules.merge_gap, turns=turns)
        )
    chosen = credited_turns(segments, value_of="before", merge_gap=rules.merge_gap, turns=turns)
    if rules.closed:  # the turn that led to the first value of each segment, where there is one
        chosen |= {start - 1 for start, _ in merge(segments, rules.merge_gap) if start > 0}
    return Credit(segments, chosen)


def segment_lengths(curves: Iterable[Sequence[Segment]]) -> Counter[int]:
    """The number of segments for each length j − i in steps; P reports a median of about 2 before merging."""
    return Counter(end - start for segments in curves for start, end in segments)
