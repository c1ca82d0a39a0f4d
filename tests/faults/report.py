"""What a chaos run found: counts per scenario, as text for people and as JSON for programs.

Owns the numbers and their wording, including what a run without failures proves. Each scenario fills an ``Outcome``; ``__main__``
prints and writes all of them.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .history import Verdict


@dataclass
class Outcome:
    """One scenario's numbers. ``faults`` counts by kind; ``resumes`` are seconds from a lost connection to the next greeting."""

    name: str
    seed: int
    seconds: float = 0.0
    commands: int = 0
    acknowledged: int = 0
    failed: int = 0
    unknown: int = 0
    duplicates: int = 0
    lost: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    """Why a command failed or its outcome is unknown, by code and reason of the typed error."""
    stories: list[str] = field(default_factory=list)
    """One line for each of those commands, with the text of the error."""
    resumes: list[float] = field(default_factory=list)
    notes: dict[str, float | str] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)

    def add(self, verdict: Verdict) -> None:
        """Count one checked history."""
        for name in ("commands", "acknowledged", "failed", "unknown", "duplicates", "lost"):
            setattr(self, name, getattr(self, name) + getattr(verdict, name))
        self.violations.extend(verdict.violations)

    def expect(self, holds: bool, otherwise: str) -> None:
        """Record a violation unless ``holds``."""
        if not holds:
            self.violations.append(otherwise)

    def conclude(self) -> None:
        """Record a violation if no fault happened or no command was acknowledged: such a run proves nothing."""
        self.expect(sum(self.faults.values()) > 0, "no fault happened")
        self.expect(self.acknowledged > 0, "no command was acknowledged")

    def lines(self) -> list[str]:
        """A paragraph for people."""
        ran = f"acknowledged {self.acknowledged}, failed {self.failed}, unknown {self.unknown}"
        resumes = f"{len(self.resumes)} resumes, p50 {percentile(self.resumes, 50):.3f} s, p99 {percentile(self.resumes, 99):.3f} s"
        return [
            f"{self.name}  {self.seconds:.0f} s, seed {self.seed}: {'clean' if not self.violations else 'VIOLATED'}",
            f"  faults {sum(self.faults.values())} ({_counted(self.faults)})",
            f"  commands {self.commands}: {ran}; duplicates {self.duplicates}, lost {self.lost}",
            *([f"  reported: {_counted(self.reasons)}"] if self.reasons else []),
            *([f"  {resumes}"] if self.resumes else []),
            *[f"  {name}: {value if isinstance(value, str) else f'{value:g}'}" for name, value in self.notes.items()],
            *[f"  VIOLATION {violation}" for violation in self.violations[:20]],
        ]


def percentile(values: Sequence[float], percent: float) -> float:
    """The nearest-rank percentile; 0.0 of nothing."""
    if not values:
        return 0.0
    ranked = sorted(values)
    return ranked[max(math.ceil(percent / 100 * len(ranked)) - 1, 0)]


def total(outcomes: Sequence[Outcome]) -> Outcome:
    """All scenarios as one."""
    whole = Outcome("total", outcomes[0].seed if outcomes else 0)
    for outcome in outcomes:
        for name in ("seconds", "commands", "acknowledged", "failed", "unknown", "duplicates", "lost"):
            setattr(whole, name, getattr(whole, name) + getattr(outcome, name))
        whole.faults += outcome.faults
        whole.reasons += outcome.reasons
        whole.resumes += outcome.resumes
        whole.violations += [f"{outcome.name}: {violation}" for violation in outcome.violations]
    return whole


def reading(whole: Outcome) -> str:
    """What the number of violations proves."""
    count = sum(whole.faults.values())
    if whole.violations:
        return f"{len(whole.violations)} violations in {count} faults; repeat with CHAOS_SEED={whole.seed}"
    return f"zero failures in {count} faults says only: fewer than 3/{count}"


def text(outcomes: Sequence[Outcome]) -> str:
    """The report for people."""
    whole = total(outcomes)
    paragraphs = ["\n".join(outcome.lines()) for outcome in [*outcomes, whole]]
    return "\n\n".join([*paragraphs, reading(whole)]) + "\n"


def stories(outcomes: Sequence[Outcome]) -> str:
    """Each command that was not acknowledged, with its error."""
    return "".join(f"\n{outcome.name}:\n" + "".join(f"  {line}\n" for line in outcome.stories) for outcome in outcomes if outcome.stories)


def write(outcomes: Sequence[Outcome], folder: Path) -> None:
    """``chaos.json`` and ``chaos.txt``."""
    (folder / "chaos.txt").write_text(text(outcomes) + stories(outcomes))
    whole = total(outcomes)
    document = {"scenarios": [_plain(outcome) for outcome in outcomes], "total": _plain(whole), "reading": reading(whole)}
    (folder / "chaos.json").write_text(json.dumps(document, indent=2) + "\n")


def _plain(outcome: Outcome) -> dict[str, object]:
    values = dict(vars(outcome))
    resumes = outcome.resumes
    values["resumes"] = {"count": len(resumes), "p50_s": percentile(resumes, 50), "p99_s": percentile(resumes, 99)}
    values["faults_total"] = sum(outcome.faults.values())
    return values


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items())) or "none"
