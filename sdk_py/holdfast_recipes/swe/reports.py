"""From the output or report of a test run to an outcome by test name: pytest's summary (``-rA``) and JUnit XML.

Owns parsing. Output comes from a sandbox whose workload may have written anything into it, so only pytest's last summary counts, and a
name with two outcomes has the worse one.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_SUMMARY = re.compile(r"^=+ short test summary info =+$")
_LINE = re.compile(r"^(PASSED|FAILED|ERROR|XFAIL|XPASS|SKIPPED)\s+(\S.*)$")
_TIMING = re.compile(
    r"(?:\s*[(\[]\s*(?:took\s+)?\d+(?:\.\d+)?\s*(?:ns|us|µs|μs|ms|s|sec|secs|seconds?|m|min)\s*[)\]]|\s+\d+\.\d+\s*(?:ms|s|sec|seconds?))\s*$"
)


class TestOutcome(StrEnum):
    """In order from best to worst. An expected failure counts as passed, since the test expects it."""

    __test__ = False  # the name is no test class

    PASSED = "passed"
    SKIPPED = "skipped"
    FAILED = "failed"
    ERROR = "error"

    @property
    def badness(self) -> int:
        return list(TestOutcome).index(self)


_WORDS = {
    "PASSED": TestOutcome.PASSED,
    "XFAIL": TestOutcome.PASSED,
    "XPASS": TestOutcome.PASSED,
    "FAILED": TestOutcome.FAILED,
    "ERROR": TestOutcome.ERROR,
    "SKIPPED": TestOutcome.SKIPPED,
}

Outcomes = Mapping[str, TestOutcome]


def parse_pytest(log: str) -> dict[str, TestOutcome]:
    """Outcomes in the last short summary of ``pytest -rA``; nothing where there is none. Skipped tests have no names there."""
    lines = [_ANSI.sub("", line).rstrip() for line in log.split("\n")]
    starts = [index for index, line in enumerate(lines) if _SUMMARY.match(line)]
    if not starts:
        return {}
    found = []
    for line in lines[starts[-1] + 1 :]:
        match = _LINE.match(line)
        if match and match[1] != "SKIPPED":
            found.append((match[2] if match[1] == "PASSED" else _without_message(match[2]), _WORDS[match[1]]))
    return worst(found)


def parse_junit(document: str) -> dict[str, TestOutcome]:
    """Outcomes of JUnit XML by ``file::Class::name`` where the case has a file (pytest's xunit1 family), else ``classname::name``.
    A document that is none gives nothing: the run was cut off."""
    try:
        root = ElementTree.fromstring(document)  # noqa: S314  expat ≥ 2.4.1 bounds what entities grow to
    except ElementTree.ParseError:
        return {}
    found = []
    for case in root.iter("testcase"):
        tags = {child.tag for child in case}
        outcome = next((_JUNIT[tag] for tag in ("error", "failure", "skipped") if tag in tags), TestOutcome.PASSED)
        found.append((_junit_name(case.attrib), outcome))
    return worst(found)


PARSERS: Mapping[str, Callable[[str], dict[str, TestOutcome]]] = {"pytest": parse_pytest, "junit": parse_junit}

_JUNIT = {"error": TestOutcome.ERROR, "failure": TestOutcome.FAILED, "skipped": TestOutcome.SKIPPED}


def worst(found: Iterable[tuple[str, TestOutcome]]) -> dict[str, TestOutcome]:
    """One outcome per name: the worst it had."""
    outcomes: dict[str, TestOutcome] = {}
    for name, outcome in found:
        if name not in outcomes or outcome.badness > outcomes[name].badness:
            outcomes[name] = outcome
    return outcomes


def without_timing(name: str) -> str:
    """A test's name without the time that some reporters append, ``(12 ms)``, ``[0.3s]`` or `` 0.31s`` (SWE-rebench V2). In a node id,
    as pytest's, brackets right after the name hold its parameters: ``a.py::test_parse[10s]`` is not changed."""
    match = _TIMING.search(name)
    if match is None or ("::" in name and match[0].startswith("[")):
        return name.rstrip()
    return name[: match.start()].rstrip()


def _without_message(text: str) -> str:
    """``name - message`` → name; a parameter in brackets may hold `` - `` too."""
    position = 0
    while (cut := text.find(" - ", position)) >= 0:
        name = text[:cut]
        if "[" not in name.rpartition("::")[2] or name.endswith("]"):
            return name
        position = cut + 1
    return text


def _junit_name(case: Mapping[str, str]) -> str:
    name, module, file = case.get("name", ""), case.get("classname", ""), case.get("file", "")
    if not file:
        return f"{module}::{name}" if module else name
    dotted = file.removesuffix(".py").replace("/", ".")
    classes = module[len(dotted) + 1 :] if module.startswith(f"{dotted}.") else ""
    return "::".join([file, *filter(None, classes.split(".")), name])
