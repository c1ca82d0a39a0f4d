"""Starting the processes of a living shell: the first one, and a new one that loads the state of a process that was lost.

Owns how often that is tried, what could not be loaded, and whether the next result reports the rebuild. ``shell`` decides when a process is
lost, and finishes the run that was in it; ``retry`` limits how long the new process may take to load the state.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any

from holdfast_wire.errors import HoldfastError

from session_agent.agent.process.fork import Launch

from .process import ShellProcess
from .state.saved import EVERYTHING, SavedState, label, shown

log = logging.getLogger("session_agent.agent.shell.shell")

_MAX_ATTEMPTS = 4
_MOST_WITHOUT_RUN = 12
"""More than ``_MAX_ATTEMPTS``: a shell that waits may be killed from outside now and then."""
_MOST_DROPS = 8
"""Most entries that are left out one after the other because they break off the loading of those that follow."""


class Rebuilding:
    """Starts the processes of one shell."""

    __slots__ = ("_launch", "_start", "attempts", "cwd", "drops", "loading", "lost", "restarted", "restored", "size", "without_run")

    def __init__(
        self, start: Callable[[Launch, tuple[int, int] | None, bool], ShellProcess], launch: Launch, size: tuple[int, int] | None
    ) -> None:
        self._start = start
        self._launch = launch
        self.size = size
        """Rows and columns of its terminal, if it has one."""
        self.restarted = False
        """Whether the next result reports a restart, with ``restored``: whether the state was loaded."""
        self.restored = True
        self.lost: list[str] = []
        """With ``restarted``: what of the state was not loaded."""
        self.loading: SavedState | None = None
        """The state that the process loads."""
        self.drops = 0
        """How many entries of it were dropped because they broke the loading off."""
        self.cwd = launch.cwd
        """The directory in which the process was started."""
        self.attempts = 0
        """How many processes were started since the last one that completed a run or loaded a state."""
        self.without_run = 0
        """How many were started since the last one that completed a run: a state may end each shell that has loaded it."""

    def spawn(self, launch: Launch, *, loads: bool = False) -> ShellProcess:
        """Start a process; ``loads``: ``load`` follows. Raises ``CannotExecuteError`` or ``HoldfastError``."""
        try:
            return self._start(launch, self.size, loads)
        except OSError as error:
            raise HoldfastError("spawn_failed", f"cannot create the pipes of the shell: {error.strerror}") from None

    def replace(self, old: ShellProcess, state: SavedState | None) -> ShellProcess:
        """Start a process in place of ``old``, which has ended. With ``state`` it loads that and then reports. Raises ``shell_lost``."""
        self.attempts += 1
        self.without_run += 1
        if self.attempts > _MAX_ATTEMPTS or self.without_run > _MOST_WITHOUT_RUN:
            raise HoldfastError("shell_lost", "the shell ended as soon as it was started, several times in a row")
        self.restarted = True
        launch = self._launch
        if not os.path.isdir(launch.cwd):
            launch = Launch("/", {**launch.env, "PWD": "/"}, launch.uid, launch.gid, launch.groups)
        try:
            process = self.spawn(launch, loads=state is not None)
        except Exception as error:  # every kind of failure must reach the clients of this shell
            log.warning("a shell cannot be rebuilt: %s", error)
            raise HoldfastError("shell_lost", f"the shell ended and could not be started again: {error}") from error
        old.close()
        self.cwd = launch.cwd
        if state is not None:
            self.load(process, state)
        return process

    def load(self, process: ShellProcess, state: SavedState) -> None:
        """Let ``process`` load ``state`` and report."""
        self.loading = state
        process.load(state)

    def ran(self) -> None:
        """A process has completed a run."""
        self.attempts = self.without_run = 0

    def fallback(self) -> SavedState | None:
        """What to load after the process ended while it loaded: the same without traps, then without functions, then nothing."""
        state, self.loading = self.loading, None
        return state if state is not None and state.drop_code() else None

    def loaded(self, process: ShellProcess) -> bool:
        """The process has reported. Whether that is the end: if an entry broke the loading off, the rest is loaded without it."""
        state, after = self.loading, process.state()
        assert state is not None
        missing = [] if after is None else state.missing_from(after)
        if missing and process.was_broken_off and self.drops < _MOST_DROPS:
            self.drops += 1
            state.drop(missing[0])
            self.load(process, state)
            return False
        self.lost += [EVERYTHING] if after is None else [*state.lost, *map(label, missing)]
        self.loading = None
        self.drops = 0
        return True

    def report(self, cwd: str, *, is_new: bool = False) -> dict[str, Any]:
        """``shell`` of a result. The next one reports no rebuild. ``is_new``: of a shell that has begun with a state."""
        if not self.restarted and not is_new:
            return {"cwd": cwd, "restarted": False, "restored": False}
        report = {"cwd": cwd, "restarted": True, "restored": self.restored, "lost": shown(self.lost)}
        self.restarted, self.lost = False, []
        return report
