"""C9: each prompt has its fields, cuts what it must, and changes its digest with its wording."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from holdfast_recipes.core.calls import ToolCall
from holdfast_recipes.core.trajectory import Observation, Turn
from holdfast_recipes.prompts import swe, values
from holdfast_recipes.prompts.base import Prompt, capped, shortened
from hypothesis import given
from hypothesis import strategies as st


def turn(index: int, result: str = "ok") -> Turn:
    return Turn(index, f"thought {index}", "", (ToolCall("bash", {"command": f"cmd {index} é"}),), (), (Observation(result),))


def test_the_annotation_prompt_has_every_field() -> None:
    report = values.TestReport(tuple(f"failing_{n}" for n in range(25)), 3, ("broken_0",))
    system, user = (message["content"] for message in values.messages("The issue text", [turn(0), turn(1, "x" * 6000)], report))
    for part in (
        "FAILED",
        "probability",
        "Work backwards",
        "1.",
        "2.",
        "3.",
        "0.3 and 0.5",
        "below 0.2",
        "drops",
        "never only rise",
        "JSON array",
        "p_resolve",
    ):
        assert part in system
    for part in (
        "The issue text",
        "failing_19",
        "(5 more)",
        "were fixed: 3",
        "broken_0",
        "[STEP 0]",
        "[STEP 1]",
        "thought 1",
        "cmd 0 é",
        "2 steps",
        "0 to 1",
    ):
        assert part in user
    assert "failing_20" not in user
    assert "x" * 5000 in user
    assert "x" * 5001 not in user
    with pytest.raises(ValueError, match="without steps"):
        values.messages("i", [], report)


@given(st.integers(1, 40))
def test_the_transcript_numbers_its_steps(count: int) -> None:
    found = re.findall(r"^\[STEP (\d+)\]$", values.transcript([turn(index) for index in range(count)]), re.MULTILINE)
    assert found == [str(index) for index in range(count)]


def test_turns_without_calls_or_results_are_shown() -> None:
    text = values.transcript([Turn(0, faults=("bad_json",)), Turn(1)])
    assert "not a valid call: bad_json" in text
    assert text.count("(none)") == 5


def test_repair_prompts_name_issue_place_and_protocol() -> None:
    mini = swe.mini("It {{breaks}}", "/testbed")
    for part in ("It {{breaks}}", "/testbed", "new subshell", "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT", "Tests", "60 seconds"):
        assert part in mini
    editor = swe.editor("It breaks", "/repo")
    for part in ("It breaks", "/repo", "`finish`", "Tests", "absolute paths"):
        assert part in editor


def test_places_must_be_filled_exactly() -> None:
    prompt = Prompt("p", 1, "{{a}} and {{b}}")
    assert prompt.fill(a="{{b}}", b="x") == "{{b}} and x"
    for wrong in ({"a": ""}, {"a": "", "b": "", "c": ""}):
        with pytest.raises(ValueError, match="places"):
            prompt.fill(**wrong)
    assert len({prompt.sha256, replace(prompt, version=2).sha256, replace(prompt, text="x").sha256, replace(prompt, name="q").sha256}) == 4


def test_cuts_say_what_they_left_out() -> None:
    assert shortened("abc", 3) == "abc"
    assert shortened("abcd", 3) == "abc\n[1 more characters]"
    assert capped([], 2) == "none"
    assert capped(["a", "b", "c"], 2) == "- a\n- b\n(1 more)"
