"""What lines of each runner mean, which command and parser a repository of the published sets has, and the package swebench beside them."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from holdfast_recipes.core.scored import Blame
from holdfast_recipes.harness.layers import FaultError
from holdfast_recipes.swe import workspace
from holdfast_recipes.swe.grading import Resolution, grade
from holdfast_recipes.swe.outcomes import swebench_package
from holdfast_recipes.swe.outcomes.parsers import NAMED, SIGNABLE
from holdfast_recipes.swe.reports import TestOutcome
from holdfast_recipes.swe.sources import SweTask

from tests.recipes.swe.test_job import edited

PASSED, FAILED, ERROR, SKIPPED = TestOutcome.PASSED, TestOutcome.FAILED, TestOutcome.ERROR, TestOutcome.SKIPPED
PYTEST = """
============ short test summary info ============
PASSED t.py::test_a
PASSED t.py::test_b[x y]
XFAIL t.py::test_c
SKIPPED [2] t.py:3: no reason
FAILED t.py::test_d[/tmp/x/file] - assert 1 == 2
ERROR t.py::test_e - boom
"""
DJANGO = """test_a (app.tests.Case) ... ok
Its first line of documentation ... ok
test_b (app.tests.Case) ... FAIL
test_c (app.tests.Case) ... skipped 'no database'
test_d (app.tests.Case) ... printed while it ran
ok
test_e (app.tests.Case) ... ERROR
FAIL: test_b (app.tests.Case)
"""
SYMPY = """sympy/core/tests/test_logic.py[3]
test_a ok
test_b F
test_c E                                                            [FAIL]
________________ sympy/core/tests/test_logic.py:test_b _________________
"""
CASES = {
    "parse_log_pytest": (
        PYTEST,
        {
            "t.py::test_a": PASSED,
            "t.py::test_b[x": PASSED,
            "t.py::test_c": PASSED,
            "t.py::test_d[/tmp/x/file]": FAILED,
            "t.py::test_e": ERROR,
        },
    ),
    "parse_log_requests": (
        PYTEST,
        {"t.py::test_a": PASSED, "t.py::test_b[x": PASSED, "t.py::test_c": PASSED, "t.py::test_d[/file]": FAILED, "t.py::test_e": ERROR},
    ),
    "parse_log_scikit": (
        PYTEST,
        {
            "t.py::test_a": PASSED,
            "t.py::test_b[x y]": PASSED,
            "t.py::test_c": PASSED,
            "t.py::test_d[/tmp/x/file]": FAILED,
            "t.py::test_e - boom": ERROR,
        },
    ),
    "parse_log_django": (
        DJANGO,
        {
            "test_a (app.tests.Case)": PASSED,
            "Its first line of documentation": PASSED,
            "test_b (app.tests.Case)": FAILED,
            "test_c (app.tests.Case)": SKIPPED,
            "test_d (app.tests.Case)": PASSED,
            "test_e (app.tests.Case)": ERROR,
            "test_b": FAILED,
        },
    ),
    "parse_log_sympy": (SYMPY, {"test_a": PASSED, "test_b": FAILED, "sympy/core/tests/test_logic.py:test_b": FAILED}),
    "parse_log_seaborn": ("t.py::test_a PASSED [ 50%]\nFAILED t.py::test_b - x\n", {"t.py::test_a": PASSED, "t.py::test_b": FAILED}),
    "parse_log_matplotlib": ("PASSED t.py::test_a[MouseButton.LEFT]\n", {"t.py::test_a[1]": PASSED}),
    "parse_log_gotest": (
        "--- PASS: TestA (0.00s)\n    --- FAIL: TestA/b (0.1s)\n--- SKIP: TestC (0.00s)\n",
        {"TestA": PASSED, "TestA/b": FAILED, "TestC": SKIPPED},
    ),
    "parse_log_cargo": ("test a::b ... ok\ntest c ... FAILED\ntest d ... ignored\n", {"a::b": PASSED, "c": FAILED}),
}


@pytest.mark.parametrize("name", list(CASES))
def test_lines_of_a_runner(name: str) -> None:
    log, outcomes = CASES[name]
    assert NAMED[name](log) == outcomes
    assert NAMED[name]("No module named pytest\n") == {}


def task(repo: str, log_parser: str = "") -> SweTask:
    patch = edited("tests/utils_tests/test_text.py", None, "x\n") + edited("tests/data.json", None, "{}\n")
    return replace(SweTask("t", "swe_bench", repo, "image", "", "", ("a",), test_patch=patch), log_parser=log_parser)


@pytest.mark.parametrize(
    ("repo", "command", "parser"),
    [
        (
            "django/django",
            "./tests/runtests.py --verbosity 2 --settings=test_sqlite --parallel 1 utils_tests.test_text",
            "parse_log_django",
        ),
        ("sympy/sympy", "bin/test -C --verbose tests/utils_tests/test_text.py", "parse_log_sympy"),
        ("sphinx-doc/sphinx", "python -m pytest -rA --durations 25 -p no:cacheprovider tests/utils_tests/test_text.py", "parse_log_sphinx"),
        ("scikit-learn/scikit-learn", "python -m pytest -rA -p no:cacheprovider tests/utils_tests/test_text.py", "parse_log_scikit"),
    ],
)
async def test_command_and_parser_follow_from_the_repository(repo: str, command: str, parser: str) -> None:
    (found,) = await workspace.test_commands_of(task(repo))
    assert found.endswith(command)
    assert workspace.parser_name(task(repo)) == parser
    assert workspace.parser_name(task(repo, log_parser="parse_log_pytest")) == "parse_log_pytest"  # the row's wins


def test_a_name_that_a_set_cut_within_its_parameters() -> None:
    outcomes = {"t.py::test_a[log(x y)]": PASSED, "t.py::test_a[log(x z)]": PASSED, "t.py::test_b[1": FAILED, "t.py::test_c": SKIPPED}
    assert grade(outcomes, ["t.py::test_a[log(x"]).resolution is Resolution.RESOLVED
    assert grade(outcomes | {"t.py::test_a[log(x z)]": FAILED}, ["t.py::test_a[log(x"]).resolution is Resolution.NO
    assert grade(outcomes, ["t.py::test_a[log(x"], ["t.py::test_c"]).resolution is Resolution.RESOLVED  # kept, though it is skipped
    assert grade(outcomes, ["t.py::test_c"]).resolution is Resolution.NO


async def test_the_package_that_is_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(swebench_package.VARIABLE, raising=False)
    assert await swebench_package.parsed("log", "parse_log_maven") is None
    for python in (sys.executable, str(tmp_path / "none")):  # it has no swebench; there is no such program
        monkeypatch.setenv(swebench_package.VARIABLE, python)
        with pytest.raises(FaultError) as caught:
            await swebench_package.parsed("log", "parse_log_maven")
        assert (caught.value.blame, caught.value.reason) == (Blame.ENVIRONMENT, "swebench")


def test_parsers_of_python_runners_can_be_signed() -> None:
    assert "parse_log_django" in SIGNABLE
    assert not {"parse_log_sympy", "parse_log_gotest", "parse_log_cargo"} & SIGNABLE
