"""Where the agent forks, so that what it starts runs among the commands, and the agent waits for nothing that does.

Owns the two ways in which a child comes to be. Where the node passes cgroups of version 1, the child is a ``stub`` first: started
in the agent's group, so that the loop goes on at once, it moves itself among the commands and becomes the command there, which is as slow
as they are; how that went is read from a pipe. A process may move itself in microseconds, another waits 10 ms for the kernel to do it.
Elsewhere the child is forked by ``subprocess``, which waits for its exec. Used by ``processes``.
"""

from __future__ import annotations

import errno
import fcntl
import functools
import os
import signal
import subprocess
import termios
from collections.abc import Callable, Sequence

from holdfast_wire.errors import HoldfastError
from holdfast_wire.records import dataclass, field, replace

from .privileges import CommandNamespace
from .stub import Call, Report, assemble, execs, supported
from .ulimits import Ulimits, arguments_of, set_own

_NO_PROGRAM = (errno.ENOEXEC, errno.ELOOP, errno.ENAMETOOLONG, errno.EISDIR, errno.ETXTBSY, errno.ELIBBAD, errno.EINVAL)
"""What is wrong with the program that was named, not with the sandbox."""
_NO_STUBS = (errno.EACCES, errno.EPERM, errno.ENOSYS, errno.ENOENT, errno.ENOEXEC, errno.EINVAL)
"""What a kernel or policy answers where executing a file in memory is forbidden."""
_HIGH = 64
"""Descriptors from here on are in the way of none that a child is given."""
_ROOM = 16
"""Processes that a command must be able to start, else it is started where there are some to spare."""
_MFD_EXEC = 0x10
_REPORT_BYTES = 4096
_NAME_BYTES = 255
"""Longer names no file has."""
_FEW_PATHS = 64
"""Folders in ``PATH`` up to which what was made for one command is kept for the next."""
_LIBRARY_SIGNALS = (32, 33)
"""What glibc uses itself and leaves ignored in what it spawns."""
_Who = tuple[CommandNamespace, int, int, int, tuple[int, ...]]
"""The namespace of commands with its descriptor in the child, and the user, group and further groups there."""


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
        self.watched = False
        """Whether the event loop reads ``descriptor``."""
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
        if failed.name != "execve":
            return HoldfastError("spawn_failed", f"cannot start {self._program!r:.200}: {failed.name}: {os.strerror(number)}")
        return explain(OSError(number, os.strerror(number), self._program), self._program, self._launch)

    def close(self) -> None:
        """No caller waits for it any more."""
        os.close(self.descriptor)


