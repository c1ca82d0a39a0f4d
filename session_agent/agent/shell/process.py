"""One process of a living shell: the control lines that it is sent, and the reports that it prints.

``driver`` has the text of the control lines, ``descriptors`` the pipes, ``state_files`` the files for scripts and state, ``output`` or
``terminal`` the output of runs. ``shell`` decides what follows from a report or from the end of the process.
"""

from __future__ import annotations

import asyncio
import os
import resource
import signal
from typing import Protocol

from session_agent.agent.commands.launch import is_busybox
from session_agent.agent.context import AgentContext
from session_agent.agent.output.pipes import waiting_bytes
from session_agent.agent.output.records import Record
from session_agent.agent.process.fork import Launch

from .descriptors import open_descriptors
from .driver import FED, OPENED, BashDialect, Dialect, Report, ReportReader, ShDialect
from .output import remove_fifo
from .terminal import ShellTerminal

_STATUS_BYTES = 4096
_STATUS_READS = 16
"""Most reads of reports at a time: a command may write to the pipe too, faster than it is read."""
_PROMPT_DELAY_S = 0.005
"""Time for the awaited report to arrive after a prompt, before it is requested again."""


class ShellEvents(Protocol):
    """The callbacks of a shell process, implemented by ``shell.Shell``."""

    def reported(self, process: ShellProcess, report: Report) -> None:
        """The report that was awaited has arrived."""
        ...

    def input_opened(self, process: ShellProcess) -> None:
        """The shell has opened the standard input of its run."""
        ...

    def pipes_opened(self, process: ShellProcess) -> None:
        """The shell has opened its new output pipes: the next run may begin."""
        ...

    def stopped(self, process: ShellProcess, status: int) -> None:
        """The process has ended; all its reports were delivered before."""
        ...

    def start_failed(self, process: ShellProcess, error: Exception) -> None:
        """The program could not be executed."""
        ...


