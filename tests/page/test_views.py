"""The views of the page in a real browser: signing in, lists of every size, creating, the timeline, files, faults, looks and keys."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable

import pytest
from holdfast import Sandbox, SandboxClient
from playwright.sync_api import Page, expect

from tests.page.conftest import TOP, picture
from tests.support.stack import Stack

OpenPage = Callable[..., Page]
AXE = TOP / "infra" / "page" / "node_modules" / "axe-core" / "axe.min.js"


def link_of(stack: Stack) -> str:
    request = urllib.request.Request(f"{stack.url}/ui/links", method="POST", headers={"X-API-Key": stack.key})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return str(json.load(answer)["url"])


def check_accessible(page: Page) -> None:
    """axe-core finds nothing serious. Evaluated by the driver, because the page's policy permits no other script."""
    page.evaluate(AXE.read_text())
    found = page.evaluate("async () => (await axe.run()).violations")
    serious = [(one["id"], [node["html"][:200] for node in one["nodes"]][:3]) for one in found if one["impact"] in ("serious", "critical")]
    assert not serious, json.dumps(serious, indent=1)


def rows(page: Page) -> int:
    return page.locator(".v-row:not(.v-head)").count()


def test_first_visit_and_sign_in(open_page: OpenPage, page_stack: Stack, client: SandboxClient) -> None:
    page = open_page(key="")
    picture(page, "sign-in")
    check_accessible(page)
    page.get_by_label("API key").fill("hf_wrong")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_contain_text("not known")
    page.goto(link_of(page_stack))
    expect(page.get_by_text("No sandbox has run here yet")).to_be_visible()
    assert "sign-in" not in page.url, "the token stays in no address"
    picture(page, "welcome")
    check_accessible(page)
    with client.create_sandbox("host", sandbox_id="first"):
        expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_label("API key")).to_be_visible()


def test_a_used_link_says_so(open_page: OpenPage, page_stack: Stack) -> None:
    link = link_of(page_stack)
    first, second = open_page(key=""), open_page(key="")
    first.goto(link)
    expect(first.get_by_role("button", name="Sign out")).to_be_visible()
    second.goto("about:blank")
    second.goto(link)
    expect(second.get_by_role("alert")).to_contain_text("used already")


def test_list_with_three_and_a_filter(open_page: OpenPage, client: SandboxClient) -> None:
    for name, group in (("web-1", "alpha"), ("web-2", "alpha"), ("db-1", "beta")):
        client.create_sandbox("host", sandbox_id=name, group=group, labels={"note": "<img src=x onerror=alert(1)>"}).close()
    page = open_page("sandboxes")
    expect(page.get_by_role("link", name="web-1")).to_be_visible()
    page.get_by_label("Filter sandboxes").fill("group:beta ")
    expect(page.get_by_role("link", name="web-1")).to_have_count(0)
    expect(page.get_by_role("link", name="db-1")).to_be_visible()
    page.get_by_role("button", name="Remove group:beta").click()
    page.mouse.move(5, 5)
    page.get_by_text("Sandboxes", exact=True).first.click()
    with client.create_sandbox("host", sandbox_id="late"):
        expect(page.get_by_role("link", name="late")).to_be_visible()
    picture(page, "sandboxes")
    check_accessible(page)
    page.locator(".v-row:not(.v-head)", has_text="web-2").get_by_role("checkbox").dispatch_event("click")
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("button", name="Delete 1 sandbox").click()
    expect(page.locator(".v-row", has_text="web-2")).to_contain_text("ended")
    assert [one.sandbox_id for one in client.list_sandboxes() if one.sandbox_id == "web-2"] == []


def test_create_by_the_form(open_page: OpenPage, client: SandboxClient) -> None:
    page = open_page("sandboxes")
    page.get_by_role("button", name="Create").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Id").fill("made-here")
    dialog.get_by_label("Memory").fill("256m")
    expect(dialog).to_contain_text("holdfast create --name made-here -m 256m host")
    picture(page, "create")
    check_accessible(page)
    dialog.get_by_role("button", name="Create sandbox").click()
    expect(page.locator("header.head")).to_contain_text("ready")
    assert client.get_sandbox("made-here").info().status == "ready"
    page.get_by_role("button", name="Delete", exact=True).click()
    page.get_by_role("button", name="Delete sandbox").click()
    expect(page.locator("header.head")).to_contain_text("ended")


