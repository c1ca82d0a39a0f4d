"""Turning a process into a sandbox's agent: namespaces, id maps, user ids and, last, the capabilities it drops.

Owns which namespaces there are, how ids map, and the order of the hardening steps. Does not own the namespaces of commands
(workload.py), the file tree (rootfs.py) or the limits (cgroups.py). Called by the zygote: parent-side functions before and after
the fork, and child-side functions in the new process.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import resource
import signal
import socket
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from session_agent.node.kernel import syscalls as sys_

ISOLATION = sys_.CLONE_NEWUSER | sys_.CLONE_NEWNS | sys_.CLONE_NEWPID | sys_.CLONE_NEWIPC | sys_.CLONE_NEWUTS
"""The namespaces of the agent and its whole sandbox; the network and control group namespaces belong to the commands (workload.py)."""

# The agent needs these to serve files as any user of the sandbox. As the owner of the commands' namespace it has all of them there.
_CAP_CHOWN, _CAP_DAC_OVERRIDE, _CAP_FOWNER, _CAP_FSETID, _CAP_KILL, _CAP_SETGID, _CAP_SETUID, _CAP_SETFCAP = 0, 1, 3, 4, 5, 6, 7, 31
AGENT_CAPABILITIES = sum(
    1 << bit for bit in (_CAP_CHOWN, _CAP_DAC_OVERRIDE, _CAP_FOWNER, _CAP_FSETID, _CAP_KILL, _CAP_SETGID, _CAP_SETUID, _CAP_SETFCAP)
)

_NOROOT, _NOROOT_LOCKED = 1 << 0, 1 << 1
_NO_SETUID_FIXUP, _NO_SETUID_FIXUP_LOCKED = 1 << 2, 1 << 3
_KEEP_CAPS_LOCKED = 1 << 5
_NO_AMBIENT, _NO_AMBIENT_LOCKED = 1 << 6, 1 << 7
_SIGNALS = 8192
_RAISED_OOM_SCORE = 200
_OPEN_FILES = 1 << 20
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1


LOW_IDS = 65536
"""Ids a sandbox has in the node's first range: those of ordinary images."""
HIGH_IDS = 524_288
"""Further ids, in a separate range, for images built on systems with large user ids. The last one is the agent's."""


@dataclass(frozen=True, slots=True)
class IdMap:
    """The ids of the zygote's namespace that are mapped into one sandbox. The sandbox's ids 0..count-1 are base..base+count-1 outside; with
    *high_base*, the next HIGH_IDS ids are those from *high_base* on.
    """

    base: int
    count: int
    high_base: int = 0

    @property
    def extents(self) -> tuple[tuple[int, int, int], ...]:
        """The ranges as (first id inside, first id outside, number of ids)."""
        if self.base == 0 and self.count > 1:  # shared ids: the kernel wants each range to lie in one range of the outer namespace
            return (0, 0, 1), (1, 1, self.count - 1)
        low = (0, self.base, self.count)
        return (low, (self.count, self.high_base, HIGH_IDS)) if self.high_base else (low,)

    @property
    def total(self) -> int:
        return sum(number for _, _, number in self.extents)

    @property
    def agent(self) -> int:
        """The agent's own id inside, which no command can have; 0 if the sandbox has only one id."""
        total = self.total
        return total - 1 if total > 1 else 0

    @property
    def commands(self) -> int:
        """The number of ids that commands have, starting at 0."""
        return max(self.total - 1, 1)

    @property
    def command_extents(self) -> tuple[tuple[int, int, int], ...]:
        """The map from the commands' ids to ids of the agent's namespace: the same ids, without the agent's own."""
        commands = self.commands
        return tuple((first, first, min(number, commands - first)) for first, _, number in self.extents)

    def outside(self, number: int) -> int | None:
        """The id outside for the id *number* inside."""
        return next((base + number - first for first, base, count in self.extents if first <= number < first + count), None)

    def inside(self, number: int) -> int | None:
        """The id inside for the id *number* outside."""
        return next((first + number - base for first, base, count in self.extents if base <= number < base + count), None)