class Forker:
    """``task_fds`` are open ``tasks`` files of the commands' groups: a process that writes 0 there moves itself.

    ``pids_fds`` are ``tasks`` of the one that limits their number, its ``pids.current`` and its ``pids.max``. ``namespace`` is where
    commands run, where they have a user namespace of their own: every child is a stub then, as only a process itself can enter one.
    """

    def __init__(
        self,
        task_fds: Sequence[int] = (),
        pids_fds: Sequence[int] = (),
        namespace: CommandNamespace | None = None,
        *,
        ulimits: Ulimits | None = None,
    ) -> None:
        self._ulimits = ulimits or {}
        self._limits = tuple(arguments_of(self._ulimits))
        self._task_fds = tuple(task_fds)
        self._pids_fds = tuple(pids_fds)
        self._namespace = namespace
        self._stubs = (bool(task_fds or ulimits) or namespace is not None) and supported()
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
        if not argv[0]:
            raise CannotExecuteError(127, "'': command not found")
        try:
            if self._stubs:
                started = self._fork_stub(argv, launch, stdio, tty, place or {})
                if started is not None:
                    return started
            if self._namespace is not None:
                raise HoldfastError(
                    "spawn_failed",
                    f"cannot start {argv[0]!r:.200}: this kernel does not execute files in memory",
                    hint="set vm.memfd_noexec to 0 or 1 on the machine",
                )
            return _fork_and_wait(argv, launch, stdio, tty, place or {}, ulimits=self._ulimits), None
        except (OSError, ValueError) as error:
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
            os.set_blocking(ours, False)
            least = max((2, *place)) + 1
            theirs = lend(theirs, least)
            tasks = [lend(descriptor, least) for descriptor in self._groups()]
            who: _Who | None = None
            entered = []
            if self._namespace is not None:
                entered.append(lend(self._namespace.fd, least))
                who = self._namespace, entered[0], launch.uid or 0, launch.gid or 0, tuple(launch.groups)
            borrowed.append(file := self._memory_file())
            file = lend(file, least)
            paths = _paths(argv[0], launch.env.get("PATH"))
            make = _program if len(paths) <= _FEW_PATHS else _program.__wrapped__
            calls, image = make(tuple(tasks), tty, who, self._limits, file, theirs, paths)
            os.write(file, image)
            keep = (*stdio.keep, theirs, file, *tasks, *entered)
            stdio = Stdio(lend(stdio.stdin, 3), lend(stdio.stdout, 3), lend(stdio.stderr, 3), keep)
            path = f"/proc/self/fd/{file}"
            try:
                if launch.uid is None or entered:
                    pid = _spawn(path, argv, launch, stdio, place)
                else:  # the stub has none of the agent's rights, so who it is has to be settled before
                    pid = _fork_and_wait(argv, launch, stdio, False, place, path)
            except OSError as error:
                if error.filename not in (None, path) or error.errno not in _NO_STUBS:
                    raise
                self._stubs = False
                return None
            starting = Starting(ours, calls, argv[0], launch)
            ours = -1
            return pid, starting
        finally:
            for descriptor in borrowed:
                os.close(descriptor)
            if ours >= 0:
                os.close(ours)

    def _groups(self) -> tuple[int, ...]:
        """Where a child is to go. Not among so many that it could start nothing itself: a sandbox full of processes can be looked into.

        By its owner alone, as nothing in it asks the agent; and the outer group has a limit as well.
        """
        if not self._pids_fds:
            return self._task_fds
        tasks, current, most = self._pids_fds
        try:
            full = int(os.pread(current, 32, 0)) + _ROOM > int(os.pread(most, 32, 0))
        except (OSError, ValueError):  # "max" where there is no limit
            full = False
        return self._task_fds if full else (*self._task_fds, tasks)

    def _memory_file(self) -> int:
        try:
            return os.memfd_create("start", self._memory_flags)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            self._memory_flags = os.MFD_CLOEXEC  # before Linux 6.3
            return os.memfd_create("start", self._memory_flags)


def _spawn(path: str, argv: Sequence[str], launch: Launch, stdio: Stdio, place: dict[int, int]) -> int:
    """As ``_fork_and_wait``, in a quarter of the time, which a child without a user of its own can be started in."""
    given = {0: stdio.stdin, 1: stdio.stdout, 2: stdio.stderr} | place | {descriptor: descriptor for descriptor in stdio.keep}
    back = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.chdir(launch.cwd)  # nothing else of the agent goes by where it is
        try:
            return os.posix_spawn(
                path,
                list(argv),
                launch.env,
                file_actions=[(os.POSIX_SPAWN_DUP2, source, target) for target, source in given.items()],
                setsid=True,
                setsigdef=(signal.SIGPIPE, signal.SIGXFSZ),
            )
        finally:
            os.fchdir(back)
    finally:
        os.close(back)


@functools.lru_cache(maxsize=8)
def _program(
    tasks: tuple[int, ...],
    tty: bool,
    who: _Who | None,
    limits: tuple[tuple[int, bytes], ...],
    file: int,
    report: int,
    paths: tuple[bytes, ...],
) -> tuple[Sequence[Call], bytes]:
    """What a child calls until it is the first of ``paths`` that there is, and the program that does: one command after another gets
    the same descriptors, so most need no new one. All of these are numbers in the child."""
    calls = []
    for descriptor in tasks:
        calls += [Call("write", (descriptor, b"0", 1), essential=False), Call("close", (descriptor,))]
    calls += [Call("rt_sigaction", (number, bytes(32), 0, 8), essential=False) for number in _LIBRARY_SIGNALS]
    if tty:
        calls.append(Call("ioctl", (0, termios.TIOCSCTTY, 0)))
    if who is not None:
        namespace, entered, uid, gid, groups = who
        calls += namespace.calls(entered, uid, gid, groups)
    calls += [Call("prlimit64", (0, number, values, 0)) for number, values in limits]
    calls += [Call("close", (file,)), Call("fcntl", (report, fcntl.F_SETFD, fcntl.FD_CLOEXEC)), *execs(paths)]
    return calls, assemble(calls, report)


