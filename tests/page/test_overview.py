"""The numbers of the overview: faults by cause and rates, as the last hour makes them."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from holdfast import Sandbox, SandboxClient
from playwright.sync_api import Page, expect

from tests.page.conftest import picture
from tests.page.test_views import check_accessible

OpenPage = Callable[..., Page]


def end_from_outside(sandbox: Sandbox) -> None:
    """Somebody on the machine kills the sandbox's agent."""
    mark = f"mark-{sandbox.id}"
    sandbox.start(f"exec -a {mark} sleep 600", outlive="adopt")
    pid = 0
    while not pid:
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and (entry / "cmdline").read_bytes().startswith(mark.encode() + b"\0"):
                    pid = int(entry.name)
    parent = int((Path("/proc") / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()[1])
    os.kill(parent, signal.SIGKILL)


def test_faults_by_cause_and_rates(open_page: OpenPage, client: SandboxClient) -> None:
    page = open_page("overview")
    names = [f"end-{number}" for number in range(3)]
    sandboxes = [client.create_sandbox("host", sandbox_id=name) for name in names]
    with client.create_sandbox("host", sandbox_id="works") as working:
        expect(page.get_by_role("heading", name="Overview")).to_be_visible()
        expect(page.get_by_text("Nothing failed in the last hour.")).to_be_visible()
        for _ in range(30):
            working.exec("true")
        for one in sandboxes:
            end_from_outside(one)
        client.create_sandbox("host", sandbox_id="asked-for").delete()  # an end that the owner asked for is no fault
        faults = page.locator(".panel", has=page.get_by_role("heading", name="Faults"))
        expect(faults).to_contain_text("3 in the last hour")
        rows = faults.locator("tbody tr")
        expect(rows).to_have_count(1)
        expect(rows).to_contain_text("exited")
        expect(rows).to_contain_text("infrastructure")
        expect(rows.locator(".num")).to_have_text("3")
        expect(faults.get_by_role("img", name="3 faults: 3 infrastructure, 0 workload, 0 caller")).to_be_visible()
        titles = [text for text in faults.locator(".plot title").all_text_contents() if not text.endswith("0 infrastructure")]
        assert sum(int(text.split()[-2]) for text in titles) == 3, "the columns over the hour show the same three"
        expect(page.get_by_text("The infrastructure ended 3 sandboxes in the last hour.")).to_be_visible()
        # Thirty commands in a minute or two, four creates.
        commands = page.locator("figure.chart", has=page.get_by_role("heading", name="Commands"))
        label = commands.get_by_role("img").get_attribute("aria-label") or ""
        assert 0.2 < float(label.rpartition("highest ")[2]) < 0.7, label
        creates = page.locator("figure.chart", has=page.get_by_role("heading", name="Creates"))
        expect(creates.locator(".line")).to_have_count(1)
        picture(page, "overview")
        check_accessible(page)
        expect(page.locator(".cell.st-ready")).not_to_contain_text("run a command now")
        rows.get_by_role("link").click()
        expect(page.locator(".v-row:not(.v-head)")).to_have_count(3)
        expect(page.get_by_role("link", name="end-0")).to_be_visible()
        expect(page.get_by_role("link", name="asked-for")).to_have_count(0)
    for one in sandboxes:
        one.close()


SEVERAL = [
    *[("node-lost", "infrastructure", "node-7 stopped answering")] * 5,
    *[("evicted", "infrastructure", "the disk of node-3 was full")] * 2,
    *[("oom", "workload", "out of memory: the sandbox used 4.0 GiB of 4 GiB")] * 3,
    ("image-pull", "caller", "there is no image <img src=x onerror=alert(1)>"),
    ("deleted", "caller", "deleted by its owner"),
    ("ttl", "caller", "its lifetime ended"),
]


def test_several_causes(open_page: OpenPage, client: SandboxClient) -> None:
    """A machine of its own loses no node and pulls no image in a test: the events are made up, in the form that the service sends."""
    page = open_page("doctor")
    expect(page.locator(".link-state")).to_have_text("Live")
    now = time.time()
    ends = [
        {"sandbox_id": f"end-{n}", "time": now - 60 * n, "reason": reason, "fault": fault, "message": message}
        for n, (reason, fault, message) in enumerate(SEVERAL)
    ]
    page.evaluate(
        "async ends => { const { live } = await import('/ui/js/live.js'); for (const end of ends) live.event('deleted', end); }", ends
    )
    page.goto(f"{page.url.split('#')[0]}#/overview")
    faults = page.locator(".panel", has=page.get_by_role("heading", name="Faults"))
    expect(faults).to_contain_text("11 in the last hour")
    rows = faults.locator("tbody tr")
    expect(rows.locator("td:first-child")).to_have_text(["node-lost", "evicted", "oom", "image-pull"])
    expect(rows.locator("td.num")).to_have_text(["5", "2", "3", "1"])
    expect(faults.get_by_role("img", name="11 faults: 7 infrastructure, 3 workload, 1 caller")).to_be_visible()
    expect(rows.last).to_contain_text("there is no image <img src=x onerror=alert(1)>")
    expect(page.get_by_text("The infrastructure ended 7 sandboxes in the last hour.")).to_be_visible()
    picture(page, "overview-causes")
    check_accessible(page)
    rows.nth(2).get_by_role("link").click()
    expect(page.locator(".v-row:not(.v-head)")).to_have_count(3)
