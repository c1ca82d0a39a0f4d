"""Machine code that runs in a child between its start and the exec of the command.

Owns the image: an ELF file of a few hundred bytes, generated for each child, with a table of system calls and a loop that makes one call
after the other. It needs no loader, no library and no file of the sandbox. A call that fails writes a record to the report pipe; if the
call is essential the child exits, otherwise the next call follows. The last call is an exec, which closes the pipe. ``fork`` starts
the image. Facts from elf(5), syscall(2) and the manuals of the architectures.
"""

from __future__ import annotations

import errno
import functools
import os
import struct
from collections.abc import Sequence

from holdfast_wire.fast_dataclass import dataclass, field

_BASE = 0x400000
_TABLE = 0x180
"""Offset of the table of calls in the image; headers and code come before it."""
_HEADERS = 64 + 2 * 56
_CALL = struct.Struct("<QqqqqQ")
_RECORD = struct.Struct("<qQ")
_MOST_ERRNO = 4095
_NUMBERS = {
    "x86_64": {
        "write": 1, "close": 3, "rt_sigaction": 13, "ioctl": 16, "execve": 59, "fcntl": 72, "setgroups": 116, "setresuid": 117,
        "setresgid": 119, "prctl": 157, "ppoll": 271, "unshare": 272, "prlimit64": 302, "setns": 308,
    },
    "aarch64": {
        "fcntl": 25, "ioctl": 29, "close": 57, "write": 64, "ppoll": 73, "unshare": 97, "rt_sigaction": 134, "setresuid": 147,
        "setresgid": 149, "setgroups": 159, "prctl": 167, "execve": 221, "prlimit64": 261, "setns": 268,
    },
}  # fmt: skip
_ELF_MACHINES = {"x86_64": 62, "aarch64": 183}
_CODE = {
    # rbx: the call in hand; r13, r14: argv and environment, as the kernel lays them on the stack; r12: where to go on after a failure
    "x86_64": (
        "488b0424 4c8d6c2408 4d8d74c508"  # mov rax,[rsp]; lea r13,[rsp+8]; lea r14,[r13+rax*8+8]
        "bb80014000"  # mov ebx,table
        "488b03 488b7b08 488b7310 488b5318 4c8b5320"  # next: mov rax,[rbx]; rdi, rsi, rdx, r10 likewise
        "4883f83b 7506 4c89ee 4c89f2"  # cmp rax,execve; jne +6; mov rsi,r13; mov rdx,r14
        "0f05 4885c0 7806 4883c330 ebd4"  # syscall; test rax,rax; js failed; add rbx,48; jmp next
        "4c8b6328 4d85e4 7406"  # failed: mov r12,[rbx+40]; test r12,r12; jz report
        "4883f8fe 741a"  # cmp rax,-ENOENT; je on
        "5350 bfFFFFFFFF 4889e6 ba10000000 b801000000 0f05 4883c410"  # report: write(report, (rax, rbx), 16)
        "4c89e3 4885db 75a3"  # on: mov rbx,r12; test rbx,rbx; jnz next
        "bf7f000000 b8e7000000 0f05"  # exit_group(127)
    ),
    # the same with x19: the call in hand; x21, x22: argv and environment; x20: where to go on
    "aarch64": (
        "e00340f9 f5230091 a00e008b 16200091"  # ldr x0,[sp]; add x21,sp,#8; add x0,x21,x0,lsl #3; add x22,x0,#8
        "13308052 1308a072"  # mov w19,#0x180; movk w19,#0x40,lsl #16
        "680240f9 608640a9 628e41a9"  # next: ldr x8,[x19]; ldp x0,x1,[x19,#8]; ldp x2,x3,[x19,#24]
        "1f7503f1 61000054 e10315aa e20316aa"  # cmp x8,#221; b.ne +3; mov x1,x21; mov x2,x22
        "010000d4 6000f8b7 73c20091 f6ffff17"  # svc #0; tbnz x0,#63,failed; add x19,x19,#48; b next
        "741640f9 740000b4"  # failed: ldr x20,[x19,#40]; cbz x20,report
        "1f0800b1 00010054"  # cmn x0,#2; b.eq on
        "e04fbfa9 FFFFFFFF e1030091 020280d2 080880d2 010000d4 ff430091"  # report: stp x0,x19,[sp,#-16]!; mov w0,report; …; add sp,sp,#16
        "f30314aa 33fdffb5"  # on: mov x19,x20; cbnz x19,next
        "e00f80d2 c80b80d2 010000d4"  # exit_group(127)
    ),
}


