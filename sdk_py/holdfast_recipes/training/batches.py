"""Rows of tokens and the tensors made from them.

Owns padding, the cut after the last target (V8) and the order of rows over epochs. Rows come from ``core.spans`` (SFT) or from rollouts,
whose sampled ids are used unchanged.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast_recipes.core.spans import trim_right


@dataclass(frozen=True, slots=True)
class Row:
    """[T] ids and their mask; for rollouts also the log-probabilities at sampling, an advantage and a weight (1/K for one of K pairs)."""

    ids: tuple[int, ...]
    mask: tuple[int, ...]
    old: tuple[float, ...] = ()
    advantage: float = 0.0
    weight: float = 1.0

    def __post_init__(self) -> None:
        if len(self.ids) != len(self.mask) or (self.old and len(self.old) != len(self.ids)):
            raise ValueError("ids, mask and log-probabilities must have one entry per token")
        if self.mask and self.mask[0]:
            raise ValueError("the first token cannot be predicted")

    @property
    def targets(self) -> int:
        return sum(self.mask)


@dataclass(frozen=True, slots=True)
class Tensors:
    """``ids, mask, old`` [B, T]; ``advantage, weight`` [B]."""

    ids: Tensor
    mask: Tensor
    old: Tensor
    advantage: Tensor
    weight: Tensor


def tensors(rows: Sequence[Row], pad: int = 0) -> Tensors:
    """A batch, padded to its longest row; each row ends with its last target."""
    lengths = [max(1, trim_right(row.mask)) for row in rows]
    width = max(lengths, default=1)
    ids = torch.full((len(rows), width), pad, dtype=torch.long)
    mask = torch.zeros(len(rows), width)
    old = torch.zeros(len(rows), width)
    for index, (row, length) in enumerate(zip(rows, lengths, strict=True)):
        ids[index, :length] = torch.tensor(row.ids[:length])
        mask[index, :length] = torch.tensor(row.mask[:length], dtype=torch.float)
        if row.old:
            old[index, :length] = torch.tensor(row.old[:length])
    return Tensors(ids, mask, old, torch.tensor([row.advantage for row in rows]), torch.tensor([row.weight for row in rows]))


def micro_batches(rows: Sequence[Row], most_tokens: int) -> Iterator[list[Row]]:
    """Rows sorted by length, in groups whose padded size is at most ``most_tokens`` (one longer row stands alone)."""
    ordered = sorted(rows, key=lambda row: trim_right(row.mask), reverse=True)
    start = 0
    while start < len(ordered):
        fit = max(1, most_tokens // max(1, trim_right(ordered[start].mask)))
        yield ordered[start : start + fit]
        start += fit


def batch_at(rows: Sequence[Row], batch: int, step: int, seed: int) -> list[Row]:
    """The rows of one step: each epoch is a permutation of its own, and a batch may span two. Step and seed determine it, so a run that
    is resumed sees what it would have seen."""
    if not rows:
        raise ValueError("no rows to train on")
    chosen = []
    for place in range(step * batch, (step + 1) * batch):
        epoch, index = divmod(place, len(rows))
        chosen.append(rows[_order(len(rows), seed, epoch)[index]])
    return chosen


_ORDERS: dict[tuple[int, int, int], list[int]] = {}


def _order(count: int, seed: int, epoch: int) -> list[int]:
    key = (count, seed, epoch)
    if key not in _ORDERS:
        if len(_ORDERS) > 64:
            _ORDERS.clear()
        order = list(range(count))
        random.Random(f"epoch-{seed}-{epoch}").shuffle(order)  # noqa: S311
        _ORDERS[key] = order
    return _ORDERS[key]
