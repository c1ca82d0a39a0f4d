"""Run the suites and print the table: suite, version of the package, passed, failed, the reference's result, and the wall times.

``python -m infra.integrations [NAME ...]`` runs those suites, ``--short`` those of ``.ci/run``, without names all. Exit status 1 if a test
failed or an environment could not be made. A suite whose Python is missing is skipped by name; with CI=true only one of the long run may
be. ``--write`` puts the table into the documentation, where it replaces the one of the run before.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from holdfast_server.embed import EmbeddedStack, running_stack

from .environments import TOP, EnvironmentMissingError, made, version_of
from .suites import SUITES, Suite

TESTS = "tests/integrations/harnesses"
_PAGE = TOP / "infra" / "integrations" / "README.md"
_BEGIN, _END = "<!-- written by make integrations -->", "<!-- end -->"
_LIMIT_S = 900


@dataclass(slots=True)
class Outcome:
    """What one run of a suite's tests gave."""

    passed: int = 0
    failed: int = 0
    expected: int = 0
    """Tests that failed as they are expected to."""
    skipped: int = 0
    seconds: float = 0.0
    report: str = ""


def run_tests(suite: Suite, python: Path, stack: EmbeddedStack, reference: str = "") -> Outcome:
    """Run the suite's tests in its environment."""
    with tempfile.TemporaryDirectory(prefix=f"holdfast-{suite.name}-") as folder:
        results = Path(folder) / "results.xml"
        options = [
            f"--confcutdir={TESTS}",
            "-p",
            "no:cacheprovider",
            "-o",
            "addopts=--import-mode=importlib",
            "-o",
            "filterwarnings=default",
        ]
        options += [
            "-o",
            "asyncio_mode=auto",
            "-q",
            "-rfEs",
            "--tb=short",
            "--timeout=170",
            f"--basetemp={folder}/tmp",
            f"--junitxml={results}",
        ]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
        environment |= {"HOLDFAST_URL": stack.url, "HOLDFAST_API_KEY": stack.key, "HOLDFAST_INTEGRATION": suite.name}
        environment |= {"HOLDFAST_REFERENCE": reference, "PATH": f"{python.parent}:{os.environ['PATH']}"}
        started = time.monotonic()
        command = [str(python), "-m", "pytest", *options, f"{TESTS}/test_{suite.name}.py"]
        try:
            run = subprocess.run(command, cwd=TOP, check=False, capture_output=True, text=True, env=environment, timeout=_LIMIT_S)
            report = run.stdout + run.stderr
        except subprocess.TimeoutExpired as late:
            report = f"not done after {_LIMIT_S} s\n{late.output!s}"
        outcome = Outcome(seconds=time.monotonic() - started, report=report)
        if not results.exists():
            outcome.failed = 1
            return outcome
        for case in ElementTree.parse(results).getroot().iter("testcase"):
            skip = case.find("skipped")
            if case.find("failure") is not None or case.find("error") is not None:
                outcome.failed += 1
            elif skip is not None:
                outcome.expected += skip.get("type") == "pytest.xfail"
                outcome.skipped += skip.get("type") != "pytest.xfail"
            else:
                outcome.passed += 1
        return outcome


def write(table: str) -> None:
    """Put the table into the documentation, between its two marks."""
    text = _PAGE.read_text()
    before, _, rest = text.partition(_BEGIN)
    _PAGE.write_text(f"{before}{_BEGIN}\n{table}\n{_END}{rest.partition(_END)[2]}")


def row(*cells: object) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


def main() -> int:
    """Run what the command line names."""
    parser = argparse.ArgumentParser(prog="python -m infra.integrations", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[[], *(suite.name for suite in SUITES)], metavar="NAME")
    parser.add_argument("--short", action="store_true", help="the suites of .ci/run")
    parser.add_argument("--write", action="store_true", help="put the table into infra/integrations/README.md")
    arguments = parser.parse_args()
    chosen = [suite for suite in SUITES if suite.name in arguments.names or (not arguments.names and (suite.short or not arguments.short))]
    rows, failed = [], False
    with tempfile.TemporaryDirectory(prefix="holdfast-integrations-") as data, running_stack(Path(data)) as stack:
        for suite in chosen:
            started = time.monotonic()
            try:
                python = made(suite)
            except EnvironmentMissingError as missing:
                print(f"integrations: {suite.name} is skipped: {missing}", flush=True)
                rows.append(row(suite.name, suite.package, "", "", "", "", f"skipped: {missing}", ""))
                failed = failed or (suite.short and bool(os.environ.get("CI")))
                continue
            except subprocess.CalledProcessError as error:
                print(f"integrations: the environment of {suite.name} could not be made:\n{error.stderr[-3000:]}", flush=True)
                failed = True
                continue
            made_s = time.monotonic() - started
            outcome = run_tests(suite, python, stack)
            reference = suite.reference
            if suite.reference_variable:
                other = run_tests(suite, python, stack, suite.reference_variable)
                reference = f"{suite.reference_variable}: {other.passed} passed, {other.failed} failed, {other.seconds:.0f} s"
            if outcome.failed:
                failed = True
                print(outcome.report[-8000:], flush=True)
            elif outcome.skipped:
                print("\n".join(line for line in outcome.report.splitlines() if line.startswith("SKIPPED")), flush=True)
            counts = (outcome.passed, outcome.failed, outcome.expected, outcome.skipped)
            rows.append(
                row(suite.name, f"{suite.package} {version_of(python, suite.package)}", *counts, reference, f"{outcome.seconds:.0f} s")
            )
            print(f"integrations: {suite.name}: {outcome.passed} passed, {outcome.failed} failed in {outcome.seconds:.0f} s "
                  f"(environment {made_s:.0f} s)", flush=True)  # fmt: skip
    head = ("suite", "package", "passed", "failed", "failed as expected", "skipped", "its own reference", "wall time")
    table = "\n".join([row(*head), row(*["---"] * len(head)), *rows])
    print(f"\n{table}", flush=True)
    if arguments.write:
        write(table)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
