"""D3: Algorithm 1 against the table of streams, and against an oracle that reads the definition by enumeration."""

from __future__ import annotations

import itertools
import math
import random
from fractions import Fraction
from typing import Any

import pytest
from holdfast_recipes.core.advantage import advantages
from holdfast_recipes.core.balance import Assembly, Balance, Outcome, candidates, length_bias, top_ranked, try_assemble
from holdfast_recipes.core.errors import ConfigurationError
from holdfast_recipes.core.expectation import adaptive, fixed
from holdfast_recipes.core.groups import GroupRules, Reason, admit, admit_all
from holdfast_recipes.core.scored import Blame, Scored, Status, is_usable
from hypothesis import given
from hypothesis import strategies as st

SIGNS = {"+": (1.0, Status.COMPLETED), "-": (-1.0, Status.COMPLETED), "x": (None, Status.ABORTED)}


def rollouts(stream: str) -> list[Scored]:
    return [Scored(*SIGNS[sign], length=100 + place) for place, sign in enumerate(stream.replace(" ", ""))]


def run(stream: str, **options: object) -> Outcome:
    settings = {"size": 8, "budget": 16, "stride": 4, "low": Fraction(3, 8), "high": Fraction(5, 8), **options}
    balance = Balance(**settings)  # type: ignore[arg-type]
    for rollout in rollouts(stream):
        if not balance.wants():
            break
        balance.add(rollout)
    outcome = balance.outcome()
    assert outcome is not None
    assert balance.wants() == 0
    return outcome


@pytest.mark.parametrize(
    ("size", "low", "high", "order"),
    [
        (8, 0.375, 0.625, [4, 3, 5]),
        (8, 0, 1, [4, 3, 5, 2, 6, 1, 7, 0, 8]),
        (5, 0.4, 0.6, [3, 2]),
        (16, "0.375", "0.625", [8, 7, 9, 6, 10]),
        (3, 0.375, 0.625, []),
        (10, 0.1, 0.3, [2, 1, 3]),
    ],
)
def test_order_of_candidates(size: int, low: float, high: float, order: list[int]) -> None:
    assert candidates(size, low, high) == order


def test_a_tie_can_favour_successes() -> None:
    assert candidates(8, 0.375, 0.625, tie="positive") == [4, 5, 3]


@pytest.mark.parametrize(
    ("stream", "kind", "generated", "positives"),
    [
        ("++-- +---", Assembly.BALANCED, 8, 3),
        ("---- ---- +--- +---", Assembly.RELAXED, 16, 2),
        ("-" * 16, Assembly.RELAXED, 16, 0),
        ("+-xx xx-x xx+x x-xx", Assembly.TOP, 16, 2),
        ("++++++----------", Assembly.BALANCED, 12, 4),
        ("+" * 13 + "-" * 3, Assembly.BALANCED, 16, 5),
    ],
)
def test_streams(stream: str, kind: Assembly, generated: int, positives: int) -> None:
    outcome = run(stream)
    assert (outcome.kind, outcome.generated, outcome.positives) == (kind, generated, positives)
    assert len(outcome.members) == 8


def test_groups_of_one_class_are_dropped_and_backfill_carries_no_loss() -> None:
    assert admit([member.rollout for member in run("-" * 16).members]).reason is Reason.ZERO_VARIANCE
    backfilled = run("+-xx xx-x xx+x x-xx")
    assert [member.remove_sample for member in backfilled.members] == [False] * 5 + [True] * 3
    kept = [reward for reward in backfilled.rewards if reward is not None]
    assert sum(kept) / len(kept) == pytest.approx(-0.2)
    assert [value == 0 for value in advantages(backfilled.rewards)] == [False] * 5 + [True] * 3


def test_ranking_prefers_completed_then_short() -> None:
    pool = [Scored(1.0, Status.COMPLETED, 900), Scored(1.0, Status.TRUNCATED, 300), Scored(1.0, Status.COMPLETED, 400)]
    pool += [Scored(-1.0, length=5)] * 2
    chosen = try_assemble(pool, 4, Fraction(1, 2), Fraction(1, 2))
    assert chosen is not None
    assert [pool[index].length for index in chosen[:2]] == [400, 900]
    # a reward of zero is not a success
    assert try_assemble([Scored(1.0), Scored(0.0)], 2, 0.5, 0.5, 0.5) == (0, 1)


