"""What commands may do: the user namespace they run in, and docker's default capabilities there.

On one machine the node gives commands a user namespace of their own below the agent's (``node.workload``). The agent's user id does not
exist in it, so that nothing there can signal, trace or limit the agent, while the agent, as its owner, has every capability over it.
Owns the calls with which a child that the agent started enters it and becomes its user. Used by ``fork``; facts from
user_namespaces(7), capabilities(7) and docker's documented default capability set.
"""

from __future__ import annotations

import functools
import resource
import struct
from collections.abc import Sequence

from holdfast_wire.records import dataclass

from .stub import Call

_CHOWN, _DAC_OVERRIDE, _FOWNER, _FSETID, _KILL, _SETGID, _SETUID, _SETPCAP = 0, 1, 3, 4, 5, 6, 7, 8
_NET_BIND_SERVICE, _NET_RAW, _SYS_CHROOT, _MKNOD, _AUDIT_WRITE, _SETFCAP = 10, 13, 18, 27, 29, 31
DOCKER_CAPABILITIES = frozenset({
    _CHOWN, _DAC_OVERRIDE, _FOWNER, _FSETID, _KILL, _SETGID, _SETUID, _SETPCAP, _NET_BIND_SERVICE, _NET_RAW, _SYS_CHROOT, _MKNOD,
    _AUDIT_WRITE, _SETFCAP,
})  # fmt: skip
"""What docker leaves a container's root. Everything else is dropped from the bounding set, so no program can regain it."""

_CLONE_NEWUSER = 0x10000000
_PR_CAPBSET_DROP = 24
_RLIMIT_CORE = 4


@dataclass(frozen=True, slots=True)
class CommandNamespace:
    """The user namespace of commands. ``ids`` user and group ids exist in it, from 0; with one, groups cannot be chosen."""

    fd: int
    ids: int

    def calls(self, fd: int, uid: int, gid: int, groups: Sequence[int]) -> list[Call]:
        """What a child calls to run as a user of it; ``fd`` is the namespace's descriptor under the child's number.

        Root keeps docker's capabilities at the exec that follows, any other user none.
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
    """The calls that drop what commands do not get. Made once, on the node before an agent is forked (``warmup``)."""
    return tuple(Call("prctl", (_PR_CAPBSET_DROP, number)) for number in dropped_capabilities())


def dropped_capabilities() -> list[int]:
    """The capabilities of this kernel that commands do not get."""
    return [number for number in range(_last_capability() + 1) if number not in DOCKER_CAPABILITIES]


def _last_capability() -> int:
    with open("/proc/sys/kernel/cap_last_cap", encoding="ascii") as file:
        return int(file.read())


def _core_limit() -> tuple[int, int]:
    """As docker: as large as may be. The agent itself keeps a soft limit of 0."""
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    most = 2**64 - 1 if hard == resource.RLIM_INFINITY else hard
    return most, most
