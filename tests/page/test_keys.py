"""Keys, projects and limits in the page: an administrator makes, rotates, changes and ends them; others see what holds for them."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator

import pytest
from holdfast import HoldfastError, SandboxClient
from playwright.sync_api import Page, expect

from tests.page.conftest import picture
from tests.page.test_views import check_accessible
from tests.support.stack import Stack

OpenPage = Callable[..., Page]


@contextlib.contextmanager
def with_key(stack: Stack, key: str) -> Iterator[SandboxClient]:
    with SandboxClient(stack.url, key) as client:
        yield client


def is_valid(stack: Stack, key: str) -> bool:
    with with_key(stack, key) as client:
        try:
            list(client.list_sandboxes())
        except HoldfastError:
            return False
    return True


def text_of_new_key(page: Page, title: str) -> str:
    """The key that a dialog shows once; closes the dialog."""
    dialog = page.get_by_role("dialog", name=title)
    key = dialog.locator(".cmd code").inner_text()
    dialog.get_by_role("button", name="Close").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    return key


def test_a_key_is_made_rotated_and_revoked(open_page: OpenPage, page_stack: Stack) -> None:
    page = open_page("keys")
    expect(page.locator("tbody tr", has_text="this session")).to_contain_text("edit the keys file")
    page.get_by_role("button", name="New key").click()
    form = page.get_by_role("dialog")
    form.get_by_role("textbox", name="Name").fill("grpo trainer")
    form.get_by_role("textbox", name="Owner").fill("ana")
    form.get_by_role("checkbox", name="files").uncheck()
    form.get_by_role("combobox", name="Expires").select_option(label="in 1 day")
    expect(form).to_contain_text("holdfast key create --owner ana --scopes read,create,exec --expires 86400 --note 'grpo trainer'")
    picture(page, "keys-new")
    check_accessible(page)
    form.get_by_role("button", name="Create key").click()
    first = text_of_new_key(page, "Key created")
    assert is_valid(page_stack, first)
    row = page.locator("tbody tr", has_text="grpo trainer")
    expect(row).to_contain_text("in 23 h")
    assert first not in page.content(), "a key is shown once"
    picture(page, "keys")
    check_accessible(page)

    row.get_by_role("button", name="Rotate").click()
    page.get_by_role("combobox", name="The old key ends").select_option(label="at once")
    page.get_by_role("button", name="Rotate key").click()
    second = text_of_new_key(page, "The new key")
    assert (is_valid(page_stack, first), is_valid(page_stack, second)) == (False, True)
    expect(row).to_have_count(2)
    expect(row.last).to_contain_text("expired")
    row.first.get_by_role("button", name="Revoke").click()
    expect(page.get_by_role("dialog")).to_contain_text("refused at once")
    page.get_by_role("button", name="Revoke key").click()
    expect(page.get_by_text("The key is revoked")).to_be_visible()
    assert not is_valid(page_stack, second)
    page.get_by_label("Find a key").fill("trainer")
    expect(page.locator(".table-box tbody tr")).to_have_count(2)
    page.get_by_label("Find a key").fill("nobody")
    expect(page.get_by_text("No key matches.")).to_be_visible()


@pytest.mark.soak
def test_a_form_says_what_is_wrong_and_stays(open_page: OpenPage) -> None:
    page = open_page("keys")
    page.get_by_role("button", name="New key").click()
    form = page.get_by_role("dialog")
    form.get_by_role("textbox", name="Owner").fill("<img src=x>")
    form.get_by_role("button", name="Create key").click()
    expect(form.get_by_role("alert")).to_contain_text("cannot be an owner")
    for scope in ("read", "create", "exec", "files"):
        form.get_by_role("checkbox", name=re.compile(f"^{scope}")).uncheck()
    form.get_by_role("button", name="Create key").click()
    expect(form.get_by_role("alert")).to_have_text("Choose at least one scope.")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.get_by_role("button", name="New key")).to_be_focused()


@pytest.mark.soak
def test_a_session_ends_with_the_key_that_it_came_from(open_page: OpenPage, page_stack: Stack, client: SandboxClient) -> None:
    made = client.keys.create("page-operator", scopes=["read", "admin"], note="mine")
    page = open_page("keys", key=made.key)
    page.locator("tbody tr", has_text="this session").get_by_role("button", name="Revoke").click()
    expect(page.get_by_role("dialog")).to_contain_text("this page is signed out")
    page.get_by_role("button", name="Revoke key").click()
    expect(page.get_by_label("API key")).to_be_visible()


def test_projects_and_their_members(open_page: OpenPage, client: SandboxClient) -> None:
    page = open_page("keys/projects")
    expect(page.get_by_text("No projects yet")).to_be_visible()
    page.get_by_role("button", name="New project").click()
    page.get_by_role("textbox", name="Name").fill("swe")
    page.get_by_role("textbox", name="Members", exact=True).fill("ana, bo")
    page.get_by_role("button", name="Create project").click()
    row = page.locator("tbody tr", has_text="swe")
    expect(row).to_contain_text("nothing of each other")
    row.get_by_role("button", name="Change").click()
    page.get_by_role("checkbox", name="bo", exact=True).uncheck()
    page.get_by_role("textbox", name="Add members").fill("ci")
    page.get_by_role("combobox", name="Members may").select_option("read")
    picture(page, "project")
    check_accessible(page)
    page.get_by_role("button", name="Save").click()
    expect(row).to_contain_text("see each other's sandboxes")
    (project,) = client.projects.list()
    assert (list(project.members), project.sharing) == (["ana", "ci"], "read")
    picture(page, "projects")
    check_accessible(page)
    row.get_by_role("button", name="Delete").click()
    page.get_by_role("button", name="Delete project").click()
    expect(page.get_by_text("No projects yet")).to_be_visible()
    assert not list(client.projects.list())


def test_limits_are_set_seen_and_removed(open_page: OpenPage, page_stack: Stack, client: SandboxClient) -> None:
    made = client.keys.create("lim", scopes=["read", "create", "exec", "files"])
    page = open_page("keys/limits")
    expect(page.get_by_text("No limits yet")).to_be_visible()
    page.get_by_role("button", name="New limits").click()
    form = page.get_by_role("dialog")
    form.get_by_role("textbox", name="Whose").fill("owner:lim")
    form.get_by_role("textbox", name="Sandboxes").fill("2")
    form.get_by_role("textbox", name="Memory").fill("many")
    form.get_by_role("button", name="Set limits").click()
    expect(form.get_by_role("alert")).to_have_text("Memory is not a number.")
    form.get_by_role("textbox", name="Memory").fill("1g")
    form.get_by_role("textbox", name="Requests a minute").fill("6000")
    expect(form).to_contain_text("holdfast limits owner:lim --set sandboxes=2 --set memory_bytes=1073741824 --set requests_per_minute=6000")
    picture(page, "limits-new")
    check_accessible(page)
    form.get_by_role("button", name="Set limits").click()
    row = page.locator("tbody tr", has_text="owner:lim")
    expect(row).to_contain_text("1.0 GiB")
    check_accessible(page)
    with with_key(page_stack, made.key) as other, other.create_sandbox("host", sandbox_id="one", memory="256m"):
        theirs = open_page("overview", key=made.key)
        panel = theirs.locator(".panel", has=theirs.get_by_role("heading", name="Your limits"))
        expect(panel.locator(".meter", has_text="Sandboxes")).to_contain_text("1 of 2")
        expect(panel.locator(".meter", has_text="Memory")).to_contain_text("256 MiB of 1.0 GiB")
        picture(theirs, "overview-limits")
        check_accessible(theirs)
        theirs.goto(theirs.url.split("#")[0] + "#/keys")
        expect(theirs.get_by_text("You may not see keys")).to_be_visible()
        expect(theirs.get_by_text("Requests a minute")).to_be_visible()
        expect(theirs.get_by_role("button", name="New key")).to_have_count(0)
        picture(theirs, "keys-without-admin")
        check_accessible(theirs)
    row.get_by_role("button", name="Remove").click()
    page.get_by_role("button", name="Remove limits").click()
    expect(page.get_by_text("No limits yet")).to_be_visible()
    client.keys.revoke(made.info.key_id)


@pytest.mark.soak
@pytest.mark.parametrize("tab", ["keys/projects", "keys/limits"])
def test_without_the_scope_the_tabs_are_not_there(open_page: OpenPage, client: SandboxClient, tab: str) -> None:
    made = client.keys.create("reader", scopes=["read"])
    page = open_page(tab, key=made.key)
    expect(page.get_by_text("You may not see keys")).to_be_visible()
    expect(page.get_by_role("link", name="Limits")).to_have_count(0)
    client.keys.revoke(made.info.key_id)


@pytest.mark.soak
def test_many_keys(open_page: OpenPage, page_stack: Stack, client: SandboxClient) -> None:
    for number in range(230):
        client.keys.create(f"many-{number}", scopes=["read"], expires_s=600, note=f"key {number}")
    page = open_page("keys")
    table = page.locator(".table-box").first
    expect(table.locator("tbody tr")).to_have_count(200)
    page.get_by_role("button", name="more").click()
    page.get_by_label("Find a key").fill("many-229")
    expect(table.locator("tbody tr")).to_have_count(1)
    for one in client.keys.list():
        if one.owner.startswith("many-"):
            client.keys.revoke(one.key_id)
