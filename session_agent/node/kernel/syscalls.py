"""The Linux calls the node needs and Python does not offer, through ctypes.

Owns the syscall numbers, flags and struct layouts of x86_64 and aarch64; every wrapper raises OSError with the
name of the call. Does not own any policy: namespaces.py, rootfs.py and seccomp.py decide what is called when.
The GIL is kept during calls (PyDLL): callers are single threaded and the calls are short. Only the calls that
wait for a device release it.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import platform
import signal
import struct
from collections.abc import Sequence

_libc = ctypes.PyDLL(None, use_errno=True)
_waiting = ctypes.CDLL(None, use_errno=True)
for _library in (_libc, _waiting):
    _library.syscall.restype = ctypes.c_long
    _library.syscall.argtypes = [ctypes.c_long] + [ctypes.c_void_p] * 6  # numbers as well as bytes, None is 0
_libc.prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4
_libc.mount.argtypes = [ctypes.c_char_p] * 3 + [ctypes.c_ulong, ctypes.c_char_p]

MACHINE = platform.machine()
AARCH64 = MACHINE == "aarch64"

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
CLONE_PARENT = 0x00008000
CLONE_PIDFD = 0x00001000
CLONE_CHILD_SETTID = 0x01000000
CLONE_CHILD_CLEARTID = 0x00200000

MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_REMOUNT = 32
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18
MS_SLAVE = 1 << 19
MNT_DETACH = 2

AT_FDCWD = -100
AT_EMPTY_PATH = 0x1000
AT_RECURSIVE = 0x8000
OPEN_TREE_CLONE = 1
OPEN_TREE_CLOEXEC = os.O_CLOEXEC
MOVE_MOUNT_F_EMPTY_PATH = 0x4
MOUNT_ATTR_RDONLY = 0x1
MOUNT_ATTR_NOSUID = 0x2
MOUNT_ATTR_NODEV = 0x4
MOUNT_ATTR_NOEXEC = 0x8
MOUNT_ATTR_IDMAP = 0x00100000

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_SECUREBITS = 28
PR_CAPBSET_DROP = 24
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_CLEAR_ALL = 4

_X86 = {"clone": 56, "pivot_root": 155, "capset": 126, "seccomp": 317, "setfsuid": 122, "setfsgid": 123}
_ARM = {"clone": 220, "pivot_root": 41, "capset": 91, "seccomp": 277, "setfsuid": 151, "setfsgid": 152}
_NUMBERS = _ARM if AARCH64 else _X86
_OPEN_TREE, _MOVE_MOUNT = 428, 429
_FSOPEN, _FSCONFIG, _FSMOUNT = 430, 431, 432
_CLOSE_RANGE, _MOUNT_SETATTR = 436, 442
_FSCONFIG_SET_FLAG, _FSCONFIG_SET_STRING, _FSCONFIG_CMD_CREATE = 0, 1, 6


def _fail(name: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{name}: {os.strerror(number)}")


_Word = int | bytes | None


def _syscall(name: str, number: int, a: _Word = 0, b: _Word = 0, c: _Word = 0, d: _Word = 0, e: _Word = 0) -> int:
    result: int = _libc.syscall(number, a, b, c, d, e, 0)
    if result < 0:
        raise _fail(name)
    return result


def prctl(option: int, arg2: int = 0, arg3: int = 0, arg4: int = 0, arg5: int = 0) -> None:
    """Raise OSError unless prctl(2) answers 0 or more."""
    if _libc.prctl(option, arg2, arg3, arg4, arg5) < 0:
        raise _fail(f"prctl({option})")


def unshare(flags: int) -> None:
    if _libc.unshare(flags) < 0:
        raise _fail("unshare")


def setns(fd: int, kind: int = 0) -> None:
    """Enter the namespace *fd*; *kind* is one of CLONE_NEW*, 0 for any."""
    if _libc.setns(fd, kind) < 0:
        raise _fail("setns")


def set_file_ids(uid: int, gid: int) -> None:
    """Set the file system ids of this thread, until its effective ids change."""
    for name, number in (("setfsgid", gid), ("setfsuid", uid)):
        _libc.syscall(_NUMBERS[name], number, 0, 0, 0, 0, 0)
        # The call returns the previous id even if it fails: a second call that changes nothing shows the current id.
        if _libc.syscall(_NUMBERS[name], -1, 0, 0, 0, 0, 0) != number:
            raise OSError(errno.EPERM, f"{name}({number}): {os.strerror(errno.EPERM)}")


def mount(source: str, target: str, kind: str, flags: int = 0, data: str = "") -> None:
    if _libc.mount(source.encode(), os.fsencode(target), kind.encode() or None, flags, data.encode() or None) < 0:
        raise _fail(f"mount {kind or 'flags'} on {target}")


def umount(target: str, flags: int = 0) -> None:
    if _libc.umount2(os.fsencode(target), flags) < 0:
        raise _fail(f"umount {target}")


def pivot_root(new_root: str, put_old: str) -> None:
    _syscall("pivot_root", _NUMBERS["pivot_root"], os.fsencode(new_root), os.fsencode(put_old))


def sethostname(name: str) -> None:
    raw = name.encode()
    if _libc.sethostname(raw, ctypes.c_size_t(len(raw))) < 0:
        raise _fail("sethostname")


def allocate(fd: int, size_bytes: int) -> None:
    """Give a file all its blocks. Unlike posix_fallocate(3) this does not write them where the file system cannot do it."""
    if _waiting.fallocate(fd, 0, ctypes.c_int64(0), ctypes.c_int64(size_bytes)) < 0:
        raise _fail("fallocate")


def syncfs(fd: int) -> None:
    """Write out the file system of *fd*, which takes as long as there is something to write."""
    if _waiting.syncfs(fd) < 0:
        raise _fail("syncfs")


def close_range(first: int, last: int = 0xFFFFFFFF) -> None:
    _syscall("close_range", _CLOSE_RANGE, first, last)


def bind(source: str, target: str) -> None:
    """Bind-mount *source*, with the mounts below it, at *target*: one call instead of three for a detached mount."""
    if _libc.mount(os.fsencode(source), os.fsencode(target), None, MS_BIND | MS_REC, None) < 0:
        raise _fail(f"bind {source} to {target}")


def open_tree(path: str, *, recursive: bool = False) -> int:
    """A descriptor for a detached copy of the mount at *path*, closed on exec."""
    flags = OPEN_TREE_CLOEXEC | OPEN_TREE_CLONE | (AT_RECURSIVE if recursive else 0)
    return _syscall(f"open_tree {path}", _OPEN_TREE, AT_FDCWD, os.fsencode(path), flags)


def move_mount(mount_fd: int, target: str) -> None:
    """Attach the detached mount *mount_fd* at *target*."""
    flags = MOVE_MOUNT_F_EMPTY_PATH
    _syscall(f"move_mount {target}", _MOVE_MOUNT, mount_fd, b"", AT_FDCWD, os.fsencode(target), flags)


def new_mount(kind: str, source: str, options: Sequence[str], attributes: int) -> int:
    """A detached mount of a file system of *kind* on *source*, with *options* (flags, or NAME=VALUE); it belongs to no namespace until it
    is attached."""

    def configure(command: int, key: bytes | None = None, value: bytes | None = None) -> None:
        if _waiting.syscall(_FSCONFIG, context, command, key, value, 0, 0) < 0:
            raise _fail(f"fsconfig {kind} {(key or b'').decode()}")

    context = _syscall(f"fsopen {kind}", _FSOPEN, kind.encode(), 1)
    try:
        configure(_FSCONFIG_SET_STRING, b"source", source.encode())
        for option in options:
            name, _, value = option.partition("=")
            configure(_FSCONFIG_SET_STRING if value else _FSCONFIG_SET_FLAG, name.encode(), value.encode() or None)
        configure(_FSCONFIG_CMD_CREATE)
        return _syscall(f"fsmount {kind}", _FSMOUNT, context, 1, attributes)
    finally:
        os.close(context)


def mount_setattr(mount: int | str, set_bits: int, *, userns_fd: int = 0, recursive: bool = False) -> None:
    """Add attributes to a mount, which is given by a descriptor or a path."""
    attr = struct.pack("=QQQQ", set_bits, 0, 0, userns_fd)
    place, path, flags = (mount, b"", AT_EMPTY_PATH) if isinstance(mount, int) else (AT_FDCWD, os.fsencode(mount), 0)
    flags |= AT_RECURSIVE if recursive else 0
    _syscall("mount_setattr", _MOUNT_SETATTR, place, path, flags, attr, len(attr))


def thread_id_address() -> int:
    """Where glibc caches this thread's id, for fork_into, or 0 when it cannot be found for certain.

    A raw clone leaves the parent's id there; the kernel writes the child's to the given address.
    """
    _libc.pthread_self.restype = ctypes.c_size_t
    base = int(_libc.pthread_self())
    words = (ctypes.c_int32 * 512).from_address(base)
    hits = [index for index in range(512) if words[index] == os.getpid()]
    return base + 4 * hits[0] if len(hits) == 1 else 0


def set_title(text: str) -> None:
    """Overwrite the command line that other processes see, because the original reveals details of the machine."""
    start, end = _title_place()
    if 0 < start < end:
        ctypes.memmove(start, text.encode()[: end - start - 1].ljust(end - start, b"\0"), end - start)


@functools.cache
def _title_place() -> tuple[int, int]:
    """The start and end of the command line in memory, also in a forked process."""
    with open("/proc/self/stat", encoding="utf-8", errors="replace") as file:
        fields = file.read().rpartition(")")[2].split()
    return int(fields[45]), int(fields[46])


def write_file(path: str, text: str) -> None:
    """Write to a file of the kernel with one call. Raises ``OSError``."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


