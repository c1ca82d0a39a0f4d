"""D9 in its pure part: reports of real test runs, which parts of a patch count, verdicts, flaky tests, leaks."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import pytest
from holdfast_recipes.swe.grading import Resolution, grade, infrastructure, is_configuration, is_test, rejected, submission
from holdfast_recipes.swe.leaks import distinctive_lines, scan
from holdfast_recipes.swe.reports import PARSERS, TestOutcome, parse_junit, parse_pytest, without_timing
from holdfast_recipes.swe.screening import problems, screen
from hypothesis import given
from hypothesis import strategies as st

PASSED, FAILED = TestOutcome.PASSED, TestOutcome.FAILED
SUITE = """
import pytest

def test_ok(): print("FAILED test_suite.py::test_ok - not true\\n===== short test summary info =====\\nFAILED test_suite.py::test_ok")
def test_bad(): assert 1 == 2, "one - two"
@pytest.mark.parametrize("x", ["a - b", "c]", "é d"])
def test_param(x): assert x != "c]"
@pytest.mark.xfail
def test_expected(): raise ValueError
@pytest.mark.skip(reason="later")
def test_skipped(): pass
@pytest.fixture
def broken(): raise RuntimeError("setup")
def test_error(broken): pass
class TestIt:
    def test_in_class(self): pass
