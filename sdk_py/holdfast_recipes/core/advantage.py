"""Group-relative advantages (P §3.3.3, §4.4, §5.3): one number per rollout, and its use for tokens and recorded pairs.

Owns the normalisation within a group. Does not choose the rollouts of the group (``balance``) and has no tensors: engines use the numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, TypeAlias, get_args

Deviation: TypeAlias = Literal["sample", "population", "none"]

_LARGEST = 1e100
"""Larger rewards have no finite variance in double precision."""


def advantages(rewards: Sequence[float | None], *, std: Deviation = "sample", eps: float = 1e-6) -> list[float]:
    """[N] rewards → [N] advantages (r − mean) / std over those that are not None; None gives 0.0 and is left out of both.

    ``std``: "sample" divides by √(Σ(r − mean)²/(N − 1)) as slime, verl and TRL do, "population" by √(Σ(r − mean)²/N) as the formula of
    the paper reads, "none" only subtracts the mean. A deviation of at most ``eps`` counts as zero and gives zeros, never NaN.
    ``eps`` is such a bound and is not added to the divisor (engines add 1e-6 or 1e-4, which shrinks every advantage a little).
    Raises ValueError for another ``std``, and for rewards that are not finite or too large to be squared.
    """
    if std not in get_args(Deviation):
        raise ValueError(f"std must be one of {', '.join(get_args(Deviation))}, not {std!r}")
    used = [reward for reward in rewards if reward is not None]
    if not all(math.isfinite(reward) for reward in used):
        raise ValueError("rewards must be finite")
    if not used or min(used) == max(used):  # the mean of equal numbers may differ from them by rounding
        return [0.0] * len(rewards)
    if max(map(abs, used)) > _LARGEST:
        raise ValueError(f"rewards must lie within ±{_LARGEST:g}")
    mean = math.fsum(used) / len(used)
    divisor = 1.0
    if std != "none":
        degrees = len(used) - (std == "sample")
        divisor = math.sqrt(math.fsum((reward - mean) ** 2 for reward in used) / degrees) if degrees else 0.0
        if divisor <= eps:
            return [0.0] * len(rewards)
    return [0.0 if reward is None else (reward - mean) / divisor for reward in rewards]


def broadcast(advantage: float, mask: Sequence[int]) -> list[float]:
    """[T] the advantage of a rollout on each token that gets loss, 0.0 elsewhere (P §4.4)."""
    return [advantage if bit else 0.0 for bit in mask]


def pair_weights(pairs: Sequence[int]) -> list[float]:
    """[R] weight of each recorded pair or branch of a rollout that left ``pairs[r]`` of them: 1/K, so that a rollout counts once (Z14).

    The advantage is normalised over rollouts, then given to all K pairs with this weight. A rollout without pairs has weight 0.
    """
    if any(count < 0 for count in pairs):
        raise ValueError("a rollout cannot have a negative number of pairs")
    return [1 / count if count else 0.0 for count in pairs]
