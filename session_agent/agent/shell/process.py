"""One process of a living shell: the control lines that it is sent, and the reports that it prints.

``driver`` has the text of the control lines, ``descriptors`` the pipes, ``state`` the files for scripts and the saved state, ``output`` or
``terminal`` the output of runs. ``shell`` decides what follows from a report or from the end of the process.
"""

from __future__ import annotations

import asyncio
import os
import resource
import signal
from collections.abc import Callable
from typing import Protocol

from holdfast_wire.paths import wire

from session_agent.agent.context import AgentContext
from session_agent.agent.output.pipes import CHUNK_BYTES, waiting_bytes
from session_agent.agent.output.records import Record
from session_agent.agent.process.fork import Launch
from session_agent.agent.process.last_writers import count_open

from .control import FileControl
from .descriptors import open_descriptors
from .driver import FED, FENCE, NUMBERS, OPENED, BashDialect, Dialect, Report, ReportReader, ShDialect
from .output import remove_fifo
from .state.saved import SavedState
from .terminal import ShellTerminal

_MANY = 256
"""A shell that may open so many has enough for a run, unless a command has opened hundreds in the shell itself."""
_SPARE = 16
"""With so many free numbers it has enough for a run, whatever the free ones are."""
_STATUS_BYTES = 4096
_STATUS_READS = 16
"""Most reads of reports at a time: a command may write to the pipe too, faster than it is read."""


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
        self,
        context: AgentContext,
        events: ShellEvents,
        kind: str,
        path: str,
        tag: int,
        launch: Launch,
        size: tuple[int, int] | None,
        *,
        loads: bool = False,
    ) -> None:
        """``size``: rows and columns of the terminal of its runs, None for pipes. ``loads``: the first state is written by ``load``."""
        self._loop = context.loop
        self._events = events
        self._launch = launch
        self.number = 0
        self._numbers: list[int] = []
        """Random numbers for the next runs."""
        self.broken = False
        """Whether it was killed or takes no control lines any more."""
        self.may_crash = False
        """Whether a run has left it in a condition in which it may crash. Its state can still be saved; it gets no other run."""
        self.changes = True
        """Whether the last run may have changed the state."""
        self._awaited = 0
        """The number of the report that is awaited, 0 for none."""
        self._new_pipes: dict[int, list[str]] = {}
        """Paths of named pipes that the shell is to open, by the number of the report that follows."""
        self._closed = False
        self._input_is_taken = False
        """Whether something else than the next run may read the pipe for inputs."""
        self._fed = False
        """Whether it has begun to read control lines."""
        self._runs = False
        """Whether the awaited report is one of a run."""
        self._unsent = False
        """Whether control lines could not be written because the process had closed their pipe."""
        self._interrupted = False
        """Whether a client has interrupted the run, possibly before it began."""
        self._broken_off: Report | None = None
        """The report that an error or interrupt has made it begin again to read control lines, since the run began."""
        self.status: int | None = None
        """Its wait status; that of a death by SIGKILL if it ``survives``."""
        self.survives = False
        """Whether the kernel has not ended it some seconds after SIGKILL: it is lost, and reaped when it ends."""
        self._giving_up: asyncio.TimerHandle | None = None
        self._kill_patience_s = context.limits.kill_patience_s
        self.dialect: Dialect
        nofile = context.settings.ulimits.get("nofile", resource.getrlimit(resource.RLIMIT_NOFILE))[0]
        self._nofile = _few(nofile)
        """How many descriptors it may open at first."""
        if kind == "bash":
            self.dialect = BashDialect(path, nofile=nofile, tty=size is not None)
        else:
            self.dialect = ShDialect(path, tty=size is not None)
        with open_descriptors(context.loop, context.null, self.dialect, launch, size) as (own, stdio, place):
            self.pid = context.reaper.spawn(self.dialect.argv, launch, stdio, self._exited, tag=tag, place=place, on_start=self._started)
        self.descriptors = own
        control, dialect = own.control, self.dialect
        self._direct = (control, dialect) if isinstance(control, FileControl) and isinstance(dialect, BashDialect) else None
        """Through which the text of a run can be sourced without control lines around it."""
        self.terminal = own.output if isinstance(own.output, ShellTerminal) else None
        context.groups.join(self.pid)
        self._reports = ReportReader(self.dialect.token)
        self._loop.add_reader(own.status, self.read_reports)
        if isinstance(self.dialect, BashDialect):
            self._write_feed(self.dialect.prepare())
            first = b""
        else:
            self._write_feed(self.dialect.feed_line())
            first = self.dialect.prepare()
        if not loads:
            first += self._snapshot(0)
        if first:
            self._write_control(first)

    # control lines ---------------------------------------------------------------------------------------------

    def begin(
        self, script: bytes, record: Record, *, stdin: bytes | None, last_status: int, tag: int | None, one_stream: bool = False
    ) -> int:
        """Start a run whose output goes to the spool of ``record``. Returns the number of its report."""
        number = self._next_number()
        self._runs, self._broken_off, self._unsent, self._interrupted = True, None, False, False
        self._reports.begin()
        if self.terminal is not None:
            self.terminal.discard()
        files = self.descriptors.files
        changes = not files.remain_valid_after(script, self.dialect)
        in_file = changes and isinstance(self.dialect, BashDialect) and files.may_skip_commands()
        run = self.dialect.evaluate_file() if in_file and isinstance(self.dialect, BashDialect) else self.dialect.evaluate(script)
        text = self.dialect.text(number, run, stdin=stdin, last_status=last_status, tag=tag, one_stream=one_stream)
        if not changes and self._direct is not None:
            # It cannot return from the file, so that can report by itself: one file less to source for the shortest commands.
            control, dialect = self._direct
            slot = files.fill(dialect.shortest(text, number))
            try:
                control.write_digit(dialect.private.files[slot], files.descriptors[slot])
            except OSError:
                self._unsent = True  # it has ended; ``_exited`` follows
        else:
            lines = self.dialect.run(number, files.fill(text, script if in_file else None))
            self._write_control(lines + self._snapshot(number) + self.dialect.prompt() if changes else lines)
        # While the shell begins: its output stays in the pipes until they are read.
        self.descriptors.output.direct(record.spool, record.notify, one_stream=one_stream)
        self._awaited = number
        self.changes = changes
        return number

    def _next_number(self) -> int:
        if not self._numbers:
            self._numbers.extend(NUMBERS.unpack(os.urandom(NUMBERS.size)))
        self.number = 1 + self._numbers.pop()
        return self.number

    def ping(self) -> int:
        """Request a report without a run. Returns its number."""
        self._awaited = self._next_number()
        self._runs, self._broken_off = False, None
        self.request_report(self.number)
        return self.number

    def request_report(self, number: int) -> None:
        """Request report ``number``, again if an interrupt may have discarded the request. A second answer is ignored.

        Of a run that has sent no report itself the answer shows that it is over: the shell takes control lines in their order.
        """
        self._write_control(self.dialect.report(number + FENCE if self._runs else number))

    def rescue(self, number: int) -> None:
        """Request a report in a way that works although functions may have replaced the shell's builtins."""
        if isinstance(self.dialect, BashDialect):
            self._write_feed(self.dialect.rescue() + self.dialect.feed_line())
            self.signal(signal.SIGINT)  # it may be in its loop, whose commands fail, and has to read its standard input
        else:
            self._write_control(self.dialect.rescue())
        self.request_report(number)

    @property
    def has_begun(self) -> bool:
        """Whether the shell has taken the control lines of the run and read its text."""
        return not self._unsent and not self.descriptors.control.is_unread and self.descriptors.files.is_read

    def withdraw(self) -> None:
        """Empty the control lines of a run that the shell has not taken, so that it will never begin, if it can be done."""
        self.descriptors.control.withdraw()

    def snapshot_again(self) -> None:
        """Write the state again: an interrupt may have cut the last snapshot short."""
        self._write_control(self._snapshot(self.number))

    def load(self, state: SavedState) -> None:
        """Load the state of another process, write the own one, and report."""
        number = self._next_number()
        self._runs, self._broken_off = False, None
        slot = self.descriptors.files.fill(self.dialect.restore(state))
        self._write_control(self.dialect.load(slot) + self._snapshot(number) + self.dialect.report(number))
        self._awaited = number

    @property
    def was_broken_off(self) -> bool:
        """Whether an error has ended what was reported last before its end."""
        return self._broken_off is not None

    def has_snapshot(self) -> bool:
        """Whether the snapshot after the last run that may have changed the state is complete."""
        return self.descriptors.files.is_written(self.dialect.token)

    def state(self) -> SavedState | None:
        """The newest complete snapshot."""
        return self.descriptors.files.state(self.dialect)

    def directory(self, claimed: str) -> str:
        """The directory of the process. ``claimed``, the value of PWD, is its name if it leads there: PWD may have any value."""
        try:
            link = f"/proc/{self.pid}/cwd"
            path = wire(os.readlink(link))
            if claimed in (path, path.removesuffix(" (deleted)")):
                return claimed
        except OSError:  # it has ended
            return claimed
        try:
            return claimed if claimed.startswith("/") and os.path.samefile(claimed, link) else path
        except (OSError, ValueError):  # there is no such directory
            return path

    @property
    def opening_pipes(self) -> bool:
        """Whether the shell has not opened its new output pipes yet."""
        return bool(self._new_pipes)

    def _snapshot(self, number: int) -> bytes:
        return self.dialect.snapshot(number, self.descriptors.files.expect_dump(number))

    def interrupt(self) -> None:
        """Send it a SIGINT that a client wants. A run that has not begun is over, too."""
        self._interrupted = True
        self.signal(signal.SIGINT)

    def signal(self, number: int) -> None:
        """Signal the shell itself."""
        if self.status is None:
            try:
                os.kill(self.pid, number)
            except (ProcessLookupError, PermissionError):
                pass

    def kill(self) -> None:
        """Kill the process, and mark it as broken so that no run begins before its exit is reaped, or given up."""
        self.broken = True
        self.signal(signal.SIGKILL)
        if self._giving_up is None:
            self._giving_up = self._loop.call_later(self._kill_patience_s, self._give_up)

    def _give_up(self) -> None:
        if self.status is None:
            self.survives = True
            self._exited(signal.SIGKILL)

    def idle(self) -> bool:
        """Whether it is blocked reading control lines, or requests to read them, while there are none. False if the kernel hides that."""
        try:
            control, feed = self.descriptors.control.pipe, self.descriptors.feed
            with open(f"/proc/{self.pid}/syscall", "rb") as file:
                call, *arguments = file.read().split()
            if call != b"0" or not arguments:
                return False
            pipe = os.readlink(f"/proc/{self.pid}/fd/{int(arguments[0], 16)}")
            return any(pipe == f"pipe:[{os.fstat(end).st_ino}]" and not waiting_bytes(end) for end in (control, feed))
        except (OSError, ValueError):
            return False

    def _write_control(self, lines: bytes) -> None:
        try:
            self.descriptors.control.write(self.dialect.control(lines))
        except BlockingIOError:
            if not self._awaited:  # else what is unread makes it report
                self._unsent = True
                self.kill()
        except BrokenPipeError:
            self._unsent = True  # it has ended; ``_exited`` follows

    def _write_feed(self, lines: bytes) -> None:
        try:
            os.write(self.descriptors.feed, lines)
        except OSError:
            pass  # it has left 64 KiB unread, or has ended

    # input -----------------------------------------------------------------------------------------------------

    def open_input(self) -> int:
        """A write end of the pipe that a run can have as its standard input, -1 if there is none. The caller closes it."""
        if self._input_is_taken:
            return -1
        try:
            # Not a named pipe: opening this one again never waits for its other end, so commands can open ``/dev/stdin``.
            return os.open(f"/proc/self/fd/{self.descriptors.input}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:  # no free descriptor at the moment
            return -1

    def end_input(self, readers: Callable[[], list[int]]) -> None:
        """A run with that input has ended, and its write end is closed: discard what it has not read, for the next run.

        If one of ``readers``, the processes of the run, or another descriptor of the shell still has it, no other run gets this pipe.
        """
        if self._closed or self._input_is_taken:
            return
        found = os.fstat(self.descriptors.input)
        pipe = found.st_dev, found.st_ino
        if count_open(pipe, [self.pid]) > 1 or count_open(pipe, readers()):
            self._input_is_taken = True
            return
        try:
            while os.read(self.descriptors.input, CHUNK_BYTES):
                pass
        except BlockingIOError:
            self._input_is_taken = True  # a process that is hidden from the agent writes to it

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
            if report.number == self._awaited != 0:
                if self._was_skipped():
                    self.kill()  # the run has not begun, and begins in the next process
                    return
                self._awaited = 0
                self._events.reported(self, report)
            elif (paths := self._new_pipes.pop(report.number, None)) is not None:
                _unlink(paths)
                self.broken = self.broken or report.status != 0
                self._events.pipes_opened(self)
            elif report.number == FED:
                self._begins_reading(report)
            elif report.number == self._awaited + OPENED:
                self._events.input_opened(self)
            elif self._awaited and report.number == self._awaited + FENCE:  # the run was broken off before it could report
                if not self.descriptors.files.is_read and not self._interrupted:
                    self.kill()  # it could not read the text of the run, which has not begun and begins in the next process
                    return
                report = (self._broken_off or report)._replace(number=self._awaited)
                self._awaited = 0
                self._events.reported(self, report)

    def _was_skipped(self) -> bool:
        """Whether a trap on DEBUG, or a function in the place of a builtin, has kept the shell from reading the run that it reports."""
        return self._runs and self.changes and not self._interrupted and not self.descriptors.files.is_read

    def _begins_reading(self, report: Report) -> None:
        """It starts to read control lines: at its start, or after an error or interrupt, which discards those that it was executing.

        Whether that concerned the run that is awaited, or what was before it, shows in the order of the following reports.
        """
        first, self._fed = not self._fed, True
        self._write_feed(self.dialect.feed_line())
        if first:
            return
        self._write_control(self._snapshot(self.descriptors.files.newest))
        if self._awaited:
            self._broken_off = report
            self.request_report(self._awaited)

    def _started(self, error: Exception | None) -> None:
        if error is not None and not self._closed:
            self._events.start_failed(self, error)

    def _exited(self, status: int) -> None:
        if self._closed or self.status is not None:  # it was given up before it ended
            self.status = status
            return
        self.read_reports()
        self.status = status
        self._events.stopped(self, status)

    # output ----------------------------------------------------------------------------------------------------

    def watch(self) -> None:
        """Read the output of the run as it arrives."""
        self.descriptors.output.watch()

    def collect(self) -> list[tuple[int, int]]:
        """The run has ended: read what is there of its output. Returns the pipes to which another process may still write."""
        return self.descriptors.output.collect()

    def finish(self) -> None:
        """After ``collect``: the output is complete, with what the process wrote when it ended."""
        output = self.descriptors.output
        output.finish(b"" if self.status is None else self._reports.rest())
        if output.last_error and self.dialect.may_crash_after(output.last_error):
            self.may_crash = True

    def renew(self) -> None:
        """After ``collect``, in the same iteration of the loop: prepare the pipes for the next run."""
        self.finish()
        fifos = self.descriptors.output.renew(self._launch.uid, self._launch.gid)
        if fifos:
            self._next_number()
            self._new_pipes[self.number] = list(fifos.values())
            out, err = (fifos[stream].encode() if stream in fifos else None for stream in (1, 2))
            self._write_control(self.dialect.rotate(self.number, out, err) + self._snapshot(self.number))

    @property
    def is_useless(self) -> bool:
        """Whether it must not get another run: it may crash or cannot open a run's files, or another process keeps its terminal."""
        if self.may_crash or (self.changes and self._lacks_descriptors()):
            return True
        return self.terminal is not None and self.terminal.is_taken(self.pid)

    def _lacks_descriptors(self) -> bool:
        """Whether a command has left it too few descriptors for the next run, as after ``ulimit -n 20``: a shell reports that as 1 or 2."""
        folder = f"/proc/{self.pid}/fd"
        try:
            limit = _open_limit(self.pid)
            if limit < 0 or (_few(limit) >= self._nofile and limit - _count_in(folder) >= _SPARE):
                return False
            lowest = self.dialect.lowest_descriptor
            taken = sum(lowest <= int(number) < limit for number in os.listdir(folder))
        except (OSError, ValueError):  # it has ended
            return False
        return limit - lowest - taken < self.dialect.least_descriptors

    def close(self) -> None:
        """Close all descriptors. Call when the process has ended or is being killed."""
        self._closed = True
        if self._giving_up is not None:
            self._giving_up.cancel()
        for paths in self._new_pipes.values():
            _unlink(paths)
        self._loop.remove_reader(self.descriptors.status)
        self.descriptors.close()


def _few(limit: int) -> int:
    """A limit of descriptors as far as it matters: all limits of many are the same, none (-1) too."""
    return limit if 0 <= limit < _MANY else _MANY


def _count_in(folder: str) -> int:
    """How many descriptors the process with this ``/proc/PID/fd`` has open. Raises ``OSError``."""
    return os.stat(folder).st_size or len(os.listdir(folder))  # kernels before 6.2 do not give it as a size


def _open_limit(pid: int) -> int:
    """How many descriptors a process may open, -1 for no limit. Raises ``OSError``."""
    try:
        return resource.prlimit(pid, resource.RLIMIT_NOFILE)[0]
    except PermissionError:  # it is another user's, and the agent has no CAP_SYS_RESOURCE
        with open(f"/proc/{pid}/limits", "rb") as file:
            row = next((line for line in file if line.startswith(b"Max open files")), b"0 0 0 -1")
        return int(row.split()[3]) if row.split()[3].isdigit() else -1


def _unlink(paths: list[str]) -> None:
    for path in paths:
        remove_fifo(path)