@pytest.mark.parametrize(
    "settings",
    [
        {"budget": 18},
        {"size": 3},
        {"size": 0},
        {"stride": 0},
        {"budget": 4},
        {"low": 0.7, "high": 0.6},
        {"high": 1.5},
        {"low": -0.1},
    ],
)
def test_unsatisfiable_settings_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError):
        Balance(**{"size": 8, "budget": 16, "stride": 4, "low": 0.375, "high": 0.625, **settings})  # type: ignore[arg-type]


def test_defaults_are_the_interval_of_the_paper_and_a_point_is_one_too() -> None:
    assert (Balance(8, 16, 16).low, Balance(8, 16, 16).high) == (Fraction(3, 8), Fraction(5, 8))
    assert run("++-+----" * 2, low=0.5, high=0.5, stride=16).positives == 4
    assert Balance(8, 16, 16, 0, 1).wants() == 16


def test_wants_counts_down_within_a_stride() -> None:
    balance = Balance(8, 16, 4)
    wanted = []
    for rollout in rollouts("+-xx-"):
        wanted.append(balance.wants())
        balance.add(rollout)
    assert wanted == [4, 3, 2, 1, 4]
    assert (balance.wants(), balance.outcome()) == (3, None)


def test_streaming_decides_after_every_rollout_and_ignores_late_ones() -> None:
    balance = Balance(8, 16, 16, stream=True)
    assert balance.wants() == 16
    balance.add(rollouts("+++-----" + "--"))
    outcome = balance.outcome()
    assert outcome is not None
    assert (outcome.kind, outcome.generated, balance.late, balance.wants()) == (Assembly.BALANCED, 8, 2, 0)


def test_a_mastered_prompt_may_stop_early() -> None:
    assert run("+" * 13 + "---").generated == 16
    early = run("+" * 13 + "---", stop_when_mastered=True)
    assert (early.kind, early.generated, early.positives) == (Assembly.RELAXED, 8, 8)
    one = run("+++++-++" + "-" * 8, stop_when_mastered=True)
    assert (one.generated, one.positives) == (8, 7)
    assert run("-" * 16, stop_when_mastered=True).generated == 16


def test_random_failures_are_drawn_by_seed() -> None:
    def negatives(seed: int) -> list[int]:
        outcome = run("+" * 4 + "-" * 12, stride=16, rank_negative="random", seed=seed)
        return sorted(member.index for member in outcome.members if not member.rollout.positive)

    assert negatives(1) == negatives(1)
    assert len({tuple(negatives(seed)) for seed in range(20)}) > 5
    assert [m.index for m in run("+" * 4 + "-" * 12, stride=16).members] == [0, 1, 2, 3, 4, 5, 6, 7]


def test_the_bias_of_choosing_the_shortest_is_measured() -> None:
    outcome = run("+" * 4 + "-" * 12, stride=16)
    bias = length_bias(outcome, positive=False)
    assert bias is not None
    assert (bias.selected, bias.pool) == ((104 + 105 + 106 + 107) / 4, (104 + 115) / 2)
    assert length_bias(run("-" * 16), positive=True) is None
    backfilled = length_bias(run("+-xx xx-x xx+x x-xx"), positive=True)
    assert backfilled is not None
    assert backfilled.selected == backfilled.pool == (100 + 110) / 2


scored = st.builds(
    Scored,
    reward=st.sampled_from([None, -1.0, 0.0, 0.5, 1.0]),
    status=st.sampled_from(list(Status)),
    length=st.integers(1, 6),
    blame=st.sampled_from([None, *Blame]),
)


@given(st.lists(scored, max_size=12), st.integers(1, 6), st.sampled_from([("0.375", "0.625"), (0, 1), ("0.5", "0.5"), ("0.1", "0.4")]))
def test_try_assemble_agrees_with_enumeration(pool: list[Scored], size: int, bounds: tuple[str, str]) -> None:
    low, high = map(Fraction, bounds)
    target = (low + high) / 2
    chosen = try_assemble(pool, size, low, high, target)
    usable = [index for index, each in enumerate(pool) if each.status in ("completed", "truncated") and each.reward is not None]
    feasible = {
        sum((pool[index].reward or 0) > 0 for index in combination)
        for combination in itertools.combinations(usable, size)
        if low <= Fraction(sum((pool[index].reward or 0) > 0 for index in combination), size) <= high
    }
    if chosen is None:
        assert not feasible
        return
    positives = sum((pool[index].reward or 0) > 0 for index in chosen)
    wanted = math.floor(target * size + Fraction(1, 2))
    assert positives == min(feasible, key=lambda n: (abs(n - wanted), n))
    assert len(set(chosen)) == size
    for success in (True, False):  # no rollout outside the group ranks before one inside it
        worth = {
            index: (list(Status).index(pool[index].status), pool[index].length, index)
            for index in usable
            if pool[index].positive == success
        }
        inside = [worth[index] for index in chosen if index in worth]
        assert inside == sorted(worth.values())[: len(inside)]


