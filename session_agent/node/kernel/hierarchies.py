"""The control group hierarchies of a machine (v1, v2 or hybrid), and which parts of them this process may use.

Owns finding them, the node's own directory in each, and removing groups with all members. ``cgroups`` has the groups of a sandbox. Called
by sandboxes.py, recovery.py and doctor.py.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from session_agent.node.kernel.syscalls import write_file

_CONTROLLERS = ("memory", "pids", "cpu")
"""The controllers that limit a sandbox."""
_SHARED = ("cpuacct", "cpuset")
"""Controllers of v1 that set no limit; all sandboxes are in one group."""


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """The node's own directory *base* in one hierarchy, and the controllers that limit sandboxes there: one of v1, or any number of v2."""

    base: str
    controllers: frozenset[str]
    v2: bool = False

    @property
    def divided(self) -> bool:
        """Whether the agent has its own group beside that of the commands, instead of being in the outer group.

        In v2 no process may be in a group that limits other groups, and the freezer reports a group as frozen before all of its processes
        are, if some are in it and others in a group below. In v1 only CPU time is limited separately.
        """
        return self.v2 or "cpu" in self.controllers


@dataclass(frozen=True, slots=True)
class Hierarchies:
    """The hierarchies in which groups of sandboxes are created: one for each controller of v1, at most one of v2."""

    limiting: tuple[Hierarchy, ...] = ()
    shared: dict[str, str] = field(default_factory=dict)
    """v1 groups, by controller, that contain all sandboxes of the node."""

    @property
    def bases(self) -> list[str]:
        """The node's own directory in every hierarchy."""
        return [*(hierarchy.base for hierarchy in self.limiting), *self.shared.values()]

    def join_shared(self, pid: int) -> None:
        """Move a process, and all processes that it forks later, to the shared groups."""
        for path in self.shared.values():
            try_write(f"{path}/cgroup.procs", str(pid))

    @property
    def controllers(self) -> frozenset[str]:
        return frozenset[str]().union(*(hierarchy.controllers for hierarchy in self.limiting))


def detect(tag: str) -> Hierarchies:
    """Create or find the node's own directory ``holdfast-TAG`` in every hierarchy that permits it."""
    mounted, own = mounts(), _own_paths()
    found: list[Hierarchy] = []
    for controller in _CONTROLLERS:
        if controller in mounted and controller in own:
            base = _usable(_join(mounted[controller], own[controller]), tag)
            if base:
                found.append(Hierarchy(base, frozenset({controller})))
    shared = _shared(mounted, own, tag) if found else {}
    if "" in mounted and "" in own:
        wanted = frozenset(_CONTROLLERS).difference(*(hierarchy.controllers for hierarchy in found))
        found += usable_v2(mounted[""], own[""], tag, wanted)
    return Hierarchies(tuple(found), shared)


def _shared(mounts: Mapping[str, tuple[str, str]], own: Mapping[str, str], tag: str) -> dict[str, str]:
    """The node's group for each controller of ``_SHARED``, except one that is mounted together with a limiting controller."""
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
                    write_file(f"{base}/{name}", file.read())
        except OSError:
            continue
        found[controller] = base
    return found


def _usable(parent: str, tag: str) -> str | None:
    """The node's directory in *parent*, created if it is missing; None if no group can be created in it."""
    base = os.path.join(parent, f"holdfast-{tag}")
    try:
        os.makedirs(base, exist_ok=True)
        probe = os.path.join(base, f"probe-{os.getpid()}")
        os.mkdir(probe)
        os.rmdir(probe)
    except OSError:
        return None
    return base


def usable_v2(mount: tuple[str, str], own: str, tag: str, wanted: frozenset[str]) -> list[Hierarchy]:
    """The node's directory below this process's own group, or else below the mount, and those of the *wanted* controllers that it has.

    A directory without any of them is used only if there is no other; none if no group can be created.
    """
    found: list[Hierarchy] = []
    for parent in dict.fromkeys((_join(mount, own), mount[0])):
        enabled = _enable(parent, wanted)
        base = _usable(parent, tag)
        if base is not None:
            found.append(Hierarchy(base, _enable(base, enabled), v2=True))
            if found[-1].controllers or not wanted:
                return found[-1:]
    return found[:1]


def _enable(parent: str, wanted: frozenset[str]) -> frozenset[str]:
    """Enable *wanted* controllers for the children of *parent*; a group with members must be emptied first."""
    try:
        with open(f"{parent}/cgroup.controllers", encoding="ascii") as file:
            offered = wanted & frozenset(file.read().split())
        if offered:
            request = " ".join(f"+{name}" for name in sorted(offered))
            try:
                write_file(f"{parent}/cgroup.subtree_control", request)
            except OSError as error:
                if error.errno != errno.EBUSY:
                    raise
                _empty(parent)
                write_file(f"{parent}/cgroup.subtree_control", request)
    except OSError:
        return frozenset()
    return offered


def _empty(parent: str) -> None:
    """Move this process to a group below *parent*, and the other members too if the group was delegated to this process's user.

    They are then the rest of what the user started in a scope of its own: the gateway, Redis, and the shell they were started from.
    Of a group that belongs to root other members may be anything.
    """
    leaf = f"{parent}/holdfast-node"
    os.makedirs(leaf, exist_ok=True)
    write_file(f"{leaf}/cgroup.procs", str(os.getpid()))
    if os.geteuid() == 0 or os.stat(parent).st_uid != os.geteuid():
        return
    with open(f"{parent}/cgroup.procs", encoding="ascii") as file:
        for pid in file.read().split():
            try_write(f"{leaf}/cgroup.procs", pid)


def mounts() -> dict[str, tuple[str, str]]:
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


def remove(path: str, deadline_s: float = 5.0) -> None:
    """Kill all processes below *path* and remove the groups. Raises OSError if a group stays busy."""
    if not os.path.isdir(path):
        return
    until = time.monotonic() + deadline_s
    while True:
        try:
            for directory, _, _ in os.walk(path, topdown=False):
                os.rmdir(directory)
            return
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno not in (errno.EBUSY, errno.ENOTEMPTY) or time.monotonic() > until:
                raise
        _kill(path)
        time.sleep(0.002)


def _kill(path: str) -> None:
    """SIGKILL to all members of *path* and of every group below it."""
    try:
        write_file(f"{path}/cgroup.kill", "1")
        return
    except OSError:
        pass
    for directory, _, _ in os.walk(path):
        with contextlib.suppress(OSError), open(f"{directory}/cgroup.procs", encoding="ascii") as file:
            for line in file:
                with contextlib.suppress(OSError):
                    os.kill(int(line), signal.SIGKILL)


def try_write(path: str, text: str) -> None:
    """Write to a file of a group; errors are ignored."""
    with contextlib.suppress(OSError):
        write_file(path, text)
