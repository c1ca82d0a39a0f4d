"""Limits of a sandbox on cgroup v1, v2 and hybrid machines, as far as this process may set them.

Owns finding the hierarchies, one group per sandbox with a nested one for its commands, and their removal. The limit on
the commands is what was asked for; the outer group allows a small reserve more, so a command that runs out of memory
or processes never takes the agent with it, and a sandbox that owns its agent still gains no more than the reserve.
With the first version CPU time is limited for the agent and for the commands apart: a fork bomb works in the kernel, where a
quota that is used up stops no process, and would leave the agent nothing of one that they shared.
Does not decide limits. Called by sandboxes.py and doctor.py.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from session_agent.node import syscalls as sys_

RESERVE_BYTES = 96 << 20
RESERVE_PIDS = 32
RESERVE_CPU = 0.25
AGENT_CPU = 1.0
"""Cores the agent may use where it has a quota of its own; what it starts is among the commands there."""
AGENT_NICE = -20
_PERIOD_US = 100_000
_CONTROLLERS = ("memory", "pids", "cpu")
_SHARED = ("cpuacct", "cpuset")
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
class Hierarchies:
    """Where groups can be made: one directory per v1 controller, and at most one of v2 with its controllers."""

    v1: dict[str, str] = field(default_factory=dict)
    v2: str | None = None
    v2_controllers: frozenset[str] = frozenset()
    shared: dict[str, str] = field(default_factory=dict)
    """v1 groups that all sandboxes of the node are in together."""

    @property
    def bases(self) -> list[str]:
        """The node's own directory in every hierarchy."""
        return [*self.v1.values(), *filter(None, [self.v2]), *self.shared.values()]

    def join_shared(self, pid: int) -> None:
        """Move a process, and so what it forks from then on, to the groups that are shared."""
        for path in self.shared.values():
            _try_write(f"{path}/cgroup.procs", str(pid))

    @property
    def controllers(self) -> frozenset[str]:
        return frozenset(self.v1) | self.v2_controllers