@given(st.lists(scored, min_size=16, max_size=16), st.sampled_from([1, 2, 4, 8, 16]))
def test_any_stream_ends_with_a_whole_group(stream: list[Scored], stride: int) -> None:
    balance = Balance(8, 16, stride)
    added = 0
    while wanted := balance.wants():
        balance.add(stream[added : added + wanted])
        added += wanted
    outcome = balance.outcome()
    assert outcome is not None
    assert added == outcome.generated <= 16
    assert len({member.index for member in outcome.members}) == 8
    assert all(stream[member.index] == member.rollout for member in outcome.members)
    assert all(member.remove_sample != is_usable(member.rollout) for member in outcome.members)
    usable = sum(map(is_usable, stream[:added]))
    assert (outcome.kind is Assembly.TOP) == (usable < 8)
    classes = {each.positive for each in stream[:added] if is_usable(each)}
    if usable >= 8 and len(classes) == 2:  # Z9: a mixed group always exists
        assert 0 < outcome.positives < 8


def test_top_ranked_puts_usable_first() -> None:
    pool = [Scored(None, Status.ABORTED, 1), Scored(1.0, Status.TRUNCATED, 9), Scored(None, Status.TIMEOUT, 5), Scored(-1.0, length=3)]
    assert top_ranked(pool, 3) == (3, 1, 2)
    assert top_ranked(pool, 9) == (3, 1, 2, 0)
    assert top_ranked([], 2) == ()


def _stream_outcomes(size: int, budget: int, stride: int, p: float) -> tuple[float, float, float]:
    """Runs every stream of successes and failures through the state machine, weighted by its probability."""
    balanced = mixed = generated = 0.0
    for signs in itertools.product("+-", repeat=budget):
        outcome = run("".join(signs), size=size, budget=budget, stride=stride)
        chance = p ** signs.count("+") * (1 - p) ** signs.count("-")
        balanced += chance * (outcome.kind is Assembly.BALANCED)
        mixed += chance * (0 < outcome.positives < size)
        generated += chance * outcome.generated
    return balanced, mixed, generated


@pytest.mark.parametrize(
    ("size", "budget", "stride", "p"), [(4, 8, 2, 0.3), (4, 8, 8, 0.1), (8, 8, 8, 0.5), (5, 10, 5, 0.7), (8, 10, 1, 0.4)]
)
def test_the_exact_curve_is_that_of_the_state_machine(size: int, budget: int, stride: int, p: float) -> None:
    curve = adaptive(p, size, budget, stride)
    assert (curve.balanced, curve.mixed, curve.generated) == pytest.approx(_stream_outcomes(size, budget, stride, p), abs=1e-9)


def test_printed_curve() -> None:
    shares = (0.05, 0.1, 0.2, 0.3, 0.5)
    assert [round(adaptive(p, 8, 16, 16).balanced, 3) for p in shares] == [0.043, 0.211, 0.648, 0.901, 0.996]
    assert [round(fixed(p, 8).balanced, 3) for p in shares] == [0.006, 0.038, 0.202, 0.437, 0.711]
    assert [adaptive(p, 8, 16, 16).generated for p in shares] == pytest.approx([16] * 5)
    assert [round(adaptive(p, 8, 16, 4).generated, 2) for p in shares] == [15.90, 15.40, 13.43, 11.26, 9.31]
    assert [round(adaptive(p, 8, 16, 1).generated, 2) for p in shares] == [15.85, 15.16, 12.74, 10.47, 8.72]
    for stride in (1, 4, 16):  # whether a group is balanced within the budget does not depend on the stride
        for p in shares:
            direct = sum(math.comb(16, k) * p**k * (1 - p) ** (16 - k) for k in range(3, 14))
            if stride == 16:
                assert adaptive(p, 8, 16, 16).balanced == pytest.approx(direct, abs=1e-9)
            assert adaptive(p, 8, 16, stride).balanced == pytest.approx(direct, abs=1e-9)
    assert [round(fixed(p, 8).per_mixed, 1) for p in shares] == [23.8, 14.0, 9.6, 8.5, 8.1]
    assert [round(adaptive(p, 8, 16, 16).per_mixed, 1) for p in shares] == [28.6, 19.6, 16.5, 16.1, 16.0]
    assert [round(adaptive(p, 8, 16, 4).per_mixed, 1) for p in shares] == [28.4, 18.9, 13.8, 11.3, 9.3]
    assert [round(fixed(p, 8).per_balanced, 1) for p in shares] == pytest.approx([1382, 210, 39.6, 18.3, 11.3], abs=0.6)
    assert [round(adaptive(p, 8, 16, 16).per_balanced, 1) for p in shares] == pytest.approx([373, 75.9, 24.7, 17.8, 16.1], abs=0.5)
    assert [round(adaptive(p, 8, 16, 4).per_balanced, 1) for p in shares] == pytest.approx([370, 73.1, 20.7, 12.5, 9.3], abs=0.5)


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_a_prompt_with_a_constant_outcome_never_gives_a_mixed_group(p: float) -> None:
    curve = adaptive(p, 8, 16, 4)
    assert (curve.balanced, curve.mixed, curve.generated) == (0, 0, 16)
    assert curve.per_mixed == math.inf


