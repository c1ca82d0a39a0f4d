"""The history checker: compares the outcomes that callers got with what happened in the sandbox.

Every command appends its unique id as one line to a file in its sandbox. Afterwards: acknowledged means present exactly once;
definitely failed means absent; unknown means at most once; and the order within one session holds.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Literal

Reported = Literal["acknowledged", "failed", "unknown"]


@dataclass
class History:
    """The answers that the callers of one sandbox got, in the order in which each session sent its commands."""

    reported: dict[str, Reported] = field(default_factory=dict)
    order: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    def sent(self, session: str, command: str) -> None:
        """``session`` is about to run ``command``; until it gets an answer, the outcome is unknown."""
        self.order[session].append(command)
        self.reported[command] = "unknown"

    def answer(self, command: str, reported: Reported) -> None:
        """The caller of ``command`` got its one outcome. A second one is a violation in itself."""
        if self.reported[command] != "unknown":
            raise AssertionError(f"{command} was answered twice")
        self.reported[command] = reported


@dataclass(frozen=True)
class Verdict:
    """Counts, and a description of each violation. ``clean`` if there is none."""

    commands: int
    acknowledged: int
    failed: int
    unknown: int
    duplicates: int
    lost: int
    violations: tuple[str, ...]

    @property
    def clean(self) -> bool:
        return not self.violations


def check(history: History, lines: list[str]) -> Verdict:
    """Check ``history`` against the ``lines`` of the sandbox's file."""
    present = Counter(lines)
    violations = [f"{line!r} was never sent" for line in present if line not in history.reported]
    duplicates = lost = 0
    for command, reported in history.reported.items():
        count = present[command]
        if count > 1:
            duplicates += 1
            violations.append(f"{command} ({reported}) ran {count} times")
        if reported == "acknowledged" and count == 0:
            lost += 1
            violations.append(f"{command} was acknowledged and never ran")
        if reported == "failed" and count:
            violations.append(f"{command} was said to have failed and ran")
    position = {line: i for i, line in enumerate(lines)}
    for session, commands in history.order.items():
        places = [position[c] for c in commands if c in position]
        if places != sorted(places):
            violations.append(f"the order of session {session} was not kept")
    counts = Counter(history.reported.values())
    return Verdict(len(history.reported), counts["acknowledged"], counts["failed"], counts["unknown"], duplicates, lost, tuple(violations))
