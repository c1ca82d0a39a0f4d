"""Learning rates by step, and how many steps an epoch has (P §3.3.1, §3.3.3, §4.4, §5.2).

Owns the arithmetic only: a training loop calls ``Schedule.at(step)`` before step number ``step``, which counts from 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from .errors import ConfigurationError

Shape: TypeAlias = Literal["cosine", "constant"]


@dataclass(frozen=True, slots=True)
class Schedule:
    """A linear warm-up from 0 to ``peak``, then a cosine to ``floor`` at step ``total``, or ``peak`` for good.

    ``warmup`` is a number of steps when it is an int and a share of ``total`` when it is a float: 0.1 of 100 steps warms up over
    steps 0 to 9 and reaches the peak at step 10. After ``total`` the rate stays at ``floor``.
    """

    peak: float
    total: int
    floor: float = 0.0
    warmup: int | float = 0
    shape: Shape = "cosine"

    def __post_init__(self) -> None:
        if self.shape not in get_args(Shape):
            raise ConfigurationError(f"the shape of a schedule must be one of {', '.join(get_args(Shape))}, not {self.shape!r}")
        if self.total < 0 or not 0 <= self.floor <= self.peak < math.inf:
            raise ConfigurationError(f"a schedule needs 0 <= floor <= peak and total >= 0: {self}")
        if not 0 <= self.warmup < math.inf or self.warmup_steps > self.total:
            raise ConfigurationError(f"a warm-up of {self.warmup} does not fit into {self.total} steps")

    @property
    def warmup_steps(self) -> int:
        return self.warmup if isinstance(self.warmup, int) else round(self.warmup * self.total)

    def at(self, step: int) -> float:
        """The learning rate of a step."""
        if step < 0:
            raise ValueError("steps count from 0")
        warmup = self.warmup_steps
        if step < warmup:
            return self.peak * step / warmup
        if self.shape == "constant":
            return self.peak
        if step >= self.total:
            return self.floor
        progress = (step - warmup) / (self.total - warmup)
        return self.floor + (self.peak - self.floor) * (1 + math.cos(math.pi * progress)) / 2


def steps_per_epoch(rows: int, batch: int) -> int:
    """Optimiser steps of one pass, the last batch possibly smaller: ⌈rows / batch⌉. 107,185 rows in batches of 128 are 838 steps."""
    if rows < 0 or batch < 1:
        raise ValueError("rows must be at least 0 and the batch at least 1")
    return -(-rows // batch)


def saturated(scores: Sequence[float], *, window: int = 5, patience: int = 5, least_gain: float = 0.01) -> bool:
    """Whether a curriculum may move on (G1): the best moving average gained less than ``least_gain`` in the last ``patience`` evaluations.

    ``scores`` are shares in [0, 1] of successive evaluations; the average runs over ``window`` of them.
    """
    if window < 1 or patience < 1:
        raise ValueError(f"window and patience must be at least 1, not {window} and {patience}")
    averages = [math.fsum(scores[end - window : end]) / window for end in range(window, len(scores) + 1)]
    if len(averages) <= patience:
        return False
    return max(averages[-patience:]) - max(averages[:-patience]) < least_gain
