"""The history checker must detect every kind of violation."""

from __future__ import annotations

import pytest

from .history import History, Reported, check


def _history(**reported: Reported) -> History:
    history = History()
    for command, outcome in reported.items():
        history.sent("s", command)
        if outcome != "unknown":
            history.answer(command, outcome)
    return history


def test_a_clean_history() -> None:
    verdict = check(_history(a="acknowledged", b="failed", c="unknown", d="unknown"), ["a", "c"])
    assert verdict.clean
    assert (verdict.commands, verdict.acknowledged, verdict.failed, verdict.unknown) == (4, 1, 1, 2)


@pytest.mark.parametrize(
    ("reported", "lines", "word"),
    [
        ({"a": "acknowledged"}, ["a", "a"], "ran 2 times"),
        ({"a": "unknown"}, ["a", "a"], "ran 2 times"),
        ({"a": "acknowledged"}, [], "never ran"),
        ({"a": "failed"}, ["a"], "said to have failed"),
        ({"a": "acknowledged", "b": "acknowledged"}, ["b", "a"], "order"),
        ({}, ["a"], "never sent"),
    ],
)
def test_a_violation_is_detected(reported: dict[str, Reported], lines: list[str], word: str) -> None:
    verdict = check(_history(**reported), lines)
    assert not verdict.clean
    assert word in verdict.violations[0]


def test_two_answers_are_a_violation() -> None:
    history = _history(a="acknowledged")
    with pytest.raises(AssertionError, match="twice"):
        history.answer("a", "failed")
