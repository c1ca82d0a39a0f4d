"""Making a process into a sandbox's first process: namespaces, id maps and, last, the giving up of every power.

Owns which namespaces there are, how ids map, and the order of the hardening steps. Does not own the file tree
(rootfs.py) or the limits (cgroups.py). Called by the zygote: parent-side functions before and after the fork, and
child-side functions in the new process.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import signal
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from session_agent.node import syscalls as sys_

ISOLATION = sys_.CLONE_NEWUSER | sys_.CLONE_NEWNS | sys_.CLONE_NEWPID | sys_.CLONE_NEWNET | sys_.CLONE_NEWIPC | sys_.CLONE_NEWUTS

# What the agent needs to run commands as other users and to serve their files, inside its own user namespace only.
_CAP_CHOWN, _CAP_DAC_OVERRIDE, _CAP_FOWNER, _CAP_KILL, _CAP_SETGID, _CAP_SETUID = 0, 1, 3, 5, 6, 7
AGENT_CAPABILITIES = sum(1 << bit for bit in (_CAP_CHOWN, _CAP_DAC_OVERRIDE, _CAP_FOWNER, _CAP_KILL, _CAP_SETGID, _CAP_SETUID))

_NOROOT, _NOROOT_LOCKED = 1 << 0, 1 << 1
_NO_SETUID_FIXUP = 1 << 2
_KEEP_CAPS_LOCKED = 1 << 5
_NO_AMBIENT, _NO_AMBIENT_LOCKED = 1 << 6, 1 << 7
_SIGNALS = 8192
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1


@dataclass(frozen=True, slots=True)
class IdMap:
    """Ids 0..count-1 of the sandbox are ids base..base+count-1 of the namespace the node's zygote lives in."""

    base: int
    count: int


def write_id_maps(pid: int, ids: IdMap) -> None:
    """Give the new user namespace of *pid* its ids. A single id needs setgroups denied first."""
    if ids.count == 1:
        _write(f"/proc/{pid}/setgroups", "deny")
    line = f"0 {ids.base} {ids.count}\n"
    _write(f"/proc/{pid}/uid_map", line)
    _write(f"/proc/{pid}/gid_map", line)


def enter_own_user_namespace() -> None:
    """Unprivileged start: become root of a namespace that maps only the caller, with mounts of its own."""
    uid, gid = os.geteuid(), os.getegid()
    sys_.unshare(sys_.CLONE_NEWUSER | sys_.CLONE_NEWNS)
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"0 {uid} 1\n")
    _write("/proc/self/gid_map", f"0 {gid} 1\n")


def keep_powers_as_anyone() -> None:
    """Zygote, as root: from here on `owned_by` changes nobody's powers."""
    with contextlib.suppress(OSError):  # without CAP_SETPCAP: a machine that asks for powers to make user namespaces will say so
        sys_.prctl(sys_.PR_SET_SECUREBITS, _NO_SETUID_FIXUP)


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
            _write(f"/proc/sys/user/{name}", str(most))


def become_root_inside(ids: IdMap) -> None:
    """Child: take the sandbox's own root ids, and die with the node from now on."""
    if ids.count > 1:
        os.setgroups([])
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)
    # A change of ids clears both, so they come after it. The agent keeps more capabilities than anything it starts,
    # which is what keeps its memory and descriptors closed to them although it is dumpable.
    sys_.prctl(sys_.PR_SET_DUMPABLE, 1)
    sys_.prctl(sys_.PR_SET_PDEATHSIG, signal.SIGKILL)


def loopback_up() -> None:
    """Child: bring up lo, the only interface there is."""
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
    """Child: no core dumps, a number of descriptors that programs expect, and no more queued signals than programs need."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signals = resource.getrlimit(resource.RLIMIT_SIGPENDING)[1]
    bound = _SIGNALS if signals == resource.RLIM_INFINITY else min(_SIGNALS, signals)
    resource.setrlimit(resource.RLIMIT_SIGPENDING, (bound, bound))
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    bound = open_files if hard == resource.RLIM_INFINITY else min(open_files, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (bound, bound))


def limit_tasks(tasks: int) -> None:
    """Child: a bound on processes and threads per user id, counted in this user namespace alone; also without cgroups."""
    hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    bound = tasks if hard == resource.RLIM_INFINITY else min(tasks, hard)
    resource.setrlimit(resource.RLIMIT_NPROC, (bound, bound))


def hide_group() -> None:
    """Child, in its control groups by now: their paths begin with it, and say nothing of where they lie on the machine."""
    sys_.unshare(sys_.CLONE_NEWCGROUP)


def bar_powers(last_capability: int) -> None:
    """Child, while it waits: whatever is executed from here on has no capability at all, and can gain none."""
    for capability in range(last_capability + 1):
        sys_.prctl(sys_.PR_CAPBSET_DROP, capability)
    sys_.prctl(sys_.PR_CAP_AMBIENT, sys_.PR_CAP_AMBIENT_CLEAR_ALL)
    sys_.prctl(
        sys_.PR_SET_SECUREBITS,
        _NOROOT | _NOROOT_LOCKED | _KEEP_CAPS_LOCKED | _NO_AMBIENT | _NO_AMBIENT_LOCKED,
    )
    sys_.prctl(sys_.PR_SET_NO_NEW_PRIVS, 1)


def give_up_powers(program: bytes | None) -> None:
    """Child, last step: what the agent itself does not need goes, and cannot be regained."""
    sys_.capset(AGENT_CAPABILITIES, AGENT_CAPABILITIES)
    if program is not None:
        sys_.seccomp_install(program)


def last_capability() -> int:
    """The highest capability this kernel knows."""
    with open("/proc/sys/kernel/cap_last_cap", encoding="ascii") as file:
        return int(file.read())


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)