def episode(client: SandboxClient, name: str) -> Sandbox:
    sandbox = client.create_sandbox("host", sandbox_id=name, group="grpo-swe-0412", cpu="1", memory="512m", labels={"task": "django-14315"})
    shell = sandbox.shell()
    shell.run("cd /tmp && printf 'a\\nb\\nc\\n' > list.txt && ls")
    shell.run("printf '\\033[31mFAIL\\033[0m test_unique_061\\n'; echo 'AssertionError: None != 7' >&2; exit_=1; (exit 1)")
    sandbox.exec("seq 1 400")
    sandbox.exec("kill -SEGV $$")
    return sandbox


def test_timeline_while_a_client_works(open_page: OpenPage, client: SandboxClient) -> None:
    with episode(client, "django-14315-r07") as sandbox:
        page = open_page("sandboxes/django-14315-r07/timeline")
        rows = page.locator(".tl-row:not(.tl-head)")
        expect(rows).to_have_count(4)
        expect(page.locator(".detail").first).to_contain_text("AssertionError: None != 7")
        expect(page.locator(".stream.stdout .a1")).to_have_text("FAIL")
        running = sandbox.start("echo begun; read line; echo got $line", stdin=True)
        expect(rows).to_have_count(5)
        expect(rows.nth(4)).to_contain_text("running")
        rows.nth(4).click()
        expect(page.locator(".detail").last).to_contain_text("begun")
        picture(page, "timeline")
        check_accessible(page)
        running.write(b"done\n")
        assert running.wait().exit_code == 0
        expect(page.locator(".detail").last).to_contain_text("got done")
        expect(rows.nth(4).locator(".exit")).to_have_text("0")
        page.keyboard.press("f")
        page.get_by_label("Find in commands and output").fill("seq")
        expect(rows).to_have_count(1)


def test_hostile_text_is_text(open_page: OpenPage, client: SandboxClient) -> None:
    with client.create_sandbox("host", sandbox_id="hostile", labels={"note": "<script>alert(1)</script>"}) as sandbox:
        sandbox.exec("printf '<img src=x onerror=alert(1)>\\033]0;t\\007\\033[2J<script>alert(2)</script>'; # a\u202egpj.exe")
        sandbox.files.write("/tmp/<img src=x onerror=alert(1)>.py", "<script>alert(3)</script>\n")
        sandbox.files.write("/tmp/invoice\u202egpj.exe", "x")
        page = open_page("sandboxes/hostile/timeline")
        page.on("dialog", lambda dialog: pytest.fail(f"a script ran: {dialog.message}"))
        expect(page.locator(".detail").first).to_contain_text("<img src=x onerror=alert(1)>")
        expect(page.locator(".tl-row .esc").first).to_have_text("\\u202e")
        page.goto(page.url.replace("timeline", "details"))
        expect(page.get_by_text("<script>alert(1)</script>")).to_be_visible()
        page.goto(page.url.replace("details", "files"))
        page.get_by_role("link", name="/", exact=True).click()
        page.get_by_role("link", name="tmp", exact=True).click()
        page.get_by_role("link", name="<img src=x onerror=alert(1)>.py").click()
        expect(page.locator(".preview")).to_contain_text("<script>alert(3)</script>")
        expect(page.get_by_role("link", name="invoice\\u202egpj.exe")).to_be_visible()
        assert page.locator("main img, main script").count() == 0
        picture(page, "files-hostile")
        check_accessible(page)


def test_faults_by_cause(open_page: OpenPage, client: SandboxClient) -> None:
    with episode(client, "live-1"):
        sandbox = client.create_sandbox("host", sandbox_id="oom-1", entrypoint=["sh", "-c", "exit 3"])
        page = open_page("overview")
        expect(page.get_by_role("heading", name="Faults")).to_be_visible()
        picture(page, "overview-calm")
        check_accessible(page)
        for view in ("images", "keys", "doctor"):
            page.keyboard.press("g")
            page.keyboard.press(view[0])
            expect(page.get_by_role("heading", name=view.capitalize(), exact=True)).to_be_visible()
            expect(page.locator("main")).to_contain_text({"images": "always there", "keys": "this session", "doctor": "In order"}[view])
            picture(page, view)
            check_accessible(page)
        sandbox.delete()


