"""The control groups of one sandbox, and its limits, in the hierarchies that ``hierarchies`` found.

Owns one group per sandbox with a nested one for its commands, and their removal. The commands get the requested limit; the outer group's
limit is larger by a small reserve, so a command that runs out of memory or processes does not end the agent, and code that has taken over
the agent gains only the reserve. In v1, the agent and the commands have separate limits of CPU time: a fork bomb runs in the kernel, where
an exhausted quota stops no process, so it would use up a shared quota and leave no time for the agent. A third group is for the commands
that start while the sandbox is crowded with processes. Does not decide limits. Called by containers.py and sandboxes.py.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass

from session_agent.node.kernel import syscalls as sys_
from session_agent.node.kernel.hierarchies import Hierarchies, Hierarchy, remove, try_write

RESERVE_BYTES = 96 << 20
RESERVE_PIDS = 32
RESERVE_CPU = 0.25
AGENT_CPU = 1.0
"""Cores that the agent may use if it has a quota of its own; the processes that it starts are then in the commands' group."""
AGENT_NICE = -20
_PERIOD_US = 100_000
_READ_ONLY = sys_.MOUNT_ATTR_RDONLY | sys_.MOUNT_ATTR_NOSUID | sys_.MOUNT_ATTR_NODEV | sys_.MOUNT_ATTR_NOEXEC
_COMMANDS = "commands"
_AGENT = "agent"
_RESCUE = "rescue"
"""The group that a one-off command joins instead of the commands' while a fork bomb uses that up: it has a small CPU limit of its own."""
_PARTS = ("", _AGENT, _RESCUE, _COMMANDS)
_MAX_GROUPS = 4096
_SOCKETS_LEAST, _SOCKETS_SHARE = 16 << 20, 4


@dataclass(frozen=True, slots=True)
class Limits:
    """Cores, bytes and tasks that all commands of one sandbox may use together."""

    cpu: float
    memory_bytes: int
    pids: int


