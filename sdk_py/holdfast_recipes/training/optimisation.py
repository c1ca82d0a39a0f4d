"""Parts that SFT and RL share: an optimiser with a schedule, the guard against numbers that are not finite, and checkpoints.

Owns the step and its state on disk. A checkpoint is written to a temporary file and renamed, so a killed run leaves the one before.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from holdfast_recipes.core.presets import Optimiser
from holdfast_recipes.core.schedule import Schedule

from .batches import Row, Tensors, micro_batches, tensors
from .model import Model, Shape


class NotFiniteError(ArithmeticError):
    """A loss or a gradient was not finite. The weights are as they were before the step."""


class Optimisation:
    """Adam with decoupled weight decay over a model, whichever of its names the preset uses (Megatron's ``adam`` decouples too, and the
    other kind would pull a small model to zero at the presets' 0.1). ``step`` counts from 0; its rate is ``schedule.at(step)``."""

    def __init__(
        self, model: Model, settings: Optimiser, schedule: Schedule, *, clip_norm: float = 1.0, most_tokens: int = 16_384, pad: int = 0
    ) -> None:
        self.model, self.schedule = model, schedule
        self.clip_norm, self.most_tokens, self.pad = clip_norm, most_tokens, pad
        self.step = 0
        matrices = [parameter for parameter in model.parameters() if parameter.dim() > 1]
        others = [parameter for parameter in model.parameters() if parameter.dim() <= 1]
        groups = [{"params": matrices, "weight_decay": settings.weight_decay}, {"params": others, "weight_decay": 0.0}]
        self._optimiser = torch.optim.AdamW(groups, lr=settings.peak, betas=settings.betas)

    def update(self, rows: Sequence[Row], loss: Callable[[Tensors], Tensor]) -> dict[str, float]:
        """One optimiser step on ``rows``. ``loss`` is called for each micro-batch and must be a sum divided by a constant of the whole
        batch, so that micro-batches add up. Raises ``NotFiniteError`` and leaves the weights alone when the result is not finite."""
        for row in rows:
            if not (math.isfinite(row.advantage) and math.isfinite(row.weight) and all(map(math.isfinite, row.old))):
                raise NotFiniteError("a row has an advantage, weight or log-probability that is not finite")
        self._optimiser.zero_grad(set_to_none=True)
        total = 0.0
        for group in micro_batches(rows, self.most_tokens):
            part = loss(tensors(group, self.pad))
            part.backward()
            total += float(part.detach())
        norm = float(torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.clip_norm))
        if not (math.isfinite(total) and math.isfinite(norm)):
            self._optimiser.zero_grad(set_to_none=True)
            raise NotFiniteError(f"loss {total}, norm of the gradient {norm}")
        rate = self.schedule.at(self.step)
        for settings in self._optimiser.param_groups:
            settings["lr"] = rate
        self._optimiser.step()
        self.step += 1
        return {"loss": total, "gradient": norm, "rate": rate}

    def save(self, path: Path, **more: Any) -> None:
        state = {
            "shape": _fields(self.model.shape),
            "model": self.model.state_dict(),
            "optimiser": self._optimiser.state_dict(),
            "step": self.step,
            "more": more,
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(path.name + ".part")
        torch.save(state, draft)
        os.replace(draft, path)

    def load(self, path: Path) -> Mapping[str, Any]:
        """Go on from a checkpoint; returns what was saved beside. Raises ValueError for one of another shape."""
        state = torch.load(path, weights_only=True)
        if state["shape"] != _fields(self.model.shape):
            raise ValueError(f"the checkpoint is of {state['shape']}, the model of {_fields(self.model.shape)}")
        self.model.load_state_dict(state["model"])
        self._optimiser.load_state_dict(state["optimiser"])
        self.step = int(state["step"])
        more: Mapping[str, Any] = state["more"]
        return more


def load_model(path: Path) -> Model:
    """The model of a checkpoint, ready to sample from."""
    state = torch.load(path, weights_only=True)
    model = Model(Shape(**state["shape"]))
    model.load_state_dict(state["model"])
    return model


def copy_of(model: Model) -> Model:
    """A copy with weights of its own: what actors sample from while the learner moves on."""
    twin = Model(model.shape)
    twin.load_state_dict(model.state_dict())
    return twin


def _fields(shape: Shape) -> dict[str, int]:
    return {name: getattr(shape, name) for name in ("vocabulary", "width", "layers", "heads", "context")}