@functools.cache
def shared_ids() -> int:
    """For root of a user namespace with few ids, which all sandboxes then share: their number, from 0 on. Else 0.

    A node in a container is such a root, and one with the subordinate ids of its user.
    """
    if os.geteuid() != 0:
        return 0
    counts = []
    for kind in ("uid", "gid"):
        with open(f"/proc/self/{kind}_map", encoding="ascii") as file:
            rows = sorted(tuple(map(int, line.split())) for line in file)
        count = 0
        for first, _, number in rows:
            count += number if first == count else 0
        counts.append(count)
    return 0 if min(counts) > 1 << 31 else min(*counts, LOW_IDS)


def write_id_maps(pid: int, extents: Sequence[tuple[int, int, int]], *, proc: str = "/proc") -> None:
    """Write the id maps of the new user namespace of *pid*. For a single id, setgroups must be denied first."""
    if sum(number for _, _, number in extents) == 1:
        sys_.write_file(f"{proc}/{pid}/setgroups", "deny")
    lines = "".join(f"{inside} {outside} {number}\n" for inside, outside, number in extents)
    sys_.write_file(f"{proc}/{pid}/uid_map", lines)
    sys_.write_file(f"{proc}/{pid}/gid_map", lines)


def enter_own_user_namespace() -> None:
    """For a start without root: become root of a user namespace that maps only the caller, with its own mount namespace."""
    uid, gid = os.geteuid(), os.getegid()
    sys_.unshare(sys_.CLONE_NEWUSER | sys_.CLONE_NEWNS)
    sys_.write_file("/proc/self/setgroups", "deny")
    sys_.write_file("/proc/self/uid_map", f"0 {uid} 1\n")
    sys_.write_file("/proc/self/gid_map", f"0 {gid} 1\n")


def keep_capabilities_across_uids() -> None:
    """Zygote, as root: from here on `owned_by` changes no capabilities."""
    with contextlib.suppress(OSError):  # without CAP_SETPCAP: a machine that requires it for user namespaces reports an error later
        sys_.prctl(sys_.PR_SET_SECUREBITS, _NO_SETUID_FIXUP)


def raise_limits() -> None:
    """Zygote, as root: raise limits of the machine that docker does not apply to containers. A sandbox may still set lower ones."""
    unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    for kind in (resource.RLIMIT_CORE, resource.RLIMIT_NPROC):
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(kind, unlimited)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[0], _OPEN_FILES))


def choose_oom_score() -> None:
    """Zygote: when the machine is out of memory, sandboxes end before the services, and commands before their agent.

    Where `holdfast up` could give the services a low score, which needs CAP_SYS_RESOURCE, sandboxes get the usual one, else a higher one.
    """
    with contextlib.suppress(OSError, ValueError):
        with open("/proc/self/oom_score_adj", encoding="ascii") as file:
            own = int(file.read())
        sys_.write_file("/proc/self/oom_score_adj", str(0 if own < 0 else max(own, _RAISED_OOM_SCORE)))


@contextlib.contextmanager
def owned_by(ids: IdMap) -> Iterator[None]:
    """Zygote: files and namespaces that are created within the block belong to the sandbox's own root id, if it has one.

    The kernel also counts what is used in a user namespace (inotify instances, queued signals, message queues, further namespaces) for the
    owner of that namespace. If that were the machine's root, one sandbox could use up the limits of root and of all other sandboxes.
    """
    if ids.count > 1:
        os.seteuid(ids.base)
    try:
        yield
    finally:
        if ids.count > 1:
            os.seteuid(0)


def bound_counts() -> None:
    """Child that shares its only id with the node's user and all other sandboxes: limit it to a part of each resource that is counted for
    that id."""
    for name, most in (("max_inotify_instances", 32), ("max_inotify_watches", 16384)):
        with contextlib.suppress(OSError):
            sys_.write_file(f"/proc/sys/user/{name}", str(most))


