"""The system-call filter of a sandbox, assembled to classic BPF.

Owns the policy tables for x86_64 and aarch64 and a small assembler. Every call above the newest number known here
answers ENOSYS, so a future kernel adds nothing to what a sandbox may call; a foreign architecture kills the process.
Does not install anything: namespaces.py does, last of all.
"""

from __future__ import annotations

import errno
import platform
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

Instruction = tuple[int, int, int, int]

_LD, _JA, _JEQ, _JGT, _JGE, _JSET, _AND, _RET = 0x20, 0x05, 0x15, 0x25, 0x35, 0x45, 0x54, 0x06
_ALLOW = 0x7FFF0000
_KILL = 0x80000000
_NR, _ARCH = 0, 4
_NEWEST = 466
_NEW_NAMESPACES = 0x7E020000
_NEW_TIME = 0x80
_TIOCSTI, _TIOCLINUX, _TIOCSETD = 0x5412, 0x541C, 0x5423
_RLIMIT_RTTIME = 15
_SIGNED_ERRNO = 0x00050000


def _ret(value: int) -> Instruction:
    return (_RET, 0, 0, value)


def _refuse(number: int) -> Instruction:
    return _ret(_SIGNED_ERRNO | number)


def _load_arg(index: int, *, high: bool = False) -> Instruction:
    """The low word, unless said otherwise: of most of these arguments the kernel looks at no more."""
    return (_LD, 0, 0, 16 + 8 * index + 4 * high)


_EPERM = [_refuse(errno.EPERM)]
_ENOSYS = [_refuse(errno.ENOSYS)]
_UNLESS_NEW_NAMESPACE = [
    _load_arg(0), (_JSET, 0, 1, _NEW_NAMESPACES), _refuse(errno.EPERM), _ret(_ALLOW),
]  # fmt: skip
_UNSHARE = [
    _load_arg(0), (_JSET, 0, 1, _NEW_NAMESPACES | _NEW_TIME), _refuse(errno.EPERM), _ret(_ALLOW),
]  # fmt: skip
_IOCTL = [
    _load_arg(1),
    (_JEQ, 2, 0, _TIOCSTI), (_JEQ, 1, 0, _TIOCLINUX), (_JEQ, 0, 1, _TIOCSETD), _refuse(errno.EPERM),
    _ret(_ALLOW),
]  # fmt: skip
# Unix, IPv4, IPv6 as stream, datagram or sequenced packets; of netlink only the route family, which resolvers read.
_SOCKET = [
    _load_arg(0),
    (_JEQ, 5, 0, 1), (_JEQ, 4, 0, 2), (_JEQ, 3, 0, 10), (_JEQ, 0, 1, 16), (_JA, 0, 0, 7),
    _refuse(errno.EAFNOSUPPORT),
    _load_arg(1), (_AND, 0, 0, 0xF),
    (_JEQ, 1, 0, 3), (_JEQ, 0, 1, 10), _refuse(errno.EPERM),
    _ret(_ALLOW),
    _load_arg(2), (_JEQ, 0, 1, 0), _ret(_ALLOW), _refuse(errno.EPERM),
]  # fmt: skip
_PERSONALITY = [
    _load_arg(0),
    (_JEQ, 4, 0, 0), (_JEQ, 3, 0, 8), (_JEQ, 2, 0, 0x20000), (_JEQ, 1, 0, 0x20008), (_JEQ, 0, 1, 0xFFFFFFFF),
    _ret(_ALLOW), _refuse(errno.EPERM),
]  # fmt: skip

# Whoever has the same user ids may change another's limits: the agent's, for instance, which would end it. Asking is free,
# and so is the limit with which the agent marks what belongs to a command (decision 0006): it holds for real-time tasks only.
_PRLIMIT = [
    _load_arg(0), (_JEQ, 6, 0, 0),
    _load_arg(1), (_JEQ, 4, 0, _RLIMIT_RTTIME),
    _load_arg(2), (_JEQ, 0, 3, 0), _load_arg(2, high=True), (_JEQ, 0, 1, 0),
    _ret(_ALLOW), _refuse(errno.EPERM),
]  # fmt: skip

