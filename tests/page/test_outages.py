"""What a person sees while Redis is away, and when the gateway that serves an open page is killed and another one takes over."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from holdfast import SandboxClient
from playwright.sync_api import Page, expect

from tests.faults.context import replicated_stack
from tests.faults.proxy import FaultProxy
from tests.page.conftest import picture
from tests.page.test_restarts import wait_for_text
from tests.page.test_views import check_accessible
from tests.support.stack import Stack

OpenPage = Callable[..., Page]


def test_the_page_is_stale_while_redis_is_away(open_page: OpenPage, client: SandboxClient, page_stack: Stack) -> None:
    with client.create_sandbox("host", sandbox_id="stale-1") as sandbox:
        sandbox.exec("echo before")
        page = open_page("sandboxes")
        other = open_page("sandboxes/stale-1/timeline")
        expect(page.get_by_role("link", name="stale-1")).to_be_visible()
        expect(other.locator(".tl-row:not(.tl-head)")).to_have_count(1)
        pid = page_stack.pid("redis")
        os.kill(pid, signal.SIGSTOP)
        try:
            # Nobody asks for anything: the stream of events tells it.
            expect(page.get_by_text("The placement store does not answer.")).to_be_visible()
            expect(page.locator(".link-state")).to_have_text("Stale")
            expect(page.locator(".as-of")).to_contain_text("as of")
            expect(page.get_by_role("link", name="stale-1")).to_be_visible()
            expect(page.get_by_role("button", name="Create")).to_be_disabled()
            expect(other.get_by_role("button", name="Delete", exact=True)).to_be_disabled()
            picture(page, "stale")
            check_accessible(page)
            # What does not need the store continues, and is shown.
            sandbox.exec("echo during")
            expect(other.locator(".tl-row:not(.tl-head)")).to_have_count(2)
            picture(other, "stale-timeline")
        finally:
            os.kill(pid, signal.SIGCONT)
        expect(page.get_by_text("The placement store answers again after")).to_be_visible()
        expect(page.locator(".link-state")).to_have_text("Live")
        expect(page.get_by_role("button", name="Create")).to_be_enabled()
        expect(page.locator(".as-of")).to_have_count(0)
        page.mouse.move(2, 2)
        with client.create_sandbox("host", sandbox_id="stale-2"):
            expect(page.get_by_role("link", name="stale-2")).to_be_visible()


def test_another_replica_takes_over_an_open_page(browse: OpenPage) -> None:
    with replicated_stack(2) as replicas, FaultProxy(replicas.targets[0]) as proxy:
        stack = replicas.stack
        with SandboxClient(stack.url, stack.key) as client, client.create_sandbox("host", sandbox_id="two-1"):
            page = browse(proxy.url, stack.key, "sandboxes/two-1/terminal")
            expect(page.get_by_text("Connected", exact=True)).to_be_visible()
            page.locator(".xterm-helper-textarea").focus()
            page.keyboard.type("X=kept; echo first-$X\n")
            wait_for_text(page, "first-kept")
            served = proxy.faults.connections
            proxy.retarget(replicas.targets[1])
            stack.kill_process(replicas.names[0])
            expect(page.get_by_text("Reconnected after").first).to_be_visible()
            expect(page.get_by_text("Gateway restarting: reconnected after")).to_be_visible()
            assert proxy.faults.connections > served
            page.locator(".xterm-helper-textarea").focus()
            page.keyboard.type("echo second-$X\n")
            wait_for_text(page, "second-kept")
            picture(page, "other-replica")
            page.goto(f"{proxy.url}/ui#/sandboxes")
            with SandboxClient(proxy.url, stack.key) as through, through.create_sandbox("host", sandbox_id="two-2"):
                page.mouse.move(2, 2)
                expect(page.get_by_role("link", name="two-2")).to_be_visible()
            stack.wait_ready()
