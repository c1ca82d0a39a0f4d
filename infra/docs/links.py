"""Finding dead links in a site: files and anchors that do not exist. Links to other sites are not followed."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect what the tag links to and what can be linked to."""
        for name, value in attrs:
            if value and name in ("href", "src") and tag != "base":
                self.links.append(value)
            elif value and name in ("id", "name"):
                self.anchors.add(value)


def dead_links(site: Path) -> list[tuple[str, str]]:
    """(page, link) for every link of a page of the directory *site* to a file or anchor that does not exist."""
    pages: dict[Path, _Page] = {}
    for path in sorted(site.rglob("*.html")):
        page = pages[path.resolve()] = _Page()
        page.feed(path.read_text("utf-8"))
    dead: list[tuple[str, str]] = []
    root = site.resolve()
    for path, page in pages.items():
        if path.name == "404.html":
            continue  # its links are relative to the root of the server
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if target.is_dir():
                target /= "index.html"
            anchor = unquote(parts.fragment)
            missing = not target.is_file() or not target.is_relative_to(root)
            if missing or (anchor and target in pages and anchor not in pages[target].anchors and not anchor.startswith("__")):
                dead.append((path.relative_to(root).as_posix(), link))
    return dead
