"""What the pages name exists: files and headings behind links, targets of make, and the number of compared commands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docker.cases import load_cases

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("gateway", "infra", "loadtest", "schemas", "sdk_py", "session_agent", "tests")
PAGES = sorted(
    [*ROOT.glob("*.md"), *(page for folder in FOLDERS for page in (ROOT / folder).rglob("*.md") if "node_modules" not in page.parts)]
)


def headings(page: Path) -> set[str]:
    """The anchors that GitHub generates for the headings of a page."""
    found = re.findall(r"^#+ +(.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in found}


def links_of(page: Path) -> list[str]:
    """The links of a page to other pages and headings of this repository."""
    return re.findall(r"\]\((?!https?:)([^)\s]+)\)", page.read_text())


def test_links_are_found() -> None:
    assert "tests/bench/README.md" in links_of(ROOT / "README.md")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_targets_of_links_exist(page: Path) -> None:
    for link in links_of(page):
        name, _, heading = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), link
        assert not heading or heading in headings(target), link


def test_every_target_of_make_that_a_page_names_exists() -> None:
    targets = set(re.findall(r"^([a-z][a-z0-9-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {page: set(re.findall(r"(?:`|^)make ([a-z][a-z0-9-]*)", page.read_text(), re.MULTILINE)) for page in PAGES}
    assert {page: unknown for page, words in named.items() if (unknown := words - targets)} == {}
    assert len(set().union(*named.values())) > 10


def test_the_guide_states_the_number_of_compared_commands() -> None:
    assert f"runs {len(load_cases())} everyday commands" in (ROOT / "sdk_py" / "README.md").read_text()
