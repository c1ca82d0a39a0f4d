"""The progress of ``map``: on a terminal one line that is rewritten, in a file a limited number of whole lines."""

from __future__ import annotations

import io

from holdfast import SandboxLostError
from holdfast._progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_one_line_from_the_start_that_is_rewritten() -> None:
    stream, clock = Terminal(), [100.0]
    progress = Progress(4, stream=stream, now=lambda: clock[0])
    assert stream.getvalue() == f"\r[{'.' * 30}] 0/4, 0 s", "before the first item is done"
    for outcome in (None, SandboxLostError("gone"), ValueError(), 7):
        clock[0] += 2
        progress.step(outcome)
    lines = stream.getvalue().split("\r")[1:]
    assert [line.partition("] ")[2] for line in lines] == [
        "0/4, 0 s",
        "1/4, 2 s",
        "2/4, 1 failed (1 infrastructure), 4 s",
        "3/4, 2 failed (1 infrastructure), 6 s",
        "4/4, 2 failed (1 infrastructure), 8 s\n",
    ]


def test_a_terminal_is_not_updated_for_each_of_many_quick_items() -> None:
    stream = Terminal()
    progress = Progress(1000, stream=stream, now=lambda: 0.0)
    for _ in range(1000):
        progress.step(None)
    assert [line.partition("] ")[2] for line in stream.getvalue().split("\r")[1:]] == ["0/1000, 0 s", "1000/1000, 0 s\n"]


def test_a_file_gets_progress_lines_only_on_request() -> None:
    stream, clock = io.StringIO(), [0.0]
    progress = Progress(30, True, stream, lambda: clock[0])
    for _ in range(30):
        clock[0] += 1
        progress.step(None)
    lines = stream.getvalue().splitlines()
    assert [line.partition("] ")[2] for line in lines] == ["0/30, 0 s", "10/30, 10 s", "20/30, 20 s", "30/30, 30 s"]
    assert "\r" not in stream.getvalue()
    quiet = io.StringIO()
    Progress(1, None, quiet).step(None)
    Progress(0, True, quiet)
    assert quiet.getvalue() == ""
