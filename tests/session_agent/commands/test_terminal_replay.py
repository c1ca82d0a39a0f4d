"""A client that attaches to a terminal again sees the same screen: real programs, rendered by a terminal emulator."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import pyte
import pytest
from holdfast_wire.frames import Started

from session_agent.agent.commands.terminal import SCROLLBACK_BYTES
from session_agent.agent.commands.terminal_replay import RESET, SEARCH_BYTES, clean_start, replay
from tests.support.process_channel import Client, ProcessChannel, client
from tests.support.running import only_terminal

PATH = os.environ["PATH"]
ROWS, COLUMNS = 24, 80
Lines = list[str]

PANEL = """
import curses

def main(screen):
    curses.curs_set(0)
    screen.addstr(0, 0, "A header that is drawn once")
    screen.addstr(23, 0, "and a footer, \\u00fcml\\u00e4uts \\u4e2d\\u6587")
    turns = 0
    while True:
        for _ in range(30_000 if turns == 0 else 0):
            screen.addstr(5 + _ % 7, 3 + _ % 11, f"{_:09d}", curses.A_BOLD if _ % 2 else 0)
            screen.refresh()
        turns += 1
        screen.addstr(20, 0, "settled")
        if screen.getch() == ord("q"):
            return

curses.wrapper(main)
"""


class Screen:
    """The screen that a person would see."""

    def __init__(self, channel: ProcessChannel, rows: int = ROWS, columns: int = COLUMNS) -> None:
        self.channel = channel
        self._screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self._screen)
        self._fed = 0

    def lines(self) -> Lines:
        new = bytes(self.channel.output[self._fed :])
        self._fed += len(new)
        self._stream.feed(new)
        return [line.rstrip() for line in self._screen.display]

    async def shows(self, condition: Callable[[Lines], bool]) -> Lines:
        """The screen once ``condition`` holds."""
        try:
            await self.channel.until(lambda: condition(self.lines()))
        except TimeoutError:
            raise AssertionError("the screen is\n" + "\n".join(self.lines())) from None
        return self.lines()


def attach(sandbox: Client, **params: object) -> Screen:
    return Screen(
        sandbox.open("terminal", {"name": "t", "rows": ROWS, "cols": COLUMNS, "env": {"PS1": "> ", "LC_ALL": "C.UTF-8"}, **params})
    )


async def test_a_pager_shows_the_same_screen_again(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("".join(f"line {n} äöü 中文\n" for n in range(1, 501)))
    async with client(env={"PATH": PATH}) as sandbox:
        first = attach(sandbox, argv=["less", str(tmp_path / "text")])
        await first.shows(lambda lines: lines[0].startswith("line 1 "))
        first.channel.handler.write(b"100g", False)
        before = await first.shows(
            lambda lines: lines[0].startswith("line 100 ") and lines[22].startswith("line 122 ") and lines[23] == ":"
        )
        first.channel.handler.close(True)
        again = attach(sandbox)
        await again.shows(lambda lines: lines == before)
        for _ in range(10):  # a pager that draws again for its new client may discard input meanwhile
            again.channel.handler.write(b"123g", False)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(6):
                    await again.channel.until(lambda: again.lines()[0].startswith("line 123 "))
                    return
        await again.shows(lambda lines: lines[0].startswith("line 123 "))


async def test_a_program_whose_drawing_is_not_kept_draws_again(tmp_path: Path) -> None:
    """The header was written half a megabyte ago, so the kept tail lacks it: the program has to draw it again."""
    (tmp_path / "panel.py").write_text(PANEL)
    async with client(env={"PATH": PATH}) as sandbox:
        first = attach(sandbox, argv=["python3", str(tmp_path / "panel.py")])
        before = await first.shows(lambda lines: lines[20] == "settled")
        assert before[0] == "A header that is drawn once"
        assert before[23] == "and a footer, ümläuts 中文"
        terminal = only_terminal(sandbox.context)
        assert terminal.spool.size > SCROLLBACK_BYTES + 64 * 1024
        first.channel.handler.close(True)
        for _ in range(2):
            again = attach(sandbox)
            assert (await again.channel.fact(Started)).info["created"] is False
            assert again.channel.output.startswith(RESET)
            await again.shows(lambda lines: lines == before)
            again.channel.handler.close(True)
        larger = attach(sandbox, rows=30)
        await larger.channel.until(lambda: b"A header that is drawn once" in larger.channel.output)


async def test_a_prompt_is_shown_again_exactly_once() -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        first = attach(sandbox, argv=["bash", "--norc", "--noprofile"])
        await first.shows(lambda lines: lines[0] == ">")
        first.channel.handler.write("echo $((40+2)) ü; echo half-typ".encode(), False)
        before = await first.shows(lambda lines: lines[0].endswith("half-typ"))
        first.channel.handler.close(True)
        again = attach(sandbox)
        await again.shows(lambda lines: lines == before)
        again.channel.handler.write(b"ed; stty size\n", False)
        await again.shows(lambda lines: lines[1:5] == ["42 ü", "half-typed", f"{ROWS} {COLUMNS}", ">"])


async def test_after_much_output_its_end_is_shown_and_the_size_is_right() -> None:
    async with client(env={"PATH": PATH}) as sandbox:
        first = attach(sandbox, argv=["bash", "--norc", "--noprofile"])
        await first.shows(lambda lines: lines[0] == ">")
        first.channel.handler.write(b"seq 100000; echo the-$((40+2))\n", False)
        before = await first.shows(lambda lines: lines[22:] == ["the-42", ">"])
        first.channel.handler.close(True)
        again = attach(sandbox)
        await again.shows(lambda lines: lines == before)
        again.channel.handler.resize(ROWS, COLUMNS)  # an explicit size takes effect at once
        again.channel.handler.write(b"stty size\n", False)
        await again.shows(lambda lines: lines[22] == f"{ROWS} {COLUMNS}")


@pytest.mark.parametrize(
    ("tail", "kept"),
    [
        (b"8;5;12mred\x1b[0m text", b"\x1b[0m text"),
        (b"rest of a line\r\nnext\x1b[1m", b"next\x1b[1m"),
        (b"\x1b[2Jwhole", b"\x1b[2Jwhole"),
        (b"\xb8\xad\xe4\xb8\xad", b"\xe4\xb8\xad"),
        (b"plain", b"plain"),
        (b"x" * SEARCH_BYTES + b"\ny", b"x" * SEARCH_BYTES + b"\ny"),
        (b"", b""),
    ],
)
def test_a_cut_tail_begins_at_a_safe_position(tail: bytes, kept: bytes) -> None:
    assert tail[clean_start(tail) :] == kept
    assert replay(tail, cut=True) == RESET + kept
    assert replay(tail, cut=False) == tail


@pytest.mark.parametrize(
    "query",
    [
        b"\x1b[c", b"\x1b[0c", b"\x1b[>c", b"\x1b[=c", b"\x1b[5n", b"\x1b[6n", b"\x1b[?6n", b"\x1b[>q", b"\x1b[?2026$p", b"\x1b[?u",
        b"\x1b[18t",
        b"\x1b]11;?\x07", b"\x1b]10;?\x1b\\", b"\x1b]4;1;?\x07", b"\x1bP+q544e\x1b\\", b"\x1bP$qm\x1b\\", b"\x1bZ", b"\x05",
    ],
)  # fmt: skip
def test_a_terminal_query_is_not_replayed(query: bytes) -> None:
    """The client's terminal would answer, and the program would read the answer as input."""
    assert replay(b"a" + query + b"b", cut=False) == b"ab"


@pytest.mark.parametrize(
    "drawing", [b"\x1b[1;31m", b"\x1b[2 q", b"\x1b[?25l", b"\x1b]0;title?\x07", b"\x1b]8;;http://x/?a\x07", b"\x1b[8;24;80t"]
)
def test_a_drawing_sequence_is_replayed(drawing: bytes) -> None:
    assert replay(drawing, cut=False) == drawing
