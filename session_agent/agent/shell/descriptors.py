"""The descriptors of a shell process: those with which the agent controls and reads it, and those that it inherits.

Owns how they are opened and closed. ``process`` uses them.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from holdfast_wire.fast_dataclass import dataclass

from session_agent.agent.process.fork import Launch, Stdio

from .control import RING_FILES, FileControl, LineControl, text_file
from .driver import SH_FEED, BashDialect, Dialect
from .output import RunOutput
from .state.files import StateFiles
from .terminal import ShellTerminal


@dataclass(frozen=True, slots=True)
class ShellDescriptors:
    """The agent's descriptors for one shell process."""

    output: RunOutput | ShellTerminal
    files: StateFiles
    control: LineControl
    status: int
    """The read end of the pipe of reports."""
    input: int
    """The read end of the pipe that is the standard input of runs with an input. A write end exists only during such a run."""
    feed: int
    """The write end of the shell's standard input, on which it finds nothing but requests to read control lines."""

    def close(self) -> None:
        """Close all of them."""
        os.close(self.status)
        os.close(self.feed)
        os.close(self.input)
        self.control.close()
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
        files = StateFiles(command=isinstance(dialect, BashDialect))
        kept.callback(files.close)
        control_read, pipe = _pipe(inherited, kept)
        status, status_write = _pipe(kept, inherited)
        stdin, feed = _pipe(inherited, kept)
        input_, input_writer = os.pipe()
        os.close(input_writer)
        kept.callback(os.close, input_)
        control: LineControl
        if isinstance(dialect, BashDialect):
            ring = tuple(_file(kept) for _ in range(RING_FILES))
            control = FileControl(pipe, ring, dialect.first_digit)
            constant = [_file(inherited, text) for text in dialect.files()]
            given = (*ring, *files.descriptors, control_read, *constant, files.command, input_, *output.inherited)
            place = dict(zip(dialect.inherited.all, given, strict=True))
        else:
            control = LineControl(pipe)
            place = dict(zip(dialect.inherited.all, (*files.descriptors, input_, *output.inherited), strict=True))
            place[SH_FEED] = control_read
        if launch.uid is not None:
            for descriptor in (*place.values(), stdin):
                os.fchown(descriptor, launch.uid, launch.gid if launch.gid is not None else -1)
        for descriptor in (pipe, status, feed, input_):
            os.set_blocking(descriptor, False)
        yield ShellDescriptors(output, files, control, status, input_, feed), Stdio(stdin, status_write, null), place
        kept.pop_all()


def _file(owner: ExitStack, text: bytes = b"") -> int:
    """A memory file with ``text``, which ``owner`` closes."""
    file = text_file(text)
    owner.callback(os.close, file)
    return file


def _pipe(reads: ExitStack, writes: ExitStack) -> tuple[int, int]:
    """Read end and write end of a new pipe, each of which its stack closes."""
    reader, writer = os.pipe()
    reads.callback(os.close, reader)
    writes.callback(os.close, writer)
    return reader, writer