def test_group_rules_in_order() -> None:
    good, bad = Scored(1.0), Scored(-1.0)
    lost = Scored(None, Status.ABORTED, 0, Blame.INFRASTRUCTURE)
    assert admit([good, bad]).keep
    failed_grading = Scored(None, blame=Blame.INFRASTRUCTURE)
    assert admit([good, bad, failed_grading, failed_grading]).keep  # only aborted rollouts count as aborted
    assert admit([good, bad, *[Scored(None, Status.ABORTED, 3, Blame.WORKLOAD)] * 3]).keep
    assert admit([good, bad, lost], GroupRules(most_infrastructure=0)).reason is Reason.INFRASTRUCTURE
    assert admit([good, bad], GroupRules(least_usable=3)).reason is Reason.TOO_FEW_USABLE
    assert admit([good] * 6 + [bad] * 2).keep
    assert admit([good, good]).reason is Reason.ZERO_VARIANCE
    assert admit([Scored(0.0)] * 4).reason is Reason.ZERO_VARIANCE
    assert admit([Scored(0.1 + 0.2), Scored(0.3)]).reason is Reason.ZERO_VARIANCE
    assert admit([]).reason is admit([good]).reason is Reason.TOO_FEW_USABLE
    assert admit([good, bad, *[lost] * 2] * 2).reason is Reason.INFRASTRUCTURE
    assert admit([good, bad, good, bad, good, bad, lost, lost]).keep
    assert admit([good, bad, bad, lost, lost, lost, good, good]).reason is Reason.INFRASTRUCTURE
    assert admit([good, bad, Scored(None)]).reason is Reason.INCOMPLETE
    assert admit([good, bad, Scored(None, blame=Blame.ENVIRONMENT)]).keep
    assert admit([good, bad, Scored(1.0, length=0)]).reason is Reason.INCOMPLETE
    assert admit([good, *[Scored(None, Status.TIMEOUT, 5, Blame.POLICY)] * 3]).reason is Reason.TOO_FEW_USABLE


def test_dropped_groups_are_counted_by_reason() -> None:
    good, bad = Scored(1.0), Scored(-1.0)
    groups = [[good, bad], [good, good], [bad, bad], [good], [good, bad, Scored(None)]]
    kept, dropped = admit_all(groups)
    assert kept == [[good, bad]]
    assert dropped == {Reason.ZERO_VARIANCE: 2, Reason.TOO_FEW_USABLE: 1, Reason.INCOMPLETE: 1}
    assert [admit(group).keep for group in groups] == [True, False, False, False, False]
    lost = Scored(None, Status.ABORTED, 0, Blame.INFRASTRUCTURE)
    assert not admit([good, bad, lost, lost]).keep


@pytest.mark.parametrize("reward", [math.nan, math.inf])
def test_a_reward_that_is_not_a_number_is_refused(reward: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        Scored(reward)


def test_finishing_order_only_breaks_ties() -> None:
    draw = random.Random(3)
    stream = [Scored(draw.choice([1.0, -1.0]), length=place) for place in range(16)]
    whole = Balance(8, 16, 16)
    whole.add(stream)
    shuffled = Balance(8, 16, 16)
    shuffled.add(draw.sample(stream, 16))
    first, second = whole.outcome(), shuffled.outcome()
    assert first is not None
    assert second is not None
    assert [m.rollout for m in first.members] == [m.rollout for m in second.members]


@pytest.mark.parametrize("settings", [{"tie": "first"}, {"rank_negative": "longest"}])
def test_unknown_option_values_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=f"{next(iter(settings))} must be"):
        Balance(8, 16, 4, **settings)
