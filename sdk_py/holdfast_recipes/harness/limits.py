"""The limits of a rollout in five layers and as a whole, as one table (C5; P §3.3.2 names the layers and gives no numbers).

Owns numbers, back-off, jitter and escalation. Does not wait: the caller gets the seconds and waits. Only actions that certainly had no
effect are retried here; the SDK retries transport, and a command that was accepted is never run again.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from holdfast_recipes.core.scored import Blame, Status


class Layer(StrEnum):
    CREATION = "creation"
    INFERENCE = "inference"
    OBSERVATION = "observation"
    SHUTDOWN = "shutdown"
    REWARD = "reward"


class Exhausted(StrEnum):
    """The outcome of a rollout when a layer has used up its tries."""

    ABORTED = "aborted"
    """Status aborted, blamed on infrastructure, no reward."""
    OBSERVED = "observed"
    """The policy sees a result with exit code 124 and goes on."""
    LEFT_TO_LEASE = "left_to_lease"
    """The group lease will end the sandbox; it is counted, the reward stands."""
    NO_REWARD = "no_reward"
    """Reward None: the sample is removed."""


@dataclass(frozen=True, slots=True)
class Limit:
    """Seconds for one try, tries in all, seconds of back-off before the second, third, … try, each times 1 ± ``spread``."""

    timeout_s: float
    tries: int = 1
    backoff_s: tuple[float, ...] = ()
    spread: float = 0.0
    exhausted: Exhausted = Exhausted.ABORTED

    def __post_init__(self) -> None:
        if self.timeout_s <= 0 or self.tries < 1 or not 0 <= self.spread <= 1 or any(pause < 0 for pause in self.backoff_s):
            raise ValueError(f"this is not a valid limit: {self}")

    def pause_s(self, failed: int, draw: random.Random) -> float | None:
        """Seconds to wait after ``failed`` tries failed, None when there is no further one. The last back-off repeats."""
        if failed >= self.tries:
            return None
        if not self.backoff_s or failed < 1:
            return 0.0
        pause = self.backoff_s[min(failed, len(self.backoff_s)) - 1]
        return pause * draw.uniform(1 - self.spread, 1 + self.spread)


@dataclass(frozen=True, slots=True)
class RolloutLimits:
    """Of a rollout as a whole. None: no limit. ``format_errors`` counts those in a row."""

    steps: int | None = 250
    wall_s: float | None = 1800
    tokens: int | None = 64 * 1024
    format_errors: int = 3
    cost_usd: float | None = 3.0
    """Of the endpoint's prices, where the policy was given any; the default is mini-swe-agent's."""
    format_reward: float | None = None
    """The reward of a run that format errors ended (GUI: −1); None leaves it to grading."""

    def end(self, *, steps: int, elapsed_s: float, tokens: int, format_errors: int) -> tuple[Status, Blame | None, str] | None:
        """How the rollout ends now, or None. Each limit may be reached, and ends the rollout before the next turn."""
        if self.wall_s is not None and elapsed_s >= self.wall_s:
            return Status.TIMEOUT, Blame.POLICY, "wall_clock"
        if format_errors >= self.format_errors:
            return Status.COMPLETED, Blame.POLICY, "format"
        if self.tokens is not None and tokens >= self.tokens:
            return Status.TRUNCATED, None, "tokens"
        if self.steps is not None and steps >= self.steps:
            return Status.TRUNCATED, None, "steps"
        return None


@dataclass(frozen=True, slots=True)
class Resources:
    cpu: float
    memory_gib: float


@dataclass(frozen=True, slots=True)
class Escalation:
    """The resources of a sandbox at the next try after it ran out of memory. Only ``oom`` escalates."""

    memory: float = 2.0
    cpu: float = 1.5
    most_memory_gib: float = 32.0
    most_cpu: float = 8.0

    def after(self, reason: str, given: Resources) -> Resources | None:
        """More than was given, or None where the reason is another or the maximum of memory was reached."""
        if reason != "oom" or given.memory_gib >= self.most_memory_gib:
            return None
        cpu = max(given.cpu, min(given.cpu * self.cpu, self.most_cpu))
        return Resources(cpu, min(given.memory_gib * self.memory, self.most_memory_gib))


@dataclass(frozen=True, slots=True)
class Limits:
    """The whole table of one harness."""

    layers: Mapping[Layer, Limit]
    rollout: RolloutLimits = field(default_factory=RolloutLimits)
    escalation: Escalation = field(default_factory=Escalation)

    def __post_init__(self) -> None:
        if missing := set(Layer) - self.layers.keys():
            raise ValueError(f"no limit for {sorted(missing)}")


def start_jitter_s(running: int, draw: random.Random) -> float:
    """Seconds to wait before a creation, uniform in [0, min(10, running / 50)]: many rollouts that start at once spread out."""
    if running < 0:
        raise ValueError("a number of sandboxes cannot be negative")
    return draw.uniform(0, min(10.0, running / 50))


def _layers(creation_s: float, inference_s: float, observation_s: float, reward: Limit) -> dict[Layer, Limit]:
    return {
        Layer.CREATION: Limit(creation_s, 3, (2, 4, 8), 0.5),
        Layer.INFERENCE: Limit(inference_s, 3, (1, 2, 4)),
        Layer.OBSERVATION: Limit(observation_s, exhausted=Exhausted.OBSERVED),
        Layer.SHUTDOWN: Limit(15, 2, exhausted=Exhausted.LEFT_TO_LEASE),
        Layer.REWARD: reward,
    }


_GRADING = Limit(600, 2, exhausted=Exhausted.NO_REWARD)
_JUDGE = Limit(30, 3, (3, 9), exhausted=Exhausted.NO_REWARD)

MINI = Limits(_layers(900, 300, 60, _GRADING))
"""SWE with a subshell per call."""
EDITOR = replace(MINI, layers=_layers(900, 300, 120, _GRADING))
"""SWE with a living shell and a file editor."""
BROWSER = Limits(_layers(120, 30, 30, _JUDGE), RolloutLimits(steps=15, wall_s=600, format_reward=-1.0))
"""Browser tasks; 30 steps once the curriculum moved on."""
ASSISTANT = Limits(_layers(120, 300, 60, _GRADING), RolloutLimits(steps=None, wall_s=600))
"""Assistant tasks: ten minutes, however many steps."""

LIMITS: Mapping[str, Limits] = {"mini": MINI, "editor": EDITOR, "browser": BROWSER, "assistant": ASSISTANT}
