"""Every hyper-parameter of the paper's six training runs, one preset each (the table of A5; P §3.3, §4.4, §5.2, §5.3).

Owns the numbers. ``assumed`` names the fields that the paper leaves open, with where the value comes from: "slime" (its example
scripts), "OpenWebRL" (follow-up code by overlapping authors), "ours" (a choice). None: the paper has no such value. Contexts count
1,024 tokens to the K.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Literal

from .balance import Balance
from .schedule import Schedule, steps_per_epoch

_K = 1024


@dataclass(frozen=True, slots=True)
class Optimiser:
    """Adam or AdamW. The learning rate goes from ``peak`` to ``floor`` (equal: constant)."""

    peak: float
    floor: float
    name: Literal["adam", "adamw"] = "adam"
    warmup: float = 0.0
    betas: tuple[float, float] = (0.9, 0.98)
    weight_decay: float = 0.1


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits of one rollout: steps, wall clock, tokens. None: no limit."""

    steps: int | None = None
    wall_s: float | None = None
    tokens: int | None = None
    saturated_steps: int | None = None
    """The limit of steps once the curriculum moved on (P §4.4: 15, then 30)."""


@dataclass(frozen=True, slots=True)
class Group:
    """Rollouts per prompt and how they are chosen: ``size`` of at most ``budget``, in strides, within [low, high] positives."""

    size: int
    budget: int
    stride: int
    low: Fraction = Fraction(0)
    high: Fraction = Fraction(1)

    def balance(self) -> Balance:
        return Balance(self.size, self.budget, self.stride, self.low, self.high)


@dataclass(frozen=True, slots=True)
class Sft:
    """A supervised run. ``batch`` is global; ``loss`` selects the target tokens; ``unit`` is what one row is."""

    base: str
    rows: int
    unit: Literal["trajectory", "assistant_turn", "pair"]
    loss: Literal["actions_or_rises", "last_turn", "response"]
    epochs: int
    batch: int
    optimiser: Optimiser
    context: int
    inference_context: int
    rollouts_per_task: int
    left_truncation: bool = False
    frozen: tuple[str, ...] = ()
    rollout: Budget = field(default_factory=Budget)
    assumed: Mapping[str, str] = field(default_factory=dict)

    @property
    def steps(self) -> int:
        """Optimiser steps of the whole run."""
        return self.epochs * steps_per_epoch(self.rows, self.batch)

    def schedule(self) -> Schedule:
        return Schedule(self.optimiser.peak, self.steps, self.optimiser.floor, self.optimiser.warmup)


@dataclass(frozen=True, slots=True)
class Rl:
    """A reinforcement run. ``prompts`` per rollout step and ``group`` rollouts each; ``rewards`` are the values a rollout can have.

    ``length_normalised`` False: no 1/T per trajectory. ``clip`` is (low, high) around a ratio of 1; there is no KL term and no entropy
    bonus.
    """

    base: str
    tasks: int
    unit: Literal["trajectory", "assistant_turn", "pair"]
    prompts: int
    group: Group
    steps: int
    optimiser: Optimiser
    context: int
    rewards: tuple[int, ...]
    rollout: Budget
    temperature: float
    clip: tuple[float, float] = (0.2, 0.28)
    length_normalised: bool = False
    new_tokens: int | None = None
    epochs_per_rollout: int = 1
    most_staleness: int = 1
    frozen: tuple[str, ...] = ()
    assumed: Mapping[str, str] = field(default_factory=dict)

    @property
    def batch(self) -> int:
        """Rollouts of one step."""
        return self.prompts * self.group.size

    def schedule(self) -> Schedule:
        shape: Literal["cosine", "constant"] = "constant" if self.optimiser.peak == self.optimiser.floor else "cosine"
        return Schedule(self.optimiser.peak, self.steps, self.optimiser.floor, self.optimiser.warmup, shape)


_ADAM = {"optimiser.betas": "slime", "optimiser.weight_decay": "slime", "optimiser.name": "slime"}
_VISION = ("vision_tower", "projector")
_SWE_BUDGET = Budget(steps=250, wall_s=1800, tokens=64 * _K)

