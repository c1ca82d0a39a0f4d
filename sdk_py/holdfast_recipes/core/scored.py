"""One finished rollout as the group algorithms see it: a reward, how it ended, how long it is.

Owns ``Status``, ``Blame`` and ``Scored``, and the two predicates on them. Owns neither the text nor the tokens of a rollout (see
``trajectory``). Used by ``balance``, ``groups`` and the rollout manager.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Status(StrEnum):
    """How a rollout ended. The order of the members is the order in which Algorithm 1 prefers them."""

    COMPLETED = "completed"
    TRUNCATED = "truncated"
    TIMEOUT = "timeout"
    ABORTED = "aborted"

    @property
    def rank(self) -> int:
        return _RANKS[self]


_RANKS = {status: rank for rank, status in enumerate(Status)}


class Blame(StrEnum):
    """The cause of an end: the policy's (malformed output), the workload's (its command), Holdfast's or a node's, or that of the
    world the task talks to (a captcha, a judge that does not answer)."""

    POLICY = "policy"
    WORKLOAD = "workload"
    INFRASTRUCTURE = "infrastructure"
    ENVIRONMENT = "environment"


@dataclass(frozen=True, slots=True)
class Scored:
    """A finished rollout. ``reward`` is None when nothing verified it; ``length`` counts the tokens of its responses.

    ``payload`` is the caller's (a trajectory, a sample of an engine) and never looked at.
    """

    reward: float | None
    status: Status = Status.COMPLETED
    length: int = 1
    blame: Blame | None = None
    payload: Any = None

    def __post_init__(self) -> None:
        if self.reward is not None and not math.isfinite(self.reward):
            raise ValueError(f"a reward must be finite, not {self.reward}")
        if self.length < 0:
            raise ValueError(f"a length cannot be negative: {self.length}")

    @property
    def finished(self) -> bool:
        """It ran to its end or to its step or token budget, so its final state can be graded."""
        return self.status in (Status.COMPLETED, Status.TRUNCATED)

    @property
    def positive(self) -> bool:
        """Algorithm 1 splits at zero: a reward above it is a success, zero and below a failure."""
        return self.reward is not None and self.reward > 0


def is_usable(rollout: Scored) -> bool:
    """The default of ``usable``: it finished and was graded. Timed out, aborted and ungraded rollouts only fill up a group."""
    return rollout.finished and rollout.reward is not None