@dataclass(frozen=True, slots=True)
class SandboxCgroup:
    """The control groups of one sandbox."""

    hierarchies: Hierarchies
    name: str

    @property
    def paths(self) -> list[str]:
        """The outermost directories, one for each hierarchy."""
        return [self._place(hierarchy) for hierarchy in self.hierarchies.limiting]

    def _place(self, hierarchy: Hierarchy, part: str = "") -> str:
        return f"{hierarchy.base}/{self.name}{part and '/'}{part}"

    def create(self) -> None:
        for hierarchy in self.hierarchies.limiting:
            outer = self._place(hierarchy)
            os.mkdir(outer)
            if hierarchy.v2 and hierarchy.controllers:
                sys_.write_file(f"{outer}/cgroup.subtree_control", " ".join(f"+{name}" for name in sorted(hierarchy.controllers)))
            for part in (_COMMANDS, _AGENT, _RESCUE) if hierarchy.divided else (_COMMANDS,):
                os.mkdir(f"{outer}/{part}")
            if hierarchy.v2:
                # The agent may divide its part; the kernel memory of groups is not all counted.
                try_write(f"{outer}/cgroup.max.descendants", str(_MAX_GROUPS))

    def divide(self) -> None:
        """Give each part its share of CPU time, which is the same in every sandbox: the agent has priority over all commands together."""
        for hierarchy in self.hierarchies.limiting:
            if "cpu" in hierarchy.controllers and not hierarchy.v2:
                outer = self._place(hierarchy)
                for part, shares in ((_AGENT, 1024), (_RESCUE, 1024), (_COMMANDS, 128)):
                    try_write(f"{outer}/{part}/cpu.shares", str(shares))
                for part, cores in ((_AGENT, AGENT_CPU), (_RESCUE, RESERVE_CPU)):
                    sys_.write_file(f"{outer}/{part}/cpu.cfs_quota_us", str(_quota_us(cores)))

    def limit(self, limits: Limits) -> None:
        """Set the limits that a request asks for."""
        for hierarchy in self.hierarchies.limiting:
            outer, v2 = self._place(hierarchy), hierarchy.v2
            for path, reserve in ((outer, True), (f"{outer}/{_COMMANDS}", False)):
                if "memory" in hierarchy.controllers:
                    size = limits.memory_bytes + (RESERVE_BYTES if reserve else 0)
                    sys_.write_file(f"{path}/{'memory.max' if v2 else 'memory.limit_in_bytes'}", str(size))
                    if not v2:  # in v2 the kernel counts it as memory
                        try_write(f"{path}/memory.kmem.tcp.limit_in_bytes", str(socket_bytes(limits.memory_bytes)))
                    try_write(f"{path}/{'memory.swap.max' if v2 else 'memory.memsw.limit_in_bytes'}", "0" if v2 else str(size))
                if "pids" in hierarchy.controllers:
                    sys_.write_file(f"{path}/pids.max", str(limits.pids + (RESERVE_PIDS if reserve else 0)))
                if "cpu" in hierarchy.controllers and v2:
                    # One-off commands are in the agent's group here (see ``raise_priority``): a separate limit for it would limit them too.
                    sys_.write_file(f"{path}/cpu.max", f"{_quota_us(limits.cpu + (RESERVE_CPU if reserve else 0))} {_PERIOD_US}")
            if "cpu" in hierarchy.controllers and not v2:
                try_write(f"{outer}/cpu.shares", str(max(2, int(1024 * limits.cpu))))
                sys_.write_file(f"{outer}/{_COMMANDS}/cpu.cfs_quota_us", str(_quota_us(limits.cpu)))

    def add(self, pid: int) -> None:
        """Move the agent into the group; the processes that it starts are members too."""
        for hierarchy in self.hierarchies.limiting:
            sys_.write_file(f"{self._place(hierarchy, _AGENT if hierarchy.divided else '')}/cgroup.procs", str(pid))

    def raise_priority(self, pid: int) -> None:
        """Give the agent a higher scheduling priority than the processes that it started, so that it can kill a thousand busy ones.

        Only in v2, where the group limits all of them together, so that no other sandbox loses time. In v1 commands start in a group of
        their own with fewer shares, which is better.
        """
        if any(hierarchy.v2 and "cpu" in hierarchy.controllers for hierarchy in self.hierarchies.limiting):
            with contextlib.suppress(OSError):
                for thread in os.listdir(f"/proc/{pid}/task"):
                    os.setpriority(os.PRIO_PROCESS, int(thread), AGENT_NICE)

    def delegate(self) -> dict[str, list[int]]:
        """Descriptors for the agent: the files through which a command joins the commands' groups, and the memory events.

        They give no access to parent groups.
        """
        joined, threads, pids, rescue = [], [], [], []
        for hierarchy in self.hierarchies.limiting:
            commands = self._place(hierarchy, _COMMANDS)
            joined.append(f"{commands}/cgroup.procs")
            name = "cgroup.procs" if hierarchy.v2 else "tasks"
            if hierarchy.controllers:
                threads.append(f"{commands}/{name}")
                if hierarchy.divided:  # in the others it stays in the outer group
                    rescue.append(f"{self._place(hierarchy, _RESCUE)}/{name}")
            if "pids" in hierarchy.controllers:
                pids = [f"{commands}/pids.current", f"{commands}/pids.max"]
        fds: dict[str, list[int]] = {}
        try:
            for name, mode, paths in (
                ("cgroup_join_fds", os.O_WRONLY, joined),
                ("cgroup_thread_fds", os.O_WRONLY, threads),
                ("cgroup_pids_fds", os.O_RDONLY, pids),
                ("cgroup_rescue_fds", os.O_RDWR, rescue),
                ("cgroup_events_fds", os.O_RDONLY, [path for part in _PARTS if (path := self._memory_events(part))]),
            ):
                for path in paths:
                    fds.setdefault(name, []).append(os.open(path, mode | os.O_CLOEXEC))
        except BaseException:
            for fd in (fd for opened in fds.values() for fd in opened):
                os.close(fd)
            raise
        return fds

    def show(self) -> dict[str, int]:
        """Read-only detached mounts of the commands' groups, for the sandbox's own /sys/fs/cgroup: by controller, or under "" (v2).

        Controllers that do not limit each sandbox separately are shown with the values for all sandboxes of the node, because language
        runtimes read them.
        """
        paths = self.hierarchies.shared | {
            "" if hierarchy.v2 else next(iter(hierarchy.controllers)): self._place(hierarchy, _COMMANDS)
            for hierarchy in self.hierarchies.limiting
            if hierarchy.controllers
        }
        if len(paths) > 1:
            paths.pop("", None)  # programs look for v1 if any v1 controller is mounted
        shown: dict[str, int] = {}
        try:
            for name, path in paths.items():
                shown[name] = sys_.open_tree(path)
                sys_.mount_setattr(shown[name], _READ_ONLY)
        except OSError:  # only root may do this
            for fd in shown.values():
                os.close(fd)
            return {}
        return shown

    def out_of_memory(self) -> bool:
        """Whether the kernel ever killed the agent itself because memory ran out."""
        return any(_counter(path, "oom_kill") for part in ("", _AGENT) if (path := self._memory_events(part)))

    def _memory_events(self, part: str) -> str | None:
        for hierarchy in self.hierarchies.limiting:
            if "memory" in hierarchy.controllers:
                path = f"{self._place(hierarchy, part)}/{'memory.events.local' if hierarchy.v2 else 'memory.oom_control'}"
                return path if os.path.exists(path) else None
        return None

    def socket_bytes(self) -> int:
        """What TCP and UDP sockets hold, if it is counted beside the memory (v1)."""
        return sum(
            int(_number(f"{self._place(hierarchy)}/memory.kmem.tcp.usage_in_bytes"))
            for hierarchy in self.hierarchies.limiting
            if "memory" in hierarchy.controllers and not hierarchy.v2
        )

    def usage(self) -> dict[str, float]:
        """Memory in bytes and CPU time in seconds, if they can be read."""
        found: dict[str, float] = {}
        for hierarchy in self.hierarchies.limiting:
            if "memory" in hierarchy.controllers:
                name = "memory.current" if hierarchy.v2 else "memory.usage_in_bytes"
                found["memory_bytes"] = _number(f"{self._place(hierarchy)}/{name}")
            if hierarchy.v2:
                found["cpu_s"] = _counter(f"{self._place(hierarchy)}/cpu.stat", "usage_usec") / 1e6
        return found

    def remove(self) -> None:
        for path in self.paths:
            try:
                for part in (_COMMANDS, _AGENT, _RESCUE):
                    with contextlib.suppress(FileNotFoundError):
                        os.rmdir(f"{path}/{part}")
                os.rmdir(path)
            except FileNotFoundError:
                pass
            except OSError:  # not empty yet, or with nested groups: finding these reads every file name of every group
                remove(path)


def socket_bytes(memory_bytes: int) -> int:
    """How much of the kernel's memory the sockets of a sandbox may hold, where that is not part of its memory limit."""
    return max(_SOCKETS_LEAST, memory_bytes // _SOCKETS_SHARE)


def _quota_us(cores: float) -> int:
    return max(int(cores * _PERIOD_US), 1000)


def _counter(path: str, name: str) -> int:
    try:
        with open(path, encoding="ascii") as file:
            rows = [line.split() for line in file]
    except OSError:
        return 0
    return next((int(row[1]) for row in rows if len(row) == 2 and row[0] == name), 0)


def _number(path: str) -> float:
    try:
        with open(path, encoding="ascii") as file:
            return float(file.read())
    except (OSError, ValueError):
        return 0.0
