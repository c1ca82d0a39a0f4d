"""D12 and the fork of D2: calls of a rollout become samples, each response with loss in exactly one."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema  # type: ignore[import-untyped]
import pytest
from holdfast_recipes.proxy.branches import Branches, Call, call_of
from hypothesis import given
from hypothesis import strategies as st


def test_compaction_makes_a_second_branch() -> None:
    calls = [Call((1, 2, 3), (4, 5)), Call((1, 2, 3, 4, 5, 6), (7,)), Call((1, 9), (8,)), Call((1, 2, 3, 4, 5, 6, 7, 6), (4,))]
    first, second = Branches(calls).samples()
    assert (first.ids, first.loss_mask, first.calls) == ((1, 2, 3, 4, 5, 6, 7, 6, 4), (0, 0, 0, 1, 1, 0, 1, 0, 1), (0, 1, 3))
    assert (second.ids, second.loss_mask) == ((1, 9, 8), (0, 0, 1))
    assert first.weight == second.weight == 0.5


def test_three_branches_weigh_a_third_each() -> None:
    samples = Branches([Call((1,), (2,)), Call((3,), (4,)), Call((5,), (6,))]).samples()
    assert [sample.weight for sample in samples] == pytest.approx([1 / 3] * 3)


def test_a_history_that_differs_by_one_token_forks() -> None:
    samples = Branches([Call((1, 2), (3, 4)), Call((1, 2, 3, 9, 5), (6,))]).samples()
    assert [(sample.ids, sample.loss_mask) for sample in samples] == [
        ((1, 2, 3, 4), (0, 0, 1, 1)),
        ((1, 2, 3, 9, 5, 6), (0, 0, 0, 0, 0, 1)),
    ]


def test_a_second_continuation_carries_no_loss_of_the_first() -> None:
    branches = Branches([Call((1,), (2,)), Call((1, 2, 3), (4,)), Call((1, 2, 5), (6,))])
    assert [(sample.ids, sample.loss_mask) for sample in branches.samples()] == [((1, 2, 3, 4), (0, 1, 0, 1)), ((1, 2, 5, 6), (0, 0, 0, 1))]


def test_the_same_call_twice_is_two_branches_and_the_latest_is_continued() -> None:
    samples = Branches([Call((1,), (2,)), Call((1,), (2,)), Call((1, 2, 3), (4,))]).samples()
    assert [sample.ids for sample in samples] == [(1, 2), (1, 2, 3, 4)]


def test_a_cut_call_is_recorded_but_neither_trained_on_nor_continued() -> None:
    branches = Branches([Call((1,), (2, 3), finish="cut"), Call((1, 2, 3, 4), (5,), version=2)])
    assert [(sample.ids, sample.loss_mask, sample.weight) for sample in branches.samples()] == [((1, 2, 3, 4, 5), (0, 0, 0, 0, 1), 1.0)]
    assert [record["finish"] for record in branches.pairs("r")] == ["cut", "stop"]
    assert branches.samples()[0].versions == (2,)


def test_log_probabilities_stand_where_tokens_were_sampled() -> None:
    branches = Branches([Call((1, 2), (3,), (-0.5,)), Call((1, 2, 3, 4), (5, 6), (-1.0, -2.0))])
    assert branches.samples()[0].logprobs == (0.0, 0.0, -0.5, 0.0, -1.0, -2.0)
    with pytest.raises(ValueError, match="each output"):
        Call((1,), (2,), (0.0, 0.0))
    assert Branches().samples() == []


def test_pairs_fit_their_schema_and_come_back() -> None:
    schema = json.loads((Path(__file__).parents[3] / "schemas/recipes/pair.schema.json").read_text())
    calls = [Call((1,), (2,), (-0.5,), "tool_calls", "messages", 3), Call((1, 2, 7), (5,)), Call((9,), (5,))]
    records = Branches(calls).pairs("r1")
    for record in records:
        jsonschema.validate(json.loads(json.dumps(record)), schema)
    assert [(record["branch"], record["order"]) for record in records] == [(0, 0), (0, 1), (1, 0)]
    assert [call_of(record) for record in records] == calls


prompts = st.lists(st.integers(0, 2), max_size=4).map(tuple)


@given(st.lists(st.tuples(st.integers(-1, 6), prompts, prompts, st.booleans()), max_size=8))
def test_each_response_gets_loss_once_and_every_prompt_is_kept(plan: list[tuple[int, tuple[int, ...], tuple[int, ...], bool]]) -> None:
    calls: list[Call] = []
    for parent, added, output, cut in plan:
        prefix = calls[parent].ids if 0 <= parent < len(calls) else ()
        calls.append(Call(prefix + added, output, finish="cut" if cut else "stop"))
    samples = Branches(calls).samples()
    learnt = [place for sample in samples for place in sample.calls if calls[place].loss]
    assert sorted(learnt) == [place for place, call in enumerate(calls) if call.loss]
    assert sum(sum(sample.loss_mask) for sample in samples) == sum(len(call.output_ids) for call in calls if call.loss)
    for sample in samples:
        assert len(sample.ids) == len(sample.loss_mask) == len(sample.logprobs)
        for place in sample.calls:  # the prompt of a call is everything before its response
            call = calls[place]
            assert sample.ids[: len(call.ids)] == call.ids
            assert sample.loss_mask[len(call.prompt_ids) : len(call.ids)] == (int(call.loss),) * len(call.output_ids)
    assert sum(sample.weight for sample in samples) == pytest.approx(1 if samples else 0)
