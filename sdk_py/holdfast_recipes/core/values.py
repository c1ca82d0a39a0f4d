"""Values of the turns of a trajectory, P(resolve | history): reading an annotation, checking it, filling it up, its shape.

Owns everything up to one value per turn (P §3.3.1, Eq. 1). ``credit`` uses the values; the pipeline requests them
from an endpoint. An annotation that cannot be used is a ``Refusal`` with a name that is counted.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Any, Literal, TypeAlias

Interpolation: TypeAlias = Literal["linear", "previous"]

_TOLERANCE = 1e-9


class Refusal(StrEnum):
    """Why the text of an annotation was refused."""

    NOT_AN_ARRAY = "not_an_array"
    NOT_AN_ITEM = "not_an_item"
    NOT_A_NUMBER = "not_a_number"
    STEP_OUT_OF_RANGE = "step_out_of_range"
    DUPLICATE_STEP = "duplicate_step"
    PROBABILITY_OUT_OF_RANGE = "probability_out_of_range"
    MISSING_STEPS = "missing_steps"


@dataclass(frozen=True, slots=True)
class Annotation:
    """Values by step, or the first reason why the text was refused."""

    points: Mapping[int, float]
    refusal: Refusal | None = None


def parse_annotation(text: str, length: int, *, sparse: bool = True) -> Annotation:
    """Read ``[{"step": i, "p_resolve": p, "reasoning": …}, …]`` for ``length`` steps numbered from 0.

    The text must be that array and nothing else. With ``sparse`` any two or more steps will do and the rest is interpolated (V2);
    without it every step must be there. Numbers must be JSON numbers: neither strings nor booleans.
    """
    try:
        items = json.loads(text)
    except (ValueError, RecursionError):
        return Annotation({}, Refusal.NOT_AN_ARRAY)
    if not isinstance(items, list):
        return Annotation({}, Refusal.NOT_AN_ARRAY)
    points: dict[int, float] = {}
    for item in items:
        refusal = _refusal(item, length, points)
        if refusal:
            return Annotation({}, refusal)
        points[int(item["step"])] = float(item["p_resolve"])
    if len(points) < (2 if sparse else max(2, length)):
        return Annotation({}, Refusal.MISSING_STEPS)
    return Annotation(points)


def _refusal(item: Any, length: int, seen: Mapping[int, float]) -> Refusal | None:
    if not isinstance(item, dict) or not {"step", "p_resolve"} <= item.keys():
        return Refusal.NOT_AN_ITEM
    step, probability = item["step"], item["p_resolve"]
    if not _is_number(step) or not _is_number(probability) or step != int(step):
        return Refusal.NOT_A_NUMBER
    if not 0 <= step < length:
        return Refusal.STEP_OUT_OF_RANGE
    if step in seen:
        return Refusal.DUPLICATE_STEP
    return None if 0 <= probability <= 1 else Refusal.PROBABILITY_OUT_OF_RANGE


def _is_number(value: Any) -> bool:
    """JSON has no NaN, but Python's reader accepts the word."""
    return isinstance(value, int | float) and not isinstance(value, bool) and (isinstance(value, int) or math.isfinite(value))


def interpolate(points: Mapping[int, float], length: int, how: Interpolation = "linear") -> list[float]:
    """[L] one value per step from at least two annotated ones; before the first and after the last they are held (V2).

    "linear" spreads a change evenly over a gap of g steps, so a rise below ε·g disappears under the threshold; "previous" holds the
    earlier value and credits the whole change to the annotated step. Raises ValueError for fewer than two points, for steps outside
    0 … length − 1 and for values that are not finite.
    """
    if how not in ("linear", "previous"):
        raise ValueError(f"unknown interpolation {how!r}")
    if len(points) < 2:
        raise ValueError(f"at least two annotated steps are needed, not {len(points)}")
    known = sorted(points.items())
    if not all(isinstance(step, int) for step in points):
        raise ValueError("steps must be whole numbers")
    if known[0][0] < 0 or known[-1][0] >= length:
        raise ValueError(f"annotated steps must lie in 0 … {length - 1}")
    if not all(math.isfinite(value) for _, value in known):
        raise ValueError("values must be finite")
    filled = [known[0][1]] * length
    for (start, before), (end, after) in pairwise(known):
        for step in range(start, end):
            filled[step] = before if how == "previous" else before + (after - before) * (step - start) / (end - start)
    filled[known[-1][0] :] = [known[-1][1]] * (length - known[-1][0])
    return filled


def check_annotation(values: Sequence[float]) -> list[str]:
    """Names of the calibration rules of the prompt that the values of an unresolved run break; empty is fine (P §3.3.1).

    ``start_out_of_range``: the first value is not in [0.3, 0.5]. ``never_drops``: no step is lower than the one before.
    ``final_not_low``: the last value is not below 0.2. ``out_of_range``: a value is no probability. ``empty``: there are none.
    """
    if not values:
        return ["empty"]
    broken = []
    if not all(0 <= value <= 1 for value in values):
        broken.append("out_of_range")
    if not 0.3 - _TOLERANCE <= values[0] <= 0.5 + _TOLERANCE:
        broken.append("start_out_of_range")
    if not any(after < before - _TOLERANCE for before, after in pairwise(values)):
        broken.append("never_drops")
    if not values[-1] < 0.2 - _TOLERANCE:
        broken.append("final_not_low")
    return broken


def is_inverted_u(values: Sequence[float], tol: float = _TOLERANCE) -> bool:
    """Whether a curve rises, then falls, and does nothing else; level stretches are allowed. P reports 98.9 % of its curves. Raises
    ValueError for values that are not finite."""
    if not all(map(math.isfinite, values)):
        raise ValueError("values must be finite")
    changes = [after - before for before, after in pairwise(values)]
    signs = [change > 0 for change in changes if abs(change) > tol]
    return True in signs and False in signs and signs == sorted(signs, reverse=True)


def monte_carlo(outcomes: Sequence[Sequence[bool]]) -> list[float]:
    """[L] value of each state from the outcomes [L][k] of k rollouts continued from it: their share of successes.

    These are values of states, so ``value_of="before"`` (V1).
    """
    if not all(len(tries) for tries in outcomes):
        raise ValueError("each state needs at least one continuation")
    return [sum(map(bool, tries)) / len(tries) for tries in outcomes]
