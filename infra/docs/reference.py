"""The generated pages: the help of every command, and every setting with its meaning."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from holdfast.cli.commands import all_commands, help_text

ROOT = Path(__file__).resolve().parents[2]
_ROW = re.compile(r"^\| (`HOLDFAST_.*?) \|$", re.MULTILINE)
_SETTINGS = ("infra/README.md", "sdk_py/README.md")


def command_line_page() -> str:
    """``holdfast --help`` and the ``--help`` of each command."""
    parts = ["# Command line\n\nGenerated from the program.\n", f"```text\n{help_text().rstrip()}\n```\n"]
    parts += [f"## holdfast {one.name}\n\n```text\n{one.help_text().rstrip()}\n```\n" for one in all_commands()]
    return "\n".join(parts)


def settings_page(rewritten: Callable[[str, str], str], name_of: Callable[[str], str]) -> str:
    """Every environment variable with a row in the pages, by name.

    *rewritten* returns a text of a page with the links of the site, *name_of* the name of a page on the site.
    """
    rows: dict[str, str] = {}
    for page in _SETTINGS:
        for found in _ROW.finditer((ROOT / page).read_text("utf-8")):
            row = re.sub(r"\]\(#", f"]({name_of(page)}#", rewritten(found[1], page))
            rows.setdefault(row.split(" | ")[0], row)
    head = "# Settings\n\nEnvironment variables, collected from the pages that explain them; the default is given with the meaning.\n"
    table = "\n".join(f"| {_two(row)} |" for _, row in sorted(rows.items()))
    return f"{head}\n| Variable | Meaning |\n|---|---|\n{table}\n"


def _two(row: str) -> str:
    """The cells of a row as two: the name, and the rest."""
    name, *rest = row.split(" | ")
    return f"{name} | {' · '.join(cell.strip() for cell in rest)}"