# name: (x86_64, aarch64); None where the architecture has no such call
_NUMBERS: Mapping[str, tuple[int | None, int | None]] = {
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51),
    "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430), "fsconfig": (431, 431),
    "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442),
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "pidfd_getfd": (438, 438), "keyctl": (250, 219), "add_key": (248, 217), "request_key": (249, 218),
    "bpf": (321, 280), "userfaultfd": (323, 282), "perf_event_open": (298, 241), "setns": (308, 268),
    "kexec_load": (246, 104), "kexec_file_load": (320, 294), "create_module": (174, None),
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106),
    "query_module": (178, None), "get_kernel_syms": (177, None), "open_by_handle_at": (304, 265),
    "swapon": (167, 224), "swapoff": (168, 225), "reboot": (169, 142), "settimeofday": (164, 170),
    "clock_settime": (227, 112), "clock_adjtime": (305, 266), "iopl": (172, None), "ioperm": (173, None),
    "quotactl": (179, 60), "quotactl_fd": (443, 443), "lookup_dcookie": (212, 18), "nfsservctl": (180, 42),
    "acct": (163, 89), "vhangup": (153, 58), "uselib": (134, None), "_sysctl": (156, None),
    "sethostname": (170, 161), "setdomainname": (171, 162), "syslog": (103, 116), "modify_ldt": (154, None),
    "fanotify_init": (300, 262), "move_pages": (279, 239), "migrate_pages": (256, 238), "vserver": (236, None),
    "clone3": (435, 435), "io_uring_setup": (425, 425), "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427), "memfd_secret": (447, 447), "statmount": (457, 457), "listmount": (458, 458),
    "lsm_get_self_attr": (459, 459), "lsm_set_self_attr": (460, 460), "lsm_list_modules": (461, 461),
    "clone": (56, 220), "unshare": (272, 97), "ioctl": (16, 29), "socket": (41, 198), "personality": (135, 92),
    "prlimit64": (302, 261),
}  # fmt: skip

# ENOSYS where programs know how to go on without the call, and EPERM everywhere else.
_WITHOUT = {
    "clone3", "io_uring_setup", "io_uring_enter", "io_uring_register", "memfd_secret", "statmount", "listmount",
    "lsm_get_self_attr", "lsm_set_self_attr", "lsm_list_modules",
}  # fmt: skip
_CONDITIONAL: Mapping[str, Sequence[Instruction]] = {
    "clone": _UNLESS_NEW_NAMESPACE,
    "unshare": _UNSHARE,
    "ioctl": _IOCTL,
    "socket": _SOCKET,
    "personality": _PERSONALITY,
    "prlimit64": _PRLIMIT,
}


@dataclass(frozen=True, slots=True)
class Architecture:
    """One architecture's audit number and column of the tables."""

    audit: int
    column: int
    x32: bool = field(default=False)


ARCHITECTURES = {
    "x86_64": Architecture(0xC000003E, 0, x32=True),
    "aarch64": Architecture(0xC00000B7, 1),
}


def supported(machine: str | None = None) -> bool:
    """Whether there is a filter for *machine* (default: this one)."""
    return (machine or platform.machine()) in ARCHITECTURES


def build(machine: str | None = None) -> bytes:
    """The filter for *machine* as an array of struct sock_filter."""
    arch = ARCHITECTURES[machine or platform.machine()]
    rules: list[tuple[int, Sequence[Instruction]]] = []
    for name, numbers in _NUMBERS.items():
        number = numbers[arch.column]
        if number is not None:
            rules.append((number, _CONDITIONAL.get(name) or (_ENOSYS if name in _WITHOUT else _EPERM)))
    rules.sort(key=lambda rule: rule[0])
    head: list[Instruction] = [(_LD, 0, 0, _ARCH), (_JEQ, 1, 0, arch.audit), _ret(_KILL), (_LD, 0, 0, _NR)]
    if arch.x32:
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
