"""The system-call filter of a sandbox, assembled to classic BPF.

Owns the policy tables for x86_64 and aarch64 and a small assembler. It refuses what docker's default profile refuses a container
without CAP_SYS_ADMIN, and a little more, each with its reason beside it. Every call above the newest number known here answers
ENOSYS, so a future kernel adds nothing to what a sandbox may call; another architecture's calls kill the process.
Does not install anything: namespaces.py does, last of all. Docker's profile is documented at docs.docker.com/engine/security/seccomp.
"""

from __future__ import annotations

import errno
import platform
import struct
from collections.abc import Mapping, Sequence

Instruction = tuple[int, int, int, int]

_LD, _JA, _JEQ, _JGT, _JGE, _JSET, _AND, _RET = 0x20, 0x05, 0x15, 0x25, 0x35, 0x45, 0x54, 0x06
_ALLOW = 0x7FFF0000
_KILL = 0x80000000
_NR, _ARCH = 0, 4
_NEWEST = 466
_NEW_NAMESPACES = 0x7E020000
_NEW_USER = 0x10000000
_TIOCSTI, _TIOCLINUX, _TIOCSETD = 0x5412, 0x541C, 0x5423
_RLIMIT_RTTIME = 15
_SIGNED_ERRNO = 0x00050000


def _ret(value: int) -> Instruction:
    return (_RET, 0, 0, value)


def _refuse(number: int) -> Instruction:
    return _ret(_SIGNED_ERRNO | number)


def _load_arg(index: int, *, high: bool = False) -> Instruction:
    """The low word, unless stated otherwise: the kernel ignores the rest of most of these arguments."""
    return (_LD, 0, 0, 16 + 8 * index + 4 * high)


_EPERM = [_refuse(errno.EPERM)]
_ENOSYS = [_refuse(errno.ENOSYS)]
_UNLESS_NEW_NAMESPACE = [
    _load_arg(0), (_JSET, 0, 1, _NEW_NAMESPACES), _refuse(errno.EPERM), _ret(_ALLOW),
]  # fmt: skip
# The agent's children enter the commands' user namespace with it (privileges.py); other processes lack the capability.
_SETNS = [
    _load_arg(1), (_JEQ, 0, 1, _NEW_USER), _ret(_ALLOW), _refuse(errno.EPERM),
]  # fmt: skip
_IOCTL = [
    _load_arg(1),
    (_JEQ, 2, 0, _TIOCSTI), (_JEQ, 1, 0, _TIOCLINUX), (_JEQ, 0, 1, _TIOCSETD), _refuse(errno.EPERM),
    _ret(_ALLOW),
]  # fmt: skip
_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK, _AF_PACKET = 1, 2, 10, 16, 17
_SOCK_RAW, _SOCK_PACKET, _IPPROTO_RAW = 3, 10, 255
_SOL_IP, _IP_HDRINCL, _SOL_IPV6, _IPV6_HDRINCL = 0, 3, 41, 36
_NETLINK_ROUTE, _NETLINK_SOCK_DIAG, _NETLINK_KOBJECT_UEVENT, _NETLINK_GENERIC = 0, 4, 15, 16


def _socket(network: bool) -> list[Instruction]:
    """Allow Unix, IPv4, IPv6, and those netlink families that tools read.

    Docker allows all address families except vsock; opening a rare one makes the machine's kernel load its module. Packet sockets (also an
    old type of IPv4 socket) would bypass the routes that block parts of the network, and their ring buffers use memory that no control
    group counts. In a sandbox with *network*, IP packets whose header the sender writes would bypass them too, because the kernel chooses
    the route by another address. For an excluded netlink family the answer is that of a kernel without it: shadow-utils and PAM continue
    without an audit system, but fail without permission.
    """
    netlink = [_NETLINK_ROUTE, _NETLINK_SOCK_DIAG, _NETLINK_KOBJECT_UEVENT, _NETLINK_GENERIC]
    internet = [_load_arg(1), (_AND, 0, 0, 0xF), (_JEQ, 0, 1, _SOCK_PACKET), _refuse(errno.EPERM)]
    if network:
        internet += [(_JEQ, 0, 3, _SOCK_RAW), _load_arg(2), (_JEQ, 0, 1, _IPPROTO_RAW), _refuse(errno.EPERM)]
    internet.append(_ret(_ALLOW))
    code: list[Instruction] = [_load_arg(0), (_JEQ, 0, 1, _AF_UNIX), _ret(_ALLOW), (_JEQ, 0, 1, _AF_PACKET), _refuse(errno.EPERM)]
    code += [(_JEQ, 1, 0, _AF_INET), (_JEQ, 0, len(internet), _AF_INET6), *internet]
    code += [(_JEQ, 1, 0, _AF_NETLINK), _refuse(errno.EAFNOSUPPORT), _load_arg(2)]
    code += [instruction for family in netlink for instruction in ((_JEQ, 0, 1, family), _ret(_ALLOW))]
    return [*code, _refuse(errno.EPROTONOSUPPORT)]


