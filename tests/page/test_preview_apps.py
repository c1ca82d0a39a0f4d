"""Real applications through previews, in a real browser on the host form: the pages, their WebSockets and their events work unchanged.

``python -m http.server``, a server of events and a WebSocket run always; a development server from npm, Streamlit and Chromium's DevTools
with ``make test-page ARGS=--all``. Programs are installed into a folder of the test's, which is copied to the sandbox.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from holdfast import Sandbox, SandboxClient
from playwright.sync_api import Browser, Page, expect

from tests.support.preview_app import SOURCE
from tests.support.stack import Stack
from tests.support.until import until

DEADLINE_S = 120.0
PYTHON = "/usr/bin/python3"
"""In the sandbox."""

EVENTS_PAGE = """
<!doctype html><title>events</title><ol></ol>
<script>
new EventSource("/events?5").onmessage = (event) => {
  document.querySelector("ol").append(Object.assign(document.createElement("li"), {textContent: event.data}))
}
</script>
"""
EVENTS_SERVER = """
import http.server, sys, time
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        self.send_response(200)
        if self.path.startswith("/events"):
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Connection", "close")
            self.end_headers()
            for number in range(5):
                self.wfile.write(b"data: tick %d\\n\\n" % number)
                time.sleep(0.05)
            time.sleep(3600)
        page = open("/tmp/page.html", "rb").read()
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)
    def log_message(self, *_):
        pass
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


@pytest.fixture
def sandbox(client: SandboxClient) -> Sandbox:
    return client.create_sandbox("host", cpu="2", memory="3Gi")


@pytest.fixture
def visit(chromium: Browser) -> Iterator[Page]:
    """A page of a fresh profile, which knows nothing of the service."""
    context = chromium.new_context()
    context.set_default_timeout(DEADLINE_S * 1000)
    yield context.new_page()
    context.close()


@contextlib.contextmanager
def served(sandbox: Sandbox, port: int, *command: str, cwd: str = "/tmp", **env: str) -> Iterator[str]:
    """A program that listens on ``port``; the link to it."""
    with sandbox.start(list(command), stdin=False, cwd=cwd, env=env):
        until(lambda: port in [one.port for one in sandbox.ports()], deadline_s=DEADLINE_S, what=f"port {port} to be listened on")
        yield sandbox.preview_url(port)


def test_pythons_own_server_shows_a_folder(sandbox: Sandbox, visit: Page) -> None:
    sandbox.files.write("/tmp/shown/inside.txt", b"text of the file")
    with served(sandbox, 8001, PYTHON, "-m", "http.server", "8001", "--bind", "127.0.0.1", cwd="/tmp/shown") as url:
        visit.goto(url)
        assert "holdfast_preview" not in visit.url, "the token has become a cookie"
        visit.get_by_role("link", name="inside.txt").click()
        expect(visit.get_by_text("text of the file")).to_be_visible()


def test_events_arrive_while_the_stream_is_open(sandbox: Sandbox, visit: Page) -> None:
    sandbox.files.write("/tmp/page.html", EVENTS_PAGE.encode())
    with served(sandbox, 8002, PYTHON, "-c", EVENTS_SERVER, "8002") as url:
        visit.goto(url)
        expect(visit.get_by_role("listitem")).to_have_text([f"tick {number}" for number in range(5)])


def test_a_websocket_from_the_previews_own_page(sandbox: Sandbox, visit: Page) -> None:
    with served(sandbox, 8003, PYTHON, "-c", SOURCE, "8003") as url:
        visit.goto(url)
        said = visit.evaluate(
            "new Promise((done) => { const s = new WebSocket(`ws://${location.host}/ws`);"
            " s.onopen = () => s.send('hello'); s.onmessage = (e) => done(e.data); s.onerror = () => done('failed') })"
        )
        assert said == "hello"


# Programs that are fetched ----------------------------------------------------------------------------------------------


def _node_modules(folder: Path, *packages: str) -> Path:
    (folder / "package.json").write_text('{"private": true}')
    subprocess.run(["npm", "install", "--no-audit", "--no-fund", *packages], cwd=folder, check=True, timeout=300)
    return folder


