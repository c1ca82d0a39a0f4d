"""Which tests of a task can be relied on: its suite, run several times before and after the fix (E1, D9).

Owns the sorting of outcomes into tests to fix, tests to keep and flaky ones, and the check that a task with named tests holds. Running
the suites is the pipeline's.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from .reports import Outcomes, TestOutcome


@dataclass(frozen=True, slots=True)
class Screened:
    """Test names, sorted. A test is flaky that passed in one run and not in another of the same state."""

    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    flaky: tuple[str, ...]


def screen(before: Sequence[Outcomes], after: Sequence[Outcomes]) -> Screened:
    """Sort the tests of runs in the start state and in the solved state; a test that a run does not name did not pass in it."""
    if not before or not after:
        raise ValueError("both states need at least one run")
    names = sorted({name for run in (*before, *after) for name in run})
    states = {name: (_passed(before, name), _passed(after, name)) for name in names}
    return Screened(
        tuple(name for name, (first, second) in states.items() if first is False and second is True),
        tuple(name for name, (first, second) in states.items() if first is True and second is True),
        tuple(name for name, (first, second) in states.items() if first is None or second is None),
    )


def problems(
    before: Sequence[Outcomes], after: Sequence[Outcomes], fail_to_pass: Collection[str], pass_to_pass: Collection[str] = ()
) -> list[str]:
    """Why a task cannot be used, one line each; none means that its named tests do what they should in every run."""
    found = screen(before, after)
    flaky, fixed, kept = set(found.flaky), set(found.fail_to_pass), set(found.pass_to_pass)
    lines = [] if fail_to_pass else ["no test fails before the fix"]
    lines += [f"flaky: {name}" for name in (*fail_to_pass, *pass_to_pass) if name in flaky]
    lines += [f"does not go from failing to passing: {name}" for name in fail_to_pass if name not in fixed | flaky]
    lines += [f"does not pass in both states: {name}" for name in pass_to_pass if name not in kept | flaky]
    return lines


def _passed(runs: Sequence[Outcomes], name: str) -> bool | None:
    """In all runs, in none, or None: in some."""
    passed = {run.get(name) is TestOutcome.PASSED for run in runs}
    return passed.pop() if len(passed) == 1 else None