# Where there is a network: no header of the sender's own on a raw socket either (see ``_socket``).
_SETSOCKOPT = [
    _load_arg(1),
    (_JEQ, 0, 3, _SOL_IP), _load_arg(2), (_JEQ, 0, 5, _IP_HDRINCL), _refuse(errno.EPERM),
    (_JEQ, 0, 3, _SOL_IPV6), _load_arg(2), (_JEQ, 0, 1, _IPV6_HDRINCL), _refuse(errno.EPERM),
    _ret(_ALLOW),
]  # fmt: skip
_PERSONALITY = [
    _load_arg(0),
    (_JEQ, 4, 0, 0), (_JEQ, 3, 0, 8), (_JEQ, 2, 0, 0x20000), (_JEQ, 1, 0, 0x20008), (_JEQ, 0, 1, 0xFFFFFFFF),
    _ret(_ALLOW), _refuse(errno.EPERM),
]  # fmt: skip

# Only if commands share the agent's only id, because the node is not root: a process may change the limits of others with its id, and
# could so end the agent. Reading limits is allowed, and so is setting the limit with which the agent marks the processes of a command
# (decision 0006), because it has an effect on real-time tasks only.
_PRLIMIT = [
    _load_arg(0), (_JEQ, 6, 0, 0),
    _load_arg(1), (_JEQ, 4, 0, _RLIMIT_RTTIME),
    _load_arg(2), (_JEQ, 0, 3, 0), _load_arg(2, high=True), (_JEQ, 0, 1, 0),
    _ret(_ALLOW), _refuse(errno.EPERM),
]  # fmt: skip

# The same for calls that could slow the agent down: allowed only for the calling process itself.
_OWN_PRIORITY = [
    _load_arg(1), (_JEQ, 0, 3, 0), _load_arg(0), (_JGT, 1, 0, 1), _ret(_ALLOW), _refuse(errno.EPERM),
]  # fmt: skip
_OWN_SCHEDULING = [
    _load_arg(0), (_JEQ, 0, 1, 0), _ret(_ALLOW), _refuse(errno.EPERM),
]  # fmt: skip
_ONE_ID: Mapping[str, Sequence[Instruction]] = {
    "prlimit64": _PRLIMIT,
    "setpriority": _OWN_PRIORITY,
    "ioprio_set": _OWN_PRIORITY,
    "sched_setparam": _OWN_SCHEDULING,
    "sched_setscheduler": _OWN_SCHEDULING,
    "sched_setaffinity": _OWN_SCHEDULING,
    "sched_setattr": _OWN_SCHEDULING,
}

