"""Turning a process into a sandbox's agent: namespaces, id maps, user ids and, last, the capabilities it drops.

Owns which namespaces there are, how ids map, and the order of the hardening steps. Does not own the namespaces of commands
(workload.py), the file tree (rootfs.py) or the limits (cgroups.py). Called by the zygote: parent-side functions before and after
the fork, and child-side functions in the new process.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import signal
import socket
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from session_agent.node import syscalls as sys_

ISOLATION = sys_.CLONE_NEWUSER | sys_.CLONE_NEWNS | sys_.CLONE_NEWPID | sys_.CLONE_NEWIPC | sys_.CLONE_NEWUTS
"""Of the agent and all of its sandbox; the network and control group namespaces belong to the commands (workload.py)."""

# What the agent needs to serve files as any user of the sandbox. Over commands it has every capability, as their namespace's owner.
_CAP_CHOWN, _CAP_DAC_OVERRIDE, _CAP_FOWNER, _CAP_FSETID, _CAP_KILL, _CAP_SETGID, _CAP_SETUID, _CAP_SETFCAP = 0, 1, 3, 4, 5, 6, 7, 31
AGENT_CAPABILITIES = sum(
    1 << bit for bit in (_CAP_CHOWN, _CAP_DAC_OVERRIDE, _CAP_FOWNER, _CAP_FSETID, _CAP_KILL, _CAP_SETGID, _CAP_SETUID, _CAP_SETFCAP)
)

_NOROOT, _NOROOT_LOCKED = 1 << 0, 1 << 1
_NO_SETUID_FIXUP, _NO_SETUID_FIXUP_LOCKED = 1 << 2, 1 << 3
_KEEP_CAPS_LOCKED = 1 << 5
_NO_AMBIENT, _NO_AMBIENT_LOCKED = 1 << 6, 1 << 7
_SIGNALS = 8192
_OPEN_FILES = 1 << 20
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1


LOW_IDS = 65536
"""Ids a sandbox has in the node's first range: those of ordinary images."""
HIGH_IDS = 524_288
"""Further ids, in a range of their own: those of images made where users have large numbers. The last one is the agent's."""


@dataclass(frozen=True, slots=True)
class IdMap:
    """The range of the zygote's ids that is mapped into one sandbox.

    Its ids 0..count-1 are base..base+count-1 outside; where *high_base* is given, the next HIGH_IDS are those from there on.
    """

    base: int
    count: int
    high_base: int = 0

    @property
    def extents(self) -> tuple[tuple[int, int, int], ...]:
        """(inside, outside, number) of each range."""
        low = (0, self.base, self.count)
        return (low, (self.count, self.high_base, HIGH_IDS)) if self.high_base else (low,)

    @property
    def total(self) -> int:
        return sum(number for _, _, number in self.extents)

    @property
    def agent(self) -> int:
        """The agent's own id inside, which no command can have; 0 where there is no second one."""
        total = self.total
        return total - 1 if total > 1 else 0

    @property
    def commands(self) -> int:
        """How many ids commands have, from 0."""
        return max(self.total - 1, 1)

    @property
    def command_extents(self) -> tuple[tuple[int, int, int], ...]:
        """The ids of commands, in terms of those of the agent: the same without its own."""
        commands = self.commands
        return tuple((first, first, min(number, commands - first)) for first, _, number in self.extents)

    def outside(self, number: int) -> int | None:
        """The id outside that is *number* inside."""
        return next((base + number - first for first, base, count in self.extents if first <= number < first + count), None)


def write_id_maps(pid: int, extents: Sequence[tuple[int, int, int]], *, proc: str = "/proc") -> None:
    """Give the new user namespace of *pid* its ids. A single id needs setgroups denied first."""
    if sum(number for _, _, number in extents) == 1:
        sys_.write_file(f"{proc}/{pid}/setgroups", "deny")
    lines = "".join(f"{inside} {outside} {number}\n" for inside, outside, number in extents)
    sys_.write_file(f"{proc}/{pid}/uid_map", lines)
    sys_.write_file(f"{proc}/{pid}/gid_map", lines)


def enter_own_user_namespace() -> None:
    """Unprivileged start: become root of a namespace that maps only the caller, with mounts of its own."""
    uid, gid = os.geteuid(), os.getegid()
    sys_.unshare(sys_.CLONE_NEWUSER | sys_.CLONE_NEWNS)
    sys_.write_file("/proc/self/setgroups", "deny")
    sys_.write_file("/proc/self/uid_map", f"0 {uid} 1\n")
    sys_.write_file("/proc/self/gid_map", f"0 {gid} 1\n")


