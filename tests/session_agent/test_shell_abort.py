"""In which order an interrupt is sent: whoever is started meanwhile would never hear of it."""

from __future__ import annotations

import signal
from typing import cast

from session_agent.shell_abort import interrupt
from session_agent.shell_process import ShellProcess


class Heard:
    """A shell that takes note."""

    def __init__(self) -> None:
        self.signals: list[int] = []

    def signal(self, number: int) -> None:
        self.signals.append(number)


def test_children_are_looked_for_when_the_shell_can_start_no_more() -> None:
    shell = Heard()
    when: list[list[int]] = []

    def children() -> list[int]:
        when.append(shell.signals[:])
        return []

    interrupt(cast("ShellProcess", shell), children)
    assert when == [[signal.SIGSTOP]]
    assert shell.signals == [signal.SIGSTOP, signal.SIGINT, signal.SIGCONT]
