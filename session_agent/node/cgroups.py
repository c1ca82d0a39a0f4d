"""The control groups of one sandbox, and its limits, in the hierarchies that ``hierarchies`` found.

Owns one group per sandbox with a nested one for its commands, and their removal. The limit on
the commands is what was asked for; the outer group allows a small reserve more, so a command that runs out of memory
or processes never takes the agent with it, and a sandbox that has taken over its agent gains no more than the reserve.
In v1, the agent and the commands have separate limits of CPU time: a fork bomb runs in the kernel, where a used-up quota stops no
process, so it would use up a shared quota and leave the agent none.
Does not decide limits. Called by containers.py and sandboxes.py.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass

from session_agent.node import syscalls as sys_
from session_agent.node.hierarchies import Hierarchies, remove, try_write, write

RESERVE_BYTES = 96 << 20
RESERVE_PIDS = 32
RESERVE_CPU = 0.25
AGENT_CPU = 1.0
"""Cores the agent may use where it has a quota of its own; what it starts is among the commands there."""
AGENT_NICE = -20
_PERIOD_US = 100_000
_READ_ONLY = sys_.MOUNT_ATTR_RDONLY | sys_.MOUNT_ATTR_NOSUID | sys_.MOUNT_ATTR_NODEV | sys_.MOUNT_ATTR_NOEXEC
_COMMANDS = "commands"
_AGENT = "agent"
_MAX_GROUPS = 4096


@dataclass(frozen=True, slots=True)
class Limits:
    """Cores, bytes and tasks the commands of one sandbox may use together."""

    cpu: float
    memory_bytes: int
    pids: int


@dataclass(frozen=True, slots=True)
class SandboxCgroup:
    """The groups of one sandbox. ``paths`` are its outermost directories, one per hierarchy."""

    hierarchies: Hierarchies
    name: str

    @property
    def paths(self) -> list[str]:
        bases = [*self.hierarchies.v1.values(), *([self.hierarchies.v2] if self.hierarchies.v2 else [])]
        return [os.path.join(base, self.name) for base in bases]

    @property
    def joined(self) -> int:
        """How many groups a command joins."""
        return len(self.hierarchies.v1) + bool(self.hierarchies.v2)

    @property
    def _v2_agent(self) -> str:
        """Where the agent is in v2: in a group of its own only where the outer one has limits, as then no process may be in it."""
        return f"{self.name}/{_AGENT}" if self.hierarchies.v2_controllers else self.name

    def create(self) -> None:
        for controller, base in self.hierarchies.v1.items():
            outer = f"{base}/{self.name}"
            os.mkdir(outer)
            os.mkdir(f"{outer}/{_COMMANDS}")
            if controller == "cpu":
                os.mkdir(f"{outer}/{_AGENT}")
        if self.hierarchies.v2:
            outer = os.path.join(self.hierarchies.v2, self.name)
            os.mkdir(outer)
            controllers = self.hierarchies.v2_controllers
            if controllers:
                write(f"{outer}/cgroup.subtree_control", " ".join(f"+{name}" for name in sorted(controllers)))
            for name in (_AGENT, _COMMANDS) if controllers else (_COMMANDS,):
                os.mkdir(f"{outer}/{name}")
            # The agent may divide its part; the kernel memory of groups is not all counted.
            try_write(f"{outer}/cgroup.max.descendants", str(_MAX_GROUPS))

    def limit(self, limits: Limits) -> None:
        for controller, base in self.hierarchies.v1.items():
            outer = os.path.join(base, self.name)
            if controller == "cpu":
                _limit_cpu_v1(outer, limits)
            else:
                _limit_v1(controller, outer, limits, reserve=True)
                _limit_v1(controller, os.path.join(outer, _COMMANDS), limits, reserve=False)
        if self.hierarchies.v2_controllers:
            outer = os.path.join(self.hierarchies.v2 or "", self.name)
            _limit_v2(self.hierarchies.v2_controllers, outer, limits, reserve=True)
            _limit_v2(self.hierarchies.v2_controllers, f"{outer}/{_COMMANDS}", limits, reserve=False)
            if "cpu" in self.hierarchies.v2_controllers:
                # One-off commands are in the agent's group here (see ``favour``): a limit of its own would be theirs.
                write(f"{outer}/cpu.max", f"{_quota_us(limits.cpu + RESERVE_CPU)} {_PERIOD_US}")
                write(f"{outer}/{_COMMANDS}/cpu.max", f"{_quota_us(limits.cpu)} {_PERIOD_US}")

    def add(self, pid: int) -> None:
        """Move the agent in; everything it starts stays in."""
        for controller, base in self.hierarchies.v1.items():
            place = f"{self.name}/{_AGENT}" if controller == "cpu" else self.name
            write(f"{base}/{place}/cgroup.procs", str(pid))
        if self.hierarchies.v2:
            write(f"{self.hierarchies.v2}/{self._v2_agent}/cgroup.procs", str(pid))

    def raise_priority(self, pid: int) -> None:
        """Schedule the agent before the processes it started, so that it can kill them when there are a thousand busy ones.

        Only in v2, where the group limits them all together, so that no other sandbox loses time. In v1 commands start in a group
        of their own with fewer shares, which is better.
        """
        if "cpu" in self.hierarchies.v2_controllers:
            with contextlib.suppress(OSError):
                for thread in os.listdir(f"/proc/{pid}/task"):
                    os.setpriority(os.PRIO_PROCESS, int(thread), AGENT_NICE)

    def delegate(self) -> dict[str, list[int]]:
        """Descriptors for the agent: files by which a command moves or is moved among the commands, memory events.

        Files opened here cannot be walked up from.
        """
        fds: dict[str, list[int]] = {}
        try:
            self._delegate(fds)
        except BaseException:
            for fd in (fd for opened in fds.values() for fd in opened):
                os.close(fd)
            raise
        return fds

    def _delegate(self, fds: dict[str, list[int]]) -> None:
        v2 = self.hierarchies.v2
        commands = {name: f"{base}/{self.name}/{_COMMANDS}" for name, base in self.hierarchies.v1.items()}
        pids = commands.get("pids")
        counts = [f"{pids}/{name}" for name in ("pids.current", "pids.max")] if pids else []
        threads = [f"{path}/tasks" for name, path in commands.items() if name != "pids"]
        inner = [*commands.values(), *([f"{v2}/{self.name}/{_COMMANDS}"] if v2 else [])]
        if self.hierarchies.v2_controllers:
            threads.append(f"{inner[-1]}/cgroup.procs")
        events = [path for part in ("", _AGENT, _COMMANDS) if (path := self._memory_events(part))]
        for name, mode, paths in (
            ("cgroup_join_fds", os.O_WRONLY, [f"{path}/cgroup.procs" for path in inner]),
            ("cgroup_thread_fds", os.O_WRONLY, threads),
            ("cgroup_pids_fds", os.O_WRONLY, [f"{pids}/tasks"] if pids else []),
            ("cgroup_pids_fds", os.O_RDONLY, counts),
            ("cgroup_events_fds", os.O_RDONLY, events),
        ):
            for path in paths:
                fds.setdefault(name, []).append(os.open(path, mode | os.O_CLOEXEC))

    def show(self) -> dict[str, int]:
        """Read-only detached mounts of the commands' groups, for the sandbox's own /sys/fs/cgroup: by controller, or under "" (v2).

        What is not limited for each sandbox apart is shown as it is for all sandboxes of the node: runtimes look for it.
        """
        if self.hierarchies.v1:
            paths = {name: f"{base}/{self.name}/{_COMMANDS}" for name, base in self.hierarchies.v1.items()}
            paths |= self.hierarchies.shared
        elif self.hierarchies.v2_controllers:
            paths = {"": f"{self.hierarchies.v2}/{self.name}/{_COMMANDS}"}
        else:
            return {}
        shown: dict[str, int] = {}
        try:
            for name, path in paths.items():
                shown[name] = sys_.open_tree(path)
                sys_.mount_setattr(shown[name], _READ_ONLY)
        except OSError:  # only root may
            for fd in shown.values():
                os.close(fd)
            return {}
        return shown

    def out_of_memory(self) -> bool:
        """Whether the kernel ever killed the agent itself because memory ran out."""
        for part in ("", _AGENT):
            path = self._memory_events(part)
            if path and _counter(path, "oom_kill"):
                return True
        return False

    def _memory_events(self, part: str) -> str | None:
        if "memory" in self.hierarchies.v1:
            path = os.path.join(self.hierarchies.v1["memory"], self.name, part, "memory.oom_control")
        elif self.hierarchies.v2 and "memory" in self.hierarchies.v2_controllers:
            path = os.path.join(self.hierarchies.v2, self.name, part, "memory.events.local")
        else:
            return None
        return path if os.path.exists(path) else None

    def usage(self) -> dict[str, float]:
        """Memory in bytes and CPU time in seconds, where they can be read."""
        found: dict[str, float] = {}
        if "memory" in self.hierarchies.v1:
            found["memory_bytes"] = _number(f"{self.hierarchies.v1['memory']}/{self.name}/memory.usage_in_bytes")
        elif "memory" in self.hierarchies.v2_controllers:
            found["memory_bytes"] = _number(f"{self.hierarchies.v2}/{self.name}/memory.current")
        if self.hierarchies.v2:
            found["cpu_s"] = _counter(f"{self.hierarchies.v2}/{self.name}/cpu.stat", "usage_usec") / 1e6
        return found

    def remove(self) -> None:
        for path in self.paths:
            try:
                for part in (_COMMANDS, _AGENT):
                    with contextlib.suppress(FileNotFoundError):
                        os.rmdir(f"{path}/{part}")
                os.rmdir(path)
            except FileNotFoundError:
                pass
            except OSError:  # not empty yet, or with further groups: looking for them reads every file name of every group
                remove(path)


def _quota_us(cores: float) -> int:
    return max(int(cores * _PERIOD_US), 1000)


def _limit_cpu_v1(outer: str, limits: Limits) -> None:
    try_write(f"{outer}/cpu.shares", str(max(2, int(1024 * limits.cpu))))
    # Within the sandbox the agent goes before all commands together.
    for part, cores, shares in ((_AGENT, AGENT_CPU, 1024), (_COMMANDS, limits.cpu, 128)):
        write(f"{outer}/{part}/cpu.cfs_quota_us", str(_quota_us(cores)))
        try_write(f"{outer}/{part}/cpu.shares", str(shares))


def _limit_v1(controller: str, path: str, limits: Limits, *, reserve: bool) -> None:
    if controller == "memory":
        size = limits.memory_bytes + (RESERVE_BYTES if reserve else 0)
        write(f"{path}/memory.limit_in_bytes", str(size))
        try_write(f"{path}/memory.memsw.limit_in_bytes", str(size))
    else:
        write(f"{path}/pids.max", str(limits.pids + (RESERVE_PIDS if reserve else 0)))


def _limit_v2(controllers: frozenset[str], path: str, limits: Limits, *, reserve: bool) -> None:
    if "memory" in controllers:
        write(f"{path}/memory.max", str(limits.memory_bytes + (RESERVE_BYTES if reserve else 0)))
        try_write(f"{path}/memory.swap.max", "0")
    if "pids" in controllers:
        write(f"{path}/pids.max", str(limits.pids + (RESERVE_PIDS if reserve else 0)))


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
