"""SECURITY.md and the table of findings name tests that exist: a wall or finding whose test was renamed or removed has none."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ("SECURITY.md", "infra/decisions/0096-walls-tried-from-outside.md")
FINDINGS = 22
_QUOTED = re.compile(r"`([^`]+)`")
_PROBES = re.compile(r'probes? ((?:"[^"]+"(?:, | and )?)+)')


def _rows(page: str) -> list[list[str]]:
    """The cells of the page's table, without its head."""
    lines = (ROOT / page).read_text().splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines if line.startswith("|")]
    return [[cell.strip("| ") for cell in row] for row in rows[2:]]


def _missing(cell: str, files: dict[str, str]) -> list[str]:
    """The tests that the cell names and that do not exist."""
    names = {name.split("/")[-1] for name in files}
    targets = (ROOT / "Makefile").read_text()
    missing = []
    for name in _QUOTED.findall(cell):
        if name.startswith("make "):
            found = re.search(rf"^{re.escape(name.split()[1])}:", targets, re.MULTILINE) is not None
        elif name.startswith("python -m "):
            found = (ROOT / name.split()[2].replace(".", "/") / "__main__.py").exists()
        elif name.endswith(".py"):
            found = name in files if "/" in name else name in names
        else:
            found = any(f"def {name}(" in text for text in files.values())
        if not found:
            missing.append(name)
    for group in _PROBES.findall(cell):
        missing += [name for name in re.findall(r'"([^"]+)"', group) if f'"{name}"' not in files["tests/node/probe.py"]]
    return missing


@pytest.mark.parametrize("page", PAGES)
def test_every_row_names_tests_that_exist(page: str) -> None:
    files = {str(path.relative_to(ROOT)): path.read_text() for path in (ROOT / "tests").rglob("*.py")}
    rows = _rows(page)
    assert len(rows) >= 15
    for row in rows:
        assert all(cell not in ("", "–", "-") for cell in row), f"a cell is empty: {row}"
        assert _QUOTED.search(row[-1]) or _PROBES.search(row[-1]), f"no test: {row[0]}"
        assert not _missing(row[-1], files), (row[0], _missing(row[-1], files))


def test_each_finding_has_a_row() -> None:
    rows = _rows(PAGES[1])
    assert {len(row) for row in rows} == {6}
    assert {int(row[0].split()[0]) for row in rows} == set(range(1, FINDINGS + 1))
