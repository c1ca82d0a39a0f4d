"""The decisions of the system call filter on both architectures, found by running its instructions."""

from __future__ import annotations

import errno
import struct

import pytest

from session_agent.node.kernel import seccomp
from tests.node.bpf import decide

ALLOW, KILL = 0x7FFF0000, 0x80000000
EPERM, ENOSYS, EAFNOSUPPORT, EPROTONOSUPPORT = (
    0x50000 | number for number in (errno.EPERM, errno.ENOSYS, errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT)
)
AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
MACHINES = sorted(AUDIT)


def verdict(machine: str, number: int, *args: int, audit: int | None = None, **options: bool) -> int:
    words = [*args, *[0] * (6 - len(args))]
    data = struct.pack("=IIQ6Q", number, AUDIT[machine] if audit is None else audit, 0, *words)
    return decide(seccomp.build(machine, **options), data)


def column(machine: str) -> int:
    return 0 if machine == "x86_64" else 1


@pytest.mark.parametrize("machine", MACHINES)
def test_every_named_call_without_conditions_is_refused(machine: str) -> None:
    for name, numbers in seccomp._NUMBERS.items():
        number = numbers[column(machine)]
        if number is None or name in ("socket", "setsockopt") or name in seccomp._CONDITIONAL or name in seccomp._ONE_ID:
            continue
        assert verdict(machine, number) == (ENOSYS if name in seccomp._WITHOUT else EPERM), name


# The calls of docker's default that programs in containers use and that Holdfast once refused.
DOCKER_ALLOWS = {
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "chroot": (161, 51), "mknodat": (259, 33),
    "memfd_secret": (447, 447), "setuid": (105, 146), "setgroups": (116, 159), "capset": (126, 91), "setxattr": (188, 5),
    "fchownat": (260, 54), "mq_open": (240, 180), "shmget": (29, 194), "sched_setscheduler": (144, 119), "prlimit64": (302, 261),
    "setpriority": (141, 140),
}  # fmt: skip


@pytest.mark.parametrize("machine", MACHINES)
def test_what_docker_allows_is_allowed(machine: str) -> None:
    for name, numbers in DOCKER_ALLOWS.items():
        assert verdict(machine, numbers[column(machine)], 1, 1, 0x1000) == ALLOW, name


@pytest.mark.parametrize("machine", MACHINES)
def test_every_other_known_call_is_allowed_and_unknown_ones_do_not_exist(machine: str) -> None:
    named = {numbers[column(machine)] for name, numbers in seccomp._NUMBERS.items() if name not in {*seccomp._ONE_ID, "setsockopt"}}
    assert all(verdict(machine, number) == ALLOW for number in range(467) if number not in named)
    assert {verdict(machine, number) for number in (467, 468, 1000, 0x3FFFFFFF)} == {ENOSYS}


def test_foreign_architectures_are_killed() -> None:
    assert verdict("x86_64", 1, audit=0x40000003) == KILL
    assert verdict("x86_64", 0x40000000 | 1) == KILL
    assert verdict("aarch64", 1, audit=0x40000028) == KILL


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ((1, 1), ALLOW), ((2, 1), ALLOW), ((2, 2), ALLOW), ((10, 1), ALLOW), ((1, 5), ALLOW), ((2, 1 | 0o2000000), ALLOW),
        ((2, 3), ALLOW), ((10, 3), ALLOW), ((2, 3 | 0o2000000), ALLOW), ((2, 3, 255), ALLOW),
        ((2, 10), EPERM), ((2, 10 | 0o2000000), EPERM), ((10, 10), EPERM),
        ((16, 3, 0), ALLOW), ((16, 2, 0), ALLOW), ((16, 3, 4), ALLOW), ((16, 3, 15), ALLOW), ((16, 3, 16), ALLOW),
        ((16, 3, 12), EPROTONOSUPPORT), ((16, 3, 9), EPROTONOSUPPORT), ((16, 3, 6), EPROTONOSUPPORT),
        ((17, 3), EPERM), ((38, 5), EAFNOSUPPORT), ((40, 1), EAFNOSUPPORT), ((31, 3), EAFNOSUPPORT),
        ((0, 1), EAFNOSUPPORT), ((1 << 32 | 17, 3), EPERM), ((1 << 32 | 40, 3), EAFNOSUPPORT),
    ],
)  # fmt: skip
@pytest.mark.parametrize("machine", MACHINES)
def test_sockets(machine: str, args: tuple[int, ...], expected: int) -> None:
    assert verdict(machine, (41, 198)[column(machine)], *args) == expected


