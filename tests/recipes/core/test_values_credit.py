"""D1: values, credit and rise segments, against hand-worked answers and a brute-force reading of the definitions."""

from __future__ import annotations

import json
import math

import pytest
from holdfast_recipes.core.credit import Credit, CreditRules, credit, credited_turns, merge, rises, segment_lengths, shift
from holdfast_recipes.core.values import Refusal, check_annotation, interpolate, is_inverted_u, monte_carlo, parse_annotation
from hypothesis import given
from hypothesis import strategies as st

POINTS = {0: 0.40, 3: 0.55, 5: 0.20}
LINEAR = [0.40, 0.45, 0.50, 0.55, 0.375, 0.20, 0.20]
curves = st.lists(st.integers(0, 20).map(lambda n: n / 20), min_size=1, max_size=14)


def test_interpolation_spreads_or_holds() -> None:
    assert interpolate(POINTS, 7) == pytest.approx(LINEAR)
    assert interpolate(POINTS, 7, "previous") == [0.40, 0.40, 0.40, 0.55, 0.55, 0.20, 0.20]
    assert interpolate({2: 0.3, 4: 0.5}, 6) == pytest.approx([0.3, 0.3, 0.3, 0.4, 0.5, 0.5])


@pytest.mark.parametrize("points", [{}, {0: 0.4}, {0: 0.4, 7: 0.1}, {-1: 0.4, 2: 0.1}, {0: math.nan, 2: 0.1}])
def test_interpolation_refuses(points: dict[int, float]) -> None:
    with pytest.raises(ValueError, match=r"annotated|finite"):
        interpolate(points, 7)


@given(st.dictionaries(st.integers(0, 15), st.floats(0, 1), min_size=2), st.integers(0, 5), st.sampled_from(["linear", "previous"]))
def test_interpolation_goes_through_its_points_and_stays_between_them(points: dict[int, float], more: int, how: str) -> None:
    length = max(points) + 1 + more
    filled = interpolate(points, length, how)  # type: ignore[arg-type]
    assert len(filled) == length
    assert all(filled[step] == pytest.approx(value) for step, value in points.items())
    assert min(points.values()) - 1e-12 <= min(filled) <= max(filled) <= max(points.values()) + 1e-12


def test_shift_in_both_conventions() -> None:
    assert shift(LINEAR, "before") == pytest.approx([0.05, 0.05, 0.05, -0.175, -0.175, 0])
    assert shift(LINEAR, "after") == pytest.approx([0, 0.05, 0.05, 0.05, -0.175, -0.175, 0])
    assert shift(LINEAR, "after", first=0.3) == pytest.approx([0.1, 0.05, 0.05, 0.05, -0.175, -0.175, 0])
    assert shift([], "after") == shift([], "before") == shift([0.4], "before") == []
    with pytest.raises(ValueError, match="first"):
        shift(LINEAR, "before", first=0.1)


@given(curves, st.sampled_from(["before", "after"]))
def test_credits_sum_to_the_change_of_value(values: list[float], value_of: str) -> None:
    assert math.fsum(shift(values, value_of)) == pytest.approx(values[-1] - values[0])  # type: ignore[arg-type]


def test_binary_rounding_hides_no_rise() -> None:
    assert rises([0.40, 0.45, 0.50, 0.55, 0.375, 0.20, 0.20]) == [(0, 3)]
    assert 0.45 - 0.40 < 0.05
    assert rises([0.40, 0.45, 0.50, 0.55, 0.375, 0.20, 0.20], tol=0) == [(2, 3)]
    assert rises([0.30, 0.34, 0.39, 0.44]) == [(1, 3)]
    assert rises([0.4] * 5) == rises([0.4]) == rises([]) == []
    assert rises([0.4] * 3, eps=0) == [(0, 2)]


def test_sparse_linear_loses_what_previous_credits() -> None:
    points = {0: 0.4, 10: 0.6}
    assert rises(interpolate(points, 11)) == []
    assert rises(interpolate(points, 11, "previous")) == [(9, 10)]


@given(curves, st.sampled_from([0.0, 0.05, 0.1, 0.2]))
def test_rises_are_all_maximal_runs(values: list[float], eps: float) -> None:
    count = len(values)

    def climbs(i: int, j: int) -> bool:
        return all(round(100 * (values[t + 1] - values[t])) >= round(100 * eps) for t in range(i, j))

    expected = [
        (i, j)
        for i in range(count)
        for j in range(i + 1, count)
        if climbs(i, j) and not (i > 0 and climbs(i - 1, j)) and not (j + 1 < count and climbs(i, j + 1))
    ]
    assert rises(values, eps) == expected


