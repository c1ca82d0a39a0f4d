"""The suite's result: counts, and one record per case for a file.

Owns what counts as equal, intended and unexplained. Prints nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

from tests.docker.compare import Outcome
from tests.docker.intended import INTENDED

OUTCOMES = pytest.StashKey[dict[str, Outcome]]()
"""Where the tests store their outcomes for the table at the end."""


def verdict(name: str, outcome: Outcome) -> str:
    """equal, intended, unexplained; `stale` if a case listed as intended does not differ, `invalid` by `Outcome.invalid`."""
    if outcome.invalid:
        return "invalid"
    if outcome.equal:
        return "stale" if name in INTENDED else "equal"
    return "intended" if name in INTENDED else "unexplained"


def describe(outcomes: Mapping[str, Outcome]) -> str:
    """The table by theme, the intended differences with their reasons, and the names of what is unexplained."""
    rows: dict[str, Counter[str]] = {}
    for name, outcome in outcomes.items():
        rows.setdefault(name.partition("/")[0], Counter())[verdict(name, outcome)] += 1
    total = sum(rows.values(), Counter())
    text = [f"{'theme':<14}{'cases':>8}{'equal':>8}{'intended':>10}{'unexplained':>13}"]
    for theme, row in [*sorted(rows.items()), ("all", total)]:
        rest = row.total() - row["equal"] - row["intended"]
        text.append(f"{theme:<14}{row.total():>8}{row['equal']:>8}{row['intended']:>10}{rest:>13}")
    for kind in ("intended", "unexplained", "stale", "invalid"):
        names = [name for name, outcome in outcomes.items() if verdict(name, outcome) == kind]
        text += [f"{kind}: {name}" + (f" ({INTENDED[name]})" if kind == "intended" else "") for name in names]
    text += [f"equal when run once more: {name}" for name, outcome in outcomes.items() if outcome.repeated]
    return "\n".join(text)


def records(outcomes: Mapping[str, Outcome]) -> list[dict[str, Any]]:
    """What `--json` writes."""
    return [
        {
            "name": name,
            "verdict": verdict(name, outcome),
            "reason": INTENDED.get(name, ""),
            "steps": [
                {
                    "command": step,
                    "docker": {"exit_code": reference.exit_code, "stdout": reference.stdout, "stderr": reference.stderr},
                    "holdfast": {"exit_code": holdfast.exit_code, "stdout": holdfast.stdout, "stderr": holdfast.stderr},
                }
                for step, reference, holdfast in zip(outcome.case.steps, outcome.reference, outcome.holdfast, strict=True)
            ],
        }
        for name, outcome in outcomes.items()
    ]
