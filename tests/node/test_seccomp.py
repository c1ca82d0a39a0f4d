"""The filter's decisions on both architectures, by running its instructions."""

from __future__ import annotations

import errno
import struct

import pytest

from session_agent.node import seccomp
from tests.node.bpf import decide

ALLOW, KILL = 0x7FFF0000, 0x80000000
EPERM, ENOSYS, EAFNOSUPPORT = (0x50000 | number for number in (errno.EPERM, errno.ENOSYS, errno.EAFNOSUPPORT))
AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
MACHINES = sorted(AUDIT)


def verdict(machine: str, number: int, *args: int, audit: int | None = None) -> int:
    words = [*args, *[0] * (6 - len(args))]
    data = struct.pack("=IIQ6Q", number, AUDIT[machine] if audit is None else audit, 0, *words)
    return decide(seccomp.build(machine), data)


def column(machine: str) -> int:
    return 0 if machine == "x86_64" else 1


@pytest.mark.parametrize("machine", MACHINES)
def test_every_named_call_is_refused_or_looked_at(machine: str) -> None:
    for name, numbers in seccomp._NUMBERS.items():
        number = numbers[column(machine)]
        if number is None or name in seccomp._CONDITIONAL:
            continue
        assert verdict(machine, number) == (ENOSYS if name in seccomp._WITHOUT else EPERM), name


@pytest.mark.parametrize("machine", MACHINES)
def test_every_other_known_call_is_allowed_and_unknown_ones_do_not_exist(machine: str) -> None:
    named = {numbers[column(machine)] for numbers in seccomp._NUMBERS.values()}
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
        ((2, 3), EPERM), ((10, 3), EPERM), ((2, 3 | 0o2000000), EPERM), ((2, 10), EPERM),
        ((16, 3, 0), ALLOW), ((16, 2, 0), ALLOW), ((16, 3, 12), EPERM), ((16, 3, 9), EPERM),
        ((17, 3), EAFNOSUPPORT), ((38, 5), EAFNOSUPPORT), ((40, 1), EAFNOSUPPORT), ((31, 3), EAFNOSUPPORT),
        ((0, 1), EAFNOSUPPORT), ((1 << 32 | 17, 3), EAFNOSUPPORT),
    ],
)  # fmt: skip
@pytest.mark.parametrize("machine", MACHINES)
def test_sockets(machine: str, args: tuple[int, ...], expected: int) -> None:
    assert verdict(machine, (41, 198)[column(machine)], *args) == expected


@pytest.mark.parametrize("machine", MACHINES)
def test_processes_threads_and_namespaces(machine: str) -> None:
    clone, unshare = (56, 220)[column(machine)], (272, 97)[column(machine)]
    assert verdict(machine, clone, 17) == ALLOW
    assert verdict(machine, clone, 0x003D0F00) == ALLOW
    assert verdict(machine, unshare, 0x200) == ALLOW
    for flag in (0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000):
        assert verdict(machine, clone, flag | 17) == EPERM
        assert verdict(machine, unshare, flag) == EPERM
    assert verdict(machine, unshare, 0x80) == EPERM


@pytest.mark.parametrize("machine", MACHINES)
def test_limits_are_changed_of_oneself_only(machine: str) -> None:
    prlimit = (302, 261)[column(machine)]
    new = 0x7FFD_0000_1000
    assert verdict(machine, prlimit, 0, 7, new) == ALLOW
    assert verdict(machine, prlimit, 1, 7, 0, new) == ALLOW  # asks only
    assert verdict(machine, prlimit, 7, 15, new) == ALLOW  # the agent's mark
    assert {verdict(machine, prlimit, pid, 7, new) for pid in (1, 2, 0xFFFFFFFF)} == {EPERM}
    assert {verdict(machine, prlimit, 1, 7, pointer) for pointer in (0x1000, 1 << 32)} == {EPERM}


@pytest.mark.parametrize("machine", MACHINES)
def test_terminals(machine: str) -> None:
    ioctl = (16, 29)[column(machine)]
    assert verdict(machine, ioctl, 0, 0x5413) == ALLOW
    for request in (0x5412, 0x541C, 0x5423, 1 << 32 | 0x5412):
        assert verdict(machine, ioctl, 0, request) == EPERM
