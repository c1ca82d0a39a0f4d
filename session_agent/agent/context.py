"""The state that all sessions of one agent share.

Owns the tables of commands, shells and terminals, the reaper, the records, the budgets and the settings; and starting and stopping all of
them together. ``server`` creates one instance and passes it to every handler.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from typing import Protocol

from holdfast_wire.fast_dataclass import dataclass, field
from holdfast_wire.limits import RUN_QUEUE, SPOOL_COMMAND_BYTES, SPOOL_MEMORY_SHARE, SPOOL_SANDBOX_BYTES, SPOOL_SANDBOX_LEAST_BYTES, Timing

from .output.read_ahead import ReadAheadQuota
from .output.records import Owner, Record, Records
from .output.spool import Budget
from .process.cgroups import Groups, container_events
from .process.delayed_watch import DelayedWatch
from .process.fork import Forker
from .process.privileges import CommandNamespace
from .process.process_tree import KILL_PATIENCE_S, Tags, members, signal_all
from .process.processes import Reaper
from .settings import AgentSettings

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


DEFAULT_WORKDIR = "/workspace"
"""Working directory of commands if neither the image nor the caller sets one and this one exists; otherwise it is ``/``."""

_OOM_WINDOW_S = 0.5
"""After an out-of-memory kill was counted, every death by SIGKILL in this time is attributed to it: one shortage may kill several."""


class RunningTerminal(Owner, Protocol):
    """What the context needs of a ``commands.terminal.Terminal``."""

    pid: int
    record: Record

    @property
    def works(self) -> bool: ...


class RunningShell(Protocol):
    """What the context needs of a ``shell.shell.Shell``."""

    @property
    def pid(self) -> int: ...
    @property
    def busy(self) -> bool: ...
    def discard_queue(self) -> None: ...
    def end(self) -> None: ...


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """Limits of one sandbox; the defaults are the protocol's.

    ``abort_patience_s``: how long a shell may take to return from an interrupt before it is killed and rebuilt.
    ``kill_patience_s``: how long processes may take to end after SIGKILL before their end is reported without them.
    ``oom_score_adj``: the score of commands, higher than the agent's so that the kernel kills them first.
    """

    oom_score_adj: int | None = 500
    abort_patience_s: float = 1.0
    kill_patience_s: float = KILL_PATIENCE_S
    spool_command_bytes: int = SPOOL_COMMAND_BYTES
    spool_sandbox_bytes: int = SPOOL_SANDBOX_BYTES
    run_queue: int = RUN_QUEUE
    shells: int = 256
    terminals: int = 256
    timing: Timing = field(default_factory=Timing)


def spool_budget(limits: SandboxLimits, memory_bytes: int) -> int:
    """Bytes that all spools of a sandbox may hold together, for its memory in bytes (0: not known)."""
    if not memory_bytes:
        return limits.spool_sandbox_bytes
    return min(limits.spool_sandbox_bytes, max(memory_bytes // SPOOL_MEMORY_SHARE, SPOOL_SANDBOX_LEAST_BYTES))


class AgentContext:
    """See the module."""

    def __init__(self, settings: AgentSettings, limits: SandboxLimits | None = None, *, sole: bool = False) -> None:
        self.settings = settings
        self.limits = limits or SandboxLimits()
        events = settings.cgroup_events_fds or (container_events() if settings.pod_uid else ())
        namespace = CommandNamespace(settings.command_namespace_fd, settings.command_ids) if settings.command_namespace_fd >= 0 else None
        forker = Forker(
            settings.cgroup_thread_fds,
            settings.cgroup_pids_fds,
            namespace,
            rescue_fds=settings.cgroup_rescue_fds,
            ulimits=settings.ulimits,
        )
        self.groups = Groups(settings.cgroup_join_fds, events, forker.placement)
        self.reaper = Reaper(oom_score_adj=self.limits.oom_score_adj, forker=forker, sole=sole)
        self.tags = Tags()
        self.budget = Budget(spool_budget(self.limits, settings.memory_bytes))
        self.read_ahead = ReadAheadQuota()
        self.records = Records(self.limits.timing)
        self.commands: set[Owner] = set()
        self.delayed_watch = DelayedWatch()
        self.shells: dict[str, RunningShell] = {}
        self.terminals: dict[str, RunningTerminal] = {}
        self.null = -1
        self._oom_seen = self.groups.oom_kills()
        self._oom_until = 0.0
        self.end: Callable[[], None] = lambda: None
        """Ends the sandbox, as its first process's end ends a container. Set by ``server``."""
        self.used_at = 0.0
        """Time of the last request of a client, by the loop's clock."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._clock = time.monotonic

    def start(self) -> None:
        """Start the reaper. Call on the running loop before the first channel opens."""
        self._loop = asyncio.get_running_loop()
        self._clock = self._loop.time
        self.used_at = self._clock()
        self.null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        self.reaper.start()

    def stop(self) -> None:
        """Kill every command, shell and terminal. Their final facts are sent by later iterations of the loop."""
        for owner in (*self.commands, *self.terminals.values()):
            owner.cancel()
        for shell in list(self.shells.values()):
            shell.end()

    def close(self) -> None:
        """Undo ``start``. Needed only if the process goes on without its agent, as in tests."""
        self.delayed_watch.cancel()
        self.reaper.stop()
        if self.null >= 0:
            os.close(self.null)
            self.null = -1

    def terminate(self) -> None:
        """Send SIGTERM to all processes of commands, shells and terminals. Results of commands that run now are not sent any more."""
        self.records.interrupt()
        for shell in self.shells.values():
            shell.discard_queue()
        signal_all(self.started_processes(), signal.SIGTERM)

    def started_processes(self) -> list[int]:
        """Living processes that commands, shells and terminals started, also in the background; without the shells themselves."""
        own = [shell.pid for shell in self.shells.values()] + [terminal.pid for terminal in self.terminals.values()]
        return members(self.tags.is_own, exclude=own)

    def runs(self) -> bool:
        """Whether a command runs, one-off or in a shell."""
        return bool(self.commands) or any(shell.busy for shell in self.shells.values())

    def idle_s(self) -> float:
        """Seconds since a command last ran or a client last sent a request (PROTOCOL §1.8)."""
        if self.runs() or any(terminal.works for terminal in self.terminals.values()):
            self.used_at = self.now()
        return self.now() - max(self.used_at, self.records.latest_end)

    def oom_killed(self) -> bool:
        """Whether a process that just died of SIGKILL was probably killed by the kernel because memory ran out."""
        kills, now = self.groups.oom_kills(), self.now()
        if kills > self._oom_seen:
            self._oom_seen, self._oom_until = kills, now + _OOM_WINDOW_S
        return now < self._oom_until

    @property
    def workdir(self) -> str:
        """The default working directory of commands; relative paths start from it."""
        return self.settings.workdir or (DEFAULT_WORKDIR if os.path.isdir(DEFAULT_WORKDIR) else "/")

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The agent's event loop."""
        assert self._loop is not None
        return self._loop

    def now(self) -> float:
        """The loop's clock in seconds, monotonic; virtual time in tests with a virtual loop."""
        return self._clock()
