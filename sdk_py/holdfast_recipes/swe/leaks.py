"""Whether the solution of a task can be read in its own image: lines of the gold patch in files outside the repository.

Owns the comparison. Some published images hold a later release of the project in site-packages, where a policy finds the fix (A2.2).
The caller chooses and reads the files.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from holdfast_recipes.core import diffs

_LEAST_CHARACTERS = 8


@dataclass(frozen=True, slots=True)
class Leak:
    """A file that holds ``found`` of the ``distinctive`` lines that the gold patch adds to one of its files."""

    path: str
    of: str
    found: int
    distinctive: int

    @property
    def share(self) -> float:
        return self.found / self.distinctive


def distinctive_lines(gold_patch: str, known: Collection[str] = ()) -> dict[str, tuple[str, ...]]:
    """By file of the gold patch, the distinctive lines it adds: stripped, with at least eight characters of which some are
    letters, no comment or import, neither removed elsewhere in the patch nor among the ``known`` lines of the unfixed file."""
    files = diffs.parse(gold_patch)
    moved = {line.strip() for each in files for line in each.lines("-")} | {line.strip() for line in known}
    lines = {}
    for each in files:
        added = dict.fromkeys(line.strip() for line in each.lines("+"))
        if distinctive := tuple(line for line in added if line not in moved and _says_something(line)):
            lines[each.path] = distinctive
    return lines


def scan(
    gold_patch: str, files: Iterable[tuple[str, str]], *, known: Collection[str] = (), least_share: float = 0.8, least_lines: int = 2
) -> list[Leak]:
    """Files (path, text) that hold at least ``least_share`` of the distinctive lines of one file of the gold patch, worst first.

    A patch with fewer than ``least_lines`` distinctive lines leaks only through a file of the same name: a single line is often chance.
    """
    distinctive = distinctive_lines(gold_patch, known)
    leaks = []
    for path, text in files:
        there = {line.strip() for line in text.split("\n")}
        leaks += [leak for leak in _leaks(path, there, distinctive) if leak.share >= least_share and _counts(leak, least_lines)]
    return sorted(leaks, key=lambda leak: (-leak.share, -leak.found, leak.path))


def _leaks(path: str, there: Collection[str], distinctive: Mapping[str, tuple[str, ...]]) -> list[Leak]:
    counted = [Leak(path, name, sum(line in there for line in lines), len(lines)) for name, lines in distinctive.items()]
    return [leak for leak in counted if leak.found]


def _counts(leak: Leak, least_lines: int) -> bool:
    return leak.distinctive >= least_lines or leak.path.rpartition("/")[2] == leak.of.rpartition("/")[2]


def _says_something(line: str) -> bool:
    if line.startswith(("#", "//", "/*", "*", "import ", "from ", "use ", "#include")):
        return False
    return len(line) >= _LEAST_CHARACTERS and any(character.isalpha() for character in line)
