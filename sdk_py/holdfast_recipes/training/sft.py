"""Supervised training on rows with masks (P §3.3.1): one run, resumable to the bit.

Owns the loop. Which tokens are targets was decided before (``core.spans``, ``core.credit``). Normalisation is over the whole batch, also
when it is computed in parts (V6).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from torch import Tensor

from holdfast_recipes.core.objective import Reduce
from holdfast_recipes.core.presets import Optimiser
from holdfast_recipes.core.schedule import Schedule

from .batches import Row, Tensors, batch_at
from .loss import sft_loss
from .model import Model
from .optimisation import Optimisation


class Sft:
    """``run()`` trains until ``schedule.total`` steps are done. With a checkpoint path the state is saved every ``save_every`` steps and
    at the end, and a run that finds a checkpoint there goes on from it."""

    def __init__(
        self,
        model: Model,
        rows: Sequence[Row],
        optimiser: Optimiser,
        schedule: Schedule,
        *,
        batch: int,
        seed: int = 0,
        reduce: Reduce = "token_mean",
        checkpoint: Path | None = None,
        save_every: int = 100,
    ) -> None:
        self.model, self.rows = model, [row for row in rows if row.targets]
        if not self.rows:
            raise ValueError("no row has a target")
        self.batch, self.seed, self.reduce = batch, seed, reduce
        self.checkpoint, self.save_every = checkpoint, save_every
        self.optimisation = Optimisation(model, optimiser, schedule)
        self.supervised_tokens = 0
        if checkpoint and checkpoint.exists():
            self.supervised_tokens = int(self.optimisation.load(checkpoint)["supervised_tokens"])

    @property
    def steps_left(self) -> int:
        return max(0, self.optimisation.schedule.total - self.optimisation.step)

    def run(self, steps: int | None = None, report: Callable[[int, dict[str, float]], None] | None = None) -> None:
        """Train ``steps`` more steps, or all that are left."""
        self.model.train()
        for _ in range(self.steps_left if steps is None else min(steps, self.steps_left)):
            rows = batch_at(self.rows, self.batch, self.optimisation.step, self.seed)
            numbers = self.optimisation.update(rows, self._objective(rows))
            self.supervised_tokens += sum(row.targets for row in rows)
            if report:
                report(self.optimisation.step, numbers)
            if self.checkpoint and self.optimisation.step % self.save_every == 0:
                self._save()
        if self.checkpoint:
            self._save()

    def _save(self) -> None:
        assert self.checkpoint
        self.optimisation.save(self.checkpoint, supervised_tokens=self.supervised_tokens)

    def _objective(self, rows: Sequence[Row]) -> Callable[[Tensors], Tensor]:
        """The loss of a part of the batch, such that the parts sum to the loss of the whole."""
        whole = _denominator(rows, self.reduce)

        def loss(part: Tensors) -> Tensor:
            logits = self.model(part.ids)
            if self.reduce == "token_sum":
                return sft_loss(logits, part.ids, part.mask, reduce="token_sum", weight=part.weight)
            if self.reduce == "token_mean":
                return sft_loss(logits, part.ids, part.mask, reduce="token_sum", const=whole, weight=part.weight)
            share = float(((part.mask.sum(1) > 0) * part.weight).sum()) / whole
            return sft_loss(logits, part.ids, part.mask, reduce="sequence_mean", weight=part.weight) * share

        return loss


def _denominator(rows: Sequence[Row], reduce: Reduce) -> float:
    if reduce == "token_mean":
        return sum(row.targets * row.weight for row in rows)
    return sum(row.weight for row in rows if row.targets)