class ShellProcess:
    """A running bash or sh."""

    def __init__(
        self, context: AgentContext, events: ShellEvents, kind: str, path: str, tag: int, launch: Launch, size: tuple[int, int] | None
    ) -> None:
        """``size``: rows and columns of the terminal of its runs, None for pipes."""
        self._loop = context.loop
        self._events = events
        self._launch = launch
        self.number = 0
        self.broken = False
        """Whether it was killed or takes no control lines any more."""
        self.may_crash = False
        """Whether a run has left it in a condition in which it may crash. Its state can still be saved; it gets no other run."""
        self._prompt_timer: asyncio.TimerHandle | None = None
        self._awaited = 0
        """The number of the report that is awaited, 0 for none."""
        self._new_pipes: dict[int, list[str]] = {}
        """Paths of named pipes that the shell is to open, by the number of the report that follows."""
        self._closed = False
        self._fed = False
        """Whether a fed shell has read control lines before."""
        self.status: int | None = None
        self.dialect: Dialect
        if kind == "bash":
            nofile = context.settings.ulimits.get("nofile", resource.getrlimit(resource.RLIMIT_NOFILE))[0]
            self.dialect = BashDialect(path, nofile=nofile, tty=size is not None)
        else:
            self.dialect = ShDialect(path, fed=is_busybox(path), tty=size is not None)
        with open_descriptors(context.loop, context.null, self.dialect, launch, size) as (own, stdio, place):
            self.pid = context.reaper.spawn(self.dialect.argv, launch, stdio, self._exited, tag=tag, place=place, on_start=self._started)
        self.descriptors = own
        self.terminal = own.output if isinstance(own.output, ShellTerminal) else None
        context.groups.join(self.pid)
        self._reports = ReportReader(self.dialect.token)
        self._loop.add_reader(own.status, self.read_reports)
        if own.prompts >= 0:
            self._loop.add_reader(own.prompts, self._prompted)
        self._write_feed_line()
        self._write_control(self.dialect.prepare() + self._snapshot(0))

    # control lines ---------------------------------------------------------------------------------------------

    def begin(self, script: bytes, record: Record, *, stdin: bytes | None, last_status: int, tag: int | None) -> int:
        """Start a run whose output goes to the spool of ``record``. Returns the number of its report."""
        self.number = number = self.number + 1
        self._reports.begin()
        self.descriptors.output.direct(record.spool, record.notify)
        files = self.descriptors.files
        slot = files.fill(self.dialect.text(number, script, stdin=stdin, last_status=last_status, tag=tag))
        lines = self.dialect.run(number, slot)
        self._write_control(lines if files.remain_valid_after(script, self.dialect) else lines + self._snapshot(number))
        self._awaited = number
        return number

    def ping(self) -> int:
        """Request a report without a run. Returns its number."""
        self.number += 1
        self._awaited = self.number
        self.request_report(self.number)
        return self.number

    def request_report(self, number: int) -> None:
        """Request report ``number``, again if an interrupt may have discarded the request. A second answer is ignored."""
        self._write_control(self.dialect.report(number))

    def rescue(self, number: int) -> None:
        """Request a report in a way that works although functions may have replaced the shell's builtins."""
        self._write_control(self.dialect.rescue(number))

    def snapshot_again(self) -> None:
        """Write the state again: an interrupt may have cut the last snapshot short."""
        self._write_control(self._snapshot(self.number))

    def load(self, dump: bytes, token: bytes) -> None:
        """Load the state ``dump`` of another process, and report."""
        self.number = number = self.number + 1
        slot = self.descriptors.files.fill(self.dialect.restore(dump, token))
        self._write_control(self.dialect.load(number, slot) + self._snapshot(number))
        self._awaited = number

    def has_snapshot(self) -> bool:
        """Whether the snapshot after the last run that may have changed the state is complete."""
        return self.descriptors.files.is_written(self.dialect.token)

    def state(self) -> tuple[bytes, bytes] | None:
        """The newest complete snapshot and the token in its marks."""
        return self.descriptors.files.state(self.dialect.token)

    @property
    def opening_pipes(self) -> bool:
        """Whether the shell has not opened its new output pipes yet."""
        return bool(self._new_pipes)

    def _snapshot(self, number: int) -> bytes:
        return self.dialect.snapshot(number, self.descriptors.files.expect_dump(number))

    def signal(self, number: int) -> None:
        """Signal the shell itself."""
        if self.status is None:
            try:
                os.kill(self.pid, number)
            except (ProcessLookupError, PermissionError):
                pass

    def kill(self) -> None:
        """Kill the process, and mark it as broken so that no run begins before its exit is reaped."""
        self.broken = True
        self.signal(signal.SIGKILL)

    def idle(self) -> bool:
        """Whether it is blocked reading a control line while the pipe is empty. False if the kernel does not show that."""
        try:
            if waiting_bytes(self.descriptors.control):
                return False
            with open(f"/proc/{self.pid}/syscall", "rb") as file:
                call, *arguments = file.read().split()
            if call != b"0" or not arguments:
                return False
            return os.readlink(f"/proc/{self.pid}/fd/{int(arguments[0], 16)}") == f"pipe:[{os.fstat(self.descriptors.control).st_ino}]"
        except (OSError, ValueError):
            return False

    def _write_control(self, lines: bytes) -> None:
        try:
            os.write(self.descriptors.control, lines)
        except BlockingIOError:
            self.broken = True  # it has left 64 KiB of control lines unread
        except BrokenPipeError:
            pass  # it has ended; ``_exited`` follows

    # reports ---------------------------------------------------------------------------------------------------

    def read_reports(self) -> None:
        """Read the reports that have arrived. Called before any time limit is enforced: the agent may not have been scheduled."""
        for _ in range(_STATUS_READS):
            if self._closed:
                return
            try:
                data = os.read(self.descriptors.status, _STATUS_BYTES)
            except BlockingIOError:
                return
            if not data:
                self._loop.remove_reader(self.descriptors.status)  # the shell was replaced by exec, or is ending
                return
            self._handle_reports(data)
            if len(data) < _STATUS_BYTES:
                return

    def _handle_reports(self, data: bytes) -> None:
        for report in self._reports.feed(data):
            paths = self._new_pipes.pop(report.number, None)
            if paths is not None:
                _unlink(paths)
                self.broken = self.broken or report.status != 0
                self._events.pipes_opened(self)
            elif report.number == FED:
                self._restarted_reading(report)
            elif report.number == self._awaited + OPENED:
                self._events.input_opened(self)
            elif report.number == self._awaited:
                self._awaited = 0
                self._events.reported(self, report)

    def _write_feed_line(self) -> None:
        """Put the one line into the standard input of a fed shell; never a second one, because it reads ahead."""
        if isinstance(self.dialect, ShDialect) and self.dialect.fed:
            try:
                os.write(self.descriptors.feed, self.dialect.feed_line())
            except OSError:
                pass  # it has ended; ``_exited`` follows

    def _restarted_reading(self, report: Report) -> None:
        """A fed shell starts to read control lines: at its start, or after an error, which ends the run and discards lines already read."""
        first, self._fed = not self._fed, True
        self._write_feed_line()
        if first:
            return
        self._write_control(self._snapshot(self.descriptors.files.newest))
        if self._awaited:
            number, self._awaited = self._awaited, 0
            self._events.reported(self, report._replace(number=number))

    def _prompted(self) -> None:
        """A POSIX shell printed its prompt: it does so when an error has ended a run and discarded the control lines already read."""
        try:
            data = os.read(self.descriptors.prompts, _STATUS_BYTES)
        except BlockingIOError:
            return
        if not data:
            self._loop.remove_reader(self.descriptors.prompts)
        elif self._awaited and self._prompt_timer is None and not self.dialect.fed:
            self._prompt_timer = self._loop.call_later(_PROMPT_DELAY_S, self._repeat_request)

    def _repeat_request(self) -> None:
        self._prompt_timer = None
        if self._awaited and self.status is None:
            self._write_control(self.dialect.report(self._awaited) + self._snapshot(self.descriptors.files.newest))

    def _started(self, error: Exception | None) -> None:
        if error is not None and not self._closed:
            self._events.start_failed(self, error)

    def _exited(self, status: int) -> None:
        if self._closed:
            self.status = status
            return
        self.read_reports()
        self.status = status
        self._events.stopped(self, status)

    # output ----------------------------------------------------------------------------------------------------

    def watch(self) -> None:
        """Read the output of the run as it arrives."""
        self.descriptors.output.watch()

    def collect(self) -> None:
        """The run has ended: read the rest of its output. Call ``renew`` before the next run."""
        output = self.descriptors.output
        output.collect(b"" if self.status is None else self._reports.rest())
        if output.last_error and self.dialect.may_crash_after(output.last_error):
            self.may_crash = True

    def renew(self) -> None:
        """Prepare the pipes for the next run, in the same iteration of the loop as ``collect``."""
        fifos = self.descriptors.output.renew(self._launch.uid, self._launch.gid)
        if fifos:
            self.number += 1
            self._new_pipes[self.number] = list(fifos.values())
            out, err = (fifos[stream].encode() if stream in fifos else None for stream in (1, 2))
            self._write_control(self.dialect.rotate(self.number, out, err) + self._snapshot(self.number))

    @property
    def is_useless(self) -> bool:
        """Whether it must not get another run: it may crash, or another process keeps its terminal."""
        return self.may_crash or (self.terminal is not None and self.terminal.is_taken(self.pid))

    def close(self) -> None:
        """Close all descriptors. Call when the process has ended or is being killed."""
        self._closed = True
        if self._prompt_timer is not None:
            self._prompt_timer.cancel()
        for paths in self._new_pipes.values():
            _unlink(paths)
        for descriptor in (self.descriptors.status, self.descriptors.prompts):
            if descriptor >= 0:
                self._loop.remove_reader(descriptor)
        self.descriptors.close()


def _unlink(paths: list[str]) -> None:
    for path in paths:
        remove_fifo(path)
