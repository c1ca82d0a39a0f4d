"""The privileges of commands: their user namespace, and docker's default capabilities in it.

On one machine the node gives commands a user namespace of their own below the agent's (``node.kernel.workload``). The agent's user id does
not exist in it, so no command can signal, trace or limit the agent; the agent owns the namespace and so has every capability over it. Owns
the system calls with which a child enters the namespace and switches to its user. Used by ``fork``. Facts from user_namespaces(7),
capabilities(7) and docker's documented default capability set.
"""

from __future__ import annotations

import functools
import resource
import struct
from collections.abc import Sequence

from holdfast_wire.fast_dataclass import dataclass

from .stub import Call

_CHOWN, _DAC_OVERRIDE, _FOWNER, _FSETID, _KILL, _SETGID, _SETUID, _SETPCAP = 0, 1, 3, 4, 5, 6, 7, 8
_NET_BIND_SERVICE, _NET_RAW, _SYS_CHROOT, _MKNOD, _AUDIT_WRITE, _SETFCAP = 10, 13, 18, 27, 29, 31
DOCKER_CAPABILITIES = frozenset({
    _CHOWN, _DAC_OVERRIDE, _FOWNER, _FSETID, _KILL, _SETGID, _SETUID, _SETPCAP, _NET_BIND_SERVICE, _NET_RAW, _SYS_CHROOT, _MKNOD,
    _AUDIT_WRITE, _SETFCAP,
})  # fmt: skip
"""The capabilities that root has in a docker container. All others are dropped from the bounding set, so no program can regain them."""

_CLONE_NEWUSER = 0x10000000
_PR_CAPBSET_DROP = 24
_RLIMIT_CORE = 4


@dataclass(frozen=True, slots=True)
class CommandNamespace:
    """The user namespace of commands. It has ``ids`` user and group ids, from 0; if there is only one, groups cannot be set."""

    fd: int
    ids: int

    def calls(self, fd: int, uid: int, gid: int, groups: Sequence[int]) -> list[Call]:
        """The system calls of a child that enters the namespace and switches user; ``fd`` is the namespace's descriptor in the child.

        After the exec that follows, root has docker's capabilities and any other user has none.
        """
        calls = [Call("setns", (fd, _CLONE_NEWUSER)), Call("close", (fd,))]
        if self.ids > 1:
            members = struct.pack(f"={len(groups)}I", *groups)
            calls.append(Call("setgroups", (len(groups), members)))
        calls += [Call("setresgid", (gid, gid, gid)), Call("setresuid", (uid, uid, uid))]
        calls += drop_calls()
        calls.append(Call("prlimit64", (0, _RLIMIT_CORE, struct.pack("=QQ", *_core_limit()), 0), essential=False))
        return calls


@functools.cache
def drop_calls() -> tuple[Call, ...]:
    """The calls that drop capabilities. Computed once, by the node before it forks an agent (``warmup``)."""
    return tuple(Call("prctl", (_PR_CAPBSET_DROP, number)) for number in dropped_capabilities())


def dropped_capabilities() -> list[int]:
    """The capabilities of this kernel that commands do not get."""
    return [number for number in range(last_capability() + 1) if number not in DOCKER_CAPABILITIES]


def last_capability() -> int:
    """The highest capability this kernel knows."""
    with open("/proc/sys/kernel/cap_last_cap", encoding="ascii") as file:
        return int(file.read())


def _core_limit() -> tuple[int, int]:
    """The hard limit for both, as in docker. The agent itself has a soft limit of 0."""
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    most = 2**64 - 1 if hard == resource.RLIM_INFINITY else hard
    return most, most
