"""Everything one agent knows about its sandbox, in one place.

Owns the tables that all sessions share: commands, shells, terminals, the reaper, the spool budget. It has no behaviour beyond
starting and stopping them. Made once by ``server``, given to every handler.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from typing import Protocol

from holdfast_wire.limits import RUN_QUEUE, SPOOL_COMMAND_BYTES, SPOOL_MEMORY_SHARE, SPOOL_SANDBOX_BYTES, SPOOL_SANDBOX_LEAST_BYTES, Timing
from holdfast_wire.records import dataclass, field

from .output.read_ahead import ReadAheadQuota
from .output.records import Records
from .output.spool import Budget
from .process.cgroups import Groups, container_events
from .process.delayed_watch import DelayedWatch
from .process.fork import Forker
from .process.privileges import CommandNamespace
from .process.process_tree import Tags, members, signal_all
from .process.processes import Reaper
from .settings import AgentSettings

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


DEFAULT_WORKDIR = "/workspace"
"""Where commands start when neither the image nor the caller names a directory and this one exists; else at the root."""

_SHORTAGE_S = 0.5
"""How long after the kernel was seen to have killed what dies of SIGKILL is taken to have died of the same."""


class RunningCommand(Protocol):
    """What the context needs of a ``commands.command.Command``."""

    def abandon(self) -> None: ...


class RunningTerminal(Protocol):
    """What the context needs of a ``commands.terminal.Terminal``."""

    pid: int

    @property
    def works(self) -> bool: ...
    def abandon(self) -> None: ...


class RunningShell(Protocol):
    """What the context needs of a ``shell.shell.Shell``."""

    @property
    def pid(self) -> int: ...
    @property
    def busy(self) -> bool: ...
    def hold(self) -> None: ...
    def abandon(self) -> None: ...


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """Bounds and time limits of what runs here; the defaults are the protocol's.

    ``abort_patience_s``: how long a shell may take to come back from an interrupt before it is killed and rebuilt.
    ``oom_score_adj``: what commands get, so that the kernel takes them before the agent.
    """

    oom_score_adj: int | None = 500
    abort_patience_s: float = 1.0
    spool_command_bytes: int = SPOOL_COMMAND_BYTES
    spool_sandbox_bytes: int = SPOOL_SANDBOX_BYTES
    run_queue: int = RUN_QUEUE
    shells: int = 256
    terminals: int = 256
    timing: Timing = field(default_factory=Timing)


def spool_budget(limits: SandboxLimits, memory_bytes: int) -> int:
    """What all spools may hold together in a sandbox of so much memory (0: not known), bytes."""
    if not memory_bytes:
        return limits.spool_sandbox_bytes
    return min(limits.spool_sandbox_bytes, max(memory_bytes // SPOOL_MEMORY_SHARE, SPOOL_SANDBOX_LEAST_BYTES))


class AgentContext:
    """What handlers share."""

    def __init__(self, settings: AgentSettings, limits: SandboxLimits | None = None, *, sole: bool = False) -> None:
        self.settings = settings
        self.limits = limits or SandboxLimits()
        events = settings.cgroup_events_fds or (container_events() if settings.pod_uid else ())
        self.groups = Groups(settings.cgroup_join_fds, events)
        namespace = CommandNamespace(settings.command_namespace_fd, settings.command_ids) if settings.command_namespace_fd >= 0 else None
        forker = Forker(settings.cgroup_thread_fds, settings.cgroup_pids_fds, namespace, ulimits=settings.ulimits)
        self.reaper = Reaper(oom_score_adj=self.limits.oom_score_adj, forker=forker, sole=sole)
        self.tags = Tags()
        self.budget = Budget(spool_budget(self.limits, settings.memory_bytes))
        self.read_ahead = ReadAheadQuota()
        self.records = Records(self.limits.timing)
        self.commands: set[RunningCommand] = set()
        self.delayed_watch = DelayedWatch()
        self.shells: dict[str, RunningShell] = {}
        self.terminals: dict[str, RunningTerminal] = {}
        self.null = -1
        self._oom_seen = self.groups.oom_kills()
        self._oom_until = 0.0
        self.used_at = 0.0
        """When a client sent its last request, by the loop's clock."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._clock = time.monotonic

    def start(self) -> None:
        """Begin to reap; call on the running loop before the first channel opens."""
        self._loop = asyncio.get_running_loop()
        self._clock = self._loop.time
        self.used_at = self._clock()
        self.null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        self.reaper.start()

    def stop(self) -> None:
        """End every command, shell and terminal; their last facts follow as the loop goes on."""
        owners: list[RunningCommand | RunningShell | RunningTerminal] = [*self.commands, *self.shells.values(), *self.terminals.values()]
        for owner in owners:
            owner.abandon()

    def close(self) -> None:
        """Give back what ``start`` took. Only where the process goes on without its agent, as in a test."""
        self.delayed_watch.cancel()
        self.reaper.stop()
        if self.null >= 0:
            os.close(self.null)
            self.null = -1

    def terminate(self) -> None:
        """SIGTERM to everything that commands, shells and terminals have started, once; how it ends is not sent from now on."""
        self.records.interrupt()
        for shell in self.shells.values():
            shell.hold()
        signal_all(self.lingering(), signal.SIGTERM)

    def lingering(self) -> list[int]:
        """What commands, shells and terminals have started and is still there, also in the background; not shells themselves."""
        own = [shell.pid for shell in self.shells.values()] + [terminal.pid for terminal in self.terminals.values()]
        return members(self.tags.ours, spare=own)

    def busy(self) -> bool:
        """Whether a command runs whose outcome a client may wait for."""
        return bool(self.commands) or bool(self.terminals) or any(shell.busy for shell in self.shells.values())

    def idle_s(self) -> float:
        """For how long no command has run and no client has sent a request (PROTOCOL §1.8)."""
        works = any(terminal.works for terminal in self.terminals.values())
        if works or self.commands or any(shell.busy for shell in self.shells.values()):
            self.used_at = self.now()
        return self.now() - max(self.used_at, self.records.latest_end)

    def oom_killed(self) -> bool:
        """Whether the kernel killed for lack of memory; ask when something died of SIGKILL. One shortage may end several at once."""
        kills, now = self.groups.oom_kills(), self.now()
        if kills > self._oom_seen:
            self._oom_seen, self._oom_until = kills, now + _SHORTAGE_S
        return now < self._oom_until

    @property
    def workdir(self) -> str:
        """Where commands start, and what relative paths are relative to."""
        return self.settings.workdir or (DEFAULT_WORKDIR if os.path.isdir(DEFAULT_WORKDIR) else "/")

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The one loop of the agent."""
        assert self._loop is not None
        return self._loop

    def now(self) -> float:
        """Monotonic seconds, of the loop: virtual where the loop's time is."""
        return self._clock()
