"""A browser on the page: Debian's headless Chromium, driven by Playwright, on a stack of its own.

Owns the browser, signing in, pictures (``build/page/*.png``) and the check that the page never logs an error or breaks its policy.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from holdfast import SandboxClient
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, expect, sync_playwright

from tests.support.requires import missing, unmet
from tests.support.stack import Stack, running_stack

TOP = Path(__file__).resolve().parents[2]
PICTURES = TOP / "build" / "page"
DOCUMENTATION = TOP / "infra" / "docs" / "pictures"
DOCUMENTED = frozenset({"overview", "timeline", "replay", "group", "terminal-vim", "keys"})
"""The pictures of the documentation. They are smaller."""
MOST_PICTURE_BYTES = 100_000
_places = [PICTURES]
DEADLINE_MS = 60_000
EXPECTED = ("the server responded with a status of", "net::ERR_", "WebSocket connection to", "status of 401")
"""Of messages in the console: the browser logs each refused request and lost connection by itself."""

expect.set_options(timeout=DEADLINE_MS)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="tests/page: also the tests of minutes")
    parser.addoption("--pictures", action="store_true", help="tests/page: write the pictures of the documentation anew")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--pictures"):
        DOCUMENTATION.mkdir(parents=True, exist_ok=True)
        _places.append(DOCUMENTATION)
    if config.getoption("--all"):
        config.option.markexpr = "soak or not soak"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Playwright runs an event loop in this thread, whose blocking by the SDK is no fault of these tests."""
    here = f"{Path(__file__).parent}{os.sep}"
    for item in items:
        if str(item.path).startswith(here):
            item.add_marker(pytest.mark.filterwarnings("ignore:SandboxClient blocks the event loop:RuntimeWarning"))


@pytest.fixture(scope="module")
def page_stack() -> Iterator[Stack]:
    """A stack for the tests of the page alone: they count sandboxes, and kill its gateway."""
    for need in ("namespaces", "redis", "chromium"):
        if (reason := missing(need)) is not None:
            unmet(need, reason)
    with running_stack({"HOLDFAST_PREVIEW_DOMAIN": "preview.localhost"}) as stack:
        yield stack


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    path = shutil.which("chromium")
    if path is None:
        unmet("chromium", "not installed: apt-get install chromium")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"])
        yield browser
        browser.close()


@pytest.fixture
def client(page_stack: Stack) -> Iterator[SandboxClient]:
    """An SDK client; at its end none of the owner's sandboxes is left."""
    with SandboxClient(page_stack.url, page_stack.key) as client:
        yield client
        for one in client.list_sandboxes():
            client.get_sandbox(one.sandbox_id).delete()


@pytest.fixture
def browse(chromium: Browser) -> Iterator[Callable[..., Page]]:
    """Opens the page of the service at ``url`` in a fresh profile, signed in unless ``key`` is ""; options: of a browser context."""
    contexts: list[BrowserContext] = []
    wrong: list[str] = []

    def note(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and not any(text in message.text for text in EXPECTED):
            wrong.append(message.text)

    def open_(url: str, key: str, place: str = "", *, width: int = 1440, height: int = 900, **options: object) -> Page:
        context = chromium.new_context(viewport={"width": width, "height": height}, **options)  # type: ignore[arg-type]
        contexts.append(context)
        context.set_default_timeout(DEADLINE_MS)
        page = context.new_page()
        page.on("console", note)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.goto(f"{url}/ui")
        if key:
            page.get_by_label("API key").fill(key)
            page.get_by_role("button", name="Sign in").click()
            expect(page.get_by_role("button", name="Sign out")).to_be_visible()
            if place:
                page.goto(f"{url}/ui#/{place}")
        return page

    yield open_
    for context in contexts:
        context.close()
    assert not wrong, wrong


@pytest.fixture
def open_page(browse: Callable[..., Page], page_stack: Stack) -> Callable[..., Page]:
    """``browse`` on the stack of these tests, with its key."""

    def open_(place: str = "", *, key: str | None = None, **options: object) -> Page:
        return browse(page_stack.url, page_stack.key if key is None else key, place, **options)

    return open_


def picture(page: Page, name: str) -> None:
    """Write what the page shows to ``build/page/NAME.png``; with ``--pictures`` also those of the documentation."""
    for place in _places:
        place.mkdir(parents=True, exist_ok=True)
        if place == PICTURES:
            page.screenshot(path=place / f"{name}.png")
        elif name in DOCUMENTED:
            size = page.viewport_size
            assert size is not None
            page.set_viewport_size({"width": 1120, "height": 700})
            data = page.screenshot(path=place / f"{name}.png")
            assert len(data) < MOST_PICTURE_BYTES, f"{name} has {len(data)} bytes"
            page.set_viewport_size(size)
