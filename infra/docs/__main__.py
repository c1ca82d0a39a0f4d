"""Build the site: ``python -m infra.docs [--pages-only] OUTPUT``.

Copies the pages that the site shows into OUTPUT/pages, with links between them rewritten, writes the pages that are generated (the command
line and the settings), lets Zensical make HTML in OUTPUT/site, and checks every link of the HTML. Exit status 1 with the dead links.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

from .links import dead_links
from .pages import NAVIGATION, write_pages

CONFIG = """\
[project]
site_name = "Holdfast"
site_description = "Sandboxes for language-model agents"
docs_dir = "pages"
site_dir = "site"
use_directory_urls = false
nav = {nav}

[project.theme]
variant = "modern"
font = false
features = ["content.code.copy", "navigation.sections", "navigation.top", "search.highlight"]
"""
"""``font = false``: the site loads nothing from elsewhere."""


def main() -> int:
    """Build what the command line names."""
    parser = argparse.ArgumentParser(prog="python -m infra.docs", description=__doc__)
    parser.add_argument("output", type=Path)
    parser.add_argument("--pages-only", action="store_true", help="write the pages in Markdown, without the site")
    parser.add_argument("--zensical", default="zensical", help="the program")
    arguments = parser.parse_args()
    output: Path = arguments.output
    shutil.rmtree(output, ignore_errors=True)
    count = write_pages(output / "pages")
    if arguments.pages_only:
        print(f"docs: {count} pages in {output / 'pages'}")
        return 0
    (output / "zensical.toml").write_text(CONFIG.format(nav=_nav()), "utf-8")
    run = subprocess.run([arguments.zensical, "build", "--clean"], cwd=output, check=False, capture_output=True, text=True)
    if run.returncode:
        sys.stderr.write(run.stdout + run.stderr)
        return 1
    dead = dead_links(output / "site")
    for page, link in dead:
        sys.stderr.write(f"docs: {page}: dead link {link}\n")
    print(f"docs: {count} pages in {output / 'site'}")
    return 1 if dead else 0


def _nav() -> str:
    """The navigation in TOML."""
    sections = []
    for section, pages in NAVIGATION.items():
        entries = ", ".join(f'{{ "{title}" = "{name}" }}' for title, name in pages.items())
        sections.append(f'  {{ "{section}" = [{entries}] }}')
    return "[\n" + ",\n".join(sections) + "\n]"


if __name__ == "__main__":
    sys.exit(main())