def become_root_inside(ids: IdMap) -> None:
    """Child: switch to the sandbox's own root ids, to build its file tree."""
    if ids.count > 1:
        os.setgroups([])
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)
    sys_.prctl(sys_.PR_SET_PDEATHSIG, signal.SIGKILL)


def become_agent(ids: IdMap) -> None:
    """Child: switch to the agent's own ids, keep all capabilities for now, and die with the node from now on.

    No command can have these ids, so none may signal, renice or limit the agent. Files that it creates belong to the sandbox's root.
    """
    agent = ids.agent
    sys_.prctl(sys_.PR_SET_SECUREBITS, _NO_SETUID_FIXUP)
    os.setresgid(agent, agent, agent)
    os.setresuid(agent, agent, agent)
    sys_.set_file_ids(0, 0)
    # A change of ids clears both, so they come after it. Commands have no capability in the agent's user namespace, which is what
    # keeps its memory and descriptors closed to them although it is dumpable.
    sys_.prctl(sys_.PR_SET_DUMPABLE, 1)
    sys_.prctl(sys_.PR_SET_PDEATHSIG, signal.SIGKILL)


def set_up_network(ids: IdMap) -> None:
    """Child: bring up lo, the only interface, and allow every user to ping and to listen on any port, as docker does."""
    set_up_loopback()
    for name, text in (("ip_unprivileged_port_start", "0"), ("ping_group_range", f"0 {ids.commands - 1}")):
        with contextlib.suppress(OSError):
            sys_.write_file(f"/proc/sys/net/ipv4/{name}", text)


def set_up_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as control:
        request = struct.pack("16sH14x", b"lo", 0)
        flags = struct.unpack("16sH14x", fcntl.ioctl(control, _SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", flags | _IFF_UP))


def close_all_but(keep: set[int]) -> None:
    """Child: close every descriptor that is not in *keep*."""
    first = 0
    for fd in sorted(keep):
        if fd > first:
            sys_.close_range(first, fd - 1)
        first = fd + 1
    sys_.close_range(first)


def limit_resources(open_files: int) -> None:
    """Child: set the number of descriptors that programs expect, and limit queued signals to what programs need.

    The agent writes no core dumps; commands may (privileges.py).
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    _limit(resource.RLIMIT_SIGPENDING, _SIGNALS)
    _limit(resource.RLIMIT_NOFILE, open_files)


def limit_tasks(tasks: int) -> None:
    """Child: limit the processes and threads of each user id, counted only in this user namespace; works without cgroups."""
    _limit(resource.RLIMIT_NPROC, tasks)


def _limit(kind: int, most: int) -> None:
    hard = resource.getrlimit(kind)[1]
    bound = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(kind, (bound, bound))


def clear_bounding_set(last_capability: int) -> None:
    """Child, while it waits: programs that are executed in the agent's user namespace from here on have no capability and can gain none.

    They can still enter the commands' namespace, which their user owns. PR_SET_NO_NEW_PRIVS is not used, because commands would inherit it
    and could not use programs with the set-user-ID bit.
    """
    for capability in range(last_capability + 1):
        sys_.prctl(sys_.PR_CAPBSET_DROP, capability)
    sys_.prctl(sys_.PR_CAP_AMBIENT, sys_.PR_CAP_AMBIENT_CLEAR_ALL)
    sys_.prctl(
        sys_.PR_SET_SECUREBITS,
        _NO_SETUID_FIXUP | _NO_SETUID_FIXUP_LOCKED | _NOROOT | _NOROOT_LOCKED | _KEEP_CAPS_LOCKED | _NO_AMBIENT | _NO_AMBIENT_LOCKED,
    )


def drop_own_capabilities(program: bytes | None) -> None:
    """Child, last step: drop, for good, the capabilities that the agent itself does not need.

    The filter applies to the agent and to commands.
    """
    if program is not None:
        sys_.seccomp_install(program)  # needs a capability that is dropped now
    sys_.capset(AGENT_CAPABILITIES)
