"""The list of sandboxes with none and with a thousand: only rows in sight are drawn, and filter, sort, selection and keys stay fast."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable

from holdfast import SandboxClient
from playwright.sync_api import Page, Route, expect

from tests.page.conftest import picture
from tests.page.test_views import check_accessible, rows

OpenPage = Callable[..., Page]
MANY = 1000
MOST_ROWS = 80
"""Rows of 30 px in a window of 900 px, and some more on both sides."""
MOST_MS = 2000
"""For one drawing of the page, on a machine that does other work. A list that drew each row takes longer, and fails the count too."""


def test_an_empty_list_says_what_would_be_here(open_page: OpenPage, client: SandboxClient) -> None:
    assert not list(client.list_sandboxes())
    page = open_page("sandboxes")
    main = page.locator("main")
    expect(main).to_contain_text("Sandboxes appear here when a client creates them")
    expect(main).to_contain_text("holdfast run -d --name web host python3 -m http.server")
    expect(main.locator(".v-row")).to_have_count(0)
    picture(page, "sandboxes-empty")
    check_accessible(page)


def multiplied(route: Route) -> None:
    """What the service answers, with the first of its records many times under other names."""
    answer = route.fetch()
    body = answer.json()
    (first,) = [one for one in body["sandboxes"] if one["sandbox_id"] == "real"]
    images = ("host", "python:3.12-slim", "registry.lab.example/swe/django:4.2")
    for number in range(MANY - 1):
        one = copy.deepcopy(first)
        one |= {"sandbox_id": f"copy-{number:04}", "image": images[number % 3], "group": f"group-{number % 7}"}
        one["created_at"] -= number
        body["sandboxes"].append(one)
    route.fulfill(response=answer, body=json.dumps(body))


def drawn_within(page: Page, act: Callable[[], None], seen: Callable[[], None]) -> float:
    began = time.perf_counter()
    act()
    seen()
    return (time.perf_counter() - began) * 1000


def test_a_thousand_sandboxes(open_page: OpenPage, client: SandboxClient) -> None:
    with client.create_sandbox("host", sandbox_id="real"):
        page = open_page("doctor")
        page.route("**/ui/api/sandboxes?limit=*", multiplied)
        page.goto(page.url.split("#")[0] + "#/sandboxes")
        page.reload()
        expect(page.locator(".head .note")).to_have_text("1,000 sandboxes")
        assert rows(page) < MOST_ROWS
        port = page.locator(".v-port")

        def end() -> None:
            port.evaluate("node => { node.scrollTop = node.scrollHeight; }")

        took = drawn_within(page, end, lambda: expect(page.get_by_role("link", name="copy-0998", exact=True)).to_be_visible())
        assert took < MOST_MS
        assert rows(page) < MOST_ROWS
        field = page.get_by_label("Filter sandboxes")
        took = drawn_within(
            page, lambda: field.fill("group:group-3 "), lambda: expect(page.locator(".head .note")).to_contain_text("of 1,000")
        )
        assert took < MOST_MS
        page.get_by_role("button", name="Remove group:group-3").click()
        field.fill("owner:dev ")
        expect(page.locator(".head .note")).to_have_text("1,000 sandboxes")
        page.get_by_role("button", name="Remove owner:dev").click()
        page.get_by_role("button", name="Image").click()
        expect(page.locator(".v-row").nth(1)).to_contain_text("host")
        page.get_by_label("Select all that match").check()
        expect(page.get_by_text("1000 selected").or_(page.get_by_text("1,000 selected"))).to_be_visible()
        picture(page, "sandboxes-1000")
        check_accessible(page)
        page.keyboard.press("Escape")
        page.get_by_role("button", name="Clear").click()
        # Keys: one tab stop, and the row with the focus is in sight wherever it is.
        port.evaluate("node => { node.scrollTop = 0; }")
        page.locator(".v-row[data-i='0']").focus()
        took = drawn_within(
            page, lambda: page.keyboard.press("End"), lambda: expect(page.locator(".v-row:focus")).to_have_attribute("data-i", "999")
        )
        assert took < MOST_MS
        assert rows(page) < MOST_ROWS
        assert page.locator(".v-row[tabindex='0']").count() == 1
        # What is new does not move the rows under the focus: it waits behind a button.
        with client.create_sandbox("host", sandbox_id="late"):
            expect(page.get_by_role("button", name="Show 1 new")).to_be_visible()
            expect(page.locator(".v-row:focus")).to_have_attribute("data-i", "999")
            page.unroute("**/ui/api/sandboxes?limit=*")