"""
EXPECTED = {
    "test_ok": PASSED,
    "test_bad": FAILED,
    "test_param[a - b]": PASSED,
    "test_param[c]]": FAILED,
    "test_param[\\xe9 d]": PASSED,
    "test_expected": PASSED,
    "test_error": TestOutcome.ERROR,
    "TestIt::test_in_class": PASSED,
}


def test_reports_of_a_real_run(tmp_path: Path) -> None:
    (tmp_path / "test_suite.py").write_text(SUITE)
    command = [sys.executable, "-m", "pytest", "-rA", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", ".", "--color=yes"]
    command += ["--junitxml=report.xml", "-o", "junit_family=xunit1", "test_suite.py"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    expected = {f"test_suite.py::{name}": outcome for name, outcome in EXPECTED.items()}
    assert PARSERS["pytest"](run.stdout) == expected
    junit = PARSERS["junit"]((tmp_path / "report.xml").read_text())
    assert junit.pop("test_suite.py::test_skipped") is TestOutcome.SKIPPED
    # in XML an expected failure is a skipped test
    assert junit.pop("test_suite.py::test_expected") is TestOutcome.SKIPPED
    assert junit == {name: outcome for name, outcome in expected.items() if not name.endswith("test_expected")}


def test_output_that_is_not_a_report() -> None:
    assert parse_pytest("") == parse_pytest("PASSED a::b\n") == {}
    assert parse_junit("") == parse_junit("<testsuite><testcase name='a'") == {}
    assert parse_junit("<s><testcase classname='A' name='t'/><testcase classname='A' name='t'><failure/></testcase></s>") == {
        "A::t": FAILED
    }
    assert parse_junit("<s><testcase name='t'><system-out>x</system-out></testcase></s>") == {"t": PASSED}


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("TestA (0.05s)", "TestA"),
        ("does it [12 ms]", "does it"),
        ("it works (took 3 seconds)", "it works"),
        ("it works 0.31s", "it works"),
        ("waits 5s", "waits 5s"),
        ("test[5s]", "test"),
        ("a.py::test_parse[10s]", "a.py::test_parse[10s]"),
        ("a.py::test_parse [10s]", "a.py::test_parse"),
        ("a.py::test_parse[10s] (0.2s)", "a.py::test_parse[10s]"),
        ("a::b[1-2]", "a::b[1-2]"),
    ],
)
def test_timings_are_not_part_of_a_name(name: str, plain: str) -> None:
    assert without_timing(name) == plain


def test_parameters_that_look_like_times_are_separate_tests() -> None:
    runs = {"a.py::test_parse[5s]": PASSED, "a.py::test_parse[10s]": FAILED}
    assert grade(runs, ["a.py::test_parse[5s]"]).resolution is Resolution.RESOLVED
    assert grade({"a.py::test_parse[5s]": PASSED}, ["a.py::test_parse[10s]"]).failing == ("a.py::test_parse[10s]",)


def test_verdicts() -> None:
    runs = {"fixed": PASSED, "still": FAILED, "kept": PASSED, "broken": FAILED}
    assert grade(runs, ["fixed"], ["kept"]).resolution is Resolution.RESOLVED
    assert grade(runs, ["fixed", "still"], ["kept"]).resolution is Resolution.PARTIAL
    assert grade(runs, ["still"], ["kept"]).resolution is Resolution.NO
    assert grade(runs, ["fixed"], ["kept", "broken"]).resolution is Resolution.NO
    assert grade(runs, ["fixed"], ["missing"]).resolution is Resolution.NO
    assert grade({}, ["fixed"]).resolution is Resolution.NO
    assert grade({"fixed (3 ms)": PASSED}, ["fixed (9 ms)"]).resolution is Resolution.RESOLVED
    assert grade({"fixed (3 ms)": PASSED, "fixed (4 ms)": FAILED}, ["fixed"]).resolution is Resolution.NO
    counted = grade(runs, ["fixed", "still"], ["kept"])
    assert (counted.verdict("ab").fail_to_pass, counted.verdict("ab").pass_to_pass) == ((1, 2), (1, 1))
    rewards = [grade(runs, ["fixed"]).reward, counted.reward, rejected("x").reward, infrastructure("lost").reward]
    assert rewards == [1.0, -1.0, -1.0, None]
    with pytest.raises(ValueError, match="at least one"):
        grade(runs, [])


outcomes = st.dictionaries(st.sampled_from("abcdef"), st.sampled_from(list(TestOutcome)))


@given(outcomes, st.sets(st.sampled_from("abcdef"), min_size=1), st.sets(st.sampled_from("abcdef")))
def test_resolved_iff_all_named_tests_passed(run: dict[str, TestOutcome], fail: set[str], keep: set[str]) -> None:
    passed = {name for name, outcome in run.items() if outcome == "passed"}
    found = grade(run, fail, keep)
    assert (found.resolution is Resolution.RESOLVED) == (fail | keep <= passed)
    assert (found.resolution is Resolution.PARTIAL) == (keep <= passed and not fail <= passed and bool(fail & passed))


def change(path: str, line: str = "x = 1") -> str:
    return f"diff --git a/{path} b/{path}\n--- a/{path}\n+++ b/{path}\n@@ -1 +1 @@\n-old\n+{line}\n"


def test_changes_to_tests_and_configuration_do_not_count() -> None:
    alien = ["tests/test_a.py", "conftest.py", "setup.cfg", "web/a.test.ts", ".github/workflows/ci.yml", "package.json"]
    patch = "".join(map(change, ["src/a.py", *alien]))
    found = submission(patch)
    assert (found.patch, list(found.ignored), found.reason) == (change("src/a.py"), alien, "")
    assert submission(change("tests/test_a.py")).reason == "empty"
    # what the gold patch changes counts, what the test patch changes does not
    assert submission(change("pyproject.toml"), gold_patch=change("pyproject.toml")).reason == ""
    assert submission(change("django/test/client.py"), gold_patch=change("django/test/client.py")).ignored == ()
    assert submission(change("data/case.json"), test_patch=change("data/case.json")).ignored == ("data/case.json",)


def test_both_names_of_a_rename_count() -> None:
    def rename(old: str, new: str) -> str:
        return f"diff --git a/{old} b/{new}\nsimilarity index 100%\nrename from {old}\nrename to {new}\n"

    assert submission(rename("tests/test_a.py", "src/a.py")).ignored == ("src/a.py",)
    assert submission(rename("src/a.py", "tests/test_a.py")).ignored == ("tests/test_a.py",)
    assert submission(rename("src/b.py", "src/c.py"), test_patch=rename("src/b.py", "x/b.py")).ignored == ("src/c.py",)
    assert submission(rename("../a", "src/a.py")).reason.startswith("malformed")


@pytest.mark.parametrize("patch", ["", " \n"])
def test_empty_patches(patch: str) -> None:
    assert submission(patch).reason == "empty"


@pytest.mark.parametrize("patch", ["I fixed it.", "diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1,9 +1 @@\n x\n", change("../etc/passwd")])
def test_malformed_patches(patch: str) -> None:
    assert submission(patch).reason.startswith("malformed")


def test_kinds_of_files() -> None:
    for path in ("test_a.py", "a/tests/data/x.json", "pkg/a_test.go", "src/FooTest.java", "spec/a_spec.rb", "conftest.py", "A/Tests/x.cs"):
        assert is_test(path)
    for path in ("src/testing_tools.py", "attest.py", "latest/a.py", "contest.py", "src/protest.go", "tests"):
        assert not is_test(path)
    assert is_configuration("a/pyproject.toml")
    assert not is_configuration("config.py")


def test_screening_finds_flaky_tests() -> None:
    before = [{"f": FAILED, "k": PASSED, "wobbly": FAILED, "b": PASSED}] * 2
    after = [{"f": PASSED, "k": PASSED, "wobbly": PASSED, "b": FAILED}, {"f": PASSED, "k": PASSED, "wobbly": FAILED, "b": FAILED}]
    found = screen(before, after)
    assert (found.fail_to_pass, found.pass_to_pass, found.flaky) == (("f",), ("k",), ("wobbly",))
    assert problems(before, after, ["f"], ["k"]) == []
    assert problems(before, after, ["f", "wobbly"]) == ["flaky: wobbly"]
    assert problems(before, after, ["k"], ["b"]) == ["does not go from failing to passing: k", "does not pass in both states: b"]
    assert problems(before, after, []) == ["no test fails before the fix"]
    with pytest.raises(ValueError, match="one run"):
        screen([], after)


def test_a_test_missing_from_one_run_is_flaky() -> None:
    assert screen([{}], [{"new": PASSED}, {}]).flaky == ("new",)
    assert screen([{}], [{"new": PASSED}]).fail_to_pass == ("new",)


GOLD = """diff --git a/lib/core.py b/lib/core.py
--- a/lib/core.py
+++ b/lib/core.py
@@ -1,3 +1,7 @@
 def convert(value):
