"""slime's records for the contract tests: from the real package if it is available, else copies written from its interface.

slime is not on PyPI (the package of that name is another one). HOLDFAST_SLIME_PATH names a checkout; an importable ``slime`` is taken
as well. Its records import torch, not its GPU engines. Facts: slime 0.3.1, ``slime/utils/types.py``, ``slime/rollout/base_types.py`` and
``slime/rollout/filter_hub/base_types.py``.
"""

from __future__ import annotations

import enum
import functools
import importlib
import importlib.util
import os
import sys
import types
from dataclasses import dataclass, field
from typing import Any


class Status(enum.Enum):
    PENDING = "pending"
    COMPLETED = "completed"
    TRUNCATED = "truncated"
    ABORTED = "aborted"
    FAILED = "failed"


@dataclass
class Sample:
    """The fields of slime's sample that the adapter and slime's conversion to training data use."""

    group_index: int | None = None
    index: int | None = None
    rollout_id: int | None = None
    prompt: Any = ""
    tokens: list[int] = field(default_factory=list)
    response: str = ""
    response_length: int = 0
    label: str | None = None
    reward: Any = None
    loss_mask: list[int] | None = None
    weight_versions: list[str] = field(default_factory=list)
    rollout_log_probs: list[float] | None = None
    remove_sample: bool = False
    status: Status = Status.PENDING
    metadata: dict[str, Any] = field(default_factory=dict)


Sample.Status = Status  # type: ignore[attr-defined]


@dataclass
class RolloutFnTrainOutput:
    samples: Any
    metrics: Any = None


@dataclass
class RolloutFnEvalOutput:
    data: Any
    metrics: Any = None


@dataclass
class DynamicFilterOutput:
    keep: bool
    reason: str | None = None
    keep_when_insufficient: bool = False


STAND_INS: dict[str, list[Any]] = {
    "slime": [],
    "slime.utils": [],
    "slime.utils.types": [Sample],
    "slime.rollout": [],
    "slime.rollout.base_types": [RolloutFnTrainOutput, RolloutFnEvalOutput],
    "slime.rollout.filter_hub": [],
    "slime.rollout.filter_hub.base_types": [DynamicFilterOutput],
}


@functools.cache
def real() -> str | None:
    """Why the real package is missing; None if it is present, and then it can be imported."""
    path = os.environ.get("HOLDFAST_SLIME_PATH")
    if path and path not in sys.path:
        sys.path.insert(0, path)
    try:
        found = importlib.util.find_spec("slime.rollout.base_types")
    except ModuleNotFoundError:
        found = None
    if found is None:
        return "HOLDFAST_SLIME_PATH names no checkout of THUDM/slime, none is importable: THE REAL PACKAGE WAS NOT TESTED, facts were"
    if importlib.util.find_spec("torch") is None:
        return "slime's records import torch, which is not installed here: THE REAL PACKAGE WAS NOT TESTED, its facts were"
    return None


@functools.cache
def load() -> Any:
    """A module with ``Sample``, the outputs and the filter's output: the real ones, or the copies defined here."""
    if real() is not None:
        for name, members in STAND_INS.items():
            module = types.ModuleType(name)
            module.__path__ = []
            for member in members:
                setattr(module, member.__name__, member)
            sys.modules[name] = module
    made = types.SimpleNamespace()
    for name, members in STAND_INS.items():
        for member in members:
            setattr(made, member.__name__, getattr(importlib.import_module(name), member.__name__))
    return made
