"""The table of limits (C5) and what each entry leads to."""

from __future__ import annotations

import random

import pytest
from holdfast_recipes.core.scored import Blame, Status
from holdfast_recipes.harness.limits import (
    ASSISTANT,
    BROWSER,
    EDITOR,
    LIMITS,
    MINI,
    Escalation,
    Exhausted,
    Layer,
    Limit,
    Limits,
    Resources,
    RolloutLimits,
    start_jitter_s,
)
from hypothesis import given
from hypothesis import strategies as st


def test_the_table() -> None:
    seconds = {name: [limits.layers[layer].timeout_s for layer in Layer] for name, limits in LIMITS.items()}
    assert seconds == {
        "mini": [900, 300, 60, 15, 600],
        "editor": [900, 300, 120, 15, 600],
        "browser": [120, 30, 30, 15, 30],
        "assistant": [120, 300, 60, 15, 600],
    }
    assert [MINI.layers[layer].tries for layer in Layer] == [3, 3, 1, 2, 2]
    assert BROWSER.layers[Layer.REWARD].tries == 3
    assert (MINI.rollout.steps, BROWSER.rollout.steps, ASSISTANT.rollout.steps) == (250, 15, None)
    assert (MINI.rollout.wall_s, BROWSER.rollout.wall_s, ASSISTANT.rollout.wall_s) == (1800, 600, 600)
    assert EDITOR.layers[Layer.OBSERVATION].exhausted is Exhausted.OBSERVED
    with pytest.raises(ValueError, match="no limit for"):
        Limits({})


def test_back_off_grows_and_ends() -> None:
    draw = random.Random(1)
    creation = MINI.layers[Layer.CREATION]
    for _ in range(50):
        first, second = creation.pause_s(1, draw), creation.pause_s(2, draw)
        assert first is not None
        assert second is not None
        assert 1 <= first <= 3
        assert 2 <= second <= 6
    assert creation.pause_s(3, draw) is None
    assert MINI.layers[Layer.INFERENCE].pause_s(2, draw) == 2
    assert MINI.layers[Layer.OBSERVATION].pause_s(1, draw) is None
    assert [BROWSER.layers[Layer.REWARD].pause_s(failed, draw) for failed in (0, 1, 2, 3)] == [0, 3, 9, None]
    assert Limit(1, 9, (1, 2)).pause_s(8, draw) == 2
    for wrong in ({"timeout_s": 0}, {"timeout_s": 1, "tries": 0}, {"timeout_s": 1, "spread": 2}):
        with pytest.raises(ValueError, match="not a valid limit"):
            Limit(**wrong)  # type: ignore[arg-type]


@given(st.integers(0, 5000), st.integers())
def test_jitter_is_bounded(running: int, seed: int) -> None:
    assert 0 <= start_jitter_s(running, random.Random(seed)) <= min(10, running / 50)


def test_ends_of_a_rollout() -> None:
    limits = RolloutLimits(steps=10, wall_s=100, tokens=1000)
    inside = {"steps": 9, "elapsed_s": 99.9, "tokens": 999, "format_errors": 2}
    assert limits.end(**inside) is None  # type: ignore[arg-type]
    assert limits.end(**{**inside, "steps": 10}) == (Status.TRUNCATED, None, "steps")  # type: ignore[arg-type]
    assert limits.end(**{**inside, "tokens": 1000}) == (Status.TRUNCATED, None, "tokens")  # type: ignore[arg-type]
    assert limits.end(**{**inside, "elapsed_s": 100.0}) == (Status.TIMEOUT, Blame.POLICY, "wall_clock")  # type: ignore[arg-type]
    assert limits.end(**{**inside, "format_errors": 3}) == (Status.COMPLETED, Blame.POLICY, "format")  # type: ignore[arg-type]
    assert RolloutLimits(None, None, None).end(steps=10**9, elapsed_s=1e9, tokens=10**9, format_errors=0) is None


def test_only_lack_of_memory_escalates() -> None:
    escalation = Escalation()
    assert escalation.after("oom", Resources(2, 8)) == Resources(3, 16)
    assert escalation.after("oom", Resources(6, 24)) == Resources(8, 32)
    assert escalation.after("oom", Resources(16, 8)) == Resources(16, 16)
    assert escalation.after("oom", Resources(8, 32)) is None
    assert escalation.after("evicted", Resources(2, 8)) is None
