"""Episodes of thousands of commands: the timeline stays fast while they come, when it is scrolled, and after the sandbox has ended."""

from __future__ import annotations

import time
from collections.abc import Callable

from holdfast import SandboxClient
from playwright.sync_api import Page, expect

from tests.page.conftest import picture
from tests.support.until import until

OpenPage = Callable[..., Page]
COMMANDS = 5_000
FRAME_MS = 500.0
"""The longest that a scroll may keep the page from drawing. Most are far shorter, but other tests run beside this one."""
SCROLL = """async () => {
  const waits = [];
  for (let i = 0; i < 60; i += 1) {
    const from = performance.now();
    scrollTo(0, (document.documentElement.scrollHeight - innerHeight) * ((i * 7) % 60) / 59);
    await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
    waits.push(performance.now() - from);
  }
  waits.sort((a, b) => a - b);
  return { p50: waits[30], most: waits[59], rows: document.querySelectorAll('.tl-row:not(.tl-head)').length };
}"""


def test_five_thousand_commands(open_page: OpenPage, client: SandboxClient) -> None:
    with client.create_sandbox("host", sandbox_id="long-1", record=True) as sandbox:
        shell = sandbox.shell()
        shell.run("echo command-1")
        page = open_page("sandboxes/long-1/timeline")
        expect(page.locator(".tl-row:not(.tl-head)")).to_have_count(1)
        began = time.monotonic()
        for _ in range(2, COMMANDS):
            shell.run("true")
        shell.run("echo the-last; (exit 7)")
        ran_s = time.monotonic() - began
        expect(page.get_by_role("button", name="All")).to_contain_text(f"{COMMANDS}")
        expect(page.locator(".tl-table")).to_have_attribute("aria-rowcount", str(COMMANDS + 1))
        found = page.evaluate(SCROLL)
        drawn = f"a scroll is drawn in {found['p50']:.0f} ms, at most {found['most']:.0f} ms, with {found['rows']} rows"
        print(f"{COMMANDS} commands in {ran_s:.1f} s; {drawn}")
        assert found["rows"] < 120
        assert found["p50"] < FRAME_MS
        expect(page.locator(".end")).not_to_contain_text("running")
        page.get_by_role("button", name="Next failure").click()
        expect(page.locator(".detail").last).to_contain_text("the-last")
        picture(page, "timeline-long")
        page.locator(".tl-row:focus").press("Home")
        expect(page.locator(".tl-row:focus")).to_contain_text("command-1")
        page.keyboard.press("End")
        expect(page.locator(".tl-row:focus")).to_contain_text("the-last")
        recording = sandbox.info().recording
        sandbox.delete()
    until(lambda: client.recordings.get(str(recording)).ended_at, deadline_s=60, what="the recording to be complete")
    page = open_page("sandboxes/long-1/timeline")
    expect(page.locator(".tl-table")).to_have_attribute("aria-rowcount", str(COMMANDS + 1))
    expect(page.locator(".end")).to_contain_text("Ended: deleted")
    page.get_by_label("Find in commands and output").fill("the-last")
    expect(page.locator(".detail")).to_contain_text("the-last")
    page.get_by_role("treegrid", name="Commands").get_by_role("link", name="Replay").click()
    expect(page.locator(".chapters .on")).to_contain_text("the-last")
    page.keyboard.press(" ")
    expect(page.locator(".player .screen")).to_contain_text("The sandbox ended")
    picture(page, "replay-long")
