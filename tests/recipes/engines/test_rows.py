"""Rows of rollouts with known answers, and that nothing without a verified reward carries loss."""

from __future__ import annotations

from dataclasses import replace

import pytest
from holdfast_recipes.core.groups import Reason
from holdfast_recipes.core.scored import Scored, Status
from holdfast_recipes.core.trajectory import Tokens, Trajectory
from holdfast_recipes.engines.rows import Row, fit, row_of, rows_of
from hypothesis import given
from hypothesis import strategies as st

from tests.recipes.engines import cases


def test_a_multi_turn_rollout_keeps_every_id_and_masks_what_tools_said() -> None:
    row = row_of(cases.MULTI)
    assert row.prompt_ids == (10, 11, 12)
    assert row.response_ids == (20, 21, 2, 30, 31, 32, 33, 40, 2)
    assert row.mask == (1, 1, 1, 0, 0, 0, 0, 1, 1)
    assert row.logprobs == (-0.5, -0.25, -0.125, 0.0, 0.0, 0.0, 0.0, -1.0, -0.75)
    assert (row.reward, row.masked, row.versions, row.turns) == (1.0, False, (3, 3), 2)
    assert row.ids == cases.IDS


def test_a_failure_of_the_policy_and_a_truncated_run_carry_loss() -> None:
    failed, truncated = row_of(cases.FAILED), row_of(cases.TRUNCATED)
    assert (failed.reward, failed.mask, failed.status) == (-1.0, cases.RESPONSE_MASK, Status.COMPLETED)
    assert (truncated.reward, truncated.status, truncated.reason) == (-1.0, Status.TRUNCATED, "steps")
    assert (truncated.response_ids, truncated.mask) == ((20, 21, 2), (1, 1, 1))


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        (cases.LOST, "node-lost"),
        (cases.UNGRADED, "reward_timeout"),
        (cases.TIMED_OUT, "wall_clock"),
        (replace(cases.MULTI, reward=float("nan")), "not_finite"),
        (replace(cases.MULTI, tokens=Tokens(cases.IDS, cases.MASK, (*cases.LOGPROBS[:11], float("-inf")))), "not_finite"),
        (replace(cases.MULTI, tokens=Tokens(cases.IDS, (0,) * 12, cases.LOGPROBS)), "no_tokens"),
        (replace(cases.MULTI, tokens=None), "no_tokens"),
        (replace(cases.MULTI, tokens=Tokens((5, 6), (1, 1), (-0.1, -0.1))), "no_prompt"),
    ],
)
def test_what_carries_no_loss_is_one_masked_token_with_its_reason(run: Trajectory, reason: str) -> None:
    row = row_of(run, filler=99)
    assert (row.reward, row.mask, row.logprobs, row.advantage, row.reason) == (None, (0,), (0.0,), 0.0, reason)
    assert len(row.response_ids) == 1
    assert row.prompt_ids


def test_a_rollout_without_tokens_is_made_of_the_filler() -> None:
    assert (row_of(cases.NEVER, filler=99).ids, row_of(None, filler=99).ids) == ((99, 99), (99, 99))
    assert row_of(cases.LOST, filler=99).ids == (10, 11, 12, 20)


def test_a_group_leaves_the_lost_one_out_of_mean_and_deviation() -> None:
    rows = rows_of(cases.group(*cases.MIXED))
    assert len(rows) == 4
    advantages = {row.rollout: row.advantage for row in rows if not row.masked}
    assert advantages == pytest.approx(cases.MIXED_ADVANTAGES)
    (lost,) = [row for row in rows if row.masked]
    assert (lost.rollout, lost.advantage, lost.reason) == ("run/task-1/3", 0.0, "node-lost")


def test_a_group_that_the_filter_dropped_is_masked_as_a_whole() -> None:
    rows = rows_of(cases.group(cases.MULTI, cases.MULTI), Reason.ZERO_VARIANCE)
    assert [(row.masked, row.advantage, row.reason) for row in rows] == [(True, 0.0, "group_zero_variance")] * 2


def test_a_whole_run_that_the_batch_found_stale_carries_no_loss() -> None:
    stale = replace(cases.MULTI.scored(), reward=None, status=Status.ABORTED)
    outcome = cases.group(cases.MULTI, cases.FAILED)
    member = replace(outcome.members[0], rollout=stale, remove_sample=True)
    rows = rows_of(replace(outcome, members=(member, outcome.members[1])))
    assert [row.masked for row in rows] == [True, False]
    raised = replace(member, rollout=Scored(None, Status.ABORTED, 0))
    assert rows_of(replace(outcome, members=(raised,)), filler=9)[0].ids == (9, 9)


def test_fitting_moves_the_end_of_a_long_prompt_and_cuts_the_response() -> None:
    row = row_of(cases.MULTI)
    assert fit(row, 3, 9) == row
    moved = fit(row, 2, 20)
    assert (moved.prompt_ids, moved.response_ids[:2], moved.mask[:2], moved.ids) == ((10, 11), (12, 20), (0, 1), row.ids)
    cut = fit(row, 3, 4)
    assert (cut.response_ids, cut.mask, cut.status, cut.reward) == ((20, 21, 2, 30), (1, 1, 1, 0), Status.TRUNCATED, 1.0)
    gone = fit(row, 1, 2)
    assert (gone.response_ids, gone.mask, gone.reward, gone.reason) == ((11, 12), (0, 0), None, "too_long")
    with pytest.raises(ValueError, match="room"):
        fit(row, 0, 4)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 1)), min_size=2, max_size=30), st.integers(1, 12), st.integers(1, 12))
def test_fitting_keeps_the_beginning_of_the_sequence(tokens: list[tuple[int, int]], prompt: int, response: int) -> None:
    ids, mask = tuple(token for token, _ in tokens), (0, *(bit for _, bit in tokens[1:]))
    logprobs = tuple(-float(token) * bit for token, bit in zip(ids, mask, strict=True))
    row = row_of(replace(cases.MULTI, tokens=Tokens(ids, mask, logprobs)))
    made = fit(row, prompt, response)
    assert made.ids == row.ids[: len(made.ids)]
    assert len(made.prompt_ids) <= prompt
    assert len(made.response_ids) <= response
    assert made.masked or any(made.mask)
    if not row.masked:
        whole = (0,) * len(row.prompt_ids) + row.mask
        assert (0,) * len(made.prompt_ids) + made.mask == whole[: len(made.ids)]


def test_a_row_refuses_what_no_engine_can_train_on() -> None:
    with pytest.raises(ValueError, match="one mask bit"):
        Row((1,), (2, 3), (1,), (0.0, 0.0), 1.0)
    with pytest.raises(ValueError, match="a token in its prompt"):
        Row((), (2,), (1,), (0.0,), 1.0)
    with pytest.raises(ValueError, match="cannot carry loss"):
        Row((1,), (2,), (1,), (0.0,))
