"""The control group hierarchies of a machine, v1, v2 or hybrid, and what of them this process may use.

Owns finding them, the node's own directory in each, and removing groups with all that is in them. What a sandbox has in them is
``cgroups``'s. Called by sandboxes.py, recovery.py and doctor.py.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

_CONTROLLERS = ("memory", "pids", "cpu")
"""What limits a sandbox."""
_SHARED = ("cpuacct", "cpuset")
"""Controllers of v1 that limit nothing here; all sandboxes are in one group."""


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
            try_write(f"{path}/cgroup.procs", str(pid))

    @property
    def controllers(self) -> frozenset[str]:
        return frozenset(self.v1) | self.v2_controllers


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
                    write(f"{base}/{name}", file.read())
        except OSError:
            continue
        found[controller] = base
    return found


def _usable(parent: str, tag: str) -> str | None:
    """The node's directory in *parent*, made if it is missing; None where no group can be made in it."""
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
    """The node's directory below this process's own group, or else below the mount, and which *wanted* controllers it has.

    A directory without any of them is the last resort.
    """
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
            write(f"{parent}/cgroup.subtree_control", request)
            return offered
        except OSError as error:
            if error.errno != errno.EBUSY or attempt == 2:
                return frozenset()
        try:
            leaf = f"{parent}/holdfast-node"
            os.makedirs(leaf, exist_ok=True)
            write(f"{leaf}/cgroup.procs", str(os.getpid()))
        except OSError:
            return frozenset()
    return frozenset()


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
        write(f"{path}/cgroup.kill", "1")
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


def _bottom_up(path: str) -> Iterator[str]:
    for directory, _, _ in os.walk(path, topdown=False):
        yield directory


def try_write(path: str, text: str) -> None:
    """Write to a file of a group, where that is possible."""
    try:
        write(path, text)
    except OSError:
        pass


def write(path: str, text: str) -> None:
    """Write to a file of a group. Raises ``OSError``."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)
