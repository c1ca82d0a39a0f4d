"""Greedy removal of near-duplicates by cosine similarity (P §4.3, App. E: 0.99 for SFT tasks, 0.95 for RL tasks).

Owns the rule: a row is dropped for its likeness to a row that was *kept*, so the order of the rows decides. Embeddings come from the
caller. Cost is O(M · kept · D) in plain Python; for tens of thousands of rows give blocks by site or an index of your own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import mul

_TOLERANCE = 1e-12
"""Binary rounding of a cosine: a pair exactly at the threshold is not above it."""


def greedy_dedup(unit_vectors: Sequence[Sequence[float]], threshold: float) -> list[int]:
    """[M][D] vectors → indices of those kept, ascending: each whose cosine to every vector kept before is at most ``threshold``
    (to within rounding, 1e-12).

    Vectors are scaled to length 1 here, so rounded embeddings do no harm. Raises ValueError for vectors of different lengths, without
    direction, or with entries that are not finite.
    """
    if math.isnan(threshold):
        raise ValueError("the threshold must be a number")
    kept: list[int] = []
    units: list[list[float]] = []
    for index, vector in enumerate(unit_vectors):
        unit = _scaled(vector)
        if len(unit) != len(unit_vectors[0]):
            raise ValueError(f"vector {index} has {len(unit)} entries, the first has {len(unit_vectors[0])}")
        if all(_dot(unit, other) <= threshold + _TOLERANCE for other in units):
            kept.append(index)
            units.append(unit)
    return kept


def _dot(left: Sequence[float], right: Sequence[float]) -> float:
    """Bounded by 1, which rounding may exceed: at a threshold of 1 nothing is a duplicate."""
    total: float = sum(map(mul, left, right))
    return min(1.0, total)


def _scaled(vector: Sequence[float]) -> list[float]:
    length = math.hypot(*vector)
    if not (math.isfinite(length) and length > 0):
        raise ValueError("a vector needs a direction: finite entries, not all zero")
    return [entry / length for entry in vector]
