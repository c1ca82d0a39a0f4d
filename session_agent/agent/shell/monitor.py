"""The timers of a living shell: when a run's start is reported, its time limit, and a check once a second that the shell is not stuck.

Owns when each of these is due, with one timer for all of them, and how often a stuck shell is checked before it is replaced. A shell is
stuck if it waits for a control line while it should run a command or open new pipes; a command can cause that by redefining the shell's
builtins or closing its descriptors. Starting, aborting and replacing are done by ``shell``, which calls this.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from .process import ShellProcess
from .run import Run
from .timers import NEVER, LazyTimer

_STARTED_DELAY_S = 0.002
"""Shortest delay before a run's start is reported by itself: most runs end earlier, and then one message reports both."""
_SHORT_RUN_S = 0.02
"""Only the durations of runs shorter than this lengthen the delay for the next ones, as on a busy machine."""
_DECAY = 0.9
_CHECK_S = 1.0
_MAX_RESCUES = 2
_MAX_PIPE_CHECKS = 10
"""Checks before a shell that does not open its new pipes is replaced, if the kernel does not show whether it is idle."""


class MonitoredShell(Protocol):
    """The parts of ``shell.Shell`` that the monitor uses."""

    @property
    def live_run(self) -> Run | None: ...
    @property
    def process(self) -> ShellProcess: ...
    def report_start(self, run: Run) -> None: ...
    def abort(self, run: Run, why: str) -> None: ...
    def replace_process(self) -> None: ...


class Monitor:
    """The timers of one shell."""

    __slots__ = ("_check_at", "_ended", "_loop", "_pipe_checks", "_shell", "_timer", "_usual_s", "last_run_s")

    def __init__(self, loop: asyncio.AbstractEventLoop, shell: MonitoredShell) -> None:
        self._loop = loop
        self._shell = shell
        self._timer = LazyTimer(loop, self._fire)
        self._check_at = NEVER
        self._usual_s = 0.0
        """Recent duration of short runs, with exponential decay."""
        self.last_run_s = 0.0
        """The duration of the last run, set by the shell."""
        self._pipe_checks = 0
        self._ended = False

    def begin(self, run: Run) -> None:
        """A run has begun: set the times of its start report and its end. With an input its start is reported at once instead."""
        self._usual_s = max(self.last_run_s if self.last_run_s < _SHORT_RUN_S else 0.0, _DECAY * self._usual_s)
        if run.sink is None:
            run.starts_at = run.began + max(_STARTED_DELAY_S, 2 * self._usual_s)
        if run.timeout_s is not None:
            run.ends_at = run.began + run.timeout_s
        self._check_at = run.began + _CHECK_S
        self._timer.set(min(run.starts_at, run.ends_at, self._check_at))

    def watch_pipes(self) -> None:
        """A run waits for the shell to open its new pipes: check that it does."""
        self._check_at = self._loop.time() + _CHECK_S
        self._set_timer()

    def pipes_opened(self) -> None:
        """The shell has opened its new pipes."""
        self._pipe_checks = 0

    def cancel(self) -> None:
        """The shell has ended."""
        self._ended = True
        self._timer.cancel()

    def _set_timer(self) -> None:
        run = self._shell.live_run
        due = self._check_at if run is None else min(run.starts_at, run.ends_at, self._check_at)
        if due < NEVER and not self._ended:
            self._timer.set(due)

    def _fire(self) -> None:
        shell, now = self._shell, self._loop.time()
        run = shell.live_run
        if run is None and not shell.process.opening_pipes:
            return  # the shell is idle; the next run sets the timer
        if run is not None and now >= run.starts_at:
            run.starts_at = NEVER
            shell.report_start(run)
        if run is not None and now >= run.ends_at:
            run.ends_at = NEVER
            shell.abort(run, "timeout")
        if now >= self._check_at:
            self._check_at = NEVER
            self._check()
        self._set_timer()

    def _check(self) -> None:
        """Rescue or replace a shell that is stuck."""
        shell = self._shell
        process, run = shell.process, shell.live_run
        if run is None and not process.opening_pipes:
            return
        is_idle = process.idle()
        process.read_reports()  # the report that explains why it is idle may be unread
        if self._ended or process.status is not None:
            return
        if process.opening_pipes:
            self._pipe_checks += 1
            if is_idle or self._pipe_checks > _MAX_PIPE_CHECKS:
                shell.replace_process()
                return
        elif run is not None and run is shell.live_run and not run.abort and is_idle:
            run.rescues += 1
            if run.rescues > _MAX_RESCUES:
                shell.replace_process()
            else:
                process.rescue(run.number)
        if shell.live_run is not None or process.opening_pipes:
            self._check_at = self._loop.time() + _CHECK_S
