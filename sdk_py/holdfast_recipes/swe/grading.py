"""The verdict on a patch: which of its files count, and what the outcomes of the tests come to (C4.4, D9).

Owns the pure part of grading. Running the tests in a second, clean sandbox, and trying again when infrastructure failed, is the
workspace's. A patch is graded without its changes to tests and to what configures them, for those would grade themselves.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

from holdfast_recipes.core import diffs
from holdfast_recipes.core.trajectory import Verdict

from .reports import Outcomes, TestOutcome, without_timing, worst

APPLY = ("git", "apply", "-v", "--3way", "--recount", "--ignore-space-change", "--whitespace=nowarn")
"""SWE-rebench V2's command for applying patches, first the solution and then the tests; it reads the patch from standard input."""

_TEST_FOLDERS = {"test", "tests", "testing", "__tests__", "spec", "specs", "e2e", "testdata"}
_TEST_FILES = (
    "test_*",
    "*_test.*",
    "*_tests.*",
    "*.test.*",
    "*.spec.*",
    "*_spec.*",
    "conftest.py",
    "*Test.java",
    "*Tests.java",
    "*Test.kt",
)
_CONFIG_FILES = (
    *("pytest.ini", "tox.ini", "setup.cfg", "pyproject.toml", "noxfile.py", ".coveragerc", "sitecustomize.py", "usercustomize.py", "*.pth"),
    *("package.json", "jest.config.*", "vitest.config.*", ".mocharc.*", "karma.conf.*", "phpunit.xml*", ".rspec", "Makefile"),
)


class Resolution(StrEnum):
    RESOLVED = "resolved"
    """Every test that had to be fixed or kept passes."""
    PARTIAL = "partial"
    """Some were fixed and none was broken."""
    NO = "no"
    INFRASTRUCTURE = "infrastructure"
    """Nothing is known of the patch."""


@dataclass(frozen=True, slots=True)
class Grade:
    resolution: Resolution
    fixed: tuple[int, int] = (0, 0)
    kept: tuple[int, int] = (0, 0)
    reason: str = ""
    failing: tuple[str, ...] = ()
    """Names of the tests that should have been fixed and were not."""
    broken: tuple[str, ...] = ()
    """Names of the tests that passed before and do not now."""

    @property
    def reward(self) -> float | None:
        """+1 resolved, −1 otherwise, None where infrastructure failed (P §3.3.2)."""
        if self.resolution is Resolution.INFRASTRUCTURE:
            return None
        return 1.0 if self.resolution is Resolution.RESOLVED else -1.0

    def verdict(self, log_sha256: str = "") -> Verdict:
        return Verdict(self.fixed, self.kept, log_sha256, self.failing, self.broken)


def infrastructure(reason: str) -> Grade:
    """The grade of a patch whose tests could not be run: a sandbox was lost, an image did not come."""
    return Grade(Resolution.INFRASTRUCTURE, reason=reason)


def rejected(reason: str) -> Grade:
    """The grade of a patch that cannot be applied: the policy's failure."""
    return Grade(Resolution.NO, reason=reason)


def grade(outcomes: Outcomes, fail_to_pass: Collection[str], pass_to_pass: Collection[str] = ()) -> Grade:
    """The grade of a run of the tests. A test without an outcome did not pass; a test to keep may be skipped. Names are compared without
    timings.

    Raises ValueError for a task without a test to fix: any patch would resolve it.
    """
    if not fail_to_pass:
        raise ValueError("a task needs at least one test that fails before the fix")
    plain = worst((without_timing(name), outcome) for name, outcome in outcomes.items())
    failing = tuple(name for name in fail_to_pass if _outcome(name, plain) is not TestOutcome.PASSED)
    broken = tuple(name for name in pass_to_pass if _outcome(name, plain) not in (TestOutcome.PASSED, TestOutcome.SKIPPED))
    fixed, kept = len(fail_to_pass) - len(failing), len(pass_to_pass) - len(broken)
    resolution = Resolution.NO if broken or not fixed else Resolution.PARTIAL if failing else Resolution.RESOLVED
    return Grade(resolution, (fixed, len(fail_to_pass)), (kept, len(pass_to_pass)), "", failing, broken)


def _outcome(listed: str, plain: Outcomes) -> TestOutcome | None:
    """Of a test as a set lists it. Some sets cut a name within its parameters (``test[log(a``): it stands for all tests that begin so, if
    these agree on whether they passed."""
    name = without_timing(listed)
    if name in plain or name.count("[") <= name.count("]"):
        return plain.get(name)
    found = [outcome for each, outcome in plain.items() if each.startswith(name)]
    agreed = len({outcome is TestOutcome.PASSED for outcome in found}) == 1
    return max(found, key=lambda outcome: outcome.badness) if agreed else None


@dataclass(frozen=True, slots=True)
class Submission:
    """A patch ready to be applied: the rest of it once tests and configuration are gone, and the paths that were ignored."""

    patch: str
    ignored: tuple[str, ...] = ()
    reason: str = ""
    """Why it cannot be applied, if it cannot."""


def submission(patch: str, gold_patch: str = "", test_patch: str = "") -> Submission:
    """The part of a patch that is graded. Files that the gold patch changes always count, whatever they are called; files of the test patch
    never do. A patch that is none, or of which nothing is left, has a reason."""
    allowed, tests = diffs.names(gold_patch), diffs.names(test_patch)

    def drop(path: str) -> bool:
        return path in tests or (path not in allowed and (is_test(path) or is_configuration(path)))

    if not patch.strip():
        return Submission("", reason="empty")
    try:
        rest, ignored = diffs.without(patch, drop)
    except diffs.DiffError as error:
        return Submission("", reason=f"malformed: {error}")
    outside = sorted(path for path in diffs.names(rest) if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts)
    if outside:
        return Submission("", tuple(ignored), f"malformed: {outside[0]} is outside the repository")
    return Submission(rest, tuple(ignored), "" if rest else "empty")


def is_test(path: str) -> bool:
    """By its folder or its name, in the conventions of common languages."""
    parts = PurePosixPath(path).parts
    return bool(parts) and (
        bool(_TEST_FOLDERS & {part.lower() for part in parts[:-1]}) or any(fnmatchcase(parts[-1], each) for each in _TEST_FILES)
    )


def is_configuration(path: str) -> bool:
    """Whether a file decides how tests are found and run."""
    parts = PurePosixPath(path).parts
    named = bool(parts) and any(fnmatchcase(parts[-1], each) for each in _CONFIG_FILES)
    return named or bool(re.match(r"\.(github|gitlab|circleci)(/|$)", path))
