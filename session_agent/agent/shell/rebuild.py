"""Starting the processes of a living shell: the first one, and a new one that loads the state of a process that was lost.

Owns how often that is tried, and whether the next result reports the rebuild. ``shell`` decides when a process is lost, and finishes the
run that was in it; ``retry`` limits how long the new process may take to load the state.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable

from holdfast_wire.errors import HoldfastError

from session_agent.agent.process.fork import Launch

from .process import ShellProcess

log = logging.getLogger("session_agent.agent.shell.shell")

_MAX_ATTEMPTS = 4


class Rebuilding:
    """Starts the processes of one shell."""

    __slots__ = ("_launch", "_start", "attempts", "restarted", "restored", "size")

    def __init__(
        self, start: Callable[[Launch, tuple[int, int] | None], ShellProcess], launch: Launch, size: tuple[int, int] | None
    ) -> None:
        self._start = start
        self._launch = launch
        self.size = size
        """Rows and columns of its terminal, if it has one."""
        self.restarted = False
        """Whether the next result reports a restart, with ``restored``: whether the state was loaded."""
        self.restored = True
        self.attempts = 0
        """How many processes were started since the last one that completed a run or loaded a state."""

    def spawn(self, launch: Launch) -> ShellProcess:
        """Start a process. Raises ``CannotExecuteError`` or ``HoldfastError``."""
        try:
            return self._start(launch, self.size)
        except OSError as error:
            raise HoldfastError("spawn_failed", f"cannot create the pipes of the shell: {error.strerror}") from None

    def replace(self, old: ShellProcess, state: tuple[bytes, bytes] | None) -> ShellProcess:
        """Start a process in place of ``old``, which has ended. With ``state`` it loads that and then reports. Raises ``shell_lost``."""
        self.attempts += 1
        if self.attempts > _MAX_ATTEMPTS:
            raise HoldfastError("shell_lost", "the shell ended as soon as it was started, several times in a row")
        self.restarted = True
        launch = self._launch
        if not os.path.isdir(launch.cwd):
            launch = Launch("/", {**launch.env, "PWD": "/"}, launch.uid, launch.gid, launch.groups)
        try:
            process = self.spawn(launch)
        except Exception as error:  # every kind of failure must reach the clients of this shell
            log.warning("a shell cannot be rebuilt: %s", error)
            raise HoldfastError("shell_lost", f"the shell ended and could not be started again: {error}") from error
        old.close()
        if state is not None:
            process.load(*state)
        return process
