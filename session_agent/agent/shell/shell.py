"""A living shell: runs one after another in the same bash or sh, with a defined and bounded end for each of them.

Owns the queue, time-outs, aborting a run without losing the shell, and what the result of a run is that the shell was lost in. How it is
talked to is ``process``'s, ``abort``'s and ``driver``'s, rebuilding it ``rebuild``'s; clients are ``channel``'s.
An abort is an interrupt, as Ctrl-C is one, plus the death of what the run started; a shell that does not come back from that in
``abort_patience_s`` is killed and rebuilt with its state.
"""

from __future__ import annotations

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
from .states import BETWEEN_RUNS, TRANSITIONS, UNDER_WAY, WITHOUT_PROCESS, State, check_transition
from .timers import NEVER, LazyTimer

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
        self._state = State.STARTING
        self._queue: deque[Run] = deque()
        self._run: Run | None = None
        """The run that is under way, or that the shell was lost in."""
        self._runs = 0
        self._last_status = 0
        """What ``$?`` is at the begin of the next run."""
        self.cwd = wire(launch.cwd)
        self._ping: ShellPing | None = None
        self._usual_s = 0.0
        self._unsettled = 0
        self._timer = LazyTimer(context.loop, self._fire)
        self._look_at = NEVER
        self._marks = True
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
        return self._run is not None or bool(self._queue)

    def discard_queue(self) -> None:
        """Begin nothing more: what waits was not started, and never will be."""
        self._queue.clear()

    def _enter(self, state: State) -> None:
        if state not in TRANSITIONS[self._state]:
            check_transition(self._state, state)
        self._state = state

    # runs ------------------------------------------------------------------------------------------------------

    def submit(self, record: Record, script: bytes, timeout_s: float | None, *, pipe_stdin: bool) -> None:
        """Queue a run. Raises ``queue_full``."""
        if len(self._queue) >= self._context.limits.run_queue:
            raise HoldfastError("queue_full", f"{len(self._queue)} commands wait for this shell already")
        record.owner = self
        self._queue.append(Run(record, script, timeout_s, pipe_stdin))
        self._next()

    def _next(self) -> None:
        """Begin the run that waits longest, where one may begin."""
        process, state = self._process, self._state
        if not self._queue or state not in BETWEEN_RUNS:
            return
        if process.broken:
            self._replace()
        elif state is State.SETTLING:
            self._watch()
        elif state is State.IDLE and not process.has_snapshot():
            # back to back, or the private descriptors are gone (``ulimit -n 20``): find out which
            self._check(lambda: self._checked(_CHECKS))
        elif process.is_useless:
            self._replace()
        else:
            self._begin(self._queue.popleft())

    def _checked(self, times: int) -> None:
        """The state is written before the answer comes, unless an interrupt cut that short or a nudge has it written once more just now."""
        if self._process.has_snapshot():
            return
        if times > 1:
            if self.kind == "bash":  # which needs no nudges
                self._process.snapshot_again()
            self._check(lambda: self._checked(times - 1))
        else:
            log.info("shell %s no longer has its descriptors", self.name)
            self._replace()

    def _begin(self, run: Run) -> None:
        process = self._process
        if run.pipe_stdin and not run.expect_input(self._launch.uid, self._launch.gid):
            # without its input it would do something else than it was asked to
            run.close()
            why = "the pipe of the command's standard input could not be created"
            hint = "it needs a writable /dev/shm, /tmp, /run or /var/tmp, and the sandbox a descriptor to spare"
            self._context.records.fail(run.record, HoldfastError("spawn_failed", why, hint=hint))
            self._loop.call_soon(self._next)
            return
        self._enter(State.RUNNING)
        self._run = run
        self._runs += 1
        run.tag = run_tag(self.tag, self._runs)
        if self._marks and not mark_run(process.pid, run.tag):
            self._marks = False
        if not self._marks and self.kind == "sh":
            # it cannot mark itself either: what is there before the run is not the run's
            run.before = frozenset(members(owned_by(self.tag)))
        run.began = self._loop.time()
        tag = None if self._marks else run.tag
        run.number = process.begin(run.script, run.record, stdin=run.fifo.encode() or None, last_status=self._last_status, tag=tag)
        run.script = b""
        run.record.started = True
        if run.pipe_stdin:
            self._loop.call_soon(self._report_start, run)  # the client waits for this with the input
        else:
            run.starts_at = run.began + max(_STARTED_DELAY_S, 2 * self._usual_s)
        if run.timeout_s is not None:
            run.ends_at = run.began + run.timeout_s
        self._look_at = run.began + _WATCH_S
        self._timer.set(min(run.starts_at, run.ends_at, self._look_at))

    def _report_start(self, run: Run) -> None:
        """That a run started is reported after a moment, and its output followed from then on: most runs have ended by then."""
        if run is self._live:
            self._process.watch()
            run.record.notify()

    @property
    def _live(self) -> Run | None:
        """The run that is in the process."""
        return self._run if self._state in UNDER_WAY else None

    def input_opened(self, process: ShellProcess) -> None:
        """The run has its standard input."""
        run = self._live
        if run is not None and process is self._process:
            run.input_opened()

    def reported(self, process: ShellProcess, report: Report) -> None:
        """The shell answered what it was sent last."""
        if process is not self._process:
            return
        state, run = self._state, self._run
        if state in UNDER_WAY and run is not None:
            self._rebuilding.times = 0
            self.cwd = report.cwd
            self._last_status = 0 if "e" in report.flags else report.status
            run.exit_code = report.status
            if run.interrupt_retry is not None:
                run.interrupt_retry.cancel()
                # only then is the tree complete: nothing more can be started by the shell
                run.killing = TreeKill(self._of_run(run), lambda: self._aborted(run), exclude=self._spared(run))
                return
            process.collect()
            self._conclude(run)
            process.renew()
            self._rest()
            if self._queue:
                self._next()
        elif state is State.CHECKING and self._ping is not None:
            ping = self._ping
            self._cancel_ping()
            self._rest()
            ping.then()
            self._next()
        elif state is State.LOADING:
            self._rebuilding.times = 0
            self.cwd = report.cwd
            self._rebuilt(restored=True)

    def _rest(self) -> None:
        """Nothing is under way: has it all it needs for the next run?"""
        self._enter(State.SETTLING if self._process.settling else State.IDLE)

    def settled(self, process: ShellProcess) -> None:
        """Fresh pipes are in place."""
        self._unsettled = 0
        if process is self._process and self._state is State.SETTLING:
            self._enter(State.IDLE)
            self._next()

    def _conclude(self, run: Run) -> None:
        """Store how the run ended; its output is complete."""
        self._run = None
        self._process.settle_terminal(calm=run.exit_code <= 128 and not run.abort)
        run.close()
        rebuilding = self._rebuilding
        shell = {"cwd": self.cwd, "restarted": rebuilding.restarted, "restored": rebuilding.restarted and rebuilding.restored}
        rebuilding.restarted = False
        now = self._loop.time()
        took_s = now - run.began
        self._usual_s = max(took_s if took_s < _SHORT_RUN_S else 0.0, _FORGETTING * self._usual_s)
        oom_killed = self._context.oom_killed
        ending = ending_of("command", run.exit_code, run.signal_name, took_s, abort=run.abort, oom_killed=oom_killed, shell=shell)
        self._context.records.finish(run.record, ending, now)

    # abort -----------------------------------------------------------------------------------------------------

    def _abort(self, run: Run, why: str) -> None:
        """End the run but, if it lets us, not the shell. It may have ended while the agent was held up."""
        self._context.reaper.reap()
        self._process.read_reports()
        if run is not self._run or self._state is not State.RUNNING:
            return
        self._enter(State.ABORTING)
        run.abort = why
        patience_s = self._context.limits.abort_patience_s
        run.interrupt_retry = InterruptRetry(self._loop, self._process, run.number, lambda: self._children(run), patience_s)

    def _aborted(self, run: Run) -> None:
        """What the run left is dead. If the process has ended meanwhile, ``stopped`` goes on."""
        self._context.reaper.reap_orphans(self._of_run(run))
        if run is not self._live or self._process.status is not None:
            return
        self._process.collect()
        self._conclude(run)
        self._process.renew()
        self._last_status = 0
        self._check(self._process.snapshot_again)

    def _of_run(self, run: Run) -> Callable[[int], bool]:
        if not self._marks and self.kind == "sh":
            return owned_by(self.tag)
        return lambda tag: tag == run.tag

    def _spared(self, run: Run) -> frozenset[int]:
        return run.before | {self._process.pid}

    def _children(self, run: Run) -> list[int]:
        return members(self._of_run(run), exclude=self._spared(run))

    # what clients ask ------------------------------------------------------------------------------------------

    def signal_command(self, command_id: str, name: str) -> None:
        """INT is a Ctrl-C, KILL an abort; anything else goes to what the run started, not to the shell."""
        run = self._live
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
        run = self._live
        if run is None or run.record.command_id != command_id:
            run = next((waiting for waiting in self._queue if waiting.record.command_id == command_id), None)
        if run is None:
            consumed(len(data))
        else:
            run.feed(data, eof, consumed)

    def type(self, data: bytes, eof: bool, consumed: Callable[[int], None]) -> None:
        """Keys for what runs on its terminal; the end of input is typed, as Ctrl-D is."""
        process = self._process
        if process.broken or self._state in WITHOUT_PROCESS:
            self._typed.append((data, eof, consumed))  # for the terminal that takes its place; bounded by the channel's credit
            return
        process.type(data, consumed)
        if eof:
            process.type(_END_OF_INPUT, lambda _: None)

    def resize(self, rows: int, columns: int) -> None:
        """The window of its terminal changed."""
        self._rebuilding.size = (rows, columns)
        self._process.resize(rows, columns)

    def cancel_command(self, command_id: str) -> None:
        """Abort the run, or take it out of the queue."""
        run = self._live
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
        if self._state is State.ENDED:
            return
        run, was_under_way = self._run, self._state in UNDER_WAY
        self._enter(State.ENDED)
        self._context.shells.pop(self.name, None)
        self._timer.cancel()
        self._cancel_ping()
        self._rebuilding.cancel()
        roots = (self._process.pid,) if self._process.status is None else ()
        signal_all(members(owned_by(self.tag), roots), signal.SIGKILL)
        if run is not None:
            if was_under_way:
                self._process.collect()
                run.abort = run.abort or "cancelled"
                run.exit_code, run.signal_name = 128 + signal.SIGKILL, signal_name(signal.SIGKILL)
            self._conclude(run)
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
        """The process no longer follows its commands: kill it, ``stopped`` rebuilds. A run in it is under way until then."""
        self._process.kill()
        if self._state not in UNDER_WAY:
            self._enter(State.LOST)

    def stopped(self, process: ShellProcess, status: int) -> None:
        """exit, exec, set -e, a signal: whatever it was, the run has its result and the shell lives on in a new process."""
        if process is not self._process or self._state is State.ENDED:
            return
        run, was_loading, was_under_way = self._run, self._state is State.LOADING, self._state in UNDER_WAY
        self._cancel_ping()
        self._enter(State.LOST)
        if was_loading:
            self._rebuild(None)
            return
        if run is not None and was_under_way:
            if run.interrupt_retry is not None:
                run.interrupt_retry.cancel()
            process.collect()
            run.exit_code, run.signal_name = exit_outcome(status)
            if run.abort:
                run.killing = TreeKill(self._of_run(run), lambda: self._reap_and_rebuild(run, process), exclude=run.before)
                return
        self._rebuild(process.state())

    def unavailable(self, process: ShellProcess, error: Exception) -> None:
        """What was found to be a shell cannot be executed."""
        if process is self._process and self._state is not State.ENDED:
            process.status = 127 << 8
            run = self._live
            if run is not None:  # it waits for a process that never was
                run.close()
                self._run = None
                self._queue.appendleft(run)
            self.end(error if isinstance(error, HoldfastError) else HoldfastError("shell_unavailable", str(error)))

    def _reap_and_rebuild(self, run: Run, process: ShellProcess) -> None:
        self._context.reaper.reap_orphans(self._of_run(run))
        if self._state is not State.ENDED:  # else the files of its state are closed
            self._rebuild(process.state())

    def _rebuild(self, state: tuple[bytes, bytes] | None) -> None:
        if self._state is State.ENDED:
            return
        try:
            self._process = self._rebuilding.replace(self._process, state)
        except HoldfastError as error:
            self.end(error)
            return
        if state is not None:
            self._enter(State.LOADING)
        else:
            self._rebuilt(restored=False)

    def _rebuilt(self, *, restored: bool) -> None:
        self._rebuilding.finish(restored=restored)
        self._enter(State.IDLE)
        self._last_status = 0
        if not restored:
            self.cwd = wire(self._launch.cwd)
        if self._run is not None:
            self._conclude(self._run)
        typed, self._typed = self._typed, []
        for data, eof, consumed in typed:
            self.type(data, eof, consumed)
        self._next()

    # watching --------------------------------------------------------------------------------------------------

    def _check(self, then: Callable[[], None]) -> None:
        """Have it report, and do ``then``."""
        self._enter(State.CHECKING)
        self._ping = ShellPing(self._loop, self._process, then, self._replace)

    def _cancel_ping(self) -> None:
        ping, self._ping = self._ping, None
        if ping is not None:
            ping.cancel()

    def _watch(self) -> None:
        self._look_at = self._loop.time() + _WATCH_S
        self._set_timer()

    def _set_timer(self) -> None:
        run = self._live
        due = self._look_at if run is None else min(run.starts_at, run.ends_at, self._look_at)
        if due < NEVER and self._state is not State.ENDED:
            self._timer.set(due)

    def _fire(self) -> None:
        """The run is to be ended, or looked at."""
        run, now = self._live, self._loop.time()
        if run is None and not self._process.settling:
            return  # it owes us nothing, and the next run sets the timer
        if run is not None and now >= run.starts_at:
            run.starts_at = NEVER
            self._report_start(run)
        if run is not None and now >= run.ends_at:
            run.ends_at = NEVER
            self._abort(run, "timeout")
        if now >= self._look_at:
            self._look_at = NEVER
            self._look()
        self._set_timer()

    def _look(self) -> None:
        """Once a second while busy: a shell that waits for us while we wait for it had its driver taken away."""
        process, run = self._process, self._live
        if run is None and not process.settling:
            return  # it owes us nothing, and a look at what it does takes its time
        is_idle = process.idle()
        process.read_reports()  # reports that the shell sent before may be unread here
        if self._state is State.ENDED or process.status is not None:
            return
        if process.settling:
            self._unsettled += 1
            if is_idle or self._unsettled > _UNSETTLED:
                self._replace()
                return
        elif run is not None and run is self._live and not run.abort and is_idle:
            run.watched += 1
            if run.watched > 2:
                self._replace()
            else:
                process.rescue(run.number)
        if self._live is not None or process.settling:
            self._look_at = self._loop.time() + _WATCH_S


def describe(shell: Shell, *, created: bool) -> dict[str, Any]:
    """The info of Opened."""
    info = {"name": shell.name, "pid": shell.pid, "shell": shell.kind, "created": created}
    return info | {"tty": True} if shell.has_terminal else info
