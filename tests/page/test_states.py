"""What each view says while it is read and when it cannot be read, that it reads again by itself, and a build without npm's modules."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from holdfast import SandboxClient
from playwright.sync_api import Page, expect

from tests.page.conftest import picture
from tests.page.test_views import check_accessible

OpenPage = Callable[..., Page]
AWAY = {
    "type": "about:blank", "title": "Service Unavailable", "status": 503, "code": "runtime_unavailable", "fault": "infrastructure",
    "retryable": True, "detail": "the runtime does not answer <img src=x onerror=alert(1)>", "hint": "It is tried again.",
}  # fmt: skip
READS = {
    "images": ("**/ui/api/images", "The images could not be read", "always there"),
    "keys": ("**/ui/api/keys", "The keys could not be read", "this session"),
    "keys/projects": ("**/ui/api/projects", "The projects could not be read", "No projects yet"),
    "keys/limits": ("**/ui/api/limits?subjects=all", "The limits could not be read", "No limits yet"),
    "doctor": ("**/ui/api/doctor", "The checks could not run", "In order"),
    "recordings": ("**/ui/api/recordings", "The recordings could not be read", "No recordings yet"),
    "sandboxes/states-1/ports": ("**/states-1/ports", "The ports could not be read", "Nothing listens"),
    "sandboxes/states-1/files": ("**/states-1/files/list*", "This directory could not be read", "Drop files anywhere"),
}


@pytest.mark.soak
def test_a_view_that_cannot_be_read_says_why_and_reads_again(open_page: OpenPage, client: SandboxClient) -> None:
    with client.create_sandbox("host", sandbox_id="states-1"):
        page = open_page("overview")
        for view, (address, title, read) in READS.items():
            page.route(address, lambda route: route.fulfill(status=503, content_type="application/problem+json", body=json.dumps(AWAY)))
            page.goto(f"{page.url.split('#')[0]}#/{view}")
            problem = page.get_by_role("alert").filter(has_text=title)
            expect(problem).to_contain_text("the runtime does not answer <img src=x onerror=alert(1)>")
            expect(problem).to_contain_text("It is tried again.")
            expect(problem).to_contain_text("runtime_unavailable · fault: infrastructure")
            expect(problem).to_contain_text("Next attempt in 3 s")
            if view in ("images", "keys"):
                picture(page, f"error-{view}")
                check_accessible(page)
            page.unroute(address)
            expect(problem).to_have_count(0)
            expect(page.locator("main")).to_contain_text(read)


@pytest.mark.soak
def test_a_view_says_what_it_loads(open_page: OpenPage, client: SandboxClient) -> None:
    page = open_page("overview")
    for view, what in (("images", "images"), ("keys", "keys"), ("keys/limits", "limits"), ("doctor", "checks")):
        address, read = READS[view][0], READS[view][2]
        page.route(address, lambda _route: None)  # neither answered nor refused
        page.goto(f"{page.url.split('#')[0]}#/{view}")
        expect(page.get_by_text(f"Loading {what}")).to_be_visible()
        expect(page.locator(".skeleton")).to_be_visible()
        picture(page, f"loading-{view.replace('/', '-')}")
        page.unroute(address)  # lets it go on
        expect(page.locator("main")).to_contain_text(read)
        expect(page.locator(".skeleton")).to_have_count(0)


def test_a_build_without_the_modules_of_npm_says_so(open_page: OpenPage, client: SandboxClient) -> None:
    """``infra/scripts/page`` brought nothing: the service has no file below ``vendor``."""
    with client.create_sandbox("host", sandbox_id="bare-1") as sandbox:
        sandbox.exec("echo still here")
        page = open_page("overview")
        page.context.route("**/ui/vendor/**", lambda route: route.fulfill(status=404, content_type="application/problem+json", body="{}"))
        page.goto(f"{page.url.split('#')[0]}#/doctor")
        page.reload()
        expect(page.get_by_text("This build has none, so there is no terminal.")).to_be_visible()
        page.goto(f"{page.url.split('#')[0]}#/sandboxes/bare-1/terminal")
        expect(page.get_by_text("This build has no terminal")).to_be_visible()
        expect(page.get_by_text("holdfast exec -it bare-1 bash")).to_be_visible()
        picture(page, "without-npm")
        check_accessible(page)
        page.goto(f"{page.url.split('#')[0]}#/sandboxes/bare-1/timeline")
        expect(page.locator(".detail")).to_contain_text("still here")


@pytest.mark.soak
def test_hostile_names_in_every_view(open_page: OpenPage, client: SandboxClient) -> None:
    hostile = "<img src=x onerror=alert(1)>"
    key = client.keys.create("ana", scopes=["read"], note=hostile)
    labels = {"note": f"{hostile}\u202e\u200b", "task": "</script><script>alert(1)</script>"}
    with client.create_sandbox("host", sandbox_id="hostile-all", group="g-1", labels=labels, record=True) as sandbox:
        sandbox.exec(f"printf '%s\\033]0;x\\007\\033[2J' '{hostile}'; : \u202e {hostile}")
        sandbox.files.write(f"/tmp/{hostile}", "\x1b]52;c;aGk=\x07<script>alert(1)</script>\u202e")
        page = open_page("overview")
        page.on("dialog", lambda dialog: pytest.fail(f"a script ran: {dialog.message}"))
        base = page.url.split("#")[0]
        for view in ("overview", "sandboxes", "groups", "groups/g-1", "images", "keys", "keys/projects", "keys/limits", "recordings"):
            page.goto(f"{base}#/{view}")
            expect(page.locator("main .loading")).to_have_count(0)
            page.wait_for_timeout(500)
            assert page.locator("main img, main script, main iframe").count() == 0, view
            assert "\u202e" not in page.locator("main").inner_text(), view
        page.goto(f"{base}#/keys")
        expect(page.locator("tbody tr", has_text="ana")).to_contain_text(hostile)
        page.goto(f"{base}#/groups/g-1")
        expect(page.locator("tbody")).to_contain_text("onerror=alert(1)")
        for tab in ("timeline", "terminal", "files", "ports", "network", "recording", "details"):
            page.goto(f"{base}#/sandboxes/hostile-all/{tab}")
            expect(page.locator(".tabs [aria-current]")).to_contain_text(tab, ignore_case=True)
            page.wait_for_timeout(500)
            assert page.locator("main img, main script, main iframe").count() == 0, tab
            assert page.title() == "hostile-all · Holdfast"
    client.keys.revoke(key.info.key_id)