def test_credited_turns_in_every_convention() -> None:
    assert credited_turns([(0, 3)], value_of="before", turns=7) == {0, 1, 2}
    assert credited_turns([(0, 3)], value_of="after", turns=7) == {1, 2, 3}
    for value_of in ("before", "after"):
        assert credited_turns([(0, 3)], value_of=value_of, closed=True, turns=7) == {0, 1, 2, 3}
    # the value of the final state was given: the last turn can be credited, and there is no turn after it
    assert credited_turns([(5, 7)], value_of="before", turns=7) == {5, 6}
    assert credited_turns([(5, 7)], value_of="before", closed=True, turns=7) == {5, 6}
    for value_of, segment in (("before", (5, 8)), ("after", (5, 7)), ("before", (-1, 2)), ("before", (3, 3))):
        with pytest.raises(ValueError, match="within"):
            credited_turns([segment], value_of=value_of, turns=7)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="before or after"):
        credited_turns([], value_of="both", turns=7)  # type: ignore[arg-type]


def test_merging_joins_segments_that_are_near() -> None:
    assert merge([(4, 5), (0, 2)], 0) == [(0, 2), (4, 5)]
    assert merge([(0, 2), (4, 5), (8, 9)], 2) == [(0, 5), (8, 9)]
    assert credited_turns([(0, 2), (4, 5)], value_of="before", merge_gap=2, turns=9) == {0, 1, 2, 3, 4}
    assert credited_turns([(0, 2), (4, 5)], value_of="before", merge_gap=1, turns=9) == {0, 1, 4}
    assert segment_lengths([[(0, 2), (4, 5)], [(1, 3)]]) == {2: 2, 1: 1}


@given(curves, st.booleans())
def test_a_credited_turn_is_one_that_raised_the_value(values: list[float], after: bool) -> None:
    value_of = "after" if after else "before"
    chosen = credited_turns(rises(values), value_of=value_of, turns=len(values))  # type: ignore[arg-type]
    gains = shift(values, value_of)  # type: ignore[arg-type]
    assert chosen == {turn for turn, gain in enumerate(gains) if gain >= 0.05 - 1e-9}


def test_calibration_rules() -> None:
    assert check_annotation([0.4, 0.5, 0.3, 0.1]) == []
    assert check_annotation([0.3, 0.4, 0.5, 0.6]) == ["never_drops", "final_not_low"]
    assert check_annotation([0.6, 0.1]) == ["start_out_of_range"]
    assert check_annotation([0.1 + 0.2, 0.1]) == []
    assert check_annotation([0.5, 0.2]) == ["final_not_low"]
    assert check_annotation([0.4] * 3) == ["never_drops", "final_not_low"]
    assert check_annotation([0.4, 0.4 - 1e-12]) == ["never_drops", "final_not_low"]
    assert check_annotation([]) == ["empty"]
    assert "out_of_range" in check_annotation([0.4, 1.2, 0.1])


def test_unresolved_runs_are_kept_or_dropped_with_a_reason() -> None:
    kept = credit([0.4, 0.5, 0.62, 0.3, 0.1], 5)
    assert kept == Credit(((0, 2),), frozenset({1, 2}))
    assert credit([0.4] * 5, 5).reason == "no_rise"
    assert credit([0.3, 0.4, 0.5, 0.6], 4).reason == "never_drops,final_not_low"
    assert credit([0.3, 0.4, 0.5, 0.6], 4, CreditRules(check=False)).turns == {1, 2, 3}
    # a rise from the start credits the first turn
    assert credit([0.4, 0.3, 0.1], 3, first=0.3).turns == {0}
    assert credit([0.0, 1.0], 1, CreditRules(value_of="before", check=False)).turns == {0}
    with pytest.raises(ValueError, match="fit"):
        credit([0.4, 0.1], 3)


@given(curves, st.floats(0, 1))
def test_a_first_value_is_one_more_state_before(values: list[float], first: float) -> None:
    after = credit(values, len(values), CreditRules(check=False), first=first)
    before = credit([first, *values], len(values), CreditRules(check=False, value_of="before"))
    assert after == before


@given(curves)
def test_a_first_value_that_changes_nothing_changes_no_turn(values: list[float]) -> None:
    for closed in (False, True):
        rules = CreditRules(check=False, closed=closed)
        without, given_first = credit(values, len(values), rules), credit(values, len(values), rules, first=values[0])
        assert (without.turns, without.reason) == (given_first.turns, given_first.reason)


