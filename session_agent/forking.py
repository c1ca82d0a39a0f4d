"""Where the agent forks, so that what it starts runs among the commands, and the agent waits for nothing that does.

Owns the two ways in which a child comes to be. Where the node hands over groups of the first version, the child is a ``stub`` first: born
in the agent's group, so that the loop goes on at once, it moves itself among the commands and becomes the command there, which is as slow
as they are; how that went is read from a pipe. A process may move itself in microseconds, another waits 10 ms for the kernel to do it.
Elsewhere the child is forked by ``subprocess``, which waits for its exec. Used by ``procs``.
"""

from __future__ import annotations

import errno
import fcntl
import functools
import os
import signal
import struct
import subprocess
import termios
from collections.abc import Sequence
from dataclasses import dataclass, field

from holdfast_wire.errors import HoldfastError

from .stub import Call, Report, assemble, execs, supported

_NO_PROGRAM = (errno.ENOEXEC, errno.ELOOP, errno.ENAMETOOLONG, errno.EISDIR, errno.ETXTBSY, errno.ELIBBAD, errno.EINVAL)
"""What is wrong with the program that was named, not with the sandbox."""
_NO_STUBS = (errno.EACCES, errno.EPERM, errno.ENOSYS, errno.ENOENT, errno.ENOEXEC, errno.EINVAL)
"""What a kernel or policy answers that lets nobody execute a file in memory."""
_HIGH = 64
"""Descriptors from here on are in the way of none that a child is given."""
_MFD_EXEC = 0x10
_REPORT_BYTES = 4096
_LIBRARY_SIGNALS = (32, 33)
"""What glibc uses itself and leaves ignored in what it spawns."""


@dataclass(frozen=True, slots=True)
class Launch:
    """Where and as whom a process runs. ``env`` is complete: nothing of the agent's own environment is added."""

    cwd: str
    env: dict[str, str]
    uid: int | None = None
    gid: int | None = None
    groups: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Stdio:
    """Descriptors the child gets as 0, 1 and 2; ``keep`` are inherited under their own numbers."""

    stdin: int
    stdout: int
    stderr: int
    keep: tuple[int, ...] = field(default=())


class CannotExecuteError(Exception):
    """The program was not found (127) or cannot be executed (126): ``message`` is what a shell would print."""

    def __init__(self, exit_code: int, message: str) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.message = message


class Starting:
    """A child that has yet to become its program. ``descriptor`` is to be read until ``settle`` answers that it is over."""

    def __init__(self, descriptor: int, calls: Sequence[Call], program: str, launch: Launch) -> None:
        self.descriptor = descriptor
        self._report = Report(calls)
        self._program = program
        self._launch = launch

    def settle(self) -> bool:
        """Read what there is. True when the child has become its program or never will."""
        while True:
            try:
                data = os.read(self.descriptor, _REPORT_BYTES)
            except BlockingIOError:
                return False
            if not data:
                return True
            self._report.feed(data)

    def error(self) -> Exception | None:
        """Why it did not become its program: ``CannotExecuteError`` or ``HoldfastError``."""
        failed, number = self._report.failed, self._report.errno
        if failed is None:
            return None
        if failed.name not in {"execve", "fchdir"}:
            return HoldfastError("spawn_failed", f"cannot start {self._program!r:.200}: {failed.name}: {os.strerror(number)}")
        name = self._program if failed.name == "execve" else self._launch.cwd
        return explain(OSError(number, os.strerror(number), name), self._program, self._launch)

    def close(self) -> None:
        """Nobody wants to know any more."""
        os.close(self.descriptor)


