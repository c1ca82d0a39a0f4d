"""The loss of one token and how losses are put together, in plain Python: the reference that tensor code is tested against.

Owns the clipped policy objective (P §4.4; PPO with a higher upper bound) and the three reductions. The tensor forms live with the
trainer; they must give these numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias, get_args

Reduce: TypeAlias = Literal["token_mean", "token_sum", "sequence_mean"]


class Clipped(NamedTuple):
    """Loss of a token, and its derivative with respect to the ratio (0.0 where the clip took effect)."""

    loss: float
    slope: float


def clipped(ratio: float, advantage: float, *, low: float = 0.2, high: float = 0.28) -> Clipped:
    """−min(ratio·A, clip(ratio, 1 − low, 1 + high)·A) for ratio = exp(logp − old logp)."""
    bounded = min(max(ratio, 1 - low), 1 + high)
    if ratio * advantage <= bounded * advantage:
        return Clipped(-ratio * advantage, -advantage)
    return Clipped(-bounded * advantage, 0.0)


def reduced(losses: Sequence[Sequence[float]], masks: Sequence[Sequence[int]], how: Reduce, const: float | None = None) -> float:
    """One number from losses [B][T] under masks [B][T].

    ``token_mean``: over all supervised tokens of the batch. ``sequence_mean``: the mean of each sequence, then over sequences that have
    a supervised token. ``token_sum``: the sum, divided by ``const`` where it is given: a constant of the batch instead of 1/T, so that
    a long run weighs by its tokens (G2). A batch without supervised tokens gives 0.0.
    """
    if len(losses) != len(masks) or any(len(row) != len(mask) for row, mask in zip(losses, masks, strict=True)):
        raise ValueError("losses and masks must have the same shape")
    if how not in get_args(Reduce):
        raise ValueError(f"a reduction must be one of {', '.join(get_args(Reduce))}, not {how!r}")
    if const is not None and (how != "token_sum" or not 0 < const < math.inf):
        raise ValueError("a positive constant divides a token_sum, nothing else")
    rows = [[loss for loss, bit in zip(row, mask, strict=True) if bit] for row, mask in zip(losses, masks, strict=True)]
    rows = [row for row in rows if row]
    if not rows:
        return 0.0
    if how == "sequence_mean":
        return math.fsum(math.fsum(row) / len(row) for row in rows) / len(rows)
    total = math.fsum(loss for row in rows for loss in row)
    return total / (const or 1.0) if how == "token_sum" else total / sum(map(len, rows))
