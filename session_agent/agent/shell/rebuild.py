"""A new process for a shell that lost its own, with the state that the lost one left.

Owns how often that is tried, how long the new one may take to read the state, and whether the next result reports it. When a shell is
lost, and what becomes of the run that it was lost in, is ``shell``'s, which calls this.
"""

from __future__ import annotations

import asyncio
import logging
import os

from holdfast_wire.errors import HoldfastError

from session_agent.agent.context import AgentContext
from session_agent.agent.process.fork import Launch

from .process import ShellEvents, ShellProcess

log = logging.getLogger("session_agent.agent.shell.shell")

_TURNS = 100
_TURN_S = 0.1
"""The new process has so many such turns, of the loop's own time: while the agent is held up it is not read."""
_TIMES = 4


class Rebuilding:
    """The processes of one shell, one after another."""

    __slots__ = (
        "_context",
        "_events",
        "_kind",
        "_launch",
        "_loading",
        "_path",
        "_tag",
        "_timer",
        "restarted",
        "restored",
        "size",
        "times",
    )

    def __init__(self, context: AgentContext, kind: str, path: str, launch: Launch, tag: int, events: ShellEvents) -> None:
        self._context = context
        self._kind = kind
        self._path = path
        self._launch = launch
        self._tag = tag
        self._events = events
        self._timer: asyncio.TimerHandle | None = None
        self.size: tuple[int, int] | None = None
        """Rows and columns of its terminal, where it has one."""
        self._loading = False
        self.restarted = False
        """Whether the next result reports it, and in ``restored`` of the state."""
        self.restored = True
        self.times = 0
        """How many processes were lost before one of them did anything."""

    def spawn(self, launch: Launch) -> ShellProcess:
        """Start a process. Raises what is wrong with it."""
        return ShellProcess(self._context, self._kind, self._path, launch, self._tag, self._events, self.size)

    def replace(self, old: ShellProcess, state: tuple[bytes, bytes] | None) -> ShellProcess:
        """Have another process instead of ``old``, which ended. It loads ``state``, and then reports. Raises ``shell_lost``."""
        self.cancel()
        self.times += 1
        if self.times > _TIMES:
            raise HoldfastError("shell_lost", "the shell ended as soon as it was started, several times in a row")
        self.restarted = True
        launch = self._launch
        if not os.path.isdir(launch.cwd):
            launch = Launch("/", {**launch.env, "PWD": "/"}, launch.uid, launch.gid, launch.groups)
        try:
            process = self.spawn(launch)
        except Exception as error:  # whatever it is, the clients of this shell must get it
            log.warning("a shell cannot be rebuilt: %s", error)
            raise HoldfastError("shell_lost", f"the shell ended and could not be started again: {error}") from error
        old.close()
        if state is not None:
            process.load(*state)
            self._loading = True
            self._wait(process, _TURNS)
        return process

    def _wait(self, process: ShellProcess, turns: int) -> None:
        self._timer = self._context.loop.call_later(_TURN_S, self._wait_on, process, turns - 1)

    def _wait_on(self, process: ShellProcess, turns: int) -> None:
        self._timer = None
        process.read_reports()
        if not self._loading:
            return
        if turns:
            self._wait(process, turns)
        else:
            process.kill()

    def finish(self, *, restored: bool) -> None:
        """The new process can be used."""
        self.cancel()
        self.restored = restored

    def cancel(self) -> None:
        """No longer wait for the new process."""
        self._loading = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
