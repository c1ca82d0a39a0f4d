"""axe-core finds nothing serious in any view, in both themes, and every view is usable at 390 px."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from holdfast import SandboxClient
from playwright.sync_api import Page, expect

from tests.page.conftest import picture
from tests.page.test_views import check_accessible, episode

OpenPage = Callable[..., Page]
THEMES = ["light", pytest.param("dark", marks=pytest.mark.soak)]
"""The second with `make test-page ARGS=--all`."""
TABS = ("timeline", "terminal", "files", "ports", "network", "recording", "details")


@pytest.mark.parametrize("theme", THEMES)
def test_every_tab_of_a_sandbox(open_page: OpenPage, client: SandboxClient, theme: str) -> None:
    with episode(client, f"tabs-{theme}") as sandbox:
        sandbox.start("exec python3 -m http.server 8000 --bind 127.0.0.1")
        page = open_page(f"sandboxes/tabs-{theme}", color_scheme=theme)
        small = open_page(f"sandboxes/tabs-{theme}", color_scheme=theme, width=390, height=844)
        for tab in TABS:
            for one, width in ((page, "wide"), (small, "phone")):
                one.goto(f"{one.url.split('#')[0]}#/sandboxes/tabs-{theme}/{tab}")
                expect(one.locator(".tabs [aria-current]")).to_contain_text(tab, ignore_case=True)
                expect(one.locator(".skeleton")).to_have_count(0)
                if tab == "terminal":
                    expect(one.get_by_text("Connected", exact=True)).to_be_visible()
                if tab == "ports":
                    expect(one.get_by_role("cell", name="8000", exact=True)).to_be_visible()
                    expect(one.locator(".tabs [aria-current]")).to_have_text("Ports1")
                picture(one, f"tab-{tab}-{theme}-{width}")
                check_accessible(one)
                wide = one.evaluate("document.documentElement.scrollWidth")
                assert wide <= (1440 if width == "wide" else 390), f"{tab} is {wide} px wide"


VIEWS = {
    "overview": "Capacity",
    "sandboxes": "Sandboxes appear here",
    "recordings": "No recordings yet",
    "groups": "No groups yet",
    "images": "always there",
    "keys": "this session",
    "keys/projects": "No projects yet",
    "keys/limits": "No limits yet",
    "doctor": "In order",
    "groups/none": "There is no such group",
    "sandboxes/none": "There is no such sandbox",
    "recordings/none.0123456789abcdef": "This recording is gone",
}
"""What each view says when it has been read."""


def visit(page: Page, view: str) -> None:
    page.goto(f"{page.url.split('#')[0]}#/{view}")
    expect(page.locator("main")).to_contain_text(VIEWS[view], ignore_case=True)
    expect(page.get_by_role("heading", level=1)).to_have_count(1)
    expect(page.locator(".skeleton")).to_have_count(0)


@pytest.mark.parametrize("theme", THEMES)
def test_every_view_without_anything(open_page: OpenPage, client: SandboxClient, theme: str) -> None:
    with client.create_sandbox("host", sandbox_id="for-an-hour"):
        pass  # else the overview is the first visit's
    for width in (1440, 390):
        page = open_page("overview", color_scheme=theme, width=width)
        for view in VIEWS:
            if view == "sandboxes":
                continue
            visit(page, view)
            picture(page, f"view-{view.replace('/', '-').split('.')[0]}-{theme}-{width}")
            check_accessible(page)
            assert page.evaluate("document.documentElement.scrollWidth") <= width, view
        page.context.close()