@pytest.mark.parametrize("machine", MACHINES)
def test_with_a_network_no_process_may_write_packet_headers(machine: str) -> None:
    """The kernel routes such a packet by another address than its destination."""
    new, change = (41, 198)[column(machine)], (54, 208)[column(machine)]
    for family in (2, 10):
        assert verdict(machine, new, family, 3, 255, network=True) == EPERM
        assert verdict(machine, new, family, 3 | 0o2000000, 255, network=True) == EPERM
        assert verdict(machine, new, family, 3, 1, network=True) == ALLOW
        assert verdict(machine, new, family, 1, 6, network=True) == ALLOW
        assert verdict(machine, new, family, 10, 0, network=True) == EPERM
    assert verdict(machine, new, 17, 3, network=True) == EPERM
    assert verdict(machine, change, 5, 0, 3, network=True) == EPERM
    assert verdict(machine, change, 5, 41, 36, network=True) == EPERM
    assert verdict(machine, change, 5, 0, 3) == ALLOW
    for level, name in ((0, 2), (1, 3), (41, 3), (0, 36), (6, 3)):
        assert verdict(machine, change, 5, level, name, network=True) == ALLOW


@pytest.mark.parametrize("machine", MACHINES)
def test_processes_threads_and_namespaces(machine: str) -> None:
    clone, unshare = (56, 220)[column(machine)], (272, 97)[column(machine)]
    assert verdict(machine, clone, 17) == ALLOW
    assert verdict(machine, clone, 0x003D0F00) == ALLOW
    assert verdict(machine, unshare, 0x200) == EPERM
    for flag in (0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000):
        assert verdict(machine, clone, flag | 17) == EPERM
        assert verdict(machine, unshare, flag) == EPERM
    assert verdict(machine, unshare, 0x80) == EPERM
    setns = (308, 268)[column(machine)]
    assert verdict(machine, setns, 5, 0x10000000) == ALLOW  # used by the agent's children; the kernel refuses other callers
    assert {verdict(machine, setns, 5, kind) for kind in (0, 0x20000, 0x40000000, 1 << 32)} == {EPERM}


@pytest.mark.parametrize("machine", MACHINES)
def test_with_one_id_a_process_changes_only_its_own_limits(machine: str) -> None:
    prlimit = (302, 261)[column(machine)]
    new = 0x7FFD_0000_1000
    assert verdict(machine, prlimit, 0, 7, new, one_id=True) == ALLOW
    assert verdict(machine, prlimit, 1, 7, 0, new, one_id=True) == ALLOW  # only reads
    assert verdict(machine, prlimit, 7, 15, new, one_id=True) == ALLOW  # the agent marks process trees with this limit
    assert {verdict(machine, prlimit, pid, 7, new, one_id=True) for pid in (1, 2, 0xFFFFFFFF)} == {EPERM}
    assert {verdict(machine, prlimit, 1, 7, pointer, one_id=True) for pointer in (0x1000, 1 << 32)} == {EPERM}
    assert verdict(machine, prlimit, 1, 7, new) == ALLOW  # the kernel refuses it, because the agent has another id


@pytest.mark.parametrize("machine", MACHINES)
def test_with_one_id_a_process_changes_only_its_own_priority(machine: str) -> None:
    setpriority, affinity = (141, 140)[column(machine)], (203, 122)[column(machine)]
    assert verdict(machine, setpriority, 0, 0, 19, one_id=True) == ALLOW
    assert verdict(machine, setpriority, 1, 0, 19, one_id=True) == ALLOW
    assert {verdict(machine, setpriority, which, who, 19, one_id=True) for which, who in ((0, 1), (2, 0), (2, 1000))} == {EPERM}
    assert verdict(machine, affinity, 0, one_id=True) == ALLOW
    assert verdict(machine, affinity, 1, one_id=True) == EPERM


@pytest.mark.parametrize("machine", MACHINES)
def test_terminals(machine: str) -> None:
    ioctl = (16, 29)[column(machine)]
    assert verdict(machine, ioctl, 0, 0x5413) == ALLOW
    for request in (0x5412, 0x541C, 0x5423, 1 << 32 | 0x5412):
        assert verdict(machine, ioctl, 0, request) == EPERM
