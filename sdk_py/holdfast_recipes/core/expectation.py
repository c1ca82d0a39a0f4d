"""The exact cost and benefit of Balanced Adaptive Rollout: the distribution of its outcome when rollouts succeed independently.

Owns the curve that documents quote (rollouts per mixed and per balanced group, beside a fixed group). All rollouts count as usable.
Nothing at run time depends on it; tests hold it against the state machine of ``balance``.

What the curve shows: adaptive rollout buys balance, not fewer rollouts. At p = 0.1 a mixed group costs 14.0 rollouts from fixed groups of 8
and 18.9 from strides of 4 up to 16, but a balanced one 210 against 73.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from .balance import Share, candidates
from .errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Expectation:
    """For one prompt with success rate p: chances of a balanced and of a mixed group (both classes in it), mean rollouts generated."""

    balanced: float
    mixed: float
    generated: float

    @property
    def per_mixed(self) -> float:
        """Rollouts generated per group with both classes; infinite where there is never one."""
        return self.generated / self.mixed if self.mixed else math.inf

    @property
    def per_balanced(self) -> float:
        return self.generated / self.balanced if self.balanced else math.inf


def fixed(p: float, size: int, low: Share = "0.375", high: Share = "0.625") -> Expectation:
    """A plain group of ``size``, all of it used: generated is always ``size``."""
    return adaptive(p, size, size, size, low, high)


def adaptive(p: float, size: int, budget: int, stride: int, low: Share = "0.375", high: Share = "0.625") -> Expectation:
    """Algorithm 1: binomial steps from stride to stride, leaving at the first pool of m rollouts, P of them successes, from which a
    count n of ``candidates`` can be taken: n ≤ P and size − n ≤ m − P. A pool without balance at the end of the budget still gives a
    mixed group when both classes are in it (Z9)."""
    if not 0 <= p <= 1:
        raise ValueError(f"a success rate must be in [0, 1], not {p}")
    counts = candidates(size, low, high)
    if not counts or budget < size or stride < 1 or budget % stride:
        raise ConfigurationError(f"no group of {size} by {stride} within {budget} on [{low}, {high}]")
    running = {0: 1.0}
    balanced = generated = mixed = 0.0
    for made in range(stride, budget + 1, stride):
        grown: dict[int, float] = {}
        for successes, chance in running.items():
            for more in range(stride + 1):
                weight = math.comb(stride, more) * p**more * (1 - p) ** (stride - more)
                grown[successes + more] = grown.get(successes + more, 0.0) + chance * weight
        running = {}
        for successes, chance in grown.items():
            if fitting := [n for n in counts if n <= successes and size - n <= made - successes]:
                balanced += chance
                mixed += chance * (0 < fitting[0] < size)
                generated += chance * made
            else:
                running[successes] = chance
    generated += budget * math.fsum(running.values())
    mixed += math.fsum(chance for successes, chance in running.items() if 0 < successes < budget)
    return Expectation(balanced, mixed, generated)