# name: (x86_64, aarch64); None where the architecture has no such call
_NUMBERS: Mapping[str, tuple[int | None, int | None]] = {
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41),
    "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430), "fsconfig": (431, 431),
    "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442),
    "kcmp": (312, 272), "pidfd_getfd": (438, 438), "keyctl": (250, 219), "add_key": (248, 217), "request_key": (249, 218),
    "bpf": (321, 280), "userfaultfd": (323, 282), "perf_event_open": (298, 241),
    "kexec_load": (246, 104), "kexec_file_load": (320, 294), "create_module": (174, None),
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106),
    "query_module": (178, None), "get_kernel_syms": (177, None), "open_by_handle_at": (304, 265),
    "swapon": (167, 224), "swapoff": (168, 225), "reboot": (169, 142), "settimeofday": (164, 170),
    "clock_settime": (227, 112), "iopl": (172, None), "ioperm": (173, None),
    "quotactl": (179, 60), "quotactl_fd": (443, 443), "lookup_dcookie": (212, 18), "nfsservctl": (180, 42),
    "acct": (163, 89), "vhangup": (153, 58), "uselib": (134, None), "_sysctl": (156, None),
    "sethostname": (170, 161), "setdomainname": (171, 162), "syslog": (103, 116),
    "fanotify_init": (300, 262), "move_pages": (279, 239), "migrate_pages": (256, 238), "vserver": (236, None),
    "get_mempolicy": (239, 236), "set_mempolicy": (238, 237), "mbind": (237, 235), "process_madvise": (440, 440),
    "ustat": (136, None), "sysfs": (139, None), "setns": (308, 268),
    "clone3": (435, 435), "io_uring_setup": (425, 425), "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427), "statmount": (457, 457), "listmount": (458, 458),
    "lsm_get_self_attr": (459, 459), "lsm_set_self_attr": (460, 460), "lsm_list_modules": (461, 461),
    "setsockopt": (54, 208), "clone": (56, 220), "unshare": (272, 97), "ioctl": (16, 29), "socket": (41, 198), "personality": (135, 92),
    "prlimit64": (302, 261), "setpriority": (141, 140), "ioprio_set": (251, 30), "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119), "sched_setaffinity": (203, 122), "sched_setattr": (314, 274),
}  # fmt: skip

# ENOSYS if programs have a fallback for the call, and EPERM otherwise.
_WITHOUT = {
    "clone3", "statmount", "listmount", "lsm_get_self_attr", "lsm_set_self_attr", "lsm_list_modules",
}  # fmt: skip
_CONDITIONAL: Mapping[str, Sequence[Instruction]] = {
    "clone": _UNLESS_NEW_NAMESPACE,
    "setns": _SETNS,
    "ioctl": _IOCTL,
    "personality": _PERSONALITY,
}


_ARCHITECTURES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
"""Audit number, and column of the tables."""


def supported() -> bool:
    """Whether there is a filter for this machine."""
    return platform.machine() in _ARCHITECTURES


def build(machine: str | None = None, *, network: bool = False, one_id: bool = False) -> bytes:
    """The filter for *machine* as an array of struct sock_filter.

    *network* is for sandboxes that have one, *one_id* for those whose commands share the agent's user id.
    """
    machine = machine or platform.machine()
    audit, column = _ARCHITECTURES[machine]
    conditional = {**_CONDITIONAL, **(_ONE_ID if one_id else {}), "socket": _socket(network), "setsockopt": _SETSOCKOPT}
    left_out = {*(() if one_id else _ONE_ID), *(() if network else ("setsockopt",))}
    rules: list[tuple[int, Sequence[Instruction]]] = []
    for name, numbers in _NUMBERS.items():
        number = numbers[column]
        if number is not None and name not in left_out:
            rules.append((number, conditional.get(name) or (_ENOSYS if name in _WITHOUT else _EPERM)))
    rules.sort(key=lambda rule: rule[0])
    head: list[Instruction] = [(_LD, 0, 0, _ARCH), (_JEQ, 1, 0, audit), _ret(_KILL), (_LD, 0, 0, _NR)]
    if machine == "x86_64":  # calls of x32
        head += [(_JGE, 0, 1, 0x40000000), _ret(_KILL)]
    head += [(_JGT, 0, 1, _NEWEST), _refuse(errno.ENOSYS)]
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in head + _tree(rules))


def _tree(rules: Sequence[tuple[int, Sequence[Instruction]]]) -> list[Instruction]:
    """A binary search over the call number: the kernel runs the filter once per number when it is installed."""
    if len(rules) <= 2:
        code: list[Instruction] = []
        for number, body in rules:
            code += [(_JEQ, 0, len(body), number), *body]
        return [*code, _ret(_ALLOW)]
    middle = len(rules) // 2
    left, right = _tree(rules[:middle]), _tree(rules[middle:])
    return [(_JGE, 0, 1, rules[middle][0]), (_JA, 0, 0, len(left)), *left, *right]