class Forker:
    """``task_fds`` are open ``tasks`` files of the commands' groups: who writes 0 there, moves."""

    def __init__(self, task_fds: Sequence[int] = ()) -> None:
        self._task_fds = tuple(task_fds)
        self._stubs = bool(task_fds) and supported()
        self._memory_flags = os.MFD_CLOEXEC | _MFD_EXEC

    def start(self) -> None:
        """See to it that no child inherits by accident."""
        if self._stubs:
            for name in os.listdir("/proc/self/fd"):
                if int(name) > 2:
                    _keep_to_ourselves(int(name))

    def fork(
        self, argv: Sequence[str], launch: Launch, stdio: Stdio, *, tty: bool = False, place: dict[int, int] | None = None
    ) -> tuple[int, Starting | None]:
        """A child in a session of its own, and what is to be waited for where it is not known yet whether it could be started.

        ``tty`` makes descriptor 0 the controlling terminal. ``place`` gives the child descriptors under numbers of its own (target → ours).
        Raises ``CannotExecuteError`` for the program, ``HoldfastError`` for everything else.
        """
        try:
            if self._stubs:
                born = self._fork_stub(argv, launch, stdio, tty, place or {})
                if born is not None:
                    return born
            return _fork_and_wait(argv, launch, stdio, tty, place), None
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            raise explain(error, argv[0], launch) from None

    def _fork_stub(
        self, argv: Sequence[str], launch: Launch, stdio: Stdio, tty: bool, place: dict[int, int]
    ) -> tuple[int, Starting] | None:
        """None where there can be no stubs."""
        borrowed: list[int] = []
        ours = -1

        def lend(descriptor: int, least: int) -> int:
            """The descriptor, or a copy that is not in the way of those the child is given."""
            if descriptor < least:
                borrowed.append(descriptor := fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _HIGH))
            return descriptor

        try:
            ours, theirs = os.pipe()
            borrowed.append(theirs)
            borrowed.append(folder := _open_folder(launch.cwd))
            os.set_blocking(ours, False)
            least = max((2, *place)) + 1
            folder, theirs = lend(folder, least), lend(theirs, least)
            tasks = [lend(descriptor, least) for descriptor in self._task_fds]
            given = {target: lend(source, 3) for target, source in enumerate((stdio.stdin, stdio.stdout, stdio.stderr))} | place
            kept = {descriptor: descriptor for descriptor in (*stdio.keep, folder, theirs, *tasks)}
            calls = []
            for descriptor in tasks:
                calls += [Call("write", (descriptor, b"0", 1), essential=False), Call("close", (descriptor,))]
            calls += [Call("rt_sigaction", (number, bytes(32), 0, 8), essential=False) for number in _LIBRARY_SIGNALS]
            calls.append(Call("fcntl", (theirs, fcntl.F_SETFD, fcntl.FD_CLOEXEC)))
            if tty:
                calls.append(Call("ioctl", (0, termios.TIOCSCTTY, 0)))
            calls += [Call("fchdir", (folder,)), Call("close", (folder,))]
            calls += _become(launch)
            calls += execs(_paths(argv[0], launch))
            pid = self._run(assemble(calls, theirs), argv, launch.env, given | kept)
            if pid is None:
                return None
            starting = Starting(ours, calls, argv[0], launch)
            ours = -1
            return pid, starting
        finally:
            for descriptor in borrowed:
                os.close(descriptor)
            if ours >= 0:
                os.close(ours)

    def _run(self, image: bytes, argv: Sequence[str], env: dict[str, str], given: dict[int, int]) -> int | None:
        file = -1
        try:
            try:
                file = os.memfd_create("start", self._memory_flags)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                self._memory_flags = os.MFD_CLOEXEC  # before Linux 6.3
                file = os.memfd_create("start", self._memory_flags)
            os.write(file, image)
            # The arguments and environment are the command's: what is too long for the kernel is found out here.
            return os.posix_spawn(
                f"/proc/self/fd/{file}",
                list(argv),
                env,
                file_actions=[(os.POSIX_SPAWN_DUP2, source, target) for target, source in given.items()],
                setsid=True,
                setsigdef=(signal.SIGPIPE, signal.SIGXFSZ),
            )
        except OSError as error:
            if error.errno not in _NO_STUBS:
                raise OSError(error.errno, error.strerror) from None
            self._stubs = False
            return None
        finally:
            if file >= 0:
                os.close(file)