def keep_capabilities_across_uids() -> None:
    """Zygote, as root: from here on `owned_by` changes no capabilities."""
    with contextlib.suppress(OSError):  # without CAP_SETPCAP: a machine that requires capabilities to make user namespaces will report it
        sys_.prctl(sys_.PR_SET_SECUREBITS, _NO_SETUID_FIXUP)


def raise_limits() -> None:
    """Zygote, as root: raise limits of the machine that docker does not apply to containers. A sandbox may still set lower ones."""
    unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    for kind in (resource.RLIMIT_CORE, resource.RLIMIT_NPROC):
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(kind, unlimited)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[0], _OPEN_FILES))


@contextlib.contextmanager
def owned_by(ids: IdMap) -> Iterator[None]:
    """Zygote: what is made within belongs to the sandbox's own root id where it has one.

    The kernel counts what is used in a user namespace (inotify instances, queued signals, message queues, further namespaces) for the
    owner of that namespace as well. Were that the machine's root, one sandbox could use up what there is for root and for all others.
    """
    if ids.count > 1:
        os.seteuid(ids.base)
    try:
        yield
    finally:
        if ids.count > 1:
            os.seteuid(0)


def bound_counts() -> None:
    """Child that shares its one id with the user and all other sandboxes: a part for each of what is counted for that id."""
    for name, most in (("max_inotify_instances", 32), ("max_inotify_watches", 16384)):
        with contextlib.suppress(OSError):
            sys_.write_file(f"/proc/sys/user/{name}", str(most))


def become_root_inside(ids: IdMap) -> None:
    """Child: take the sandbox's own root ids, to build its file tree."""
    if ids.count > 1:
        os.setgroups([])
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)
    sys_.prctl(sys_.PR_SET_PDEATHSIG, signal.SIGKILL)


def become_agent(ids: IdMap) -> None:
    """Child: take the agent's own ids, with all capabilities for now, and die with the node from now on.

    No command can have these ids, so none may signal, renice or limit the agent. Files it makes belong to the sandbox's root.
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
    """Child: bring up lo, the only interface there is, and let every user ping and listen on any port, as docker does."""
    _loopback_up()
    for name, text in (("ip_unprivileged_port_start", "0"), ("ping_group_range", f"0 {ids.commands - 1}")):
        with contextlib.suppress(OSError):
            sys_.write_file(f"/proc/sys/net/ipv4/{name}", text)


def _loopback_up() -> None:
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
    """Child: a number of descriptors that programs expect, and no more queued signals than programs need.

    The agent leaves no core dumps; commands may (privileges.py).
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    _limit(resource.RLIMIT_SIGPENDING, _SIGNALS)
    _limit(resource.RLIMIT_NOFILE, open_files)


def limit_tasks(tasks: int) -> None:
    """Child: a bound on processes and threads per user id, counted in this user namespace alone; also without cgroups."""
    _limit(resource.RLIMIT_NPROC, tasks)


def _limit(kind: int, most: int) -> None:
    hard = resource.getrlimit(kind)[1]
    bound = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(kind, (bound, bound))


def clear_bounding_set(last_capability: int) -> None:
    """Child, while it waits: what is executed in the agent's user namespace from here on has no capability, and can gain none.

    It can still enter the commands' namespace, which its user owns. There is no PR_SET_NO_NEW_PRIVS, which commands would inherit:
    programs with the set-user-ID bit work for them.
    """
    for capability in range(last_capability + 1):
        sys_.prctl(sys_.PR_CAPBSET_DROP, capability)
    sys_.prctl(sys_.PR_CAP_AMBIENT, sys_.PR_CAP_AMBIENT_CLEAR_ALL)
    sys_.prctl(
        sys_.PR_SET_SECUREBITS,
        _NO_SETUID_FIXUP | _NO_SETUID_FIXUP_LOCKED | _NOROOT | _NOROOT_LOCKED | _KEEP_CAPS_LOCKED | _NO_AMBIENT | _NO_AMBIENT_LOCKED,
    )


def drop_own_capabilities(program: bytes | None) -> None:
    """Child, last step: what the agent itself does not need goes, and cannot be regained. The filter is for it and for commands."""
    if program is not None:
        sys_.seccomp_install(program)  # needs a capability that goes now
    sys_.capset(AGENT_CAPABILITIES)