@dataclass(frozen=True, slots=True)
class Call:
    """One system call. ``bytes`` arguments are passed by address. If it is not ``essential``, the next call follows even if it fails."""

    name: str
    args: tuple[int | bytes, ...] = ()
    essential: bool = True


@dataclass(slots=True)
class Report:
    """The failures that a stub has reported so far."""

    calls: Sequence[Call]
    failed: Call | None = None
    errno: int = 0
    _significant: int = field(default=0)

    def feed(self, data: bytes) -> None:
        """Read records. The stub writes each with one call, so none is split. What it cannot have written is ignored."""
        for result, address in _RECORD.iter_unpack(data[: len(data) // _RECORD.size * _RECORD.size]):
            index, number = (address - _BASE - _TABLE) // _CALL.size, -result
            if not (0 <= index < len(self.calls) and 0 < number <= _MOST_ERRNO):
                continue
            call = self.calls[index]
            if call.name == "execve" and number not in (errno.ENOENT, errno.ENOTDIR):
                self._significant = self._significant or number
            if call.essential:
                self.failed = call
                # As execvp(3): of all paths that were tried, report the first error other than a missing file.
                self.errno = self._significant if call.name == "execve" and self._significant else number


def supported(machine: str = "") -> bool:
    """Whether there is machine code for this architecture."""
    return (machine or os.uname().machine) in _CODE


def execs(paths: Sequence[bytes]) -> list[Call]:
    """Execute the first of these paths that can be executed, with the arguments and the environment of the stub itself."""
    return [Call("execve", (path,), essential=left == 0) for left, path in zip(range(len(paths))[::-1], paths, strict=True)]


def assemble(calls: Sequence[Call], report_fd: int, machine: str = "") -> bytes:
    """The ELF image that makes these calls and writes failures to ``report_fd``."""
    machine = machine or os.uname().machine
    numbers = _NUMBERS[machine]
    pool_at = _BASE + _TABLE + _CALL.size * len(calls)
    pool = bytearray()
    table = bytearray()
    for index, call in enumerate(calls, 1):
        words = []
        for arg in call.args:
            if isinstance(arg, bytes):
                words.append(pool_at + len(pool))
                pool += arg + b"\0" * (8 - len(arg) % 8)
            else:
                words.append(arg)
        words += [0] * (4 - len(words))
        table += _CALL.pack(numbers[call.name], *words, 0 if call.essential else _BASE + _TABLE + _CALL.size * index)
    before, after = _code(machine)
    code = before + _report_operand(machine, report_fd) + after
    size = _TABLE + len(table) + len(pool)
    kind = (2, _ELF_MACHINES[machine], 1)  # to be loaded at _BASE
    header = struct.pack("<4s5B7xHHIQQQIHHHHHH", b"\x7fELF", 2, 1, 1, 0, 0, *kind, _BASE + _HEADERS, 64, 0, 0, 64, 56, 2, 0, 0, 0)
    segments = struct.pack("<IIQQQQQQ", 1, 5, 0, _BASE, _BASE, size, size, 0x10000)  # to be read and executed, never written
    segments += struct.pack("<IIQQQQQQ", 0x6474E551, 6, 0, 0, 0, 0, 0, 16)  # a stack that is not executed
    return (header + segments + code).ljust(_TABLE, b"\0") + bytes(table) + bytes(pool)


@functools.cache
def _code(machine: str) -> tuple[bytes, bytes]:
    """The machine code before and after the number of the report descriptor."""
    before, after = _CODE[machine].split("FFFFFFFF")
    return bytes.fromhex(before), bytes.fromhex(after)


def _report_operand(machine: str, report_fd: int) -> bytes:
    """The number of the report descriptor as machine code: the operand of ``mov edi`` on x86-64, the whole ``mov w0`` on arm64."""
    if machine == "x86_64":
        return struct.pack("<I", report_fd)
    assert report_fd < 1 << 16
    return struct.pack("<I", 0x52800000 | report_fd << 5)