def _open_folder(path: str) -> int:
    """With the agent's own right, as the chdir of a child is that has not become another user yet."""
    try:
        return os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
            raise OSError(error.errno, error.strerror) from None  # not the path's fault
        raise


def _become(launch: Launch) -> list[Call]:
    if launch.uid is None:
        return []
    calls = [Call("setgroups", (len(launch.groups), struct.pack(f"={len(launch.groups)}I", *launch.groups)))]
    if launch.gid is not None:
        calls.append(Call("setregid", (launch.gid, launch.gid)))
    calls.append(Call("setreuid", (launch.uid, launch.uid)))
    return calls


def _paths(program: str, launch: Launch) -> list[bytes]:
    name = os.fsencode(program)
    if os.path.dirname(name):
        return [name]
    return [os.path.join(os.fsencode(folder), name) for folder in os.get_exec_path(launch.env)]


def _fork_and_wait(argv: Sequence[str], launch: Launch, stdio: Stdio, tty: bool, place: dict[int, int] | None) -> int:
    reserved = _reserve_low() if place else []
    in_child = _take_terminal if tty else functools.partial(_place, place) if place else None  # costs a real fork instead of a vfork
    try:
        process = subprocess.Popen(
            argv,
            stdin=stdio.stdin,
            stdout=stdio.stdout,
            stderr=stdio.stderr,
            pass_fds=stdio.keep,
            cwd=launch.cwd,
            env=launch.env,
            start_new_session=True,
            user=launch.uid,
            group=launch.gid,
            extra_groups=launch.groups if launch.uid is not None else None,
            close_fds=place is None,  # else _place sees to it
            preexec_fn=in_child,  # noqa: PLW1509 - it takes no locks
        )
    finally:
        for descriptor in reserved:
            os.close(descriptor)
    process.returncode = 0  # its wait is the reaper's: keeps Popen from reaping or warning
    return process.pid


def _take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _place(place: dict[int, int]) -> None:
    for target, source in place.items():
        os.dup2(source, target, inheritable=True)
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) not in place:
            _keep_to_ourselves(int(name))


def _keep_to_ourselves(descriptor: int) -> None:
    try:
        os.set_inheritable(descriptor, False)
    except OSError:
        pass  # the descriptor that listed them


def _reserve_low() -> list[int]:
    """Occupy the one-digit descriptors, so that none of Popen's own comes to lie where ``place`` wants to put one."""
    taken = [os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)]
    while taken[-1] < 10:
        taken.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    return taken


def explain(error: Exception, program: str, launch: Launch) -> Exception:
    """What the client is told: ``CannotExecuteError`` or ``HoldfastError``."""
    if isinstance(error, subprocess.SubprocessError | ValueError):
        return HoldfastError("spawn_failed", f"cannot start {program!r:.200}: {error}")
    assert isinstance(error, OSError)
    if error.filename == launch.cwd and not (os.path.isdir(launch.cwd) and error.filename == program):
        return HoldfastError(
            "invalid_argument",
            f"cannot change to the working directory {launch.cwd!r:.200}: {error.strerror}",
            hint="give a cwd that exists in the sandbox and that the user may enter",
        )
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        if "/" in program and os.path.exists(program):
            return CannotExecuteError(126, f"{program}: the interpreter it names is missing")
        return CannotExecuteError(127, f"{program}: command not found")
    if error.errno == errno.E2BIG:
        return HoldfastError(
            "request_too_large",
            f"the arguments and environment of {program!r:.200} are too long for the kernel",
            hint="one argument may have 128 KiB, all together 2 MiB: pass the rest as input or in a file",
        )
    if isinstance(error, PermissionError) or error.errno in _NO_PROGRAM:
        return CannotExecuteError(126, f"{program:.300}: {error.strerror}")
    return HoldfastError(
        "spawn_failed",
        f"cannot start {program!r:.200}: {error.strerror}",
        hint="the sandbox may be out of processes, memory or descriptors",
    )
