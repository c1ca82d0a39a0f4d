"""A living shell: runs one after another in the same bash or sh, with a defined and bounded end for each of them.

Owns the queue, time-outs, aborting a run without losing the shell, and what the result of a run is that the shell was lost in. How it is
talked to is ``process``'s, ``abort``'s and ``driver``'s, rebuilding it ``rebuild``'s; clients are ``channel``'s.
An abort is an interrupt, as Ctrl-C is one, plus the death of what the run started; a shell that does not come back from that in
``abort_patience_s`` is killed and rebuilt with its state.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections import deque
from collections.abc import Callable
from typing import Any

from holdfast_wire.errors import HoldfastError

from session_agent.agent.context import AgentContext
from session_agent.agent.output.exit_status import Ending, ending_of, workload_cause
from session_agent.agent.output.records import Record
from session_agent.agent.process.fork import Launch
from session_agent.agent.process.process_tree import TreeKill, mark_run, members, owned_by, run_tag, signal_all
from session_agent.agent.process.processes import exit_outcome, signal_name, signal_number
from session_agent.agent.request.paths import wire

from .abort import InterruptRetry, ShellPing, interrupt
from .driver import Report
from .process import ShellProcess
from .rebuild import Rebuilding
from .run import Run
from .timers import LazyTimer

log = logging.getLogger("session_agent.agent.shell.shell")

_STARTED_DELAY_S = 0.002
_SHORT_RUN_S = 0.02
"""Runs shorter than this show by their end how long the next may take to report, however busy the machine is."""
_FORGETTING = 0.9
_WATCH_S = 1.0
_CHECKS = 3
_END_OF_INPUT = b"\x04"
_UNSETTLED = 10
"""Looks at a shell that does not take its fresh pipes, and whose activity the kernel does not show."""


class Shell:
    """A shell by name, whatever process it lives in at the moment."""

    def __init__(self, context: AgentContext, name: str, kind: str, path: str, launch: Launch, size: tuple[int, int] | None = None) -> None:
        """``size``: rows and columns, where its commands are to have a terminal."""
        self._context = context
        self._loop = context.loop
        self.name = name
        self.kind = kind
        self._launch = launch
        self.tag = context.tags.owner()
        self._runs = 0
        self._queue: deque[Run] = deque()
        self._current: Run | None = None
        self._status = 0
        self._flags = ""
        self.cwd = wire(launch.cwd)
        self._lost: Run | None = None
        self._lost_status = 0
        self._asking: ShellPing | None = None
        self._usual_s = 0.0
        self._telling: asyncio.TimerHandle | None = None
        self._unsettled = 0
        self._watch = LazyTimer(context.loop, self._look)
        self._marks = True
        self.ended = False
        self._typed: list[tuple[bytes, bool, Callable[[int], None]]] = []
        self.listeners: list[Callable[[HoldfastError | None], None]] = []
        self._rebuilding = Rebuilding(context, kind, path, launch, self.tag, self)
        self._rebuilding.size = size
        self._process = self._rebuilding.spawn(launch)

    @property
    def pid(self) -> int:
        """Of the process it lives in now."""
        return self._process.pid

    @property
    def has_terminal(self) -> bool:
        """Whether its commands run on a terminal."""
        return self._rebuilding.size is not None

    @property
    def busy(self) -> bool:
        """Whether a run is under way or waits."""
        return self._current is not None or self._lost is not None or bool(self._queue)

    def hold(self) -> None:
        """Begin nothing more: what waits was not started, and never will be."""
        self._queue.clear()

    # runs ------------------------------------------------------------------------------------------------------

    def submit(self, record: Record, script: bytes, timeout_s: float | None, *, pipe_stdin: bool) -> None:
        """Queue a run. Raises ``queue_full``."""
        if len(self._queue) >= self._context.limits.run_queue:
            raise HoldfastError("queue_full", f"{len(self._queue)} commands wait for this shell already")
        record.owner = self
        self._queue.append(Run(record, script, timeout_s, pipe_stdin))
        self._next()

    def _next(self) -> None:
        if self._current is not None or not self._queue or self.ended or self._rebuilding.loading or self._asking is not None:
            return
        process = self._process
        if process.broken:
            self._replace()
        elif process.settling:
            self._begin_watch()
        elif process.status is None:
            if self._runs and not process.has_snapshot():
                # back to back, or the private descriptors are gone (``ulimit -n 20``): find out which
                self._ask(lambda: self._checked(_CHECKS))
            else:
                self._begin_next()

    def _begin_next(self) -> None:
        """The state is written: begin, in another process where this one may not live to the end of it."""
        if self._process.is_useless:
            self._replace()
        else:
            self._begin(self._queue.popleft())

    def _checked(self, times: int) -> None:
        """The state is written before the answer comes, unless an interrupt cut that short or a nudge has it written once more just now."""
        if self._process.has_snapshot():
            if self._queue and not self._process.broken:
                self._begin_next()
        elif times > 1:
            if self.kind == "bash":  # which needs no nudges
                self._process.snapshot_again()
            self._ask(lambda: self._checked(times - 1))
        else:
            log.info("shell %s no longer has its descriptors", self.name)
            self._replace()

    def _begin(self, run: Run) -> None:
        process = self._process
        if run.pipe_stdin and not run.expect_input(self._launch.uid, self._launch.gid):
            # without its input it would do something else than it was asked to
            run.close()
            why = "there is no room for the pipe that the command was to read its input from"
            hint = "it needs a writable /dev/shm, /tmp, /run or /var/tmp, and the sandbox a descriptor to spare"
            self._context.records.fail(run.record, HoldfastError("spawn_failed", why, hint=hint))
            self._loop.call_soon(self._next)
            return
        self._current = run
        self._runs += 1
        run.tag = run_tag(self.tag, self._runs)
        if self._marks and not mark_run(process.pid, run.tag):
            self._marks = False
        if not self._marks and self.kind == "sh":
            # it cannot mark itself either: what is there before the run is not the run's
            run.before = frozenset(members(owned_by(self.tag)))
        run.began = self._loop.time()
        last_status = 0 if "e" in self._flags else self._status
        run.number = process.begin(
            run.script,
            run.record.spool,
            run.record.notify,
            stdin=run.fifo.encode() or None,
            last_status=last_status,
            tag=None if self._marks else run.tag,
        )
        run.script = b""
        run.record.started = True
        if run.pipe_stdin:
            self._loop.call_soon(self._tell)  # the client waits for this word with the input
        else:
            self._telling = self._loop.call_at(run.began + max(_STARTED_DELAY_S, 2 * self._usual_s), self._tell)
        if run.timeout_s is not None:
            run.timer = self._loop.call_later(run.timeout_s, self._abort, run, "timeout")
        self._begin_watch()

    def _tell(self) -> None:
        """That a run started is reported after a moment, and its output followed from then on: most runs have ended by then."""
        if self._current is not None:
            self._process.watch()
            self._current.record.notify()

    def input_opened(self, process: ShellProcess) -> None:
        """The run has its standard input."""
        if self._current is not None and process is self._process:
            self._current.input_opened()

    def reported(self, process: ShellProcess, report: Report) -> None:
        """The shell answered."""
        if process is not self._process:
            return
        if self._asking is not None and report.number == self._asking.number:
            then = self._asking.then
            self._answered()
            then()
            self._next()
            return
        rebuilding = self._rebuilding
        if rebuilding.loading and report.number == rebuilding.loading:
            rebuilding.times = 0
            self.cwd = report.cwd
            self._rebuilt(restored=True)
            return
        run = self._current
        if run is None or run.number != report.number:
            return
        rebuilding.times = 0
        self.cwd, self._status, self._flags = report.cwd, report.status, report.flags
        if run.interrupt_retry is not None:
            run.interrupt_retry.cancel()
            # only then is the tree complete: nothing more can be started by the shell
            run.killing = TreeKill(self._of_run(run), lambda: self._aborted(run), spare=self._spared(run))
            return
        process.collect()
        self._conclude(run, report.status, None)
        process.renew()
        self._next()

    def settled(self, process: ShellProcess) -> None:
        """Fresh pipes are in place."""
        self._unsettled = 0
        self._next()

    def _conclude(self, run: Run, exit_code: int, name: str | None) -> None:
        """Store how the run ended; its output is complete."""
        self._current = None
        self._process.settle_terminal(calm=exit_code <= 128 and not run.abort)
        if self._telling is not None:
            self._telling.cancel()
        run.close()
        rebuilding = self._rebuilding
        shell = {"cwd": self.cwd, "restarted": rebuilding.restarted, "restored": rebuilding.restarted and rebuilding.restored}
        rebuilding.restarted = False
        now = self._loop.time()
        took_s = now - run.began
        self._usual_s = max(took_s if took_s < _SHORT_RUN_S else 0.0, _FORGETTING * self._usual_s)
        oom_killed = self._context.oom_killed
        ending = ending_of("command", exit_code, name, took_s, abort=run.abort, oom_killed=oom_killed, shell=shell)
        self._context.records.finish(run.record, ending, now)

    # abort -----------------------------------------------------------------------------------------------------

    def _abort(self, run: Run, why: str) -> None:
        """End the run but, if it lets us, not the shell. It may have ended while the agent was held up."""
        self._context.reaper.reap()
        self._process.read_reports()
        if run is not self._current or run.abort:
            return
        run.abort = why
        patience_s = self._context.limits.abort_patience_s
        run.interrupt_retry = InterruptRetry(self._loop, self._process, run.number, lambda: self._children(run), patience_s)

    def _aborted(self, run: Run) -> None:
        self._context.reaper.reap_orphans(self._of_run(run))
        if run is not self._current:
            return
        if self._process.status is not None:
            return  # _recover goes on when the process's end is dealt with
        self._process.collect()
        self._conclude(run, self._status, None)
        self._process.renew()
        self._status = 0
        self._ask(self._process.snapshot_again)
        self._next()

    def _of_run(self, run: Run) -> Callable[[int], bool]:
        if not self._marks and self.kind == "sh":
            return owned_by(self.tag)
        return lambda tag: tag == run.tag

    def _spared(self, run: Run) -> frozenset[int]:
        return run.before | {self._process.pid}

    def _children(self, run: Run) -> list[int]:
        return members(self._of_run(run), spare=self._spared(run))

    # what clients ask ------------------------------------------------------------------------------------------

    def signal_command(self, command_id: str, name: str) -> None:
        """INT is a Ctrl-C, KILL an abort; anything else goes to what the run started, not to the shell."""
        run = self._current
        number = signal_number(name)
        if run is None or run.record.command_id != command_id:
            if number in {signal.SIGKILL, signal.SIGINT}:
                self._withdraw(command_id)
        elif number == signal.SIGKILL:
            self._abort(run, "cancelled")
        elif number == signal.SIGINT:
            interrupt(self._process, lambda: self._children(run))
        else:
            signal_all(self._children(run), number)

    def feed_command(self, command_id: str, data: bytes, eof: bool, consumed: Callable[[int], None]) -> None:
        """Bytes for the standard input of the run."""
        run = self._current
        if run is None or run.record.command_id != command_id:
            run = next((waiting for waiting in self._queue if waiting.record.command_id == command_id), None)
        if run is None:
            consumed(len(data))
        else:
            run.feed(data, eof, consumed)

    def type(self, data: bytes, eof: bool, consumed: Callable[[int], None]) -> None:
        """Keys for what runs on its terminal; the end of input is typed, as Ctrl-D is."""
        process = self._process
        if process.broken or process.status is not None or self._rebuilding.loading:
            self._typed.append((data, eof, consumed))  # for the terminal that takes its place; bounded by the channel's credit
            return
        process.type(data, consumed)
        if eof:
            process.type(_END_OF_INPUT, lambda _: None)

    def _type_again(self) -> None:
        typed, self._typed = self._typed, []
        for data, eof, consumed in typed:
            self.type(data, eof, consumed)

    def resize(self, rows: int, columns: int) -> None:
        """The window of its terminal changed."""
        self._rebuilding.size = (rows, columns)
        self._process.resize(rows, columns)

    def cancel_command(self, command_id: str) -> None:
        """Abort the run, or take it out of the queue."""
        run = self._current
        if run is not None and run.record.command_id == command_id:
            self._abort(run, "cancelled")
        else:
            self._withdraw(command_id)

    def _withdraw(self, command_id: str) -> None:
        for waiting in self._queue:
            if waiting.record.command_id == command_id:
                self._queue.remove(waiting)
                self._refuse(waiting)
                return

    def end(self, error: HoldfastError | None = None) -> None:
        """Kill it with everything in it. Runs that wait never start."""
        if self.ended:
            return
        self.ended = True
        self._context.shells.pop(self.name, None)
        for timer in (self._watch, self._telling, self._asking, self._rebuilding):
            if timer is not None:
                timer.cancel()
        roots = (self._process.pid,) if self._process.status is None else ()
        signal_all(members(owned_by(self.tag), roots), signal.SIGKILL)
        run = self._current
        if run is not None:
            self._process.collect()
            run.abort = run.abort or "cancelled"
            self._conclude(run, 128 + signal.SIGKILL, signal_name(signal.SIGKILL))
        elif self._lost is not None:
            self._conclude(self._lost, *exit_outcome(self._lost_status))
        TreeKill(owned_by(self.tag), self._process.close, roots=roots)
        while self._queue:
            self._refuse(self._queue.popleft())
        for data, _, consumed in self._typed:
            consumed(len(data))
        self._typed.clear()
        for listener in self.listeners[:]:
            listener(error)

    def abandon(self) -> None:
        """The agent stops."""
        self.end()

    def _refuse(self, run: Run) -> None:
        """It never started."""
        cause = workload_cause("cancelled", "it was cancelled, or its shell ended, before it began")
        now = self._loop.time()
        self._context.records.finish(run.record, Ending(None, 0.0, cause=cause), now)

    # losing and rebuilding it ----------------------------------------------------------------------------------

    def _replace(self) -> None:
        """The process no longer follows its commands: kill it, ``stopped`` rebuilds."""
        self._process.kill()

    def stopped(self, process: ShellProcess, status: int) -> None:
        """exit, exec, set -e, a signal: whatever it was, the run has its result and the shell lives on in a new process."""
        if process is not self._process or self.ended:
            return
        self._answered()
        if self._rebuilding.loading:
            self._rebuild(None)
            return
        run, self._current = self._current, None
        if run is not None:
            if run.interrupt_retry is not None:
                run.interrupt_retry.cancel()
            process.collect()
            self._lost, self._lost_status = run, status
            if run.abort:
                run.killing = TreeKill(self._of_run(run), lambda: self._bury_and_rebuild(run, process), spare=run.before)
                return
        self._rebuild(process.state())

    def unavailable(self, process: ShellProcess, error: Exception) -> None:
        """What was found to be a shell cannot be executed."""
        if process is self._process and not self.ended:
            process.status = 127 << 8
            run, self._current = self._current, None
            if run is not None:  # it waits for a process that never was
                run.close()
                self._queue.appendleft(run)
            self.end(error if isinstance(error, HoldfastError) else HoldfastError("shell_unavailable", str(error)))

    def _bury_and_rebuild(self, run: Run, process: ShellProcess) -> None:
        self._context.reaper.reap_orphans(self._of_run(run))
        self._rebuild(process.state())

    def _rebuild(self, state: tuple[bytes, bytes] | None) -> None:
        if self.ended:
            return
        try:
            self._process = self._rebuilding.replace(self._process, state)
        except HoldfastError as error:
            self.end(error)
            return
        if not self._rebuilding.loading:
            self._rebuilt(restored=False)

    def _rebuilt(self, *, restored: bool) -> None:
        self._rebuilding.finish(restored=restored)
        self._status = 0
        self._flags = ""
        run, self._lost = self._lost, None
        if not restored:
            self.cwd = wire(self._launch.cwd)
        if run is not None:
            self._conclude(run, *exit_outcome(self._lost_status))
        self._type_again()
        self._next()

    # watching --------------------------------------------------------------------------------------------------

    def _ask(self, then: Callable[[], None]) -> None:
        self._asking = ShellPing(self._loop, self._process, then, self._replace)

    def _answered(self) -> None:
        asking, self._asking = self._asking, None
        if asking is not None:
            asking.cancel()

    def _begin_watch(self) -> None:
        self._watch.put_off(self._loop.time() + _WATCH_S)

    def _look(self) -> None:
        """Once a second while busy: a shell that waits for us while we wait for it had its driver taken away."""
        process, run = self._process, self._current
        if run is None and not process.settling:
            return  # it owes us nothing, and a look at what it does takes its time
        is_idle = process.idle()
        process.read_reports()  # reports that the shell sent before may be unread here
        if self.ended or process.status is not None:
            return
        if process.settling:
            self._unsettled += 1
            if is_idle or self._unsettled > _UNSETTLED:
                self._replace()
                return
        elif run is not None and run is self._current and not run.abort and is_idle:
            run.watched += 1
            if run.watched > 2:
                self._replace()
            else:
                process.rescue(run.number)
        if self._current is not None or process.settling:
            self._begin_watch()


def describe(shell: Shell, *, created: bool) -> dict[str, Any]:
    """The info of Opened."""
    info = {"name": shell.name, "pid": shell.pid, "shell": shell.kind, "created": created}
    return info | {"tty": True} if shell.has_terminal else info
