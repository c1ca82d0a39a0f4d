"""D11: traces of the rollout manager's decisions, worked out by hand, and what holds for any order of events."""

from __future__ import annotations

import itertools

import pytest
from holdfast_recipes.core.balance import Balance
from holdfast_recipes.core.errors import ConfigurationError
from holdfast_recipes.core.scored import Blame, Scored, Status
from holdfast_recipes.pipeline.batching import Batching, Launch
from hypothesis import given
from hypothesis import strategies as st

GOOD, BAD = Scored(1.0), Scored(-1.0)
LOST = Scored(None, Status.ABORTED, 0, Blame.INFRASTRUCTURE)


def pair() -> Balance:
    """A group of two rollouts, one of each class, from a budget of two."""
    return Balance(2, 2, 2, "0.5", "0.5")


def started(batching: Batching[str]) -> list[tuple[int, str, int]]:
    return [(each.key, each.prompt, each.count) for each in batching.launches()]


def test_a_batch_of_two_with_one_group_dropped_and_one_left_over() -> None:
    """Batch 2, over-sampling 1.5: three prompts in flight. B is dropped, D takes its place, C fills the batch; D goes on."""
    batching = Batching(iter("ABCDE"), batch=2, balance=pair, oversample="1.5")
    assert started(batching) == [(0, "A", 2), (1, "B", 2), (2, "C", 2)]
    assert started(batching) == []
    assert batching.finished(0, GOOD, 0) == 0
    assert batching.finished(1, GOOD, 0) == 0
    assert batching.finished(1, GOOD, 0) == 0  # B: no variance
    assert started(batching) == [(3, "D", 2)]
    batching.finished(0, BAD, 0)  # A is complete
    assert batching.take() is None
    assert started(batching) == [(4, "E", 2)]
    batching.finished(2, BAD, 0)
    batching.finished(2, GOOD, 0)  # C is complete
    batch = batching.take()
    assert batch is not None
    assert [group.prompt for group in batch.groups] == ["A", "C"]
    assert batch.counts == {"generated": 6, "usable": 6, "balanced": 2, "relaxed": 1, "dropped_zero_variance": 1}
    assert started(batching) == []
    assert (batching.exhausted, batching.in_flight) == (True, 2)
    assert batching.take() is None


def test_a_group_that_completes_early_cancels_the_rest() -> None:
    batching = Batching(iter("A"), batch=1, balance=lambda: Balance(2, 4, 4, "0.5", "0.5", stream=True))
    assert started(batching) == [(0, "A", 4)]
    assert batching.finished(0, GOOD, 0) == 0
    assert batching.finished(0, BAD, 0) == 2
    batching.cancelled(0)
    assert batching.finished(0, GOOD, 0) == 0  # it had finished before the cancellation reached it
    batch = batching.take()
    assert batch is not None
    assert batch.counts == {"generated": 3, "usable": 2, "balanced": 1, "cancelled": 1, "late": 1}


def test_strides_are_started_one_after_the_other() -> None:
    batching = Batching(iter("A"), batch=1, balance=lambda: Balance(2, 4, 2, "0.5", "0.5"))
    assert started(batching) == [(0, "A", 2)]
    batching.finished(0, BAD, 0)
    assert started(batching) == []
    batching.finished(0, BAD, 0)
    assert started(batching) == [(0, "A", 2)]
    batching.cancelled(0)
    assert started(batching) == [(0, "A", 1)]


def test_a_rollout_two_updates_old_is_not_trained_on() -> None:
    batching = Batching(iter("AB"), batch=1, balance=lambda: Balance(2, 4, 2, "0.5", "0.5"), oversample=2)
    started(batching)
    batching.published()
    batching.finished(0, GOOD, 0)
    batching.published()
    batching.finished(0, BAD, 0)  # two behind
    assert started(batching) == [(0, "A", 2)]
    batching.finished(0, BAD, 2)
    batching.finished(0, BAD, 2)
    assert batching.take() is None  # the group holds a rollout of version 0, and the weights are at 2
    batching.finished(1, GOOD, 1)
    batching.finished(1, BAD, 2)
    batch = batching.take()
    assert batch is not None
    assert [(group.prompt, group.version) for group in batch.groups] == [("B", 1)]
    assert (batch.counts["stale"], batch.counts["dropped_stale"]) == (1, 1)


def test_infrastructure_failures_are_counted_and_never_raise() -> None:
    batching = Batching(iter("AB"), batch=1, balance=pair, oversample=2)
    started(batching)
    for key in (0, 1):
        for _ in range(2):
            batching.finished(key, LOST, 0)
    assert batching.take() is None
    assert (batching.in_flight, started(batching), batching.exhausted) == (0, [], True)


def test_unsatisfiable_settings_are_refused() -> None:
    for settings in ({"batch": 0}, {"oversample": 0.5}, {"most_staleness": -1}):
        with pytest.raises(ConfigurationError):
            Batching(iter("A"), **{"batch": 1, "balance": pair, **settings})  # type: ignore[arg-type]


@given(
    st.lists(
        st.tuples(st.integers(0, 50), st.sampled_from([GOOD, BAD, LOST, Scored(None, Status.TIMEOUT), None, "publish", "take"])),
        max_size=120,
    )
)
def test_counters_agree_after_any_order_of_events(plan: list[tuple[int, Scored | str | None]]) -> None:
    batching: Batching[int] = Batching(itertools.count(), batch=2, balance=lambda: Balance(4, 8, 4, stream=True), oversample="1.5")
    running: dict[int, list[int]] = {}
    launched = ended = 0

    def start() -> None:
        nonlocal launched
        for launch in batching.launches():
            assert isinstance(launch, Launch)
            assert launch.count > 0
            running.setdefault(launch.key, []).extend([batching.version] * launch.count)
            launched += launch.count

    start()
    for place, event in plan:
        if event == "publish":
            batching.published()
        elif event == "take":
            batch = batching.take()
            if batch is not None:
                assert len(batch.groups) == 2
                for group in batch.groups:
                    assert batching.version - group.version <= 1
                    rewards = {reward for reward in group.outcome.rewards if reward is not None}
                    assert len(rewards) > 1
                    assert len(group.outcome.members) == 4
        else:
            keys = sorted(running)
            key = keys[place % len(keys)]
            version = running[key].pop()
            ended += 1
            if isinstance(event, Scored):
                to_cancel = batching.finished(key, event, version)
                assert to_cancel in (0, len(running[key]))
                if to_cancel:
                    for _ in range(to_cancel):
                        running[key].pop()
                        ended += 1
                        batching.cancelled(key)
            else:
                batching.cancelled(key)
            if not running[key]:
                del running[key]
        start()
        assert batching.in_flight == 3
        assert launched - ended == sum(map(len, running.values()))
        assert len(running) == 3
        assert all(len(versions) <= 4 for versions in running.values())
