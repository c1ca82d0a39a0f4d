"""One command in a living shell, with its standard input.

Owns the run's times, its result so far, and the named pipe that it reads: the pipe has a name only until the shell has opened it, and a
real end of file afterwards. ``shell`` starts and ends the run.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Protocol

from holdfast_wire.errors import HoldfastError

from session_agent.agent.output.exit_status import ExitStatus, exit_status_of
from session_agent.agent.output.pipes import PipeWriter
from session_agent.agent.output.records import Record

from .output import make_fifo, remove_fifo
from .process import ShellProcess

NEVER = float("inf")
"""A time that does not come."""


class RunningShell(Protocol):
    """What a run needs of its ``shell.Shell``."""

    def signal_run(self, run: Run, name: str) -> None: ...
    def cancel_run(self, run: Run) -> None: ...


class Run:
    """One command in a shell."""

    number = 0
    tag = 0
    began = 0.0
    starts_at = NEVER
    """When its start is reported, if it has not ended by then."""
    ends_at = NEVER
    """Its time limit."""
    pipe_fd = -1
    """The write end of its process's pipe, until the shell has opened that: a reader without a writer would get an end of file."""
    fifo = ""
    fifo_fd = -1
    """Keeps the named pipe open: the shell's open would otherwise wait for a writer."""
    abort = ""
    """Why it was aborted: ``timeout`` or ``cancelled``."""
    before: frozenset[int] = frozenset()
    """Processes of the shell that existed before the run, if runs cannot be marked."""
    rescues = 0
    """How often the monitor found the shell idle during the run."""
    failed_begins = 0
    """How many processes of the shell ended before they began the run."""
    late = False
    """Whether a process that writes the rest of its output was still there at its end."""
    survives = False
    """Whether a process of it, or its shell, was killed and has not ended yet."""
    exit_code = 0
    signal_name: str | None = None

    def __init__(
        self, shell: RunningShell, record: Record, script: bytes, timeout_s: float | None, pipe_stdin: bool, *, one_stream: bool = False
    ) -> None:
        self._shell = shell
        self.record = record
        self.script = script
        self.timeout_s = timeout_s
        self.one_stream = one_stream
        """Whether its standard error is written to its standard output, in the order of writing."""
        self.sink = PipeWriter() if pipe_stdin else None
        """Writes its standard input, once the shell has opened that."""

    def signal(self, name: str) -> None:
        """Signal its processes."""
        self._shell.signal_run(self, name)

    def cancel(self) -> None:
        """Abort it, or remove it from the queue of its shell."""
        self._shell.cancel_run(self)

    def begin_input(self, process: ShellProcess, uid: int | None, gid: int | None) -> bytes | None:
        """The path of the standard input of this run in ``process``, None for ``/dev/null``. Raises ``spawn_failed``."""
        if self.sink is None:
            return None
        if not self.fifo:
            self.pipe_fd = process.open_input()
            if self.pipe_fd >= 0:
                return process.dialect.input
            self.create_fifo(uid, gid)
        return self.fifo.encode()

    def create_fifo(self, uid: int | None, gid: int | None) -> None:
        """Create the named pipe of the standard input. Raises ``spawn_failed``: without input the command would do something else."""
        path = make_fifo(uid, gid)
        if path is not None:
            try:
                self.fifo_fd = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
                self.fifo = path
                return
            except OSError:  # no free descriptor at the moment
                remove_fifo(path)
        self.close()
        why = "the pipe of the command's standard input could not be created"
        hint = "make /dev/shm, /tmp, /run or /var/tmp writable, and free a file descriptor of the sandbox"
        raise HoldfastError("spawn_failed", why, hint=hint)

    def input_opened(self) -> None:
        """The shell has opened the pipe: write the input that arrived before; closing the pipe is an end of file from now on."""
        if self.sink is not None and self.pipe_fd >= 0:
            descriptor, self.pipe_fd = self.pipe_fd, -1
            self.sink.start(descriptor)
            return
        if self.sink is None or self.fifo_fd < 0:
            return
        try:
            descriptor = os.open(self.fifo, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return  # the reader has closed it already
        self._remove_fifo()
        self.sink.start(descriptor)

    def feed(self, data: bytes, eof: bool, consumed: Callable[[int], None]) -> None:
        """Write or queue bytes for its standard input; those that it will never read count as consumed."""
        if self.sink is None:
            consumed(len(data))
        else:
            self.sink.feed(data, eof, consumed)

    def exit_status(self, duration_s: float, oom_killed: Callable[[], bool], shell: dict[str, Any]) -> ExitStatus:
        """Its result; ``shell`` as of ``Exited``."""
        code, name = self.exit_code, self.signal_name
        status = exit_status_of(
            "command", code, name, duration_s, abort=self.abort, oom_killed=oom_killed, shell=shell, survives=self.survives
        )
        status.late = self.late
        return status

    def close(self) -> None:
        """The run has ended: discard its input."""
        if self.sink is not None:
            self.sink.close()
            self.withdraw_input()
            self._remove_fifo()

    def withdraw_input(self) -> None:
        """Close the write end of a pipe that no process has opened; it may begin again in another process."""
        if self.pipe_fd >= 0:
            os.close(self.pipe_fd)
            self.pipe_fd = -1

    def _remove_fifo(self) -> None:
        if self.fifo_fd >= 0:
            os.close(self.fifo_fd)
            self.fifo_fd = -1
            remove_fifo(self.fifo)
