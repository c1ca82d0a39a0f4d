"""The times that an agent reports of a traced command: untrusted, and by another clock."""

from __future__ import annotations

from typing import Any

import pytest
from holdfast_wire.trace import Times, report_of, times_of, trace_id_of
from hypothesis import given
from hypothesis import strategies as st

S = 1_000_000_000
SENT, GOT = 1_000 * S, 1_010 * S


def test_times_between_those_of_the_caller_are_kept() -> None:
    assert times_of({"trace": report_of(1002.0, 1003.0, 1009.0)}, SENT, GOT) == Times(1002 * S, 1003 * S, 1009 * S)


def test_another_clock_is_moved_to_the_middle() -> None:
    assert times_of({"trace": report_of(0.0, 1.0, 6.0)}, SENT, GOT) == Times(1002 * S, 1003 * S, 1008 * S)


def test_what_is_longer_than_the_callers_time_is_cut() -> None:
    assert times_of({"trace": report_of(10.0, 20.0, 1000.0)}, SENT, GOT) == Times(SENT, SENT, GOT)


@pytest.mark.parametrize(
    "report",
    [
        None,
        7,
        "x",
        [],
        {},
        {"received_at": 1.0},
        report_of(float("nan"), 1.0, 2.0),
        report_of(1.0, float("inf"), 2.0),
        report_of(-1.0, 0, 0),
        {"received_at": True, "started_at": 1, "ended_at": 1},
        {"received_at": "1", "started_at": 1, "ended_at": 1},
    ],
)
def test_anything_else_is_no_report(report: Any) -> None:
    assert times_of({"trace": report}, SENT, GOT) is None
    assert times_of(report, SENT, GOT) is None


@given(
    st.lists(st.floats(min_value=0, max_value=2**33, exclude_max=True), min_size=3, max_size=3),
    st.integers(0, 2**62),
    st.integers(0, 2**62),
)
def test_times_are_ordered_and_within_the_callers(moments: list[float], sent: int, took: int) -> None:
    times = times_of({"trace": report_of(*moments)}, sent, sent + took)
    assert times is not None
    assert sent <= times.received_ns <= times.started_ns <= times.ended_ns <= sent + took


def test_trace_ids() -> None:
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    assert trace_id_of(parent) == "0af7651916cd43dd8448eb211c80319c"
    assert [trace_id_of(wrong) for wrong in ("", None, 3, parent + "-x", parent.upper(), parent.replace("0af", "xyz"))] == [""] * 6
    assert trace_id_of("00-" + "0" * 32 + "-b7ad6b7169203331-01") == ""
