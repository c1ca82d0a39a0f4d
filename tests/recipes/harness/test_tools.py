"""A2.1: tools, observations and edits, whose semantics training data depend on."""

from __future__ import annotations

import jsonschema  # type: ignore[import-untyped]
import pytest
from holdfast_recipes.core.calls import CallFault, parse_text, tool_names
from holdfast_recipes.core.template import call_text
from holdfast_recipes.harness import edits
from holdfast_recipes.harness.observations import shown, submission
from holdfast_recipes.harness.tools import EDITOR, MINI, TOOLS
from holdfast_recipes.prompts import swe
from hypothesis import given
from hypothesis import strategies as st


def test_the_tools_of_both_harnesses() -> None:
    assert {name: tool_names(tools) for name, tools in TOOLS.items()} == {
        "mini": {"bash"},
        "editor": {"terminal", "file_editor", "task_tracker", "think", "finish"},
    }
    for tool in (*MINI, *EDITOR):
        jsonschema.Draft202012Validator.check_schema(tool["function"]["parameters"])
    assert parse_text(call_text("file_editor", {"command": "view", "path": "/a", "view_range": [1, -1]}), EDITOR).errors == ()
    assert parse_text(call_text("file_editor", {"command": "delete", "path": "/a"}), EDITOR).errors[0].fault is CallFault.SCHEMA_VIOLATION
    assert parse_text(call_text("str_replace_editor", {}), EDITOR).errors[0].fault is CallFault.UNDEFINED_TOOL


def test_long_output_keeps_its_ends() -> None:
    assert shown("x" * 9_999) == "x" * 9_999
    cut = shown("a" * 5_000 + "b" * 123 + "c" * 5_000)
    assert cut == "a" * 5_000 + "\n[123 characters left out]\n" + "c" * 5_000
    assert "[0 characters left out]" in shown("x" * 10_000)


@given(st.text(max_size=40), st.integers(0, 30), st.integers(1, 12))
def test_what_is_shown_accounts_for_every_character(output: str, whole_below: int, kept: int) -> None:
    cut = shown(output, whole_below, kept)
    if len(output) < whole_below:
        assert cut == output
    elif len(output) <= 2 * kept:
        assert cut == f"{output[:kept]}\n[0 characters left out]\n{output[kept:]}"
    else:
        assert cut == f"{output[:kept]}\n[{len(output) - 2 * kept} characters left out]\n{output[-kept:]}"


@pytest.mark.parametrize(
    ("output", "exit_code", "patch"),
    [
        (f"{swe.SUBMIT_WORD}\ndiff\nmore\n", 0, "diff\nmore\n"),
        (f"\n  {swe.SUBMIT_WORD}  \r\ndiff", 0, "diff"),
        (swe.SUBMIT_WORD, 0, ""),
        (f"{swe.SUBMIT_WORD}\ndiff", 1, None),
        (f"{swe.SUBMIT_WORD}\ndiff", None, None),
        (f"first\n{swe.SUBMIT_WORD}\n", 0, None),
        (f"{swe.SUBMIT_WORD}!\n", 0, None),
        ("", 0, None),
    ],
)
def test_how_work_is_handed_in(output: str, exit_code: int | None, patch: str | None) -> None:
    assert submission(output, exit_code) == patch


def test_views_number_their_lines() -> None:
    assert edits.view("a\nb\n").message == "     1\ta\n     2\tb\n"
    assert edits.view("a\nb\nc", [2, -1]).message == "     2\tb\n     3\tc\n"
    assert edits.view("a\fb\n").message == "     1\ta\fb\n"
    assert edits.view("").message == ""
    for wrong in ([0, 1], [2, 1], [1, 3], [1], [3, -1]):
        assert not edits.view("a\nb\n", wrong).ok


def test_a_replacement_needs_exactly_one_place() -> None:
    done = edits.str_replace("a\nb\nc\n", "b", "B\nb")
    assert (done.text, done.ok) == ("a\nB\nb\nc\n", True)
    assert done.message.endswith("     1\ta\n     2\tB\n     3\tb\n     4\tc\n")
    assert edits.str_replace("abc", "b").text == "ac"
    assert "2 times, beginning in lines 1, 3" in edits.str_replace("x\ny\nx", "x", "z").message
    assert "2 times" in edits.str_replace("aaa", "aa", "b").message
    for old, new in (("z", "y"), ("", "y"), (None, "y"), ("b", "b"), ("B", "b")):
        refused = edits.str_replace("abc", old, new)
        assert (refused.text, refused.ok) == (None, False)


def test_insertion_makes_lines() -> None:
    assert edits.insert("a\nb", 0, "x").text == "x\na\nb"
    assert edits.insert("a\nb", 1, "x\n").text == "a\nx\nb"
    assert edits.insert("a\nb", 2, "x").text == "a\nb\nx"
    assert edits.insert("", 0, "x").text == "x"
    assert edits.insert("a\n", 1, "x\ny").message.endswith("     1\ta\n     2\tx\n     3\ty\n")
    for line, new in ((3, "x"), (-1, "x"), (None, "x"), (0, None)):
        assert not edits.insert("a\nb", line, new).ok


def test_files_are_created_once_and_edits_undone() -> None:
    assert edits.create(None, "x").text == "x"
    assert edits.create(None, "").text == ""
    assert not edits.create("", "x").ok
    assert not edits.create(None, None).ok
    history = edits.History(most=2)
    for text in ("one", "two", "three"):
        history.keep("/a", text)
    assert [history.undo("/a").text for _ in range(3)] == ["three", "two", None]
    assert not history.undo("/b").ok


@given(st.text(alphabet="ab\n", max_size=12), st.text(alphabet="ab\n", min_size=1, max_size=3), st.text(alphabet="xy\n", max_size=3))
def test_replacing_agrees_with_counting(text: str, old: str, new: str) -> None:
    places = [start for start in range(len(text)) if text.startswith(old, start)]
    edited = edits.str_replace(text, old, new)
    assert edited.text == (text.replace(old, new) if len(places) == 1 and old != new else None)


@given(st.lists(st.text(alphabet="ab\f", max_size=3), max_size=5), st.integers(0, 5), st.text(alphabet="xy", min_size=1))
def test_inserting_is_inserting_into_the_list_of_lines(lines: list[str], place: int, new: str) -> None:
    text = "".join(f"{line}\n" for line in lines)
    edited = edits.insert(text, place, f"{new}\n")
    assert edited.text == ("".join(f"{line}\n" for line in [*lines[:place], new, *lines[place:]]) if place <= len(lines) else None)