@functools.lru_cache(maxsize=16)
def _paths(program: str, path: str | None) -> tuple[bytes, ...]:
    """What a program may be, by the command's own ``PATH``, as ``subprocess`` looks for it."""
    name = os.fsencode(program)
    folders = os.get_exec_path({} if path is None else {"PATH": path})
    if os.path.dirname(name):
        return (name,)
    if len(name) > _NAME_BYTES:
        folders = folders[:1]  # it does not exist, which one error reports
    return tuple(os.path.join(os.fsencode(folder), name) for folder in folders)


def _fork_and_wait(
    argv: Sequence[str],
    launch: Launch,
    stdio: Stdio,
    tty: bool,
    place: dict[int, int],
    program: str | None = None,
    ulimits: Ulimits | None = None,
) -> int:
    """Fork by ``subprocess``, which waits for the exec: of ``program``, where that is not what ``argv`` names."""
    if place:
        place, stdio = place | {descriptor: descriptor for descriptor in stdio.keep}, replace(stdio, keep=())
    reserved = _reserve_low() if place else []
    in_child = _take_terminal if tty else functools.partial(_place, place) if place else None  # costs a real fork instead of a vfork
    if ulimits:
        in_child = functools.partial(_limited, ulimits, in_child)
    try:
        process = subprocess.Popen(
            argv,
            executable=program,
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
            close_fds=not place,  # else _place sees to it
            preexec_fn=in_child,  # noqa: PLW1509 - it takes no locks
        )
    except subprocess.SubprocessError as error:
        raise ValueError(str(error)) from None
    finally:
        for descriptor in reserved:
            os.close(descriptor)
    process.returncode = 0  # its wait is the reaper's: keeps Popen from reaping or warning
    return process.pid


def _limited(ulimits: Ulimits, then: Callable[[], None] | None) -> None:
    set_own(ulimits)
    if then is not None:
        then()


def _take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _place(place: dict[int, int]) -> None:
    for target, source in place.items():
        if source == target:
            os.set_inheritable(source, True)
        else:
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
    """The error for the client: ``CannotExecuteError`` or ``HoldfastError``."""
    if isinstance(error, ValueError):
        return HoldfastError("spawn_failed", f"cannot start {program!r:.200}: {error}")
    assert isinstance(error, OSError)
    if error.filename == launch.cwd and not (os.path.isdir(launch.cwd) and error.filename == program):
        code = "cwd_forbidden" if error.errno in (errno.EACCES, errno.EPERM) else "cwd_not_found"
        message = f"cannot change to the working directory {launch.cwd!r:.200}: {error.strerror}"
        return HoldfastError(code, message, detail={"cwd": os.fsencode(launch.cwd).decode("utf-8", "replace")})
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        if "/" in program and os.path.exists(program):
            return CannotExecuteError(126, f"{program}: the interpreter it names is missing")
        return CannotExecuteError(127, f"{program}: command not found")
    if error.errno == errno.E2BIG:
        return HoldfastError("arguments_too_long", f"the arguments and environment of {program!r:.200} are too long for the kernel")
    if isinstance(error, PermissionError) or error.errno in _NO_PROGRAM:
        return CannotExecuteError(126, f"{program:.300}: {error.strerror}")
    return HoldfastError(
        "spawn_failed",
        f"cannot start {program!r:.200}: {error.strerror}",
        hint="the sandbox may be out of processes, memory or descriptors",
    )
