"""The floors: the time that the bare machine needs for the same work.

Owns one small process per floor, so that the benchmark's size and event loop do not matter. Each
floor is taken one sample at a time, between the samples of the figure that it belongs to.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Self

_CLONE_FLAGS = {"mount": 0x00020000, "uts": 0x04000000, "ipc": 0x08000000, "user": 0x10000000, "pid": 0x20000000, "net": 0x40000000}

_NAMESPACES = """
import ctypes, os, sys, time
unshare = ctypes.CDLL(None, use_errno=True).unshare
maps = (("setgroups", "deny"), ("uid_map", f"0 {os.getuid()} 1"), ("gid_map", f"0 {os.getgid()} 1"))
for line in sys.stdin:
    started = time.perf_counter()
    pid = os.fork()
    if pid == 0:
        if unshare(FLAGS) != 0:
            os._exit(ctypes.get_errno())
        for name, text in maps:
            with open("/proc/self/" + name, "w") as file:
                file.write(text)
        first = os.fork()
        if first == 0:
            os._exit(0)
        os._exit(os.waitstatus_to_exitcode(os.waitpid(first, 0)[1]))
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    print(time.perf_counter() - started if status == 0 else -status, flush=True)
"""


_BARE_SANDBOX = """
import ctypes, os, resource, sys, tempfile
libc = ctypes.CDLL(None, use_errno=True)
maps = (("setgroups", "deny"), ("uid_map", f"0 {os.getuid()} 1"), ("gid_map", f"0 {os.getgid()} 1"))
commands = (("-c", "ls /"), ("-c", RELEASE), ("-c", "echo done"), ("-lc", RELEASE))
environment = {"PATH": os.defpath}

def call(result):
    if result != 0:
        os._exit(ctypes.get_errno())

def mount(source, target, kind, flags=0, data=b""):
    call(libc.mount(source, target, kind, ctypes.c_ulong(flags), data))

def sandbox():
    call(libc.unshare(FLAGS))
    for name, text in maps:
        with open("/proc/self/" + name, "w") as file:
            file.write(text)
    if os.fork():
        os._exit(os.waitstatus_to_exitcode(os.wait()[1]))
    mount(b"", b"/", b"", 0x44000)
    mount(b"tmpfs", b"/mnt", b"tmpfs")
    for name in ("upper", "work", "root", *("root/" + name for name in ("usr", "etc", "proc", "dev"))):
        os.mkdir("/mnt/" + name)
    for name in os.listdir("/"):
        if os.path.islink("/" + name):
            os.symlink(os.readlink("/" + name), "/mnt/root/" + name)
    mount(b"overlay", b"/mnt/root/usr", b"overlay", 0, b"lowerdir=/usr,upperdir=/mnt/upper,workdir=/mnt/work,userxattr")
    mount(b"/etc", b"/mnt/root/etc", b"", 0x5000)
    mount(b"proc", b"/mnt/root/proc", b"proc")
    mount(b"tmpfs", b"/mnt/root/dev", b"tmpfs")
    os.close(os.open("/mnt/root/dev/null", os.O_CREAT))
    mount(b"/dev/null", b"/mnt/root/dev/null", b"", 0x1000)
    os.chroot("/mnt/root")
    os.chdir("/")
    for argv in commands:
        pid = os.posix_spawn("/bin/bash", ("bash",) + argv, environment)
        if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]):
            os._exit(1)
    os._exit(0)

null = os.open("/dev/null", os.O_WRONLY)
answers = os.dup(1)
os.dup2(null, 1)
for line in sys.stdin:
    before = sum(resource.getrusage(resource.RUSAGE_SELF)[:2]) + sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
    pid = os.fork()
    if pid == 0:
        sandbox()
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    after = sum(resource.getrusage(resource.RUSAGE_SELF)[:2]) + sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
    os.write(answers, b"%r\\n" % (after - before if status == 0 else -float(status)))
"""


class BarePipe:
    """Sends `true` through a pipe to bash and reads its exit status: no framing, no session, no network.

    Measured from an event loop on another core than bash's, as the figure is. If the scheduler chose the cores, the same pipe would take
    20, 45 or 75 µs on one machine, depending on whether both are on one core, and the ratio would be random.
    """

    def __init__(self, bash: asyncio.subprocess.Process) -> None:
        assert bash.stdin is not None
        assert bash.stdout is not None
        self._in, self._out = bash.stdin, bash.stdout
        self._cores = os.sched_getaffinity(0)
        self._here, *others = sorted(self._cores)
        if others:
            os.sched_setaffinity(bash.pid, others[:1])

    async def sample(self) -> float:
        """Seconds for one command."""
        os.sched_setaffinity(0, {self._here})
        started = time.perf_counter()
        self._in.write(b"true; echo $?\n")
        await self._in.drain()
        answer = await self._out.readline()
        elapsed = time.perf_counter() - started
        os.sched_setaffinity(0, self._cores)
        assert answer == b"0\n", answer
        return elapsed


@contextlib.asynccontextmanager
async def bare_pipe() -> AsyncIterator[BarePipe]:
    bash = await asyncio.create_subprocess_exec(
        "bash", "--norc", "--noprofile", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    try:
        yield BarePipe(bash)
    finally:
        bash.kill()
        await bash.wait()


class _Helper:
    """A small process that answers each line with one number."""

    def __init__(self, code: str) -> None:
        self._helper = subprocess.Popen([sys.executable, "-I", "-S", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def sample(self) -> float:
        """Seconds for one set of namespaces. Raises OSError where they cannot be made."""
        assert self._helper.stdin is not None
        assert self._helper.stdout is not None
        self._helper.stdin.write(b"\n")
        self._helper.stdin.flush()
        elapsed = float(self._helper.stdout.readline())
        if elapsed < 0:
            raise OSError(int(-elapsed), os.strerror(int(-elapsed)))
        return elapsed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with self._helper:
            self._helper.kill()


class EmptyNamespaces(_Helper):
    """User, mount, pid, net, ipc and uts namespaces with their id maps and a first process, created and left again.

    This is the minimum in which a command can run: without maps it has no root, and without a first process there is no pid namespace.
    """

    def __init__(self) -> None:
        super().__init__(_NAMESPACES.replace("FLAGS", str(sum(_CLONE_FLAGS.values()))))


class BareSandbox(_Helper):
    """The kernel's work for one sandbox of P7: namespaces with id maps, an overlay of this machine's /usr, /proc and /dev, four commands by
    fork and exec, and the removal of all. `sample` is seconds of CPU time."""

    def __init__(self, release: str) -> None:
        super().__init__(_BARE_SANDBOX.replace("FLAGS", str(sum(_CLONE_FLAGS.values()))).replace("RELEASE", repr(release)))


def one_off() -> float:
    """Seconds for `bash -c true` by subprocess.run."""
    started = time.perf_counter()
    subprocess.run(["bash", "-c", "true"], stdin=subprocess.DEVNULL, capture_output=True, check=True)
    return time.perf_counter() - started