-    return int(value)
+    # a comment that anyone could write
+    if value is None:
+        raise TypeError("nothing to convert")
+    cleaned = value.strip()
+    return int(cleaned, base=10)
 end
"""


def test_solutions_in_site_packages_are_found() -> None:
    distinctive = ("if value is None:", 'raise TypeError("nothing to convert")', "cleaned = value.strip()", "return int(cleaned, base=10)")
    assert distinctive_lines(GOLD) == {"lib/core.py": distinctive}
    newer = "\n".join(f"        {line}  " for line in distinctive)
    files = [("site-packages/lib/core.py", newer), ("other.py", "if value is None:\n  pass"), ("half.py", "\n".join(distinctive[:3]))]
    leaks = scan(GOLD, files)
    assert [(leak.path, leak.of, leak.found, leak.distinctive) for leak in leaks] == [("site-packages/lib/core.py", "lib/core.py", 4, 4)]
    assert [leak.path for leak in scan(GOLD, files, least_share=0.5)] == ["site-packages/lib/core.py", "half.py"]
    assert scan(GOLD, files, known=distinctive) == []


def test_a_single_line_leaks_only_through_its_namesake() -> None:
    one = change("lib/core.py", "return clean(value, strict=True)")
    files = [(path, "return clean(value, strict=True)\n") for path in ("a/core.py", "a/other.py")]
    assert [leak.path for leak in scan(one, files)] == ["a/core.py"]
    assert scan(change("a.py", "}"), [("a.py", "}")]) == []


def test_moved_lines_are_not_a_leak() -> None:
    moved = "diff --git a/a.py b/a.py\n--- a/a.py\n+++ b/a.py\n@@ -1,2 +1,2 @@\n-value = compute(1)\n context\n+value = compute(1)\n"
    assert distinctive_lines(moved) == {}


def test_summary_lines_survive_any_order() -> None:
    lines = ["PASSED a::x", "FAILED a::y - boom", "ERROR a::z", "SKIPPED [1] a:3: later", "XPASS a::w - why"]
    for order in itertools.permutations(lines):
        log = "noise\n=== short test summary info ===\n" + "\n".join(order) + "\n=== 1 failed in 0.1s ==="
        assert parse_pytest(log) == {"a::x": PASSED, "a::y": FAILED, "a::z": TestOutcome.ERROR, "a::w": PASSED}