_pidfd_slot = ctypes.c_int(-1)
_before_fork = ctypes.pythonapi.PyOS_BeforeFork
_after_fork_in_child = ctypes.pythonapi.PyOS_AfterFork_Child
_after_fork_in_parent = ctypes.pythonapi.PyOS_AfterFork_Parent


def fork_into(flags: int, tid_address: int = 0) -> tuple[int, int]:
    """Fork this (single-threaded) interpreter with clone *flags*: (pid, pidfd), in the child (0, -1).

    One system call makes the process and all its namespaces, where os.fork and unshare would need two forks.
    """
    flags |= CLONE_PIDFD | signal.SIGCHLD
    if tid_address:
        flags |= CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID
    last = (0, tid_address) if AARCH64 else (tid_address, 0)
    _before_fork()
    pid: int = _libc.syscall(_NUMBERS["clone"], flags, 0, ctypes.addressof(_pidfd_slot), *last, 0)
    if pid == 0:
        _after_fork_in_child()
        return 0, -1
    error = ctypes.get_errno()
    _after_fork_in_parent()
    if pid < 0:
        raise OSError(error, f"clone: {os.strerror(error)}")
    return pid, int(_pidfd_slot.value)


def capset(capabilities: int) -> None:
    """Set the effective and permitted capabilities to exactly these."""
    header = struct.pack("=Ii", 0x20080522, 0)
    low, high = capabilities & 0xFFFFFFFF, capabilities >> 32
    data = struct.pack("=6I", low, low, 0, high, high, 0)
    _syscall("capset", _NUMBERS["capset"], header, data)


def seccomp_install(program: bytes) -> None:
    """Install a BPF program (array of sock_filter) for this thread; it can never be removed."""
    buffer = ctypes.create_string_buffer(program, len(program))
    fprog = struct.pack("@HP", len(program) // 8, ctypes.addressof(buffer))
    _syscall("seccomp", _NUMBERS["seccomp"], 1, 0, fprog)
