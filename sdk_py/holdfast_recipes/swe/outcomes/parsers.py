"""Parsers of test output by the names that published sets use (``parse_log_django`` and others), and which parser a repository has.

Owns what a line of each runner means; the names of tests are those that the sets list. What is not here is read by the package swebench
where it is installed (``swebench_package``). A log comes from code that may print anything, so a Python run is graded from its signed
report instead (``signed``), written as lines that these parsers read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

from holdfast_recipes.swe.reports import Outcomes, TestOutcome, worst

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x01-\x08\x0b-\x1f]")
_WORDS = {
    "PASSED": TestOutcome.PASSED,
    "XFAIL": TestOutcome.PASSED,
    "FAILED": TestOutcome.FAILED,
    "ERROR": TestOutcome.ERROR,
    "SKIPPED": TestOutcome.SKIPPED,
}
_SUMMED_SKIP = re.compile(r"\[\d+\]$")
Found = Iterator[tuple[str, TestOutcome]]


def pytest_first_word(log: str) -> Outcomes:
    """Lines that begin with an outcome; the name is the next word, so that of ``test[a b]`` is ``test[a`` in these sets."""
    return worst(_pytest_words(log))


def pytest_options(log: str) -> Outcomes:
    """As ``pytest_first_word``, with a parameter that is an absolute path cut to its last part."""

    def named(name: str) -> str:
        match = re.match(r"(.*?)\[(.*)\]", name)
        if match is None:
            return name
        option = match[2]
        if option.startswith("/") and not option.startswith("//") and "*" not in option:
            option = "/" + option.rpartition("/")[2]
        return f"{match[1]}[{option}]"

    return worst((named(name), outcome) for name, outcome in _pytest_words(log))


def pytest_whole_line(log: str) -> Outcomes:
    """Lines that begin or (older pytest) end with an outcome; the name is the rest of the line, without the message of a failure."""

    def found() -> Found:
        for line in _plain_lines(log):
            words = line.split()
            if len(words) < 2:
                continue
            if _starts(line):
                rest = line.partition(" - ")[0].split() if line.startswith("FAILED") else words
                if words[0] in _WORDS and len(rest) > 1 and not (words[0] == "SKIPPED" and _SUMMED_SKIP.match(rest[1])):
                    yield " ".join(rest[1:]), _WORDS[words[0]]
            elif words[-1] in _WORDS:
                yield " ".join(words[:-1]), _WORDS[words[-1]]

    return worst(found())


def matplotlib(log: str) -> Outcomes:
    """As ``pytest_first_word``; mouse buttons are numbers in the names that the set lists."""
    return pytest_first_word(log.replace("MouseButton.LEFT", "1").replace("MouseButton.RIGHT", "3"))


def seaborn(log: str) -> Outcomes:
    """Verbose lines ``name PASSED`` and summary lines."""

    def found() -> Found:
        for line in log.split("\n"):
            words = line.split()
            if len(words) < 2:
                continue
            if line.startswith("FAILED"):
                yield words[1], TestOutcome.FAILED
            elif words[1] == "PASSED":
                yield words[0], TestOutcome.PASSED
            elif line.startswith("PASSED"):
                yield words[1], TestOutcome.PASSED

    return worst(found())


def django(log: str) -> Outcomes:
    """``name ... ok`` as unittest's verbose runner writes it. Output of a test may stand between the dots and a later line ``ok``; the name
    is the line with the dots, which for a test with a docstring is the docstring."""

    def found() -> Found:
        before = ""
        for raw in log.split("\n"):
            line = raw.strip()
            name, dots, _ = line.partition(" ... ")
            if dots:
                before = name
            if line.endswith((" ... ok", " ... OK", " ...  OK")):
                yield re.sub(r" \.\.\. {1,2}(?:ok|OK)$", "", line), TestOutcome.PASSED
            elif " ... skipped" in line:
                yield line.partition(" ... skipped")[0], TestOutcome.SKIPPED
            elif line.endswith(" ... FAIL"):
                yield name, TestOutcome.FAILED
            elif line.endswith(" ... ERROR"):
                yield name, TestOutcome.ERROR
            elif line.startswith(("FAIL:", "ERROR:")):
                word, _, whole = line.partition(": ")
                if whole.split():
                    yield whole.split()[0], TestOutcome.FAILED if word == "FAIL" else TestOutcome.ERROR
            elif line.startswith("ok") and before and not dots:
                yield before, TestOutcome.PASSED
            if "--version is equivalent to version" in line:
                yield "--version is equivalent to version", TestOutcome.PASSED

    return worst(found())


def sympy(log: str) -> Outcomes:
    """``test_name ok``, ``F`` or ``E`` of its own runner, and the headings of failures."""

    def found() -> Found:
        for match in re.finditer(r"_+ (\S.*)\.py:(\S.*?) _+$", log, re.MULTILINE):
            yield f"{match[1]}.py:{match[2]}", TestOutcome.FAILED
        for raw in log.split("\n"):
            line = raw.strip()
            if line.startswith("test_") and (end := _SYMPY.get(line.rpartition(" ")[2])):
                yield line.split()[0], end

    return worst(found())


_SYMPY = {"ok": TestOutcome.PASSED, "F": TestOutcome.FAILED, "E": TestOutcome.ERROR}


def go(log: str) -> Outcomes:
    """``--- PASS: name (0.00s)`` of ``go test -v``."""
    words = {"PASS": TestOutcome.PASSED, "FAIL": TestOutcome.FAILED, "SKIP": TestOutcome.SKIPPED}
    return worst((match[2], words[match[1]]) for match in re.finditer(r"^\s*--- (PASS|FAIL|SKIP): (\S+) \(", log, re.MULTILINE))


def cargo(log: str) -> Outcomes:
    """``test name ... ok`` of Rust's test runner. An ignored test has no outcome, as for swebench: one to keep was not kept."""
    words = {"ok": TestOutcome.PASSED, "FAILED": TestOutcome.FAILED}
    found = re.finditer(r"^test (.+?) \.\.\. (ok|FAILED)\b", _ESCAPES.sub("", log), re.MULTILINE)
    return worst((match[1], words[match[2]]) for match in found)


def _pytest_words(log: str) -> Found:
    for line in log.split("\n"):
        words = (line.replace(" - ", " ") if line.startswith("FAILED") else line).split()
        if not _starts(line) or len(words) < 2 or words[0] not in _WORDS:
            continue
        if words[0] == "SKIPPED" and _SUMMED_SKIP.match(words[1]):
            continue  # so many tests at one place, without their names
        yield words[1], _WORDS[words[0]]


def _starts(line: str) -> bool:
    return line.startswith(tuple(_WORDS))


def _plain_lines(log: str) -> list[str]:
    return [_ESCAPES.sub("", line) for line in log.split("\n")]


Parser = Callable[[str], Outcomes]
_FIRST_WORD = ("pytest", "astroid", "flask", "marshmallow", "pvlib", "pyvista", "sqlfluff", "xarray")
NAMED: Mapping[str, Parser] = {
    **{f"parse_log_{name}": pytest_first_word for name in _FIRST_WORD},
    **{f"parse_log_{name}": pytest_options for name in ("pytest_options", "pydicom", "requests", "pylint")},
    **{f"parse_log_{name}": pytest_whole_line for name in ("pytest_v2", "astropy", "scikit", "sphinx")},
    "parse_log_matplotlib": matplotlib,
    "parse_log_seaborn": seaborn,
    "parse_log_django": django,
    "parse_log_sympy": sympy,
    "parse_log_gotest": go,
    "parse_log_go_v1.0.0": go,
    "parse_log_cargo": cargo,
}
"""By the name in a row or in the package swebench."""
UNITTEST = frozenset({"parse_log_django"})
"""Parsers of what unittest prints; the other Python ones read what pytest prints."""
SIGNABLE = frozenset(name for name, parse in NAMED.items() if parse not in (sympy, go, cargo))
"""Those whose runner can write a signed report."""
