"""Recordings in the page: the list, the replay of a finished and of a running sandbox a terminal's screen, and the export."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast import SandboxClient, commands_of
from holdfast._recording_results import to_asciicast, to_messages
from playwright.sync_api import Page, expect

from tests.page.conftest import DEADLINE_MS, picture
from tests.page.test_views import check_accessible
from tests.support.until import until

OpenPage = Callable[..., Page]


def recorded_episode(client: SandboxClient, name: str) -> str:
    """A recording of five commands, of which the second failed; its sandbox is gone."""
    with client.create_sandbox("host", sandbox_id=name, record=True, group="replays", labels={"task": "django-14315"}) as sandbox:
        shell = sandbox.shell()
        shell.run("cd /tmp && printf 'a\\nb\\n' > list.txt && ls list.txt")
        shell.run("printf '\\033[31mFAIL\\033[0m test_unique\\n'; echo 'AssertionError: None != 7' >&2; (exit 3)")
        sandbox.exec("echo 'grüße <img src=x onerror=alert(1)>'")
        sandbox.exec("for i in 1 2 3; do echo line $i; sleep 1.5; done")
        sandbox.exec("printf 'a\\xffb\\n'")
        recording = sandbox.info().recording
        assert recording is not None
        sandbox.delete()
    until(lambda: client.recordings.get(recording).ended_at, deadline_s=60, what="the recording to be complete")
    return recording


def plain(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages with the arguments of calls as values: JSON texts may differ in spaces."""
    for call in (call for message in messages for call in message.get("tool_calls", ())):
        call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    return messages


def test_replay_of_a_recorded_episode(open_page: OpenPage, client: SandboxClient, tmp_path: Path) -> None:
    recording = recorded_episode(client, "replay-1")
    page = open_page("overview")
    page.on("dialog", lambda dialog: dialog.dismiss())
    page.keyboard.press("g")
    page.keyboard.press("r")
    expect(page.get_by_role("link", name="replay-1")).to_be_visible()
    expect(page.locator("tbody tr", has_text="replay-1")).to_contain_text("deleted")
    picture(page, "recordings")
    check_accessible(page)
    page.get_by_role("link", name="replay-1").click()
    chapters = page.locator(".chapters li")
    expect(chapters).to_have_count(5)
    expect(page.locator("header.head")).to_contain_text("5 commands")
    screen, position = page.locator(".player .screen"), page.get_by_role("slider", name="Position")

    # To a command: by the list, by keys, by a search.
    chapters.nth(1).get_by_role("button").click()
    expect(page.locator(".chapters .on")).to_contain_text("FAIL")
    page.keyboard.press("]")
    expect(page.locator(".chapters .on")).to_contain_text("grüße")
    expect(screen).to_contain_text("AssertionError: None != 7")
    expect(screen.locator(".a1")).to_have_text("FAIL")
    expect(screen.locator(".se")).to_have_text("AssertionError: None != 7\n")
    expect(screen.locator(".ex")).to_contain_text("exit 3")
    page.keyboard.press("[")
    expect(page.locator(".chapters .on")).to_contain_text("FAIL")
    page.keyboard.press("/")
    page.keyboard.type("line $i")
    expect(page.locator(".chapters li:visible")).to_have_count(1)
    page.keyboard.press("Enter")
    expect(page.locator(".chapters .on")).to_contain_text("line $i")
    page.get_by_label("Find a command").fill("")
    page.keyboard.press("Escape")

    # Seek, speed, play and pause.
    page.keyboard.press("Home")
    expect(position).to_have_attribute("aria-valuenow", "0")
    expect(screen).not_to_contain_text("line 3")
    page.get_by_role("button", name="1×", exact=True).click()
    expect(page.get_by_role("button", name="1×", exact=True)).to_have_attribute("aria-pressed", "true")
    page.keyboard.press("+")
    expect(page.get_by_role("button", name="2×")).to_have_attribute("aria-pressed", "true")
    page.keyboard.press("-")
    page.get_by_role("button", name="Play").click()
    expect(page.get_by_role("button", name="Pause")).to_be_visible()
    page.get_by_role("button", name="Pause").click()
    expect(page.get_by_role("button", name="Play")).to_be_visible()
    stopped = page.locator(".player .time").text_content()
    page.wait_for_timeout(300)
    assert page.locator(".player .time").text_content() == stopped, "a paused replay stands still"
    page.get_by_role("button", name="16×").click()
    page.locator("header.head h1").click()
    page.keyboard.press(" ")
    expect(screen).to_contain_text("The sandbox ended", timeout=DEADLINE_MS)
    expect(page.get_by_role("button", name="Play")).to_be_visible()
    expect(screen).to_contain_text("<img src=x onerror=alert(1)>")
    assert page.locator("main img").count() == 0
    box = page.locator(".track-box").bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + 1, box["y"] + 10)
    expect(position).to_have_attribute("aria-valuenow", "0")
    chapters.nth(3).get_by_role("button").click()
    picture(page, "replay")
    check_accessible(page)

    # The export equals that of the command line.
    lines = client.recordings.read(recording)
    for form, ending in (("asciicast v2", ".cast"), ("JSON lines", ".jsonl"), ("Chat messages", ".messages.jsonl")):
        page.get_by_role("button", name="Export").click()
        with page.expect_download() as download:
            page.get_by_role("button", name=form).click()
        assert download.value.suggested_filename == f"replay-1{ending}"
        content = Path(download.value.path()).read_bytes()
        if form == "JSON lines":
            assert content == client.recordings.raw(recording)
        elif form == "Chat messages":
            found = json.loads(content)
            assert plain(found["messages"]) == plain(to_messages(lines))
            called = [one["tool_calls"][0]["function"]["arguments"]["command"] for one in found["messages"][::2]]
            assert called == [one.command.decode() for one in commands_of(lines)]
        else:
            assert [json.loads(row) for row in content.splitlines()] == [
                json.loads(row) for row in to_asciicast(lines, recording).splitlines()
            ]

    # The sandbox that has ended leads to it, too.
    page.goto(f"{page.url.split('#')[0]}#/sandboxes/replay-1/timeline")
    page.locator("header.head").get_by_role("link", name="Replay").click()
    expect(chapters.first).to_be_visible()

    # From the address, one command; and deleting.
    page.goto(f"{page.url}/{commands_of(lines)[2].id}")
    expect(page.locator(".chapters .on")).to_contain_text("grüße")
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("button", name="Delete recording").click()
    expect(page.get_by_role("heading", name="Recordings", exact=True)).to_be_visible()
    assert [one.recording_id for one in client.recordings.list("replay-1")] == []
    page.goto(f"{page.url.split('#')[0]}#/recordings/{recording}")
    expect(page.get_by_text("This recording is gone")).to_be_visible()


