"""Groups in the page: the table, one group with its lease and its results by label, and ending it."""

from __future__ import annotations

from collections.abc import Callable

from holdfast import SandboxClient
from playwright.sync_api import Page, Route, expect

from tests.page.conftest import picture
from tests.page.test_views import check_accessible
from tests.support.until import until

OpenPage = Callable[..., Page]


def test_groups_and_the_results_of_a_run(open_page: OpenPage, client: SandboxClient) -> None:
    page = open_page("groups")
    expect(page.get_by_text("No groups yet")).to_be_visible()
    with client.group("grpo-0412", ttl_s=600) as group:
        for number in range(4):
            client.create_sandbox(
                "host", sandbox_id=f"run-{number}", group=group, labels={"task": f"django-{number // 2}", "attempt": str(number)}
            )
        expect(page.locator("tbody tr")).to_contain_text("grpo-0412")
        expect(page.locator("tbody tr .num").first).to_have_text("4")
        picture(page, "groups")
        check_accessible(page)
        page.get_by_role("link", name="grpo-0412").click()
        expect(page.get_by_text("renewed by its client")).to_be_visible()
        page.get_by_role("button", name="task").click()
        expect(page.locator("tbody tr")).to_have_count(2)
        client.get_sandbox("run-1").delete()
        row = page.locator("tbody tr", has_text="django-0")
        expect(row.locator(".num").nth(4)).to_have_text("1")
        picture(page, "group")
        check_accessible(page)
        page.get_by_role("button", name="End the group").click()
        page.get_by_role("button", name="Delete 3 sandboxes").click()
        expect(page.locator("header.head")).to_contain_text("deleted")
        until(lambda: not list(client.list_sandboxes()), deadline_s=60, what="the sandboxes of the group to be deleted")
        expect(page.get_by_role("button", name="End the group")).to_have_count(0)


def test_a_sandbox_that_ends_while_the_list_is_read_keeps_its_labels(open_page: OpenPage, client: SandboxClient) -> None:
    """The list has it no more when its end arrives, and the event of an end tells neither labels nor group."""
    with client.group("grpo-0413", ttl_s=600) as group:
        client.create_sandbox("host", sandbox_id="early", group=group, labels={"task": "flask-1"})
        page = open_page("groups/grpo-0413")
        numbers = page.locator("tbody tr", has_text="flask-1").locator(".num")
        expect(numbers.nth(1)).to_have_text("1")

        def end_first(route: Route) -> None:
            client.get_sandbox("early").delete()
            route.continue_()

        page.route("**/sandboxes?limit=*", end_first, times=1)
        client.create_sandbox("host", sandbox_id="late", group=group, labels={"task": "flask-1"})
        expect(numbers.nth(4)).to_have_text("1")
        expect(numbers.first).to_have_text("2")