@dataclass(frozen=True, slots=True)
class Group:
    """The groups of one sandbox. `paths` are its outermost directories, one per hierarchy."""

    hierarchies: Hierarchies
    name: str

    @property
    def paths(self) -> list[str]:
        bases = [*self.hierarchies.v1.values(), *([self.hierarchies.v2] if self.hierarchies.v2 else [])]
        return [os.path.join(base, self.name) for base in bases]

    def create(self) -> None:
        for controller, base in self.hierarchies.v1.items():
            os.makedirs(os.path.join(base, self.name, _COMMANDS))
            if controller == "cpu":
                os.mkdir(os.path.join(base, self.name, _AGENT))
        if self.hierarchies.v2:
            outer = os.path.join(self.hierarchies.v2, self.name)
            os.mkdir(outer)
            controllers = self.hierarchies.v2_controllers
            if controllers:
                _write(f"{outer}/cgroup.subtree_control", " ".join(f"+{name}" for name in sorted(controllers)))
            for name in (_AGENT, _COMMANDS):
                os.mkdir(f"{outer}/{name}")
            # The agent may divide its part; the kernel memory of groups is not all counted.
            _try_write(f"{outer}/cgroup.max.descendants", str(_MAX_GROUPS))

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
                _write(f"{outer}/cpu.max", f"{_quota_us(limits.cpu + RESERVE_CPU)} {_PERIOD_US}")
                _write(f"{outer}/{_COMMANDS}/cpu.max", f"{_quota_us(limits.cpu)} {_PERIOD_US}")

    def add(self, pid: int) -> None:
        """Move the agent in; everything it starts stays in."""
        for controller, base in self.hierarchies.v1.items():
            place = f"{self.name}/{_AGENT}" if controller == "cpu" else self.name
            _write(f"{base}/{place}/cgroup.procs", str(pid))
        if self.hierarchies.v2:
            _write(f"{self.hierarchies.v2}/{self.name}/{_AGENT}/cgroup.procs", str(pid))

    def favour(self, pid: int) -> None:
        """Let the agent run before whatever it started, lest a thousand busy processes keep it from killing them.

        Only where the group bounds what all of it may use, so that the agent gains nothing on anybody outside, and commands are
        not in groups of their own from their start (v1), which is better.
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
        except OSError:  # a node that is no root may not
            for fd in shown.values():
                os.close(fd)
            return {}
        return shown

    def out_of_memory(self) -> bool:
        """Whether the kernel ever killed the agent itself for want of memory."""
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


def remove(path: str, deadline_s: float = 5.0) -> None:
    """Kill whatever is left below *path* and remove it; raises OSError when it stays busy."""
    if not os.path.isdir(path):
        return
    until = time.monotonic() + deadline_s
    while True:
        try:
            for directory in _bottom_up(path):
                os.rmdir(directory)
            return
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno not in (errno.EBUSY, errno.ENOTEMPTY) or time.monotonic() > until:
                raise
        kill(path)
        time.sleep(0.002)


def kill(path: str) -> None:
    """SIGKILL to all members of *path* and of every group below it."""
    try:
        _write(f"{path}/cgroup.kill", "1")
        return
    except OSError:
        pass
    for directory in _bottom_up(path):
        try:
            with open(f"{directory}/cgroup.procs", encoding="ascii") as file:
                members = [int(line) for line in file]
        except OSError:
            continue
        for pid in members:
            try:
                os.kill(pid, 9)
            except OSError:
                pass


def detect(tag: str) -> Hierarchies:
    """Make (or find) the node's own directory ``holdfast-TAG`` in every hierarchy that lets us."""
    mounts = _mounts()
    own = _own_paths()
    v1: dict[str, str] = {}
    for controller in _CONTROLLERS:
        if controller in mounts and controller in own:
            base = _usable(_join(mounts[controller], own[controller]), tag)
            if base:
                v1[controller] = base
    shared = _shared(mounts, own, tag) if v1 else {}
    v2 = None
    controllers: frozenset[str] = frozenset()
    if "" in mounts and "" in own:
        wanted = frozenset(_CONTROLLERS) - frozenset(v1)
        v2, controllers = _usable_v2(mounts[""], own[""], tag, wanted)
    return Hierarchies(v1, v2, controllers, shared)


def _shared(mounts: Mapping[str, tuple[str, str]], own: Mapping[str, str], tag: str) -> dict[str, str]:
    """One group of the node in each hierarchy that nothing is limited by. A co-mounted one is shared only where it is not v1's."""
    found: dict[str, str] = {}
    taken = {mounts[name][0] for name in _CONTROLLERS if name in mounts}
    for controller in _SHARED:
        if controller not in mounts or controller not in own or mounts[controller][0] in taken:
            continue
        parent = _join(mounts[controller], own[controller])
        base = _usable(parent, tag)
        if base is None:
            continue
        try:
            for name in ("cpuset.cpus", "cpuset.mems") if controller == "cpuset" else ():
                with open(f"{parent}/{name}", encoding="ascii") as file:
                    _write(f"{base}/{name}", file.read())
        except OSError:
            continue
        found[controller] = base
    return found


def _usable(parent: str, tag: str) -> str | None:
    base = os.path.join(parent, f"holdfast-{tag}")
    try:
        os.makedirs(base, exist_ok=True)
        probe = os.path.join(base, f"probe-{os.getpid()}")
        os.mkdir(probe)
        os.rmdir(probe)
    except OSError:
        return None
    return base


def _usable_v2(mount: tuple[str, str], own: str, tag: str, wanted: frozenset[str]) -> tuple[str | None, frozenset[str]]:
    fallback: str | None = None
    for parent in dict.fromkeys((_join(mount, own), mount[0])):
        enabled = _enable(parent, wanted)
        base = _usable(parent, tag)
        if base is None:
            continue
        if not wanted or enabled:
            granted = enabled & _enable(base, enabled)
            if granted or not wanted:
                return base, granted
        fallback = fallback or base
    return fallback, frozenset()


