"""In which order an interrupt is sent: whoever is started meanwhile would never hear of it. What one that comes late may cut short."""

from __future__ import annotations

import os
import signal
from typing import cast

from session_agent.agent.shell.abort import interrupt
from session_agent.agent.shell.process import ShellProcess
from tests.support.process_channel import Client, client
from tests.support.running import only_shell
from tests.support.until import until_async


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


async def _cut_dump_short(sandbox: Client) -> ShellProcess:
    """As an interrupt does that comes when the run has been reported."""
    shell = only_shell(sandbox.context)
    process = shell.process
    await until_async(lambda: not process.opening_pipes and process.has_snapshot(), deadline_s=10, what="the dump")
    files = process._files
    os.ftruncate(files.descriptors[files._dumps[0][1]], 100)
    return process


async def test_a_state_whose_writing_was_interrupted_is_written_again() -> None:
    async with client() as sandbox:
        shell = sandbox.shell(shell="bash")
        await shell.run("X=1")
        await _cut_dump_short(sandbox)
        told = await shell.run("echo $X")
        assert (told.stdout, told.result["shell"]["restarted"]) == (b"1\n", False)


async def test_the_older_state_is_kept_while_one_is_written_twice() -> None:
    async with client() as sandbox:
        shell = sandbox.shell(shell="bash")
        await shell.run("X=1")
        await shell.run("X=2; sleep 60 &")  # has its pipes replaced, and the state written again
        (await _cut_dump_short(sandbox)).kill()
        assert (await shell.run("echo $X")).stdout == b"1\n"