def test_two_keys_in_a_row_lead_to_a_view(open_page: OpenPage) -> None:
    """Two keys belong together by the time between them, whatever was pressed before. The clock of the page is the test's."""
    page = open_page("keys")
    expect(page.get_by_role("heading", name="Keys", exact=True)).to_be_visible()
    page.clock.install()
    page.clock.pause_at(time.time() + 60)
    for key in "gk":
        page.keyboard.press(key)
    page.clock.run_for(1500)
    page.keyboard.press("g")
    page.clock.run_for(1500)
    page.keyboard.press("d")
    expect(page.get_by_role("heading", name="Doctor", exact=True)).to_be_visible()
    page.keyboard.press("g")
    page.clock.run_for(2500)
    page.keyboard.press("k")
    page.keyboard.press("g")
    page.keyboard.press("i")
    expect(page.get_by_role("heading", name="Images", exact=True)).to_be_visible()
    page.go_back()
    expect(page.get_by_role("heading", name="Doctor", exact=True)).to_be_visible()


@pytest.mark.parametrize("theme", ["dark", "light"])
def test_a_phone_and_the_dark(open_page: OpenPage, client: SandboxClient, theme: str) -> None:
    with episode(client, "phone-1"):
        wide = open_page("sandboxes/phone-1/timeline", color_scheme=theme)
        expect(wide.locator(".tl-row:not(.tl-head)")).to_have_count(4)
        picture(wide, f"timeline-{theme}")
        check_accessible(wide)
        for view in ("overview", "sandboxes", "sandboxes/phone-1/timeline", "sandboxes/phone-1/terminal", "sandboxes/phone-1/files"):
            page = open_page(view, width=390, height=844, color_scheme=theme)
            expect(page.locator(".skeleton")).to_have_count(0)
            expect(page.locator("nav.bottom a")).to_have_count(6)
            width = page.evaluate("document.documentElement.scrollWidth")
            assert width <= 390, f"{view} is {width} px wide"
            picture(page, f"phone-{theme}-{view.split('/')[-1]}")
            page.context.close()


def test_with_the_keyboard_alone(open_page: OpenPage, client: SandboxClient) -> None:
    with client.create_sandbox("host", sandbox_id="keys-1") as one, client.create_sandbox("host", sandbox_id="keys-2"):
        one.exec("true")
        page = open_page("overview")
        expect(page.get_by_role("heading", name="Overview")).to_be_visible()
        page.keyboard.press("?")
        expect(page.get_by_role("dialog")).to_contain_text("filter or find")
        page.keyboard.press("Escape")
        page.keyboard.press("g")
        page.keyboard.press("s")
        expect(page.locator(".v-row:not(.v-head)")).not_to_have_count(0)
        page.keyboard.press("/")
        page.keyboard.type("keys-1")
        page.keyboard.press("Enter")
        expect(page.get_by_role("link", name="keys-2")).to_have_count(0)
        page.keyboard.press("ArrowDown")
        expect(page.locator(".v-row:focus")).to_contain_text("keys-1")
        page.keyboard.press("Enter")
        expect(page.locator("header.head")).to_contain_text("keys-1")
        expect(page.locator(".tl-row:not(.tl-head)")).to_have_count(1)
        for _ in range(40):
            page.keyboard.press("Tab")
            if page.locator(".tl-row:focus").count():
                break
        expect(page.locator(".tl-row:focus")).to_have_count(1)
        page.keyboard.press("ArrowLeft")
        expect(page.locator(".detail")).to_have_count(0)
        page.keyboard.press("ArrowRight")
        expect(page.locator(".detail")).to_have_count(1)


def test_another_owners_sandbox_looks_like_none(open_page: OpenPage, client: SandboxClient) -> None:
    page = open_page("sandboxes/nobody-has-this/timeline")
    expect(page.get_by_text("There is no such sandbox")).to_be_visible()
