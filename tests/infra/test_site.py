"""The documentation: every program of the site's own pages runs, generated pages are complete, and the checker finds dead links."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from holdfast.cli.commands import all_commands

from infra.docs.links import dead_links
from infra.docs.pages import NAVIGATION, ROOT, SHOWN, write_pages
from tests.support.fake_openai import call, fake_model, say
from tests.support.requires import requires
from tests.support.stack import Stack

HERE = ROOT / "infra" / "docs"
OWN = sorted(path.name for path in HERE.glob("*.md"))
NEEDS_ROOT = {"images.md"}
EXPECTED = {
    ("index.md", 0): ["42", "agent in /tmp"],
    ("sessions.md", 0): ["begun", "done"],
    ("images.md", 0): ["from the image"],
    ("examples.md", 0): ["There are 3."],
    ("examples.md", 1): ["mean 0.50, 0 masked"],
    ("examples.md", 2): ["passed"],
    ("examples.md", 3): ["21", "ZeroDivisionError division by zero", "40"],
}
"""What each block of Python prints, without empty lines."""


def blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (HERE / page).read_text(), re.DOTALL)


def test_every_block_is_run() -> None:
    assert {(page, number) for page in OWN for number in range(len(blocks(page)))} == set(EXPECTED)


@pytest.mark.parametrize(("page", "number"), [key for key in EXPECTED if key[0] not in NEEDS_ROOT])
def test_runs(stack: Stack, tmp_path: Path, page: str, number: int) -> None:
    run(stack, tmp_path, page, number)


@requires("namespaces", "root")
def test_runs_what_needs_root(stack: Stack, tmp_path: Path) -> None:
    run(stack, tmp_path, "images.md", 0)


def run(stack: Stack, folder: Path, page: str, number: int) -> None:
    (folder / "example.py").write_text(textwrap.dedent(blocks(page)[number]))
    with fake_model([call("ls /etc/apt | wc -l"), say("There are 3.")]) as model:
        environment = stack.environment() | {"OPENAI_BASE_URL": model.url}
        done = subprocess.run(
            [sys.executable, "example.py"], cwd=folder, env=environment, capture_output=True, text=True, timeout=150, check=False
        )
    assert done.returncode == 0, done.stderr[-3000:]
    assert [line for line in done.stdout.splitlines() if line] == EXPECTED[page, number]


def test_pages_are_complete(tmp_path: Path) -> None:
    """Every page of the navigation is written, with every command and every setting."""
    write_pages(tmp_path / "pages")
    for pages in NAVIGATION.values():
        for name in pages.values():
            assert (tmp_path / "pages" / name).stat().st_size > 100, name
    commands = (tmp_path / "pages" / "command-line.md").read_text()
    assert [one.name for one in all_commands() if f"## holdfast {one.name}\n" not in commands] == []
    settings = set(re.findall(r"`(HOLDFAST_[A-Z0-9_]+)", (tmp_path / "pages" / "settings.md").read_text()))
    rows = re.findall(r"^\| `(HOLDFAST_[A-Z0-9_]+)", (ROOT / SHOWN["operating.md"]).read_text(), re.MULTILINE)
    assert len(rows) > 50
    assert set(rows) <= settings
    shown = {path.name for path in (ROOT / "infra" / "integrations").glob("*.md")} - {"README.md"}
    assert shown <= {*NAVIGATION["Integrations"].values()}, "every integration has a place in the navigation"


def test_dead_links_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text('<p id="here"><a href="b.html#x"></a><a href="#here"></a><a href="#no"></a><img src="c.png">')
    (tmp_path / "b.html").write_text('<p id="x"><a href="https://example.com/none"></a><a href="../outside"></a>')
    assert dead_links(tmp_path) == [("a.html", "#no"), ("a.html", "c.png"), ("b.html", "../outside")]
