"""The lists that divide the tests into tiers and order them name folders, files and tests that exist."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.support import sharing, tiers

TESTS = Path(__file__).resolve().parents[1]
ENTRIES = sorted({*tiers.SLOW, *tiers.QUICK, *tiers.SOAK, *sharing.LONG, *sharing.TOGETHER})


@pytest.mark.parametrize("entry", ENTRIES)
def test_every_entry_of_the_lists_names_something_that_exists(entry: str) -> None:
    path, _, name = entry.partition("::")
    if path.endswith("/"):
        assert (TESTS / path).is_dir()
        return
    tree = ast.parse((TESTS / f"{path}.py").read_text())
    tests = {
        node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    }
    assert tests
    assert not name or name in tests


@pytest.mark.parametrize("file", tiers.QUICK)
def test_the_quick_files_of_slow_folders_are_quick(file: str) -> None:
    assert tiers._marker(file) is None
    assert tiers._marker(file, "test_any") is None
    assert tiers._marker(f"{file}_other", "test_any") == "slow"
