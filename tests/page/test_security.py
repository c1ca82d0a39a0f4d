"""A hostile application in a sandbox, opened by its preview in the browser of a person who is signed in.

It cannot read the page's session, frame the page, or make it act.

The page and the previews are hosts of one site here (``ui.lab.localhost`` and ``*.preview.lab.localhost``), the hardest case that a
deployment permits: browsers send the session's cookie with requests of the application, so that ``SameSite`` does not help.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from holdfast import SandboxClient
from playwright.sync_api import Page, expect

from tests.support.requires import missing, unmet
from tests.support.stack import Stack, running_stack
from tests.support.until import until

OpenPage = Callable[..., Page]
PORT = 8000
APPLICATION = """
import http.server, json, pathlib, urllib.parse
class Application(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        at = urllib.parse.urlsplit(self.path).path
        with pathlib.Path("/tmp/cookies").open("a") as file:
            file.write((self.headers.get("Cookie") or "none") + "\\n")
        body = b"<!doctype html><title>application</title><body><script>document.title = 'script ran'</script>"
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Set-Cookie", "own=1")
        self.end_headers()
        self.wfile.write(body)
http.server.ThreadingHTTPServer(("127.0.0.1", 8000), Application).serve_forever()
"""


READ = """
  const answer = await fetch(`${ui}/ui/api/sandboxes`, { credentials: "include", mode }).catch((error) => null);
  return answer === null ? "refused" : await answer.text();
"""
POST = "await fetch(`${ui}/ui/api/sandboxes`, { method: 'POST', mode: 'no-cors', credentials: 'include', body }).catch(() => 0);"
SUBMIT = """
  const form = Object.assign(document.createElement("form"), { method: "post", enctype: "text/plain", action: `${ui}/ui/api/sandboxes` });
  form.append(Object.assign(document.createElement("input"), { name: body.slice(0, -1) + ', "x": "', value: '"}' }));
  document.body.append(form);
  form.submit();
"""
DELETE = "await fetch(`${ui}${path}`, { method: 'DELETE', credentials: 'include' }).catch(() => 0);"
ATTACH = """
  const socket = new WebSocket(`${ui.replace("http", "ws")}/ui/api/sandboxes/hostile-app/session`);
  return await new Promise((done) => { socket.onopen = () => done("open"); socket.onerror = () => done("refused"); });
"""
FRAME = """
  const frame = Object.assign(document.createElement("iframe"), { src: `${ui}/ui` });
  await new Promise((done) => { frame.onload = frame.onerror = done; document.body.append(frame); });
"""
EMBED = """
  const node = Object.assign(document.createElement(tag), { src: `${ui}${file}` });
  return await new Promise((done) => {
    node.onload = () => done("loaded");
    node.onerror = () => done("refused");
    document.body.append(node);
  });
"""


class Scene:
    """A signed-in page, and the hostile application open in another tab of the same browser."""

    def __init__(self, stack: Stack, page: Page, client: SandboxClient) -> None:
        self.stack, self.page, self.client = stack, page, client
        self.ui = stack.url.replace("127.0.0.1", "ui.lab.localhost")
        self.sandbox = client.get_sandbox("hostile-app")
        self.application = page.context.new_page()
        self.application.goto(self.sandbox.preview_url(PORT))
        expect(self.application).to_have_title("script ran")
        cookies = {one["name"]: one for one in page.context.cookies()}
        assert cookies["holdfast-page"]["domain"] == "ui.lab.localhost"
        assert "preview.lab.localhost" in self.application.url

    def attack(self, script: str, **arguments: Any) -> Any:
        """The result of a script in the application's page, which gets the page's address as ``ui``."""
        return self.application.evaluate(
            f"async ({{ ui, {', '.join(arguments) or 'none'} }}) => {{ {script} }}", {"ui": self.ui, **arguments}
        )


@pytest.fixture(scope="module")
def hostile_stack() -> Iterator[Stack]:
    for need in ("namespaces", "redis", "chromium"):
        if (reason := missing(need)) is not None:
            unmet(need, reason)
    with running_stack({"HOLDFAST_PREVIEW_DOMAIN": "preview.lab.localhost"}) as stack, SandboxClient(stack.url, stack.key) as client:
        sandbox = client.create_sandbox("host", sandbox_id="hostile-app")
        sandbox.files.write("/tmp/application.py", APPLICATION)
        sandbox.start("exec python3 /tmp/application.py", outlive="adopt")
        until(lambda: any(port.port == PORT for port in sandbox.ports()), deadline_s=60, what="the application to listen")
        yield stack


@pytest.fixture
def scene(browse: OpenPage, hostile_stack: Stack) -> Iterator[Scene]:
    with SandboxClient(hostile_stack.url, hostile_stack.key) as client:
        page = browse(hostile_stack.url.replace("127.0.0.1", "ui.lab.localhost"), hostile_stack.key, "sandboxes")
        expect(page.get_by_role("link", name="hostile-app")).to_be_visible()
        yield Scene(hostile_stack, page, client)


def test_it_gets_no_cookie_of_the_service(scene: Scene) -> None:
    assert "holdfast" not in scene.attack("return document.cookie")
    scene.application.reload()
    until(
        lambda: "own=1" in scene.sandbox.files.read("/tmp/cookies").decode(), deadline_s=60, what="the application's own cookie to reach it"
    )
    assert "holdfast" not in scene.sandbox.files.read("/tmp/cookies").decode(), "a program in the sandbox got a token"
    assert scene.page.evaluate("document.cookie") == "", "a script of the page could read the session"


def test_it_reads_nothing_with_the_session(scene: Scene) -> None:
    assert scene.attack(READ, mode="cors") == "refused"
    with scene.application.expect_response(lambda answer: "/ui/api/" in answer.url) as answered:
        assert scene.attack(READ, mode="no-cors") == ""
    assert answered.value.status == 403, "the cookie came with it, and the service answered"


@pytest.mark.parametrize("way", ["fetch", "form"])
def test_it_makes_nothing_happen_with_the_session(scene: Scene, way: str) -> None:
    body = {"image": "host", "sandbox_id": f"made-by-{way}"}
    with scene.application.expect_response(lambda answer: "/ui/api/" in answer.url) as answered:
        scene.attack(POST if way == "fetch" else SUBMIT, body=json.dumps(body))
    assert answered.value.status == 403
    assert [one.sandbox_id for one in scene.client.list_sandboxes()] == ["hostile-app"]


def test_it_deletes_nothing_and_signs_nobody_out(scene: Scene) -> None:
    scene.attack(DELETE, path="/ui/api/sandboxes/hostile-app")
    scene.attack(DELETE, path="/ui/session")
    scene.page.reload()
    expect(scene.page.get_by_role("button", name="Sign out")).to_be_visible()
    assert scene.sandbox.info().status == "ready"


def test_it_attaches_to_no_session_of_a_sandbox(scene: Scene) -> None:
    assert scene.attack(ATTACH) == "refused"


def test_it_does_not_frame_the_page(scene: Scene) -> None:
    scene.attack(FRAME)
    frame = scene.application.frames[-1]
    assert frame is not scene.application.main_frame
    assert not frame.url.startswith(scene.ui), "the page is inside of the application"
    assert frame.locator("#main").count() == 0


def test_it_has_no_hold_on_a_window_of_the_page(scene: Scene) -> None:
    with scene.page.context.expect_page() as opened:
        scene.attack("window.held = window.open(`${ui}/ui`); return null;")
    expect(opened.value.get_by_role("button", name="Sign out")).to_be_visible()
    assert scene.attack("return window.held === null || window.held.closed"), "the application can navigate the page's window"
    # And the page's own links: what they open does not hold the page.
    scene.page.goto(f"{scene.ui}/ui#/sandboxes/hostile-app/ports")
    with scene.page.context.expect_page() as preview:
        scene.page.get_by_role("button", name="Open preview").click()
    expect(preview.value).to_have_title("script ran")
    assert preview.value.evaluate("window.opener === null")


def test_it_embeds_no_file_of_the_page(scene: Scene) -> None:
    assert scene.attack(EMBED, tag="img", file="/ui/icon.svg") == "refused"
    assert scene.attack(EMBED, tag="script", file="/ui/js/quantities.js") == "refused"


def test_a_cookie_that_it_sets_for_the_page_changes_nothing(scene: Scene) -> None:
    scene.attack("document.cookie = 'holdfast-page=evil; domain=lab.localhost; path=/ui'; return null;")
    assert any(one["value"] == "evil" for one in scene.page.context.cookies(f"{scene.ui}/ui")), "the browser takes such a cookie"
    scene.page.reload()
    expect(scene.page.get_by_role("button", name="Sign out")).to_be_visible()
    expect(scene.page.get_by_role("link", name="hostile-app")).to_be_visible()


def test_the_form_with_a_path_runs_no_script_beside_the_page(scene: Scene) -> None:
    """It is of the page's own origin: a script there would be the page."""
    token = httpx.URL(scene.sandbox.preview_url(PORT)).query.decode()
    tab = scene.page.context.new_page()
    answer = tab.goto(f"{scene.ui}/sandboxes/hostile-app/ports/{PORT}/?{token}")
    assert answer is not None
    assert answer.status == 200
    assert tab.title() == "application", "a script ran at the page's origin"
    assert not any(one["name"] == "own" and one["domain"] == "ui.lab.localhost" for one in tab.context.cookies()), (
        "it set a cookie beside the page's"
    )