SWE_SFT = Sft(
    base="Qwen3-30B-A3B-Thinking",
    rows=107_185,
    unit="trajectory",
    loss="actions_or_rises",
    epochs=5,
    batch=128,
    optimiser=Optimiser(1e-5, 1e-6),
    context=64 * _K,
    inference_context=128 * _K,
    rollouts_per_task=5,
    rollout=_SWE_BUDGET,
    assumed={**_ADAM, "rollout.steps": "mini-swe-agent", "rollout.wall_s": "slime"},
)
SWE_RL = Rl(
    base="SWE_SFT",
    tasks=2_000,
    unit="trajectory",
    prompts=16,
    group=Group(8, 16, 16, Fraction(3, 8), Fraction(5, 8)),
    steps=150,
    optimiser=Optimiser(1e-6, 0.0),
    context=64 * _K,
    rewards=(1, -1),
    rollout=_SWE_BUDGET,
    temperature=1.0,
    assumed={
        **_ADAM,
        "optimiser.floor": "ours",
        "clip": "P §4.4",
        "temperature": "ours",
        "length_normalised": "ours",
        "rollout.steps": "mini-swe-agent",
        "rollout.wall_s": "slime",
    },
)
GUI_SFT = Sft(
    base="Qwen3-VL-4B-Thinking",
    rows=3_070,
    unit="assistant_turn",
    loss="last_turn",
    epochs=3,
    batch=128,
    optimiser=Optimiser(1e-5, 0.0, "adamw", warmup=0.1, betas=(0.9, 0.999), weight_decay=0.01),
    context=36_864,
    inference_context=36_864,
    rollouts_per_task=4,
    frozen=_VISION,
    assumed={
        "optimiser.name": "ours",
        "optimiser.betas": "ours",
        "optimiser.weight_decay": "ours",
        "optimiser.floor": "ours",
        "context": "OpenWebRL",
        "inference_context": "OpenWebRL",
    },
)
GUI_RL = Rl(
    base="GUI_SFT",
    tasks=2_198,
    unit="assistant_turn",
    prompts=48,
    group=Group(5, 5, 5),
    steps=100,
    optimiser=Optimiser(1e-6, 1e-6, "adamw"),
    context=32 * _K,
    rewards=(1, 0, -1),
    rollout=Budget(steps=15, saturated_steps=30, wall_s=600),
    temperature=0.8,
    new_tokens=1_024,
    epochs_per_rollout=2,
    frozen=_VISION,
    assumed={
        **_ADAM,
        "prompts": "OpenWebRL",
        "group.size": "OpenWebRL",
        "steps": "OpenWebRL",
        "optimiser.peak": "OpenWebRL",
        "optimiser.floor": "OpenWebRL",
        "context": "OpenWebRL",
        "new_tokens": "OpenWebRL",
        "temperature": "OpenWebRL",
        "epochs_per_rollout": "OpenWebRL",
        "rollout.wall_s": "OpenWebRL",
    },
)
CLAW_SFT = Sft(
    base="Qwen3-30B-A3B-Thinking-2507",
    rows=4_537,
    unit="pair",
    loss="response",
    epochs=1,
    batch=16,
    optimiser=Optimiser(1e-5, 1e-6),
    context=64 * _K,
    inference_context=256 * _K,
    rollouts_per_task=5,
    left_truncation=True,
    assumed=_ADAM,
)
CLAW_RL = Rl(
    base="CLAW_SFT",
    tasks=192,
    unit="pair",
    prompts=8,
    group=Group(8, 8, 8),
    steps=150,
    optimiser=Optimiser(1e-6, 1e-6),
    context=64 * _K,
    rewards=(1, -1),
    rollout=Budget(wall_s=600),
    temperature=1.0,
    assumed={
        **_ADAM,
        "optimiser.peak": "ours",
        "optimiser.floor": "ours",
        "context": "ours",
        "temperature": "ours",
        "clip": "P §4.4",
        "length_normalised": "P §4.4",
    },
)

PRESETS: Mapping[str, Sft | Rl] = {
    "swe_sft": SWE_SFT,
    "swe_rl": SWE_RL,
    "gui_sft": GUI_SFT,
    "gui_rl": GUI_RL,
    "claw_sft": CLAW_SFT,
    "claw_rl": CLAW_RL,
}
