"""The six ways of choosing a small SFT set from many resolved runs that P Table 9 compares, with a seed where chance enters.

Owns the choice alone: each selector gives indices of at most ``count`` candidates, without repetition. What is known of a candidate
comes from its task (``diffs`` measures gold patches). With fewer fitting candidates than ``count`` a selector gives what there is.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from . import diffs


@dataclass(frozen=True, slots=True)
class Candidate:
    """A run that may be chosen: its repository, and how many files and lines the gold patch of its task changes."""

    repo: str
    files: int
    lines: int
    resolved: bool = True

    @classmethod
    def of_patch(cls, repo: str, gold_patch: str, *, resolved: bool = True) -> Candidate:
        return cls(repo, len(diffs.touched(gold_patch)), diffs.size(gold_patch), resolved)


class Selector(Protocol):
    def __call__(self, candidates: Sequence[Candidate], count: int, *, seed: int = 0) -> list[int]: ...


def uniform(candidates: Sequence[Candidate], count: int, *, seed: int = 0) -> list[int]:
    """Table 9 "Random": every set of ``count`` is as likely."""
    return _shuffled(candidates, seed)[: _checked(count)]


def diverse(candidates: Sequence[Candidate], count: int, *, seed: int = 0, per_repo: int | None = None) -> list[int]:
    """ "Diverse repo": at most ``per_repo`` of each repository, at random. Unless given, the cap is the lowest that yields ``count``."""
    order = _shuffled(candidates, seed)
    rounds: list[tuple[int, int]] = []
    seen: Counter[str] = Counter()
    for place, index in enumerate(order):
        rounds.append((seen[candidates[index].repo], place))
        seen[candidates[index].repo] += 1
    by_round = sorted(rounds)
    return [order[place] for turn, place in by_round if per_repo is None or turn < per_repo][: _checked(count)]


def concentrated(candidates: Sequence[Candidate], count: int, *, seed: int = 0) -> list[int]:
    """ "Concentrated": whole core repositories, those with the most resolved runs first (names break ties); at random within one."""
    resolved = Counter(each.repo for each in candidates if each.resolved)
    order = _shuffled(candidates, seed)
    return sorted(order, key=lambda index: (-resolved[candidates[index].repo], candidates[index].repo))[: _checked(count)]


def multi_file(candidates: Sequence[Candidate], count: int, *, seed: int = 0) -> list[int]:
    """ "Multi-file": only tasks whose gold patch changes more than one file, at random."""
    return [index for index in _shuffled(candidates, seed) if candidates[index].files > 1][: _checked(count)]


def large_diff(candidates: Sequence[Candidate], count: int, *, seed: int = 0) -> list[int]:
    """ "Large diff": the gold patches with the most changed lines; of equals, at random."""
    return sorted(_shuffled(candidates, seed), key=lambda index: -candidates[index].lines)[: _checked(count)]


SELECTORS: Mapping[str, Selector] = {
    "random": uniform,
    "diverse": diverse,
    "concentrated": concentrated,
    "multi_file": multi_file,
    "large_diff": large_diff,
}


def composite(candidates: Sequence[Candidate], count: int, *, seed: int = 0, weights: Mapping[str, float] | None = None) -> list[int]:
    """ "Composite": a weighted mix of the other five, equal parts unless given. P does not state its weights.

    Each selector orders all candidates; places go, one by one, to the selector that is furthest behind its share and it gives its best
    candidate that is not chosen yet. So shares hold exactly where selectors agree on nothing, and the set is full while any has more.
    """
    weights = dict.fromkeys(SELECTORS, 1.0) if weights is None else weights
    if unknown := weights.keys() - SELECTORS.keys():
        raise ValueError(f"unknown selectors {sorted(unknown)}")
    if not all(0 <= weight < math.inf for weight in weights.values()) or not sum(weights.values()):
        raise ValueError("weights must be finite and not negative, and one must be above zero")
    queues = {name: iter(SELECTORS[name](candidates, len(candidates), seed=seed)) for name, weight in weights.items() if weight}
    given = dict.fromkeys(queues, 0)
    chosen: dict[int, None] = {}
    while queues and len(chosen) < _checked(count):
        name = min(queues, key=lambda each: (given[each] + 1) / weights[each])
        index = next((index for index in queues[name] if index not in chosen), None)
        if index is None:
            del queues[name]
            continue
        chosen[index] = None
        given[name] += 1
    return list(chosen)


def select(name: str, candidates: Sequence[Candidate], count: int, *, seed: int = 0) -> list[int]:
    """One of the six by its name: those of ``SELECTORS``, or "composite"."""
    if name == "composite":
        return composite(candidates, count, seed=seed)
    if name not in SELECTORS:
        raise ValueError(f"there is no selector {name!r}; there are {', '.join([*SELECTORS, 'composite'])}")
    return SELECTORS[name](candidates, count, seed=seed)


def _shuffled(candidates: Sequence[Candidate], seed: int) -> list[int]:
    order = list(range(len(candidates)))
    random.Random(seed).shuffle(order)  # noqa: S311  a reproducible choice, no secret
    return order


def _checked(count: int) -> int:
    if count < 0:
        raise ValueError("a number of candidates cannot be negative")
    return count
