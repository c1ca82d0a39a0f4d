"""One shell process and the descriptors it is driven by.

Owns the control pipe and the reports. The text of runs and the shell's state travel in ``state_files``; its output
is ``output``'s; what to do about a report or an end is decided by ``shell``.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
from collections.abc import Callable
from typing import Protocol

from session_agent.agent.commands.launch import is_busybox
from session_agent.agent.context import AgentContext
from session_agent.agent.output.records import Record
from session_agent.agent.process.fork import Launch, Stdio

from .driver import FED, OPENED, BashDialect, Dialect, Private, Report, ReportReader, ShDialect
from .output import RunOutput, waiting_bytes
from .state_files import StateFiles
from .terminal import ShellTerminal

_STATUS_BYTES = 4096
_PRIVATE_BASE = 100
_SH_PRIVATE = (6, 7, 8, 9)
_SH_FEED = 5
_NUDGE_S = 0.005


class ShellEvents(Protocol):
    """The callbacks from a shell process to its shell."""

    def reported(self, process: ShellProcess, report: Report) -> None:
        """A run or a question was answered."""
        ...

    def input_opened(self, process: ShellProcess) -> None:
        """It has opened the standard input of its run."""
        ...

    def settled(self, process: ShellProcess) -> None:
        """It has its fresh pipes: the next run may begin."""
        ...

    def stopped(self, process: ShellProcess, status: int) -> None:
        """The process is gone; all its reports were delivered before."""
        ...

    def unavailable(self, process: ShellProcess, error: Exception) -> None:
        """The process could not be started."""
        ...


class ShellProcess:
    """A running bash or sh."""

    def __init__(
        self,
        context: AgentContext,
        kind: str,
        path: str,
        launch: Launch,
        tag: int,
        events: ShellEvents,
        size: tuple[int, int] | None = None,
    ) -> None:
        """``size``: rows and columns, where its runs have a terminal."""
        self._context = context
        self._loop = context.loop
        self._events = events
        self._uid = launch.uid
        self._gid = launch.gid
        self.number = 0
        self.broken = False
        self.unsound = False
        """Whether it may crash: its state is still good, another run it should not get."""
        self._nudge: asyncio.TimerHandle | None = None
        self._awaited = 0
        self._rotating: dict[int, list[str]] = {}
        self._closed = False
        self._fed = False
        self.status: int | None = None
        self._output = output = ShellTerminal(context.loop, size) if size is not None else RunOutput(context.loop, os.pipe(), os.pipe())
        self._terminal = output if isinstance(output, ShellTerminal) else None
        out, err = (output.slave, output.slave) if isinstance(output, ShellTerminal) else output.readers
        self._files = StateFiles()
        pipes = [os.pipe() for _ in range(2)]
        (control_read, self._control), (self._status, status_write) = pipes
        prompt_read = prompt_write = feed_read = -1
        self._feed = -1
        if kind == "sh":
            prompt_read, prompt_write = os.pipe()
            if is_busybox(path):
                feed_read, self._feed = os.pipe()
        self._prompts = prompt_read
        inherited = [os.dup(out), os.dup(err), *(os.dup(file) for file in self._files.descriptors)]
        if self._feed >= 0:
            inherited.append(os.dup(control_read))
        inherited = [_raise(fd) for fd in inherited]
        try:
            if launch.uid is not None:
                for fd in (out, err, *self._files.descriptors, control_read):
                    os.fchown(fd, launch.uid, launch.gid if launch.gid is not None else -1)
            self.dialect: Dialect
            if kind == "bash":
                self.dialect = BashDialect(path, Private(inherited[0], inherited[1], (inherited[2], inherited[3])), tty=size is not None)
                stdio = Stdio(control_read, status_write, context.null, tuple(inherited))
                place = None
            else:
                a, b, c, d = _SH_PRIVATE
                private = Private(a, b, (c, d))
                self.dialect = ShDialect(path, private, None if self._feed < 0 else _SH_FEED, tty=size is not None)
                stdio = Stdio(control_read if self._feed < 0 else feed_read, status_write, prompt_write)
                place = dict(zip((*_SH_PRIVATE, _SH_FEED), inherited, strict=False))
            self.pid = context.reaper.spawn(self.dialect.argv, launch, stdio, self._exited, tag=tag, place=place, on_start=self._started)
        except BaseException:
            for fd in (self._control, self._status):
                os.close(fd)
            self._files.close()
            output.close()
            for fd in (prompt_read, self._feed):
                if fd >= 0:
                    os.close(fd)
            raise
        finally:
            for fd in (control_read, status_write, *inherited, prompt_write, feed_read):
                if fd >= 0:
                    os.close(fd)
        context.groups.join(self.pid)
        self._reports = ReportReader(self.dialect.token)
        for fd in (self._control, self._status):
            os.set_blocking(fd, False)
        self._loop.add_reader(self._status, self.read_reports)
        if prompt_read >= 0:
            os.set_blocking(prompt_read, False)
            self._loop.add_reader(prompt_read, self._prompted)
        self._feed_again()
        self._say(self.dialect.prepare() + self._snapshot(0))

    # talking to it ---------------------------------------------------------------------------------------------

    def begin(self, script: bytes, record: Record, *, stdin: bytes | None, last_status: int, tag: int | None) -> int:
        """Start a run whose output goes to the spool of ``record``. Answers the number its report will have."""
        self.number = number = self.number + 1
        self._reports.begin()
        self._output.direct(record.spool, record.notify)
        slot = self._files.fill(self.dialect.text(number, script, stdin=stdin, last_status=last_status, tag=tag))
        lines = self.dialect.run(number, slot)
        self._say(lines if self._files.still_describe(script, self.dialect) else lines + self._snapshot(number))
        self._awaited = number
        return number

    def ask(self) -> int:
        """Ask for a report out of turn; its number is the answer."""
        self.number += 1
        self._awaited = self.number
        self._say(self.dialect.report(self.number))
        return self.number

    def ask_again(self, number: int) -> None:
        """The report may have been thrown away by an interrupt: ask once more. Answers that come twice do no harm."""
        self._say(self.dialect.report(number))

    def rescue(self, number: int) -> None:
        """Ask in a way that survives functions named like builtins."""
        self._say(self.dialect.rescue(number))

    def snapshot_again(self) -> None:
        """Write the state once more, after an interrupt may have cut the last time short."""
        self._say(self._snapshot(self.number))

    def load(self, dump: bytes, token: bytes) -> None:
        """Load the state ``dump``, and report."""
        self.number = number = self.number + 1
        slot = self._files.fill(self.dialect.restore(dump, token))
        self._say(self.dialect.load(number, slot) + self._snapshot(number))
        self._awaited = number

    def has_snapshot(self) -> bool:
        """Whether the state after the last run that may have changed it is safely written."""
        return self._files.is_written(self.dialect.token)

    def state(self) -> tuple[bytes, bytes] | None:
        """The newest complete dump and the token of its marks."""
        return self._files.state(self.dialect.token)

    @property
    def settling(self) -> bool:
        """Whether it has yet to open fresh pipes."""
        return bool(self._rotating)

    def _snapshot(self, number: int) -> bytes:
        return self.dialect.snapshot(number, self._files.expect_dump(number))

    def signal(self, number: int) -> None:
        """Signal the shell itself."""
        if self.status is None:
            try:
                os.kill(self.pid, number)
            except (ProcessLookupError, PermissionError):
                pass

    def kill(self) -> None:
        """End it. Until its end is noticed it looks alive: it is broken, so that no run begins in it."""
        self.broken = True
        self.signal(signal.SIGKILL)

    def idle(self) -> bool:
        """Whether it waits for a control line while there is none, as far as the kernel lets us see; False when it does not."""
        try:
            if waiting_bytes(self._control):
                return False
            with open(f"/proc/{self.pid}/syscall", "rb") as file:
                call, *arguments = file.read().split()
            if call != b"0" or not arguments:
                return False
            return os.readlink(f"/proc/{self.pid}/fd/{int(arguments[0], 16)}") == self._control_name()
        except (OSError, ValueError):
            return False

    def _control_name(self) -> str:
        return f"pipe:[{os.fstat(self._control).st_ino}]"

    def _say(self, lines: bytes) -> None:
        try:
            os.write(self._control, lines)
        except BlockingIOError:
            self.broken = True  # it has not read 64 KiB of control lines: nothing will make it
        except BrokenPipeError:
            pass  # its end is on the way

    # hearing from it -------------------------------------------------------------------------------------------

    def read_reports(self) -> None:
        """Read its reports. Called first where a time limit has passed: the agent itself may have been held up."""
        data = b""
        while not self._closed and len(data) in {0, _STATUS_BYTES}:
            try:
                data = os.read(self._status, _STATUS_BYTES)
            except BlockingIOError:
                return
            if not data:
                self._loop.remove_reader(self._status)  # replaced by exec, or ending
                return
            self._heard(data)

    def _heard(self, data: bytes) -> None:
        for report in self._reports.feed(data):
            paths = self._rotating.pop(report.number, None)
            if paths is not None:
                _unlink(paths)
                self.broken = self.broken or report.status != 0
                self._events.settled(self)
            elif report.number == FED:
                self._unwound(report)
            elif report.number == self._awaited + OPENED:
                self._events.input_opened(self)
            elif report.number == self._awaited:
                self._awaited = 0
                self._events.reported(self, report)

    def _feed_again(self) -> None:
        """Have a fed shell find one line, and never two: it reads ahead."""
        if self._feed >= 0 and isinstance(self.dialect, ShDialect):
            try:
                os.write(self._feed, self.dialect.feed_line())
            except OSError:
                pass  # its end is on the way

    def _unwound(self, report: Report) -> None:
        """A fed shell begins to read control lines. Was it in a run, an error has ended that, and with it what it had read already."""
        first, self._fed = not self._fed, True
        self._feed_again()
        if first:
            return
        self._say(self._snapshot(self._files.newest))
        if self._awaited:
            number, self._awaited = self._awaited, 0
            self._events.reported(self, report._replace(number=number))

    def _prompted(self) -> None:
        """A POSIX shell drops the lines it has read when a run ends in an error; its prompt shows that it is back."""
        try:
            data = os.read(self._prompts, _STATUS_BYTES)
        except BlockingIOError:
            return
        if not data:
            self._loop.remove_reader(self._prompts)
        elif self._awaited and self._nudge is None and self._feed < 0:
            self._nudge = self._loop.call_later(_NUDGE_S, self._nudged)

    def _nudged(self) -> None:
        self._nudge = None
        if self._awaited and self.status is None:
            self._say(self.dialect.report(self._awaited) + self._snapshot(self._files.newest))

    def _started(self, error: Exception | None) -> None:
        if error is not None and not self._closed:
            self._events.unavailable(self, error)

    def _exited(self, status: int) -> None:
        if self._closed:
            self.status = status
            return
        self.read_reports()
        self.status = status
        self._events.stopped(self, status)

    # its output ------------------------------------------------------------------------------------------------

    def watch(self) -> None:
        """The run goes on for a while: take its output as it comes."""
        self._output.watch()

    def collect(self) -> None:
        """The run is over: take the rest of its output. Before the next one, ``renew``."""
        self._output.collect(b"" if self.status is None else self._reports.rest())
        if self._output.last_error and self.dialect.is_unsound(self._output.last_error):
            self.unsound = True

    def renew(self) -> None:
        """Make the pipes ready for the next run, in the same turn of the loop as ``collect``."""
        fifos = self._output.renew(self._uid, self._gid)
        if fifos:
            self.number += 1
            self._rotating[self.number] = list(fifos.values())
            out, err = (fifos[stream].encode() if stream in fifos else None for stream in (1, 2))
            self._say(self.dialect.rotate(self.number, out, err) + self._snapshot(self.number))

    # its terminal, where it has one ------------------------------------------------------------------------------

    @property
    def is_useless(self) -> bool:
        """Whether another run should not get it: it may crash, or what runs in it would get no keys."""
        return self.unsound or (self._terminal is not None and self._terminal.is_taken(self.pid))

    def type(self, data: bytes, consumed: Callable[[int], None]) -> None:
        """Keys for what runs."""
        if self._terminal is None or self._closed:
            consumed(len(data))
        else:
            self._terminal.type(data, consumed)

    def resize(self, rows: int, columns: int) -> None:
        """The window of the terminal changed."""
        if self._terminal is not None and not self._closed:
            self._terminal.resize(rows, columns)

    def settle_terminal(self, *, calm: bool) -> None:
        """A run is over; not ``calm``: a signal or an abort ended it."""
        if self._terminal is not None and not self._closed:
            self._terminal.settle(calm=calm)

    def close(self) -> None:
        """Let go of every descriptor; call once it ended or is being killed."""
        self._closed = True
        if self._nudge is not None:
            self._nudge.cancel()
        for paths in self._rotating.values():
            _unlink(paths)
        for fd in (self._status, self._prompts):
            if fd >= 0:
                self._loop.remove_reader(fd)
                os.close(fd)
        os.close(self._control)
        if self._feed >= 0:
            os.close(self._feed)
        self._files.close()
        self._output.close()


def _unlink(paths: list[str]) -> None:
    for path in paths:
        try:
            os.unlink(path)
        except OSError:
            pass


def _raise(fd: int) -> int:
    """The same file under a number that scripts do not use, and above what ``ulimit -n`` is commonly set to."""
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _PRIVATE_BASE)
    finally:
        os.close(fd)