def _site_packages(folder: Path, *packages: str) -> Path:
    """The packages for the Python in the sandbox, which is this machine's."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        PYTHON,
        "--disable-pip-version-check",
        "--quiet",
        "install",
        "--target",
        str(folder),
    ]
    subprocess.run([*command, *packages], check=True, timeout=600)
    return folder


def _copied(sandbox: Sandbox, folder: Path, place: str) -> str:
    sandbox.files.upload(folder, place)
    return place


@pytest.mark.soak
def test_a_development_server_replaces_a_module_without_a_reload(sandbox: Sandbox, visit: Page, tmp_path: Path) -> None:
    project = tmp_path / "vite"
    project.mkdir()
    _node_modules(project, "vite@5")
    (project / "index.html").write_text('<!doctype html><p id="said"></p><script type="module" src="/main.js"></script>')
    module = (
        "export const said = 'ONE'\ndocument.querySelector('#said').textContent = said\nif (import.meta.hot) import.meta.hot.accept()\n"
    )
    (project / "main.js").write_text(module)
    place = _copied(sandbox, project, "/workspace/vite")
    command = ["node", "node_modules/vite/bin/vite.js", "--port", "5173", "--strictPort", "--host", "127.0.0.1"]
    with served(sandbox, 5173, *command, cwd=place) as url:
        with visit.expect_console_message(lambda message: "[vite] connected" in message.text):  # its WebSocket
            visit.goto(url)
        expect(visit.locator("#said")).to_have_text("ONE")
        visit.evaluate("window.kept = 'kept'")
        sandbox.files.write(f"{place}/main.js", module.replace("ONE", "TWO").encode())
        expect(visit.locator("#said")).to_have_text("TWO")
        assert visit.evaluate("window.kept") == "kept", "the page was not loaded again"


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_streamlit_answers_a_button(sandbox: Sandbox, visit: Page, tmp_path: Path) -> None:
    place = _copied(sandbox, _site_packages(tmp_path / "streamlit", "streamlit>=1.30,<2"), "/workspace/streamlit")
    program = "import streamlit as st\nst.title('shown by streamlit')\nif st.button('add'):\n    st.write('added ' + str(40 + 2))\n"
    sandbox.files.write("/workspace/app.py", program.encode())
    words = (
        "run",
        "/workspace/app.py",
        "--server.port",
        "8501",
        "--server.address",
        "127.0.0.1",
        "--server.headless",
        "true",
        "--global.developmentMode",
        "false",
    )
    with served(sandbox, 8501, PYTHON, "-m", "streamlit", *words, PYTHONPATH=place, HOME="/tmp") as url:
        visit.goto(url)
        expect(visit.get_by_role("heading", name="shown by streamlit")).to_be_visible()
        visit.get_by_role("button", name="add").click()  # over its WebSocket
        expect(visit.get_by_text("added 42")).to_be_visible()


@pytest.mark.soak
def test_a_browser_in_the_sandbox_is_driven_over_its_preview(chromium: Browser, sandbox: Sandbox, page_stack: Stack) -> None:
    """Chromium's DevTools endpoint refuses other hosts than localhost; its answer names its WebSocket, whose path is used here."""
    command = [
        "/usr/lib/chromium/chromium",
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--remote-debugging-port=9222",
    ]
    with served(sandbox, 9222, *command, "--user-data-dir=/tmp/profile", "about:blank", HOME="/tmp"):
        script = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:9222/json/version').read().decode())"
        path = urlsplit(json.loads(sandbox.exec([PYTHON, "-c", script]).stdout)["webSocketDebuggerUrl"]).path
        where = f"ws{page_stack.url.removeprefix('http')}/sandboxes/{sandbox.id}/ports/9222{path}"
        inside = chromium.browser_type.connect_over_cdp(where, headers={"X-API-Key": page_stack.key})
        page = inside.new_page()
        page.set_content("<title>driven</title><button onclick=\"document.title = 'clicked'\">go</button>")
        page.get_by_role("button").click()
        assert page.title() == "clicked"
        assert page.screenshot().startswith(b"\x89PNG")
        inside.close()