def test_a_recording_is_followed_while_its_sandbox_lives(open_page: OpenPage, client: SandboxClient) -> None:
    with client.create_sandbox("host", sandbox_id="live-tape", record=True) as sandbox:
        sandbox.exec("echo first-one")
        page = open_page("sandboxes/live-tape/recording")
        expect(page.locator(".chapters li")).to_have_count(1)
        expect(page.locator(".player .screen")).to_contain_text("first-one")
        running = sandbox.start("echo begun; read line; echo got $line", stdin=True)
        expect(page.locator(".player .screen")).to_contain_text("begun")
        expect(page.locator(".chapters li").last).to_contain_text("running")
        picture(page, "recording-live")
        check_accessible(page)
        running.write(b"done\n")
        assert running.wait().exit_code == 0
        expect(page.locator(".player .screen")).to_contain_text("got done")
        expect(page.locator(".chapters li").last).not_to_contain_text("running")
        sandbox.delete()
        expect(page.locator(".player .screen")).to_contain_text("The sandbox ended")
        expect(page.get_by_text("complete since")).to_be_visible()


def test_the_screen_of_a_recorded_terminal(open_page: OpenPage, client: SandboxClient) -> None:
    with client.create_sandbox("host", sandbox_id="tape-term", record=True) as sandbox:
        page = open_page("sandboxes/tape-term/terminal")
        expect(page.get_by_text("Connected", exact=True)).to_be_visible()
        page.locator(".xterm-helper-textarea").focus()
        page.keyboard.type("printf 'one\\033[2J\\033[3;5Hat-row-3\\033]0;title\\007'; read x\n")
        page.wait_for_function("() => document.querySelector('.term-box').text().includes('at-row-3')", timeout=DEADLINE_MS)
        recording = sandbox.info().recording
        until(
            lambda: b"at-row-3" in client.recordings.raw(str(recording)).split(b"read x")[-1],
            deadline_s=60,
            what="the output to be recorded",
        )
        page.goto(f"{page.url.split('#')[0]}#/recordings/{recording}")
        expect(page.locator(".replay-terminal .xterm")).to_be_visible()
        page.wait_for_function("() => document.querySelector('.replay-terminal').text().includes('    at-row-3')", timeout=DEADLINE_MS)
        picture(page, "replay-terminal")
        check_accessible(page)
        page.keyboard.press("Home")
        expect(page.locator(".replay-terminal")).to_be_hidden()


def test_a_sandbox_that_is_not_recorded_says_so(open_page: OpenPage, client: SandboxClient) -> None:
    with client.create_sandbox("host", sandbox_id="no-tape"):
        page = open_page("sandboxes/no-tape/recording")
        expect(page.get_by_text("This sandbox is not recorded")).to_be_visible()