def _enable(parent: str, wanted: frozenset[str]) -> frozenset[str]:
    """Hand *wanted* controllers down to the children of *parent*; a group with members must be emptied first."""
    try:
        with open(f"{parent}/cgroup.controllers", encoding="ascii") as file:
            offered = wanted & frozenset(file.read().split())
    except OSError:
        return frozenset()
    if not offered:
        return frozenset()
    request = " ".join(f"+{name}" for name in sorted(offered))
    for attempt in (1, 2):
        try:
            _write(f"{parent}/cgroup.subtree_control", request)
            return offered
        except OSError as error:
            if error.errno != errno.EBUSY or attempt == 2:
                return frozenset()
        try:
            leaf = f"{parent}/holdfast-node"
            os.makedirs(leaf, exist_ok=True)
            _write(f"{leaf}/cgroup.procs", str(os.getpid()))
        except OSError:
            return frozenset()
    return frozenset()


def _quota_us(cores: float) -> int:
    return max(int(cores * _PERIOD_US), 1000)


def _limit_cpu_v1(outer: str, limits: Limits) -> None:
    _try_write(f"{outer}/cpu.shares", str(max(2, int(1024 * limits.cpu))))
    # Within the sandbox the agent goes before all commands together.
    for part, cores, shares in ((_AGENT, AGENT_CPU, 1024), (_COMMANDS, limits.cpu, 128)):
        _write(f"{outer}/{part}/cpu.cfs_quota_us", str(_quota_us(cores)))
        _try_write(f"{outer}/{part}/cpu.shares", str(shares))


def _limit_v1(controller: str, path: str, limits: Limits, *, reserve: bool) -> None:
    if controller == "memory":
        size = limits.memory_bytes + (RESERVE_BYTES if reserve else 0)
        _write(f"{path}/memory.limit_in_bytes", str(size))
        _try_write(f"{path}/memory.memsw.limit_in_bytes", str(size))
    else:
        _write(f"{path}/pids.max", str(limits.pids + (RESERVE_PIDS if reserve else 0)))


def _limit_v2(controllers: frozenset[str], path: str, limits: Limits, *, reserve: bool) -> None:
    if "memory" in controllers:
        _write(f"{path}/memory.max", str(limits.memory_bytes + (RESERVE_BYTES if reserve else 0)))
        _try_write(f"{path}/memory.swap.max", "0")
    if "pids" in controllers:
        _write(f"{path}/pids.max", str(limits.pids + (RESERVE_PIDS if reserve else 0)))


def _mounts() -> dict[str, tuple[str, str]]:
    """Controller (\"\" for v2) → (mount point, root of the hierarchy shown there)."""
    found: dict[str, tuple[str, str]] = {}
    with open("/proc/self/mountinfo", encoding="utf-8") as file:
        for line in file:
            left, _, right = line.partition(" - ")
            fields, kind = left.split(), right.split()
            if kind[0] == "cgroup2":
                found.setdefault("", (fields[4], fields[3]))
            elif kind[0] == "cgroup":
                for option in kind[2].split(","):
                    found.setdefault(option, (fields[4], fields[3]))
    return found


def _own_paths() -> dict[str, str]:
    with open("/proc/self/cgroup", encoding="utf-8") as file:
        rows = [line.rstrip("\n").split(":", 2) for line in file]
    return {controller: path for _, controllers, path in rows for controller in controllers.split(",")}


def _join(mount: tuple[str, str], own: str) -> str:
    point, root = mount
    if root != "/" and (own == root or own.startswith(root + "/")):
        own = own[len(root) :]
    return os.path.join(point, own.lstrip("/")) if own.strip("/") else point


def _bottom_up(path: str) -> Iterator[str]:
    for directory, _, _ in os.walk(path, topdown=False):
        yield directory


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


def _try_write(path: str, text: str) -> None:
    try:
        _write(path, text)
    except OSError:
        pass


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)