def test_inverted_u() -> None:
    assert is_inverted_u([0.4, 0.5, 0.62, 0.3, 0.1])
    assert is_inverted_u([0.4, 0.5, 0.5, 0.2])
    assert not is_inverted_u([0.4, 0.3, 0.5, 0.1])
    assert not is_inverted_u([0.3, 0.4, 0.5])
    assert not is_inverted_u([0.4, 0.4])


def _items(*pairs: tuple[object, object]) -> str:
    return json.dumps([{"step": step, "p_resolve": value, "reasoning": "r"} for step, value in pairs])


@pytest.mark.parametrize(
    ("text", "refusal"),
    [
        ("Here it is: " + _items((0, 0.4), (1, 0.1)), Refusal.NOT_AN_ARRAY),
        ("```json\n" + _items((0, 0.4), (1, 0.1)) + "\n```", Refusal.NOT_AN_ARRAY),
        ('{"step": 0, "p_resolve": 0.4}', Refusal.NOT_AN_ARRAY),
        ("[" * 100_000, Refusal.NOT_AN_ARRAY),
        ('[{"step": 0}, {"step": 1, "p_resolve": 0.1}]', Refusal.NOT_AN_ITEM),
        ("[0.4, 0.1]", Refusal.NOT_AN_ITEM),
        (_items((0, "0.4"), (1, 0.1)), Refusal.NOT_A_NUMBER),
        (_items(("0", 0.4), (1, 0.1)), Refusal.NOT_A_NUMBER),
        (_items((0, True), (1, 0.1)), Refusal.NOT_A_NUMBER),
        (_items((0, None), (1, 0.1)), Refusal.NOT_A_NUMBER),
        (_items((0.5, 0.4), (1, 0.1)), Refusal.NOT_A_NUMBER),
        ('[{"step": 0, "p_resolve": NaN}]', Refusal.NOT_A_NUMBER),
        (_items((0, 0.4), (3, 0.1)), Refusal.STEP_OUT_OF_RANGE),
        (_items((-1, 0.4), (1, 0.1)), Refusal.STEP_OUT_OF_RANGE),
        (_items((0, 0.4), (0, 0.1)), Refusal.DUPLICATE_STEP),
        (_items((0, 1.01), (1, 0.1)), Refusal.PROBABILITY_OUT_OF_RANGE),
        (_items((0, -0.01), (1, 0.1)), Refusal.PROBABILITY_OUT_OF_RANGE),
        (_items((1, 0.4)), Refusal.MISSING_STEPS),
        ("[]", Refusal.MISSING_STEPS),
    ],
)
def test_annotations_are_refused_by_name(text: str, refusal: Refusal) -> None:
    assert parse_annotation(text, 3).refusal is refusal


def test_annotations_may_be_sparse_unless_all_steps_are_asked_for() -> None:
    text = _items((2, 0.1), (0, 0.4))
    assert parse_annotation(text, 3).points == {0: 0.4, 2: 0.1}
    assert parse_annotation(text, 3, sparse=False).refusal is Refusal.MISSING_STEPS
    assert parse_annotation(_items((0, 0.4)), 1, sparse=False).refusal is Refusal.MISSING_STEPS
    assert parse_annotation(_items((0, 0.4), (1, 0.1)), 2, sparse=False).points == {0: 0.4, 1: 0.1}
    assert parse_annotation(_items((0, 0), (1, 1), (2, 0.5)), 3, sparse=False).points == {0: 0.0, 1: 1.0, 2: 0.5}


@given(
    st.text()
    | st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(),
        lambda x: st.lists(x) | st.dictionaries(st.sampled_from(["step", "p_resolve"]), x),
    ).map(json.dumps)
)
def test_any_text_gives_points_or_a_named_refusal(text: str) -> None:
    annotation = parse_annotation(text, 4)
    assert (annotation.refusal is None) == (len(annotation.points) >= 2)


def test_monte_carlo_values_are_shares() -> None:
    assert monte_carlo([[True, False, False, False], [True, True]]) == [0.25, 1.0]
    with pytest.raises(ValueError, match="continuation"):
        monte_carlo([[]])


def test_values_that_are_no_numbers_are_refused() -> None:
    for values in ([0.1, math.nan, 0.5], [0.1, math.inf]):
        for use in (rises, is_inverted_u, lambda each: shift(each, "after"), lambda each: shift(each, "before")):
            with pytest.raises(ValueError, match="finite"):
                use(values)
    with pytest.raises(ValueError, match="finite"):
        shift([0.1, 0.2], "after", math.nan)
    with pytest.raises(ValueError, match="whole numbers"):
        interpolate({0: 0.1, 1.5: 0.2}, 4)  # type: ignore[dict-item]
