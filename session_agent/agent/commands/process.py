"""One process from its start to its exit: the common base of one-off commands and terminals.

Owns start, signals, time limit and exit status, and killing the processes that it has started. A killed process that the kernel does not
let end gets its result without its exit. ``command`` and ``terminal`` define its streams and store its result; ``delivery`` sends it to
clients, and the process runs the same with or without one.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from typing import ClassVar

from holdfast_wire.errors import HoldfastError

from session_agent.agent.context import AgentContext
from session_agent.agent.output.exit_status import ExitStatus, exit_status_of
from session_agent.agent.output.pipes import PipeReader, PipeWriter
from session_agent.agent.output.records import Record
from session_agent.agent.process.fork import Launch, Stdio
from session_agent.agent.process.last_writers import LastOutput
from session_agent.agent.process.process_tree import TreeKill, has_unowned_children, kill_group, members, owned_by
from session_agent.agent.process.processes import exit_outcome, signal_number
from session_agent.agent.process.start_errors import CannotExecuteError

_WAIT_POLL_S = 0.05


class Process:
    """A process. ``outlive``: what happens at its end to processes that it started and that still run: ``adopt``, ``kill`` or ``wait``."""

    KIND: ClassVar[str]
    """The noun for messages: ``command`` or ``terminal``."""
    KILLED: ClassVar[str]
    """The reason of its end if a client sent SIGKILL."""
    ERRORS: ClassVar[tuple[int, str]]
    """The stream and the line end for the message that a program cannot be executed."""

    def __init__(self, context: AgentContext, record: Record, *, outlive: str = "adopt") -> None:
        self._context = context
        self.record = record
        self._outlive = outlive
        self._tag = context.tags.owner()
        self._began = context.now()
        self._status: int | None = None
        self._abort = ""
        """The first reason for which it was killed, if it was."""
        self._killing: TreeKill | None = None
        self._rest: LastOutput | None = None
        """While it has ended and other processes write the rest of its output."""
        self._late = False
        self._survives = False
        """Whether SIGKILL has not ended it, or a process that it has started, in time."""
        self._timer: asyncio.TimerHandle | None = None
        self._sink: PipeWriter | None = None
        self._sources: list[PipeReader] = []
        self.pid = 0
        self._live = False
        """True from the start until the result is stored."""
        self._watched = False
        """Whether its start is reported and its output sent before it ends."""
        self._signals: list[int] = []
        """Signals that arrived before its exec was confirmed."""

    def _spawn(self, argv: list[str], launch: Launch, stdio: Stdio, *, tty: bool = False) -> None:
        self.pid = self._context.reaper.spawn(
            argv, launch, stdio, self._exited, tag=self._tag, tty=tty, on_start=self._started, watch=False
        )

    def _go(self, timeout_s: float | None, *, watch: bool) -> None:
        """The process was spawned and its streams exist: set its time limit, and watch it now or after a delay."""
        self._live = True
        self.record.owner = self
        self.record.started = not self._context.reaper.is_starting(self.pid)
        if timeout_s is not None:
            self._timer = self._context.loop.call_later(timeout_s, self.end, "timeout")
        if watch:
            self.watch()
        else:
            self._context.delayed_watch.add(self)

    def watch(self) -> None:
        """Report its start, and its output as it arrives."""
        self._context.delayed_watch.remove(self)
        self._watched = True
        self._context.reaper.watch(self.pid)
        for source in self._sources:
            source.watch()

    def signal(self, name: str) -> None:
        """Signal it; KILL kills the whole process tree."""
        number = signal_number(name)
        if number == signal.SIGKILL:
            self.end(self.KILLED)
        elif self.record.started:
            self._send_signal(number)
        elif number not in self._signals:  # in the kernel too a signal is pending at most once
            self._signals.append(number)
            self.watch()  # to send it as soon as the exec is confirmed

    def feed(self, data: bytes, eof: bool, consumed: Callable[[int], None]) -> None:
        """Write to its standard input, if it has one."""
        if self._sink is None:
            consumed(len(data))
        else:
            self._sink.feed(data, eof, consumed)

    def cancel(self) -> None:
        """Kill it and every process that it started."""
        self.end("cancelled")

    def end(self, why: str) -> None:
        """Kill it and every process that it started, unless it has ended. Its exit may not have been reaped yet, so reap first."""
        self._context.reaper.reap()
        if self._killing is not None or not self._live:
            return
        if self._rest is not None:
            self._rest.end()
            return
        if self._status is not None and not members(owned_by(self._tag)):
            self._finish()
            return
        self._abort = why
        self._kill_tree()

    # Implemented by subclasses ------------------------------------------------------------------------------------

    def _send_signal(self, number: int) -> None:
        raise NotImplementedError

    def _end_streams(self) -> None:
        """The process has ended: read the rest of its output."""
        raise NotImplementedError

    def _release(self) -> None:
        """Release everything but the record."""
        self._live = False
        self._context.delayed_watch.remove(self)
        if self._timer is not None:
            self._timer.cancel()
        if self._killing is not None:
            self._killing.cancel()
        if self._sink is not None:
            self._sink.close()
        for source in self._sources:
            source.close()

    def _store(self, exit_status: ExitStatus) -> None:
        raise NotImplementedError

    def _fail(self, error: HoldfastError) -> None:
        """Store that it could not be started; there is no exit status."""
        raise NotImplementedError

    # Callbacks ---------------------------------------------------------------------------------------------------

    def _started(self, error: Exception | None) -> None:
        """The exec has succeeded, or failed with ``error``."""
        if error is None:
            self.record.started = True
            if self._watched:
                self.record.notify()
            for number in self._signals:
                self._send_signal(number)
            return
        self._release()
        if isinstance(error, CannotExecuteError):
            self._cannot_execute(error)
        else:
            assert isinstance(error, HoldfastError)
            self._fail(error)

    def _cannot_execute(self, error: CannotExecuteError) -> None:
        """Report as a shell does: a message in the output, and exit code 126 or 127."""
        stream, line_end = self.ERRORS
        self.record.started = True
        self.record.spool.append(stream, f"{error.message}{line_end}".encode())
        self._store(ExitStatus(error.exit_code, self._context.now() - self._began, not_executed=error.why))

    def _kill_tree(self) -> None:
        roots = (self.pid,) if self._status is None else ()
        if roots:
            # Stop the whole group at once: a fork bomb would fork faster than its processes are found.
            kill_group(self.pid, signal.SIGSTOP)
        self._killing = None
        self._killing = TreeKill(owned_by(self._tag), self._killed, roots=roots, patience_s=self._context.limits.kill_patience_s)

    def _killed(self) -> None:
        left = frozenset() if self._killing is None else self._killing.left  # None: it has found none at once
        self._survives = bool(left)
        self._context.reaper.reap_orphans(owned_by(self._tag))
        if self._status is not None:
            self._finish()
        elif self.pid in left:
            self._give_up()
        else:  # ``_exited`` follows, unless a debugger keeps the exit to itself
            self._replace_timer(self._context.limits.kill_patience_s, self._give_up)

    def _replace_timer(self, delay_s: float, then: Callable[[], None]) -> None:
        """It is being killed: its time limit matters no more."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._context.loop.call_later(delay_s, then)

    def _give_up(self) -> None:
        """Report the end without the exit: the kernel does not let it end now. It is reaped when it ends."""
        self._context.reaper.reap()
        if self._live:
            self._survives, self._abort = True, self._abort or "cancelled"
            self._status = signal.SIGKILL
            self.record.started = True  # as for one that was killed before its exec was confirmed
            self._finish()

    def _exited(self, status: int) -> None:
        if not self._live:  # its end was reported before
            self._context.reaper.reap_orphans(owned_by(self._tag))
            return
        self._status = status
        self.record.cpu_s = self._context.reaper.cpu_s
        if self._killing is not None or self._outlive == "wait" or not self._await_rest():
            self._ended(late=False)

    def _await_rest(self) -> bool:
        """Whether ``_ended`` is called later, when the rest of the output was written."""
        return False

    def _ended(self, late: bool) -> None:
        self._rest, self._late = None, late
        if self._killing is not None or self._outlive == "kill":
            if has_unowned_children(self._context.reaper.pids):
                if self._killing is None or self._killing.over:
                    self._kill_tree()
                # else ``_killed`` follows when the tree is dead
            else:
                if self._killing is not None:
                    self._killing.cancel()
                self._finish()
        elif self._outlive == "adopt":
            self._finish()
        else:
            self._wait_for_rest()

    def _wait_for_rest(self) -> None:
        """``outlive: wait``: finish when the pipes are closed and no process of the tree is alive."""
        if self._killing is not None or self.record.exit_status is not None:
            return
        if not self._watched:
            self.watch()
        if any(source.open for source in self._sources):
            return  # ``_source_ended`` calls this again
        if has_unowned_children(self._context.reaper.pids) and members(owned_by(self._tag)):
            self._context.loop.call_later(_WAIT_POLL_S, self._wait_for_rest)
            return
        self._finish()

    def _source_ended(self) -> None:
        if self._status is not None and self._outlive == "wait":
            self._wait_for_rest()

    def _finish(self) -> None:
        if self.record.exit_status is not None:
            return
        self._end_streams()
        assert self._status is not None
        exit_code, name = exit_outcome(self._status)
        duration_s = self._context.now() - self._began
        self._release()
        oom_killed, survives = self._context.oom_killed, self._survives
        exit_status = exit_status_of(self.KIND, exit_code, name, duration_s, abort=self._abort, oom_killed=oom_killed, survives=survives)
        exit_status.late = self._late
        self._store(exit_status)
