"""What a person sees when the gateway is killed: the terminal continues at the byte, with vim in it; the page says what happened."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pytest
from holdfast import SandboxClient
from playwright.sync_api import Page, expect

from tests.page.conftest import DEADLINE_MS, picture
from tests.support.stack import Stack

OpenPage = Callable[..., Page]
EDITOR = next((name for name in ("vim", "vim.tiny", "vi", "nano") if shutil.which(name)), "")


def wait_for_text(page: Page, text: str) -> None:
    page.wait_for_function("text => document.querySelector('.term-box').text?.().includes(text)", arg=text, timeout=DEADLINE_MS)


def test_a_terminal_with_vim_survives_the_gateway(open_page: OpenPage, client: SandboxClient, page_stack: Stack) -> None:
    assert EDITOR, "no vim on this machine: apt-get install vim-tiny"
    with client.create_sandbox("host", sandbox_id="vim-1") as sandbox:
        page = open_page("sandboxes/vim-1/terminal")
        expect(page.get_by_text("Connected", exact=True)).to_be_visible()
        page.locator(".xterm-helper-textarea").focus()
        page.keyboard.type(f"cd /tmp && {EDITOR} note.txt\n")
        wait_for_text(page, "note.txt")
        page.keyboard.type("ibefore the kill")
        wait_for_text(page, "before the kill")
        picture(page, "terminal-vim")
        pid = page_stack.kill_process("gateway")
        expect(page.get_by_text("Reconnecting")).to_be_visible()
        picture(page, "terminal-reconnecting")
        page_stack.wait_restarted("gateway", pid)
        expect(page.get_by_text("Connected", exact=True)).to_be_visible()
        expect(page.get_by_text("Reconnected after").first).to_be_visible()
        page.locator(".xterm-helper-textarea").focus()
        page.keyboard.type(" and after it")
        wait_for_text(page, "before the kill and after it")
        page.keyboard.press("Escape")
        page.keyboard.type(":wq\n")
        wait_for_text(page, "$" if sandbox.exec("id -u").stdout.strip() != "0" else "#")
        page.keyboard.type("echo $((6*7))ok\n")
        wait_for_text(page, "42ok")
        assert sandbox.files.read("/tmp/note.txt") == b"before the kill and after it\n"
        page_stack.wait_ready()
        expect(page.get_by_text("Live", exact=True)).to_be_visible()
        picture(page, "terminal-reconnected")


def test_a_shell_is_joined_again_after_a_reload(open_page: OpenPage, client: SandboxClient) -> None:
    with client.create_sandbox("host", sandbox_id="join-1"):
        page = open_page("sandboxes/join-1/terminal")
        expect(page.get_by_text("Connected", exact=True)).to_be_visible()
        page.locator(".xterm-helper-textarea").focus()
        page.keyboard.type("X=kept-here; echo $X\n")
        wait_for_text(page, "\nkept-here")
        page.reload()
        expect(page.get_by_text("Connected", exact=True)).to_be_visible()
        page.locator(".xterm-helper-textarea").focus()
        page.keyboard.type("echo again-$X\n")
        wait_for_text(page, "again-kept-here")


def test_a_shell_of_another_client_is_joined(open_page: OpenPage, client: SandboxClient) -> None:
    """Both see what is typed, and the shell stays when the page leaves it."""
    with client.create_sandbox("host", sandbox_id="join-2") as sandbox, sandbox.terminal(name="agent") as terminal:
        terminal.write(b"X=of-the-client; echo here-$X\n")
        page = open_page("sandboxes/join-2/terminal")
        expect(page.get_by_role("button", name="agent")).to_have_attribute("aria-pressed", "true")
        expect(page.get_by_text("Connected", exact=True)).to_be_visible()
        wait_for_text(page, "here-of-the-client")
        page.locator(".xterm-helper-textarea").focus()
        page.keyboard.type("echo page-$X\n")
        wait_for_text(page, "page-of-the-client")
        picture(page, "terminal-joined")
        page.get_by_role("button", name="Detach").click()
        expect(page.get_by_text("Left. The shell continues to run")).to_be_visible()
        again = client.get_sandbox("join-2").terminal(name="agent")
        again.write(b"echo after-$X\n")
        seen = b""
        for chunk in again:
            seen += chunk if isinstance(chunk, bytes) else chunk.data
            if b"after-of-the-client" in seen:
                break
        again.close()


@pytest.mark.parametrize("part", ["gateway"])
def test_the_page_says_that_it_was_offline(open_page: OpenPage, client: SandboxClient, page_stack: Stack, part: str) -> None:
    with client.create_sandbox("host", sandbox_id="there-1") as sandbox:
        page = open_page("sandboxes")
        expect(page.get_by_role("link", name="there-1")).to_be_visible()
        pid = page_stack.kill_process(part)
        expect(page.get_by_text("Gateway restarting: reconnected after")).to_be_visible()
        picture(page, "reconnected")
        page_stack.wait_restarted(part, pid)
        page_stack.wait_ready()
        page.mouse.move(2, 2)
        sandbox.exec("echo after the restart")  # what happens in sandboxes is followed again, too
        expect(page.locator(".v-row", has_text="there-1")).to_contain_text("echo after the restart")
        with client.create_sandbox("host", sandbox_id="after-1"):
            page.mouse.move(2, 2)
            expect(page.get_by_role("link", name="after-1")).to_be_visible()
