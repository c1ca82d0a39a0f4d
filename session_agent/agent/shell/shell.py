"""A living shell: runs one command after another in the same bash or sh, and gives each of them a result within bounded time.

Owns the queue of runs, the state machine (``states``), and what happens to a run when it is aborted or its shell is lost. ``process``
sends control lines and reads reports, ``retry`` interrupts and pings, ``rebuild`` starts a new process, ``monitor`` has the timers,
``run_processes`` finds a run's processes, ``channel`` serves clients. To abort a run the shell is interrupted as by Ctrl-C and the
run's processes are killed; a shell that does not report within ``abort_patience_s`` is killed and rebuilt with its state.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import signal
from collections import deque
from collections.abc import Callable

from holdfast_wire.errors import HoldfastError
from holdfast_wire.paths import wire

from session_agent.agent.commands.window import Keyboard
from session_agent.agent.context import AgentContext
from session_agent.agent.output.exit_status import ExitStatus, workload_cause
from session_agent.agent.output.records import Record
from session_agent.agent.process.fork import Launch
from session_agent.agent.process.last_writers import LastOutput
from session_agent.agent.process.process_tree import TreeKill, members, owned_by, signal_all
from session_agent.agent.process.processes import exit_outcome, signal_name, signal_number

from .driver import Report
from .monitor import Monitor
from .process import ShellProcess
from .rebuild import Rebuilding
from .retry import Retry, interrupt, interrupt_until_report, limit_loading, limit_opening, ping
from .run import Run
from .run_processes import RunProcesses
from .state.saved import EVERYTHING, SavedState
from .states import BETWEEN_RUNS, TRANSITIONS, UNDER_WAY, WITH_RESULT, State, check_transition

log = logging.getLogger("session_agent.agent.shell.shell")

_SNAPSHOT_CHECKS = 3
_SURVIVORS_PATIENCE_S = 0.5
_MOST_BEGINS = 4
"""Processes that may end before they begin a run, until it is given up."""


class Shell:
    """A shell with a name. Its process may be replaced by another."""

    def __init__(
        self,
        context: AgentContext,
        name: str,
        kind: str,
        path: str,
        launch: Launch,
        size: tuple[int, int] | None = None,
        *,
        loads: bool = False,
    ) -> None:
        """``size``: rows and columns of the terminal of its commands, None for a shell without one.

        ``loads``: ``load`` follows, with a state.
        """
        self._context = context
        self.name = name
        self.launch = launch
        self._state = State.STARTING
        self._queue: deque[Run] = deque()
        self._run: Run | None = None
        """The run in progress, or the one during which the process was lost."""
        self._rest: LastOutput | None = None
        """While a run has ended and processes of it write the rest of its output."""
        self._killing: TreeKill | None = None
        """What kills the processes of an aborted run."""
        self._loaded: asyncio.Future[list[str]] | None = None
        """While a shell that was copied from another sandbox loads its state."""
        self.last_status = 0
        """The value of ``$?`` at the start of the next run."""
        self._held = 0
        """How many dumps are in progress, during which no run begins."""
        self.cwd = wire(launch.cwd)
        self._retry: Retry | None = None
        """Asks for the report that the present state awaits."""
        self._answered: Callable[[], None] = lambda: None
        """What is done when the shell has answered a ping."""
        self.listeners: list[Callable[[HoldfastError | None], None]] = []
        self._monitor = Monitor(context.loop, self)
        self._processes = RunProcesses(context.tags.owner(), is_bash=kind == "bash")
        tag = self._processes.tag

        def start(launch: Launch, size: tuple[int, int] | None, loads: bool) -> ShellProcess:
            return ShellProcess(context, self, kind, path, tag, launch, size, loads=loads)

        self._rebuilding = Rebuilding(start, launch, size)
        self.keys = Keyboard() if size is not None else None
        """Writes to the terminal of its current process. While there is none the keys wait; they are bounded by the channel's credit."""
        self.process = self._rebuilding.spawn(launch, loads=loads)
        self._connect_keys()

    @property
    def pid(self) -> int:
        """The pid of its current process."""
        return self.process.pid

    @property
    def kind(self) -> str:
        """``bash`` or ``sh``."""
        return self.process.dialect.kind

    @property
    def has_terminal(self) -> bool:
        """Whether its commands run on a terminal."""
        return self.keys is not None

    @property
    def busy(self) -> bool:
        """Whether a run is in progress or queued."""
        return self._run is not None or bool(self._queue)

    @property
    def awaits_output(self) -> bool:
        """Whether a run has ended and processes of it write the rest of its output."""
        return self._rest is not None

    @property
    def size(self) -> tuple[int, int] | None:
        """Rows and columns of its terminal, if it has one."""
        return self._rebuilding.size

    @property
    def is_saved(self) -> bool:
        """Whether the state after its last command has been written."""
        return self._state in BETWEEN_RUNS and self.process.has_snapshot()

    def saved_state(self) -> SavedState | None:
        """Its state after the last command that has ended, None if there is none."""
        return self._rebuilding.loading or self.process.state()

    def request_state(self) -> None:
        """Let the shell write its state, if it runs nothing and has not."""
        if self._state is State.IDLE and not self.process.has_snapshot():
            self._ping(lambda: self._check_snapshot(_SNAPSHOT_CHECKS))

    @property
    def runs(self) -> bool:
        """Whether a run is in progress."""
        return self._run is not None

    def hold(self) -> None:
        """Begin no run until ``release``."""
        self._held += 1

    def release(self) -> None:
        """Undo one ``hold``."""
        self._held -= 1
        self._start_next()

    def processes(self) -> list[int]:
        """The living processes of its commands, also in the background."""
        return members(owned_by(self._processes.tag), exclude=[self.pid])

    async def load(self, state: SavedState | None, last_status: int) -> list[str]:
        """Begin with the ``state`` of another shell, before the first command. Returns what it does not have. Raises ``HoldfastError``."""
        if state is not None:
            self._loaded = self._context.loop.create_future()
            self._enter(State.LOADING)
            self._rebuilding.load(self.process, state)
            self._limit_loading()
            try:
                return await self._loaded
            finally:
                self._loaded = None
                self.last_status = last_status
        self.last_status = last_status
        return []

    def discard_queue(self) -> None:
        """Forget the queued runs: they have not started and never will."""
        self._queue.clear()

    def _enter(self, state: State) -> None:
        if state not in TRANSITIONS[self._state]:
            check_transition(self._state, state)
        self._state = state
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None

    # runs ------------------------------------------------------------------------------------------------------

    def submit(self, record: Record, script: bytes, timeout_s: float | None, *, pipe_stdin: bool, one_stream: bool = False) -> None:
        """Queue a run. Raises ``queue_full``."""
        if len(self._queue) >= self._context.limits.run_queue:
            raise HoldfastError("queue_full", f"{len(self._queue)} commands wait for this shell already")
        record.owner = run = Run(self, record, script, timeout_s, pipe_stdin, one_stream=one_stream)
        self._queue.append(run)
        self._start_next()

    def _start_next(self) -> None:
        """Start the first run in the queue, if the state permits it."""
        process, state = self.process, self._state
        if not self._queue or state not in BETWEEN_RUNS or self._held:
            return
        if process.broken:
            self.replace_process()
        elif state is State.SETTLING:
            return  # until the shell has opened its new pipes
        elif state is State.IDLE and not process.has_snapshot():
            # The shell is still writing its state, or it has lost its private descriptors (``ulimit -n 20``): its answer shows which.
            self._ping(lambda: self._check_snapshot(_SNAPSHOT_CHECKS))
        elif process.is_useless:
            self.replace_process()
        else:
            self._begin(self._queue.popleft())

    def _check_snapshot(self, times: int) -> None:
        """The shell answered: its state has been written, unless an interrupt or a repeated request cut that short."""
        if self.process.has_snapshot():
            return
        if times > 1:
            if self.kind == "bash":  # a POSIX shell writes its state again without being asked
                self.process.snapshot_again()
            self._ping(lambda: self._check_snapshot(times - 1))
        else:
            log.info("shell %s has lost its private descriptors and is replaced", self.name)
            self.replace_process()

    def _ping(self, answered: Callable[[], None]) -> None:
        """Request a report, and call ``answered`` when it has arrived."""
        self._enter(State.CHECKING)
        self._answered = answered
        self._retry = ping(self.process, self.replace_process)

    def _begin(self, run: Run) -> None:
        process = self.process
        try:
            stdin = run.begin_input(process, self.launch.uid, self.launch.gid)
        except HoldfastError as error:
            self._context.records.fail(run.record, error)
            self._context.loop.call_soon(self._start_next)
            return
        self._enter(State.RUNNING)
        self._run = run
        tag = self._processes.begin(run, process.pid)
        run.began = self._context.loop.time()
        status = self.last_status
        run.number = process.begin(run.script, run.record, stdin=stdin, last_status=status, tag=tag, one_stream=run.one_stream)
        run.record.started = True
        if run.sink is not None:
            self._context.loop.call_soon(self.report_start, run)  # the client sends the input only after this report
        self._monitor.begin(run)

    def report_start(self, run: Run) -> None:
        """Report that the run has started, and send its output as it arrives from now on."""
        if run is self.live_run:
            self.process.watch()
            run.record.notify()

    @property
    def live_run(self) -> Run | None:
        """The run that the current process executes."""
        return self._run if self._state in UNDER_WAY else None

    def input_opened(self, process: ShellProcess) -> None:
        """The shell has opened the standard input of the run."""
        run = self.live_run
        if run is not None and process is self.process:
            run.input_opened()

    def reported(self, process: ShellProcess, report: Report) -> None:
        """The shell sent the report that was awaited: of a run, of a ping, or after loading its state."""
        if process is not self.process:
            return
        state, run = self._state, self._run
        if state is State.CHECKING:
            self._settle()
            self._answered()
            self._start_next()
            return
        if state not in WITH_RESULT:
            return
        if state is State.LOADING:
            if self._rebuilding.loaded(process):
                self.cwd = process.directory(report.cwd)
                self._rebuilding.attempts = 0
                self._rebuilt(restored=True)
            else:
                self._limit_loading()
            return
        self._rebuilding.ran()
        if process.changes:
            self.cwd = process.directory(report.cwd)
        assert run is not None
        run.exit_code = report.status
        if state is State.ABORTING:
            self._enter(State.KILLING)
            # Not before: now the shell can start no more processes for this run.
            self._kill_processes(run)
            return
        self.last_status = 0 if "e" in report.flags else report.status
        outputs = process.collect()
        if not outputs or not self._await_rest(run, outputs, self._written):
            self._written(late=False)

    def _await_rest(self, run: Run, outputs: list[tuple[int, int]], done: Callable[[bool], None]) -> bool:
        """The run has ended. Whether processes of it write the rest of its output; then ``done`` is called later."""
        process = self.process
        pids = functools.partial(self._processes.marked, run, process.pid)
        rest = LastOutput(process.collect, lambda: run.record.spool.full, pids, done, process.pid)
        if not rest.begin(outputs):
            return False
        self._rest = rest
        if self._state is State.RUNNING:
            self._enter(State.FINISHING)
        return True

    def _written(self, late: bool) -> None:
        """All output of the run was written, or the rest is late."""
        run, self._rest = self._run, None
        assert run is not None
        run.late = late
        self._store(run)
        self._settle()
        if self._queue:
            self._start_next()

    def pipes_opened(self, process: ShellProcess) -> None:
        """The shell has opened its new pipes."""
        if process is self.process and self._state is State.SETTLING:
            self._enter(State.IDLE)
            self._start_next()

    def _settle(self) -> None:
        """No run is in progress: the next one may begin, at once or when the shell has opened new pipes."""
        if self.process.opening_pipes:
            self._enter(State.SETTLING)
            self._retry = limit_opening(self.process, self.replace_process)
        else:
            self._enter(State.IDLE)

    def _complete(self, run: Run) -> None:
        """The shell has reported the run and can run the next one."""
        self.process.collect()
        self._store(run)

    def _store(self, run: Run) -> None:
        if self.process.status is not None:
            self.process.finish()  # with what it wrote when it ended
        self._finish(run)
        self.process.renew()

    def _finish(self, run: Run) -> None:
        """Store the result of the run; its output is complete."""
        self._run = None
        run.script = b""
        if self.process.terminal is not None:
            self.process.terminal.settle(keep_modes=run.exit_code <= 128 and not run.abort)
        run.close()
        if run.sink is not None and self._state is not State.ENDED:
            self.process.end_input(functools.partial(self._processes.marked, run, self.process.pid))
        now = self._context.loop.time()
        duration_s = now - run.began
        self._monitor.last_run_s = duration_s
        shell = self._rebuilding.report(self.cwd)
        self._context.records.finish(run.record, run.exit_status(duration_s, self._context.oom_killed, shell), now)

    # abort -----------------------------------------------------------------------------------------------------

    def abort(self, run: Run, why: str) -> None:
        """End the run and, if possible, keep the shell. The run may have ended already, unnoticed while the agent was not scheduled."""
        self._context.reaper.reap()
        self.process.read_reports()
        if run is not self._run or self._state is not State.RUNNING:
            return
        self._enter(State.ABORTING)
        run.abort = why
        self.process.withdraw()
        patience_s = self._context.limits.abort_patience_s
        self._retry = interrupt_until_report(self.process, run.number, self._children_of(run), patience_s)

    def _kill_processes(self, run: Run) -> None:
        process = self.process
        own = (
            {process.pid} if process.status is None or process.survives else set()
        )  # another process may have the pid of one that has ended
        patience_s = self._context.limits.kill_patience_s
        if process.survives:  # beside a shell that was given up they have had their time to end
            patience_s = min(patience_s, _SURVIVORS_PATIENCE_S)
        match, exclude = self._processes.match(run), run.before | own
        self._killing = None
        self._killing = TreeKill(match, lambda: self._processes_killed(run), exclude=exclude, patience_s=patience_s)

    def _processes_killed(self, run: Run) -> None:
        """All processes of an aborted run are dead, but for those that the kernel does not let end."""
        run.survives = self.process.survives or (self._killing is not None and bool(self._killing.left))  # None: it has found none at once
        self._context.reaper.reap_orphans(self._processes.match(run))
        if run is not self._run:
            return
        if self._state is State.KILLING:
            self._complete(run)
            self.last_status = 0
            self._ping(self.process.snapshot_again)
        elif self._state is State.LOST:
            self._rebuild(self.process.state())

    def _children_of(self, run: Run) -> Callable[[], list[int]]:
        """A function that lists the living processes of the run."""
        return lambda: self._processes.of(run, self.process.pid)

    # requests of clients ---------------------------------------------------------------------------------------

    def signal_run(self, run: Run, name: str) -> None:
        """INT is a Ctrl-C, KILL an abort; any other signal goes to the processes of the run, not to the shell."""
        number = signal_number(name)
        if number == signal.SIGKILL or (number == signal.SIGINT and run is not self.live_run):
            self.cancel_run(run)
        elif run is not self.live_run:
            return
        elif number == signal.SIGINT:
            interrupt(self.process, self._children_of(run))
        else:
            signal_all(self._children_of(run)(), number)

    def resize(self, rows: int, columns: int) -> None:
        """Set the size of its terminal."""
        self._rebuilding.size = (rows, columns)
        if self.process.terminal is not None:
            self.process.terminal.resize(rows, columns)

    def cancel_run(self, run: Run) -> None:
        """Abort the run, or remove it from the queue."""
        if run is self.live_run:
            self.abort(run, "cancelled")
        elif run is self._run and self._rest is not None:
            self._rest.end()
        elif run in self._queue:
            self._queue.remove(run)
            self._finish_unstarted(run)

    def end(self, error: HoldfastError | None = None) -> None:
        """Kill the shell and all its processes. Queued runs never start. ``error`` is passed to the listeners."""
        if self._state is State.ENDED:
            return
        if self._loaded is not None and not self._loaded.done():
            self._loaded.set_exception(error or HoldfastError("shell_lost", "the shell was ended while it loaded its state"))
        run, was_under_way = self._run, self._state in UNDER_WAY
        self._enter(State.ENDED)
        self._end_rest()
        self._context.shells.pop(self.name, None)
        self._monitor.cancel()
        roots = (self.process.pid,) if self.process.status is None else ()
        own = owned_by(self._processes.tag)
        signal_all(members(own, roots), signal.SIGKILL)
        if run is not None:
            if was_under_way:
                self.process.collect()
                self.process.finish()
                run.abort = run.abort or "cancelled"
                run.exit_code, run.signal_name = 128 + signal.SIGKILL, signal_name(signal.SIGKILL)
            self._finish(run)
        TreeKill(own, self.process.close, roots=roots, patience_s=self._context.limits.kill_patience_s)
        while self._queue:
            if error is None:
                self._finish_unstarted(self._queue.popleft())
            else:
                self._context.records.fail(self._queue.popleft().record, error)
        if self.keys is not None:
            self.keys.close()
        for listener in self.listeners[:]:
            listener(error)

    def _finish_unstarted(self, run: Run) -> None:
        cause = workload_cause("cancelled", "the command was cancelled, or its shell ended, before it began")
        self._context.records.finish(run.record, ExitStatus(None, 0.0, cause=cause), self._context.loop.time())

    # losing and rebuilding the process -------------------------------------------------------------------------

    def replace_process(self) -> None:
        """Kill a process that cannot run commands any more; ``stopped`` then rebuilds it. A run in it stays live until then."""
        self.process.kill()
        self._disconnect_keys()
        if self._state not in UNDER_WAY:
            self._enter(State.KILLED)

    def stopped(self, process: ShellProcess, status: int) -> None:
        """The process ended, by exit, exec, ``set -e`` or a signal. Finish its run and rebuild the shell in a new process."""
        if process is not self.process or self._state is State.ENDED:
            return
        state, run = self._state, self.live_run
        self._disconnect_keys()
        self._enter(State.LOST)
        if run is not None and state is State.RUNNING and not process.has_begun:
            self._begin_again(run)
            run = None
        if state is State.FINISHING and self._run is not None:  # its result is known, only its output was not complete
            self._end_rest()
            self._finish(self._run)
        if run is not None:
            outputs = process.collect()
            run.exit_code, run.signal_name = exit_outcome(status)
            if state is State.RUNNING and outputs and self._await_rest(run, outputs, self._written_without_shell):
                return
            process.finish()
        if run is not None and state is State.ABORTING:
            self._kill_processes(run)
        elif state is not State.KILLING:  # then they are being killed already
            self._rebuild(self._rebuilding.fallback() if state is State.LOADING else process.state())

    def _begin_again(self, run: Run) -> None:
        """The process has ended without beginning the run, which begins in the next process."""
        self._run = None
        run.withdraw_input()
        run.failed_begins += 1
        if run.failed_begins < _MOST_BEGINS:
            self._queue.appendleft(run)
            return
        run.close()
        message = f"the command has not run: {_MOST_BEGINS} processes of the shell ended before they could begin it"
        hint = "run it in a new shell, or undo what keeps this one from reading commands, such as a limit of open files"
        self._context.records.fail(run.record, HoldfastError("shell_lost", message, hint=hint))

    def _written_without_shell(self, late: bool) -> None:
        """The process has ended with its run, and all output of the run was written, or the rest is late."""
        self._rest = None
        if self._run is not None:
            self._run.late = late
        self.process.finish()
        self._rebuild(self.process.state())

    def _end_rest(self) -> None:
        """Do not wait any longer for the rest of a run's output."""
        if self._rest is not None:
            self._rest.cancel()
            self._rest = None
            self.process.collect()
            self.process.finish()

    def start_failed(self, process: ShellProcess, error: Exception) -> None:
        """The shell's program could not be executed: end the shell with that error."""
        if process is self.process and self._state is not State.ENDED:
            process.status = 127 << 8
            run = self.live_run
            if run is not None:  # it has not started
                run.close()
                self._run = None
                self._queue.appendleft(run)
            self.end(error if isinstance(error, HoldfastError) else HoldfastError("shell_unavailable", str(error)))

    def _rebuild(self, state: SavedState | None) -> None:
        try:
            self.process = self._rebuilding.replace(self.process, state)
        except HoldfastError as error:
            self.end(error)
            return
        if state is not None:
            self._enter(State.LOADING)
            self._limit_loading()
        else:
            self._rebuilt(restored=False)

    def _limit_loading(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
        self._retry = limit_loading(self.process)

    def _rebuilt(self, *, restored: bool) -> None:
        self._rebuilding.restored = restored
        self._enter(State.IDLE)
        self.last_status = 0
        if not restored:
            self._rebuilding.lost.append(EVERYTHING)
            self.cwd = wire(self._rebuilding.cwd)
        if self._run is not None:
            self._finish(self._run)
        if self._loaded is not None and not self._loaded.done():
            self._loaded.set_result(self._rebuilding.report(self.cwd, is_new=True)["lost"])
        self._connect_keys()
        self._start_next()

    def _connect_keys(self) -> None:
        """Write the keys that wait, and those that follow, to the terminal of the current process."""
        if self.keys is not None and self.process.terminal is not None:
            self.keys.start(self.process.terminal.take_keyboard())

    def _disconnect_keys(self) -> None:
        """The process is lost: further keys wait for the next one."""
        if self.keys is not None and self.keys.started:
            self.keys.close()
            self.keys = Keyboard()
