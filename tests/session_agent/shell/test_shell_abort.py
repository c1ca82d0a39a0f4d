"""A shell is stopped before its children are listed, so that no new child misses an interrupt; a late interrupt may truncate a snapshot."""

from __future__ import annotations

import os
import signal
from typing import cast

from session_agent.agent.shell.process import ShellProcess
from session_agent.agent.shell.retry import interrupt
from tests.support.process_channel import Client, client
from tests.support.running import only_shell
from tests.support.until import until_async


class RecordingShell:
    """A shell that records the signals sent to it."""

    def __init__(self) -> None:
        self.signals: list[int] = []

    def signal(self, number: int) -> None:
        self.signals.append(number)

    def interrupt(self) -> None:
        self.signal(signal.SIGINT)


def test_children_are_listed_while_the_shell_is_stopped() -> None:
    shell = RecordingShell()
    sent_before: list[list[int]] = []

    def children() -> list[int]:
        sent_before.append(shell.signals[:])
        return []

    interrupt(cast("ShellProcess", shell), children)
    assert sent_before == [[signal.SIGSTOP]]
    assert shell.signals == [signal.SIGSTOP, signal.SIGINT, signal.SIGCONT]


async def _truncate_dump(sandbox: Client) -> ShellProcess:
    """Truncate the snapshot as an interrupt does that comes after the run was reported."""
    shell = only_shell(sandbox.context)
    process = shell.process
    await until_async(lambda: not process.opening_pipes and process.has_snapshot(), deadline_s=60, what="the dump")
    files = process.descriptors.files
    os.ftruncate(files.descriptors[files._dumps[0][1]], 100)
    return process


async def test_an_interrupted_snapshot_is_written_again() -> None:
    async with client() as sandbox:
        shell = sandbox.shell(shell="bash")
        await shell.run("X=1")
        await _truncate_dump(sandbox)
        outcome = await shell.run("echo $X")
        assert (outcome.stdout, outcome.result["shell"]["restarted"]) == (b"1\n", False)


async def test_the_previous_snapshot_is_kept_while_one_is_written_twice() -> None:
    async with client() as sandbox:
        shell = sandbox.shell(shell="bash")
        await shell.run("X=1")
        await shell.run("X=2; sleep 60 &")  # the shell gets new pipes and writes its snapshot again
        (await _truncate_dump(sandbox)).kill()
        assert (await shell.run("echo $X")).stdout == b"1\n"
