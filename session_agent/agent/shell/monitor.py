"""The timers of a living shell: when a run's start is reported, its time limit, and a check once a second that the shell is not stuck.

Owns when each of these is due, with one timer for a run, and how often a stuck shell is checked before it is replaced. A shell is stuck if
it waits for a control line while it should run a command; a command can cause that by redefining the shell's builtins or closing its
descriptors. Starting, aborting and replacing are done by ``shell``, which calls this. Waiting between runs is limited by ``retry``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from .process import ShellProcess
from .run import NEVER, Run

_STARTED_DELAY_S = 0.002
"""Shortest delay before a run's start is reported by itself: most runs end earlier, and then one message reports both."""
_SHORT_RUN_S = 0.02
"""Only the durations of runs shorter than this lengthen the delay for the next ones, as on a busy machine."""
_DECAY = 0.9
_CHECK_S = 1.0
_MAX_RESCUES = 2


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

    __slots__ = ("_check_at", "_loop", "_shell", "_timer", "_usual_s", "last_run_s")

    def __init__(self, loop: asyncio.AbstractEventLoop, shell: MonitoredShell) -> None:
        self._loop = loop
        self._shell = shell
        self._timer = LazyTimer(loop, self._fire)
        self._check_at = NEVER
        self._usual_s = 0.0
        """Recent duration of short runs, with exponential decay."""
        self.last_run_s = 0.0
        """The duration of the last run, set by the shell."""

    def begin(self, run: Run) -> None:
        """A run has begun: set the times of its start report and its end. With an input its start is reported at once instead."""
        self._usual_s = max(self.last_run_s if self.last_run_s < _SHORT_RUN_S else 0.0, _DECAY * self._usual_s)
        if run.sink is None:
            run.starts_at = run.began + max(_STARTED_DELAY_S, 2 * self._usual_s)
        if run.timeout_s is not None:
            run.ends_at = run.began + run.timeout_s
        self._check_at = run.began + _CHECK_S
        self._timer.set(min(run.starts_at, run.ends_at, self._check_at))

    def cancel(self) -> None:
        """The shell has ended."""
        self._timer.cancel()

    def _fire(self) -> None:
        shell, now = self._shell, self._loop.time()
        run = shell.live_run
        if run is None:
            return  # the next run sets the timer
        if now >= run.starts_at:
            run.starts_at = NEVER
            shell.report_start(run)
        if now >= run.ends_at:
            run.ends_at = NEVER
            shell.abort(run, "timeout")
        if now >= self._check_at:
            self._check_at = now + _CHECK_S
            self._check(run)
        if run is shell.live_run:
            self._timer.set(min(run.starts_at, run.ends_at, self._check_at))

    def _check(self, run: Run) -> None:
        """Rescue or replace a shell that is stuck."""
        shell = self._shell
        process = shell.process
        is_idle = process.idle()
        process.read_reports()  # the report that explains why it is idle may be unread
        if is_idle and run is shell.live_run and not run.abort:
            run.rescues += 1
            if run.rescues > _MAX_RESCUES:
                shell.replace_process()
            else:
                process.rescue(run.number)


class LazyTimer:
    """Calls ``then`` once, at the time of the last ``set``.

    Another ``set`` only stores the new time: the timer of the event loop stays as it is, and is set again if it fires too early. A shell
    moves its timer with every run, so most timers never fire.
    """

    __slots__ = ("_armed_at", "_due", "_handle", "_loop", "_then")

    def __init__(self, loop: asyncio.AbstractEventLoop, then: Callable[[], None]) -> None:
        self._loop = loop
        self._then = then
        self._due = self._armed_at = NEVER
        self._handle: asyncio.TimerHandle | None = None

    def set(self, due: float) -> None:
        """Fire at ``due``, by the loop's clock."""
        self._due = due
        if due < self._armed_at:
            if self._handle is not None:
                self._handle.cancel()
            self._armed_at = due
            self._handle = self._loop.call_at(due, self._fire)

    def cancel(self) -> None:
        """Do not fire."""
        self._armed_at = NEVER
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _fire(self) -> None:
        self._handle, self._armed_at = None, NEVER
        if self._loop.time() < self._due:
            self.set(self._due)
        else:
            self._then()
