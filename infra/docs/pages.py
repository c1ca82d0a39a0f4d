"""The pages of the site: where each comes from, their order, and the links between them.

A page exists once: in this folder, or beside the code that it is about. A link to a file that is no page of the site becomes its name.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from .reference import command_line_page, settings_page

ROOT = Path(__file__).resolve().parents[2]
HERE = "infra/docs"


def _integrations() -> dict[str, str]:
    """Title → name of the page of each integration."""
    pages = sorted(path for path in (ROOT / "infra/integrations").glob("*.md") if path.name != "README.md")
    return {path.read_text("utf-8").partition("\n")[0].removeprefix("# ").replace('"', "'"): path.name for path in pages}


NAVIGATION = {
    "Start": {"Start here": "index.md", "Sessions explained": "sessions.md", "Examples": "examples.md"},
    "Use": {
        "SDK guide": "guide.md",
        "Images": "images.md",
        "Command line": "command-line.md",
        "What your agents do": "see-what-your-agents-do.md",
    },
    "Integrations": {"Overview": "integrations.md", "E2B": "e2b.md", **_integrations()},
    "Operate": {"Deploying and operating": "operating.md", "Settings": "settings.md", "Security": "security.md"},
    "Reference": {
        "Protocol": "protocol.md",
        "Channels": "channels.md",
        "Recipes": "recipes.md",
        "Measurements": "measurements.md",
        "Comparison with peers": "comparison.md",
        "Decisions": "decisions/README.md",
        "Changes": "changes.md",
    },
}
"""Section → title → name of the page."""
SHOWN = {
    "guide.md": "sdk_py/README.md",
    "integrations.md": "infra/integrations/README.md",
    "e2b.md": "infra/e2b.md",
    **{name: f"infra/integrations/{name}" for name in _integrations().values()},
    "operating.md": "infra/README.md",
    "security.md": "SECURITY.md",
    "protocol.md": "schemas/PROTOCOL.md",
    "channels.md": "schemas/CHANNELS.md",
    "recipes.md": "infra/recipes/README.md",
    "measurements.md": "tests/bench/README.md",
    "changes.md": "CHANGELOG.md",
}
"""Pages of the repository that the site shows under these names."""
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(((?!https?:|mailto:|#)[^)\s]+)\)")


def write_pages(folder: Path) -> int:
    """Write every page below the new directory *folder*; returns how many."""
    folder.mkdir(parents=True)
    own = {name: f"{HERE}/{name}" for pages in NAVIGATION.values() for name in pages.values() if (ROOT / HERE / name).is_file()}
    decisions = {f"decisions/{path.name}": f"infra/decisions/{path.name}" for path in (ROOT / "infra/decisions").glob("*.md")}
    sources = {**SHOWN, **own, **decisions}
    (folder / "decisions").mkdir()
    for name, source in sources.items():
        (folder / name).write_text(with_links((ROOT / source).read_text("utf-8"), source, sources), "utf-8")
    names = {path: name for name, path in sources.items()}
    settings = settings_page(lambda text, page: with_links(text, page, sources), names.__getitem__)
    for name, text in (("command-line.md", command_line_page()), ("settings.md", settings)):
        (folder / name).write_text(text, "utf-8")
    if (ROOT / HERE / "pictures").is_dir():
        shutil.copytree(ROOT / HERE / "pictures", folder / "pictures")
    return len([*folder.rglob("*.md")])


def with_links(text: str, source: str, sources: dict[str, str]) -> str:
    """The text of *source* with its links as they are on the site."""
    own = next(name for name, path in sources.items() if path == source)
    names = {path: name for name, path in sources.items()}

    def changed(match: re.Match[str]) -> str:
        target, _, heading = match[3].partition("#")
        path = os.path.normpath(os.path.join(os.path.dirname(source), target))
        if path.startswith(f"{HERE}/pictures/"):
            new = path.removeprefix(f"{HERE}/")
        elif path in names:
            new = os.path.relpath(names[path], os.path.dirname(own) or ".") + (f"#{heading}" if heading else "")
        else:
            return match[2] if path in match[2] else f"{match[2]} (`{path}`)"
        return f"{match[1]}[{match[2]}]({new})"

    return _LINK.sub(changed, text)
