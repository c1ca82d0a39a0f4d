"""The descriptors of a shell process: those with which the agent controls and reads it, and those that it inherits.

Owns how they are opened and closed. ``process`` uses them.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from holdfast_wire.records import dataclass

from session_agent.agent.process.fork import Launch, Stdio

from .driver import SH_FEED, Dialect
from .output import RunOutput
from .state_files import StateFiles
from .terminal import ShellTerminal


@dataclass(frozen=True, slots=True)
class ShellDescriptors:
    """The agent's descriptors for one shell process."""

    output: RunOutput | ShellTerminal
    files: StateFiles
    control: int
    """The write end of the pipe of control lines."""
    status: int
    """The read end of the pipe of reports."""
    prompts: int
    """The read end of the pipe of a POSIX shell's prompts, -1 for bash."""
    feed: int
    """The write end of the standard input of a fed shell, -1 for another one."""

    def close(self) -> None:
        """Close all of them."""
        for descriptor in (self.control, self.status, self.prompts, self.feed):
            if descriptor >= 0:
                os.close(descriptor)
        self.files.close()
        self.output.close()


@contextmanager
def open_descriptors(
    loop: asyncio.AbstractEventLoop, null: int, dialect: Dialect, launch: Launch, size: tuple[int, int] | None
) -> Iterator[tuple[ShellDescriptors, Stdio, dict[int, int]]]:
    """The agent's descriptors, and those that the shell inherits: its standard streams, and others by number.

    Raises ``OSError``. At the end of the context the inherited ones are closed, and after an exception all of them. ``size``: the size of
    the terminal of its runs.
    """
    with ExitStack() as inherited, ExitStack() as kept:
        output: RunOutput | ShellTerminal
        if size is not None:
            output = ShellTerminal(size)
            kept.callback(output.close)
        else:
            output = RunOutput(loop, _pipe(kept, kept), _pipe(kept, kept))
        files = StateFiles()
        kept.callback(files.close)
        control_read, control = _pipe(inherited, kept)
        status, status_write = _pipe(kept, inherited)
        stdin, stderr, prompts, feed = control_read, null, -1, -1
        place = dict(zip(dialect.inherited.all, (*output.inherited, *files.descriptors), strict=True))
        if dialect.kind == "sh":
            prompts, stderr = _pipe(kept, inherited)
        if dialect.fed:
            stdin, feed = _pipe(inherited, kept)
            place[SH_FEED] = control_read
        if launch.uid is not None:
            for descriptor in (*place.values(), control_read):
                os.fchown(descriptor, launch.uid, launch.gid if launch.gid is not None else -1)
        for descriptor in (control, status, prompts):
            if descriptor >= 0:
                os.set_blocking(descriptor, False)
        yield ShellDescriptors(output, files, control, status, prompts, feed), Stdio(stdin, status_write, stderr), place
        kept.pop_all()


def _pipe(reads: ExitStack, writes: ExitStack) -> tuple[int, int]:
    """Read end and write end of a new pipe, each of which its stack closes."""
    reader, writer = os.pipe()
    reads.callback(os.close, reader)
    writes.callback(os.close, writer)
    return reader, writer
