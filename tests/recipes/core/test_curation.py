"""D6 and D10 in their pure parts: filters with counts, duplicates, caps and selectors."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from holdfast_recipes.core.calls import CallFault
from holdfast_recipes.core.curation import Filter, call_faults, cap_per, card, curate, in_band, shortest_success, swe_filters, token_counter
from holdfast_recipes.core.dedup import greedy_dedup
from holdfast_recipes.core.selection import SELECTORS, Candidate, composite, diverse, select
from holdfast_recipes.core.trajectory import (
    Harness,
    PolicyName,
    Trajectory,
)
from hypothesis import given
from hypothesis import strategies as st

BASH = {"type": "function", "function": {"name": "bash", "parameters": {"type": "object", "properties": {"command": {"type": "string"}}}}}


def assistant(name: str, arguments: str) -> dict[str, Any]:
    call = {"id": "1", "type": "function", "function": {"name": name, "arguments": arguments}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def trajectory(*messages: dict[str, Any], **changes: Any) -> Trajectory:
    base = Trajectory("t1", "task", Harness("mini", "2.4.6", "ab"), PolicyName("teacher", "3"), tuple(messages), (BASH,))
    return replace(base, **changes)


def test_swe_filters_count_in_order() -> None:
    ok, alien, cut = assistant("bash", '{"command": "ls"}'), assistant("str_replace_editor", "{}"), assistant("bash", '{"command": "l')
    lengths = {"at": 64_000, "over": 64_001, "over_and_alien": 64_001, "alien": 5, "alien_and_cut": 5, "cut": 5, "answer": 5, "odd": 5}
    messages = {
        "at": [ok],
        "over": [ok],
        "over_and_alien": [alien],
        "alien": [ok, alien],
        "alien_and_cut": [cut, alien],
        "cut": [ok, cut],
        "answer": [ok, {"role": "assistant", "content": "done"}],
        "odd": [assistant("bash", '{"command": 3}')],
    }
    rows = [trajectory(*sent, trajectory_id=name) for name, sent in messages.items()]
    result = curate(rows, swe_filters(lambda row: lengths[row.trajectory_id]))
    assert [row.trajectory_id for row in result.kept] == ["at", "answer", "odd"]
    assert result.dropped == {"too_long": 2, "undefined_tool": 2, "unparsable": 1}
    assert call_faults(rows[4]) == {CallFault.UNDEFINED_TOOL, CallFault.BAD_JSON}
    assert call_faults(trajectory({"role": "assistant", "content": "<tool_call>{oops</tool_call>"})) == {CallFault.BAD_JSON}


def test_tokens_are_counted_with_tools_and_results() -> None:
    row = trajectory({"role": "user", "content": "fix"}, assistant("bash", '{"command": "ls"}'), {"role": "tool", "content": "out"})
    counted = token_counter(str.split)  # type: ignore[arg-type]
    assert counted(row) > counted(replace(row, tools=()))
    assert counted(row) > counted(replace(row, messages=row.messages[:2]))


def test_filter_names_must_be_unique() -> None:
    assert curate([1, 2], []).kept == [1, 2]
    with pytest.raises(ValueError, match="same name"):
        curate([1], [Filter("a", bool), Filter("a", bool)])


def test_webgym_arithmetic() -> None:
    names = ["overlap", "parent", "intent", "site", "duplicate"]
    drops = [13_840, 23_437, 411, 114_349, 124_454]
    borders = [sum(drops[: place + 1]) for place in range(5)]

    def below(border: int) -> Callable[[int], bool]:
        return lambda row: row < border

    filters = [Filter(name, below(border)) for name, border in zip(names, borders, strict=True)]
    result = curate(range(292_092), filters)
    assert (len(result.kept), list(result.dropped.values())) == (15_601, drops)


def test_one_success_per_task_and_caps() -> None:
    rows = [("a", True, 5, 90), ("a", True, 4, 80), ("a", True, 4, 70), ("a", True, 4, 70), ("b", False, 1, 1), ("c", True, 9, 9)]
    chosen = shortest_success(rows, task=lambda r: r[0], success=lambda r: r[1], length=lambda r: (r[2], r[3]))
    assert chosen == [("a", True, 4, 70), ("c", True, 9, 9)]
    assert chosen[0] is rows[2]
    assert cap_per(range(50), lambda n: n % 2, 20) == list(range(40))
    assert cap_per([1], lambda n: n, 0) == []


def test_band_of_difficulty() -> None:
    assert [in_band(c, 8) for c in range(9)] == [False, True, True, True, True, False, False, False, False]
    assert in_band(8, 8, 0.5, 1.0)
    assert not in_band(0, 0)
    assert in_band(29, 100, 0, 0.29)  # 0.29 · 100 is less than 29 in binary
    assert in_band(3, 10, 0.1, 0.3)
    with pytest.raises(ValueError, match="trials"):
        in_band(3, 2)


def test_card_counts_by_source_teacher_and_harness() -> None:
    rows = [trajectory(source="x", reward=reward) for reward in (1.0, -1.0, None)] + [trajectory(source="y", reward=1.0)]
    assert [(line.source, line.resolved, line.unresolved, line.total) for line in card(rows)] == [("x", 1, 2, 3), ("y", 1, 0, 1)]


def unit(degrees: float) -> tuple[float, float]:
    return math.cos(math.radians(degrees)), math.sin(math.radians(degrees))


def test_duplicates_are_compared_with_kept_rows_only() -> None:
    vectors = [unit(0), unit(5.73), unit(8.30)]
    assert greedy_dedup(vectors, 0.99) == [0, 2]
    assert greedy_dedup(vectors, 0.95) == [0]
    assert greedy_dedup([vectors[1], vectors[0], vectors[2]], 0.99) == [0]  # the others duplicate the middle vector
    assert greedy_dedup(vectors[::-1], 0.99) == [0, 2]
    assert greedy_dedup([], 0.9) == []
    assert greedy_dedup([unit(10)] * 3, 1.0) == [0, 1, 2]
    assert greedy_dedup([unit(10)] * 3, 0.9999) == [0]


@pytest.mark.parametrize("vectors", [[(0.0, 0.0)], [(1.0,), (1.0, 0.0)], [(math.nan, 1.0)], [()]])
def test_vectors_without_direction_are_refused(vectors: list[tuple[float, ...]]) -> None:
    with pytest.raises(ValueError, match="vector"):
        greedy_dedup(vectors, 0.9)


@given(st.lists(st.floats(0, 360), max_size=12), st.sampled_from([0.5, 0.9, 0.99]))
def test_dedup_leaves_no_similar_pair_and_drops_only_duplicates(angles: list[float], threshold: float) -> None:
    kept = greedy_dedup([unit(angle) for angle in angles], threshold)
    cosine = [[math.cos(math.radians(a - b)) for b in angles] for a in angles]
    assert all(cosine[i][j] <= threshold + 1e-9 for i in kept for j in kept if i != j)
    assert all(any(cosine[i][j] > threshold - 1e-9 for j in kept if j < i) for i in range(len(angles)) if i not in kept)


CANDIDATES = [
    Candidate(repo=f"r{place % 7 if place < 60 else 0}", files=1 + place % 3, lines=(place * 37) % 101, resolved=place % 4 > 0)
    for place in range(100)
]


@pytest.mark.parametrize("name", [*SELECTORS, "composite"])
@pytest.mark.parametrize("count", [0, 1, 20, 100, 200])
def test_selectors_choose_without_repetition_by_seed(name: str, count: int) -> None:
    chosen = select(name, CANDIDATES, count, seed=3)
    assert len(set(chosen)) == len(chosen)
    fitting = sum(each.files > 1 for each in CANDIDATES) if name == "multi_file" else 100
    assert len(chosen) == min(count, fitting)
    assert chosen == select(name, CANDIDATES, count, seed=3)
    assert select(name, [], count) == []


def test_what_each_selector_prefers() -> None:
    repos = [CANDIDATES[index].repo for index in diverse(CANDIDATES, 14)]
    assert {repo: repos.count(repo) for repo in repos} == {f"r{n}": 2 for n in range(7)}
    assert len(diverse(CANDIDATES, 100, per_repo=3)) == 21
    assert {CANDIDATES[index].repo for index in select("concentrated", CANDIDATES, 30)} == {"r0"}
    assert all(CANDIDATES[index].files > 1 for index in select("multi_file", CANDIDATES, 50))
    largest = [CANDIDATES[index].lines for index in select("large_diff", CANDIDATES, 10)]
    assert largest == sorted((each.lines for each in CANDIDATES), reverse=True)[:10]
    assert select("random", CANDIDATES, 10, seed=1) != select("random", CANDIDATES, 10, seed=2)


def test_composite_keeps_its_shares() -> None:
    only = composite(CANDIDATES, 10, weights={"large_diff": 1.0, "random": 0.0})
    assert only == select("large_diff", CANDIDATES, 10)
    assert len(composite(CANDIDATES, 100, weights={"multi_file": 9.0, "random": 1.0})) == 100  # one selector runs out early
    mixed = composite(CANDIDATES, 12, weights={"large_diff": 3.0, "multi_file": 1.0})
    top = set(select("large_diff", CANDIDATES, 12))
    assert len(top & set(mixed)) >= 9
    for weights in ({}, {"random": -1.0}, {"nothing": 1.0}):
        with pytest.raises(ValueError, match=r"weights|unknown"):
            composite(CANDIDATES, 1, weights=weights)


@pytest.mark.parametrize("cosine", [0.95, 0.96, 0.99, 0.501, 0.003])
def test_a_pair_exactly_at_the_threshold_is_kept(cosine: float) -> None:
    for turned in (0.0, 0.3, 1.1, 2.2):
        sine, (x, y) = math.sqrt(1 - cosine**2), (math.cos(turned), math.sin(turned))
        pair = [(x, y), (cosine * x - sine * y, cosine * y + sine * x)]
        assert greedy_dedup(pair, cosine) == [0, 1]
        assert greedy_dedup(pair, cosine - 1e-9) == [0]


def test_selectors_have_names_and_weights_are_numbers() -> None:
    with pytest.raises(ValueError, match="there is no selector 'best'"):
        select("best", [], 1)
    with pytest.raises(ValueError, match="finite"):
        composite([], 1, weights={"random": math.nan})
