"""Starting a child process for a command, a shell or a terminal.

Owns the two ways to start one. Where the node passes cgroup v1 files, a user namespace or resource limits, the child first runs a
``stub``: it moves itself into the control groups of the commands, sets itself up and executes the program, while the event loop goes on
without waiting; failures are read from a pipe. A process moves itself in microseconds, moving another process can take 10 ms.
Otherwise ``subprocess`` forks the child and waits for its exec. Used by ``processes``.
"""

from __future__ import annotations

import errno
import fcntl
import functools
import os
import signal
import subprocess
import termios
from collections.abc import Collection, Sequence

from holdfast_wire.errors import HoldfastError
from holdfast_wire.fast_dataclass import dataclass, field, replace

from .crowding import Placement
from .privileges import CommandNamespace
from .start_errors import CannotExecuteError, explain
from .stub import Call, Report, assemble, execs, supported
from .ulimits import Ulimits, apply_ulimits, ulimit_arguments

_STUB_REFUSED_ERRORS = (errno.EACCES, errno.EPERM, errno.ENOSYS, errno.ENOENT, errno.ENOEXEC, errno.EINVAL)
"""Errors where the kernel or a security policy forbids making a memory file that can be executed, or executing it."""
_FIRST_HIGH_FD = 64
"""Temporary copies of descriptors get this number or a higher one, above most of those that a child is given."""
_MFD_EXEC = 0x10
_REPORT_BYTES = 4096
_REPORT_READS = 16
"""Most reads of a report at a time: another process of the stub's user may write to the pipe too, without end."""
_NAME_BYTES = 255
"""Longest file name that Linux allows."""
_CACHED_PATHS = 64
"""Stubs with at most this many candidate paths are cached for the next command."""
_LIBRARY_SIGNALS = (32, 33)
"""Signals that glibc uses internally; its posix_spawn leaves them ignored in the child."""
_NamespaceUser = tuple[CommandNamespace, int, int, int, tuple[int, ...]]
"""The namespace of commands, its descriptor in the child, and the uid, gid and supplementary groups there."""


@dataclass(frozen=True, slots=True)
class Launch:
    """Working directory, environment and user of a process. ``env`` is complete: the agent's own environment is not added."""

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


class Starting:
    """A child whose exec has not been confirmed yet. Call ``read_report`` when ``descriptor`` is readable, until it returns True."""

    def __init__(self, descriptor: int, calls: Sequence[Call], program: str, launch: Launch) -> None:
        self.descriptor = descriptor
        self.watched = False
        """Whether the event loop reads ``descriptor``."""
        self._report = Report(calls)
        self._program = program
        self._cwd = launch.cwd

    def read_report(self) -> bool:
        """Read the stub's report as far as it has arrived. True once the exec has succeeded or failed."""
        for _ in range(_REPORT_READS):
            try:
                data = os.read(self.descriptor, _REPORT_BYTES)
            except BlockingIOError:
                return False
            if not data:
                return True
            self._report.feed(data)
        return False

    def error(self) -> Exception | None:
        """Why the program was not executed (``CannotExecuteError`` or ``HoldfastError``), or None."""
        failed, number = self._report.failed, self._report.errno
        if failed is None:
            return None
        if failed.name != "execve":
            return HoldfastError("spawn_failed", f"cannot start {self._program!r:.200}: {failed.name}: {os.strerror(number)}")
        return explain(OSError(number, os.strerror(number), self._program), self._program, self._cwd)

    def close(self) -> None:
        """Close the pipe of the report."""
        os.close(self.descriptor)


class Forker:
    """Starts children.

    For ``task_fds``, ``pids_fds`` and ``rescue_fds`` see ``crowding.Placement``. ``namespace`` is the user namespace of commands, if they
    have their own: then every child runs a stub, because only a process itself can enter a user namespace.
    """

    def __init__(
        self,
        task_fds: Sequence[int] = (),
        pids_fds: Sequence[int] = (),
        namespace: CommandNamespace | None = None,
        *,
        rescue_fds: Sequence[int] = (),
        ulimits: Ulimits | None = None,
    ) -> None:
        self.placement = Placement(task_fds, pids_fds, rescue_fds)
        self._ulimits = ulimits or {}
        self._limits = tuple(ulimit_arguments(self._ulimits))
        self._namespace = namespace
        self._stubs = (bool(task_fds or ulimits) or namespace is not None) and supported()
        self._memory_flags = os.MFD_CLOEXEC | _MFD_EXEC

    def start(self) -> None:
        """Set close-on-exec on all open descriptors: posix_spawn closes nothing by itself."""
        if self._stubs:
            _set_close_on_exec(keep=())

    def fork(
        self, argv: Sequence[str], launch: Launch, stdio: Stdio, *, tty: bool = False, place: dict[int, int] | None = None
    ) -> tuple[int, Starting | None]:
        """Start a child in a new session. Returns its pid and, while its exec is not confirmed, a ``Starting``.

        ``tty`` makes descriptor 0 the controlling terminal. ``place`` maps descriptor numbers in the child to descriptors of the agent.
        Raises ``CannotExecuteError`` if the program cannot be executed, ``HoldfastError`` for any other failure.
        """
        if not argv[0]:
            raise CannotExecuteError(127, "'': command not found")
        copies: list[int] = []
        try:
            place = _without_overlap(place, copies) if place else {}
            if self._stubs:
                started = self._fork_stub(argv, launch, stdio, tty, place)
                if started is not None:
                    return started
            if self._namespace is not None:
                raise HoldfastError(
                    "spawn_failed",
                    f"cannot start {argv[0]!r:.200}: this kernel does not execute files in memory",
                    hint="set vm.memfd_noexec to 0 or 1 on the machine",
                )
            return _fork_and_wait(argv, launch, stdio, tty, place, ulimits=self._ulimits), None
        except (OSError, ValueError) as error:
            raise explain(error, argv[0], launch.cwd) from None
        finally:
            for descriptor in copies:
                os.close(descriptor)

    def _fork_stub(
        self, argv: Sequence[str], launch: Launch, stdio: Stdio, tty: bool, place: dict[int, int]
    ) -> tuple[int, Starting] | None:
        """None if this kernel cannot execute stubs; later calls do not try again."""
        temporary: list[int] = []
        report_read = -1

        def relocate(descriptor: int, lowest: int) -> int:
            """The descriptor, or a temporary copy above the numbers that the child is given."""
            if descriptor < lowest:
                temporary.append(descriptor := fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, max(lowest, _FIRST_HIGH_FD)))
            return descriptor

        try:
            report_read, report_write = os.pipe()
            temporary.append(report_write)
            os.set_blocking(report_read, False)
            lowest = max((2, *place)) + 1
            report_write = relocate(report_write, lowest)
            tasks = [relocate(descriptor, lowest) for descriptor in self.placement.choose(launch.env.get("PATH", ""))]
            user: _NamespaceUser | None = None
            entered = []
            if self._namespace is not None:
                entered.append(relocate(self._namespace.fd, lowest))
                user = self._namespace, entered[0], launch.uid or 0, launch.gid or 0, tuple(launch.groups)
            try:
                temporary.append(file := self._memory_file())
            except OSError as error:
                if error.errno not in _STUB_REFUSED_ERRORS:
                    raise
                self._stubs = False
                return None
            file = relocate(file, lowest)
            paths = _candidate_paths(argv[0], launch.env.get("PATH"))
            make = _stub_image if len(paths) <= _CACHED_PATHS else _stub_image.__wrapped__
            calls, image = make(tuple(tasks), tty, user, self._limits, file, report_write, paths)
            os.write(file, image)
            keep = (*stdio.keep, report_write, file, *tasks, *entered)
            stdio = Stdio(relocate(stdio.stdin, 3), relocate(stdio.stdout, 3), relocate(stdio.stderr, 3), keep)
            path = f"/proc/self/fd/{file}"
            try:
                if launch.uid is None or entered:
                    pid = _spawn(path, argv, launch, stdio, place)
                else:  # posix_spawn cannot change the user, and the stub would no longer have the right to
                    pid = _fork_and_wait(argv, launch, stdio, False, place, path)
            except OSError as error:
                if error.filename not in (None, path) or error.errno not in _STUB_REFUSED_ERRORS:
                    raise
                self._stubs = False
                return None
            starting = Starting(report_read, calls, argv[0], launch)
            report_read = -1
            return pid, starting
        finally:
            for descriptor in temporary:
                os.close(descriptor)
            if report_read >= 0:
                os.close(report_read)

    def _memory_file(self) -> int:
        try:
            return os.memfd_create("start", self._memory_flags)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            self._memory_flags = os.MFD_CLOEXEC  # before Linux 6.3
            return os.memfd_create("start", self._memory_flags)


def _without_overlap(place: dict[int, int], copies: list[int]) -> dict[int, int]:
    """``place`` with copies of those descriptors whose own number is given to another one, so that the order does not matter."""
    apart = {}
    for number, descriptor in place.items():
        if descriptor in place:
            copies.append(descriptor := fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, max(*place, _FIRST_HIGH_FD) + 1))
        apart[number] = descriptor
    return apart


def _spawn(path: str, argv: Sequence[str], launch: Launch, stdio: Stdio, place: dict[int, int]) -> int:
    """Start a child that keeps the agent's user, by posix_spawn: a quarter of the time of ``_fork_and_wait``."""
    given = {0: stdio.stdin, 1: stdio.stdout, 2: stdio.stderr} | place | {descriptor: descriptor for descriptor in stdio.keep}
    back = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.chdir(launch.cwd)  # posix_spawn cannot set it; no other code of the agent uses the working directory
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
def _stub_image(
    tasks: tuple[int, ...],
    tty: bool,
    user: _NamespaceUser | None,
    limits: tuple[tuple[int, bytes], ...],
    file: int,
    report: int,
    paths: tuple[bytes, ...],
) -> tuple[Sequence[Call], bytes]:
    """The system calls of a stub and its ELF image. Descriptors are numbers in the child.

    Consecutive commands get the same descriptor numbers, so most images come from the cache.
    """
    calls = []
    for descriptor in tasks:
        calls += [Call("write", (descriptor, b"0", 1), essential=False), Call("close", (descriptor,))]
    calls += [Call("rt_sigaction", (number, bytes(32), 0, 8), essential=False) for number in _LIBRARY_SIGNALS]
    if tty:
        calls.append(Call("ioctl", (0, termios.TIOCSCTTY, 0)))
    if user is not None:
        namespace, entered, uid, gid, groups = user
        calls += namespace.calls(entered, uid, gid, groups)
    calls += [Call("prlimit64", (0, number, values, 0)) for number, values in limits]
    calls += [Call("close", (file,)), Call("fcntl", (report, fcntl.F_SETFD, fcntl.FD_CLOEXEC)), *execs(paths)]
    return calls, assemble(calls, report)


@functools.lru_cache(maxsize=16)
def _candidate_paths(program: str, path: str | None) -> tuple[bytes, ...]:
    """The paths at which a program may be, by the command's own ``PATH``; the same rules as ``subprocess``."""
    name = os.fsencode(program)
    if b"/" in name:
        return (name,)
    folders = (os.defpath if path is None else path).split(os.pathsep)
    if len(name) > _NAME_BYTES:
        folders = folders[:1]  # it cannot exist: one attempt gives the error
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
    """Fork by ``subprocess`` and wait for the exec. ``program`` is what is executed if it is not ``argv[0]``."""
    if place:
        place, stdio = place | {descriptor: descriptor for descriptor in stdio.keep}, replace(stdio, keep=())
    reserved: list[int] = []
    # only if needed: a preexec_fn makes subprocess use fork instead of the faster vfork
    in_child = functools.partial(_prepare_child, tty, place, ulimits or {}) if tty or place or ulimits else None
    try:
        _reserve(place, stdio.stdin, reserved)
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
            close_fds=not place,  # else _prepare_child sets close-on-exec
            preexec_fn=in_child,  # noqa: PLW1509 - it takes no locks
        )
    except subprocess.SubprocessError as error:
        raise ValueError(str(error)) from None
    finally:
        for descriptor in reserved:
            os.close(descriptor)
    process.returncode = 0  # the Reaper waits for it: this keeps Popen from reaping it and from warning
    return process.pid


def _prepare_child(tty: bool, place: dict[int, int], ulimits: Ulimits) -> None:
    if tty:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    if place:
        for target, source in place.items():
            if source == target:
                os.set_inheritable(source, True)
            else:
                os.dup2(source, target, inheritable=True)
        _set_close_on_exec(keep=place)
    apply_ulimits(ulimits)  # last: with few descriptors allowed, none could be opened


def _set_close_on_exec(keep: Collection[int]) -> None:
    """Mark every open descriptor but 0 to 2 and those in ``keep``."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) not in keep:
            try:
                os.set_inheritable(int(name), False)
            except OSError:
                pass  # the descriptor of the listing itself, closed by now


def _reserve(numbers: Collection[int], descriptor: int, reserved: list[int]) -> None:
    """Occupy those of ``numbers`` that are free by copies of ``descriptor``, so that Popen's own pipe gets none of them."""
    for number in numbers:
        reserved.append(fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, number))  # noqa: PERF401 - what was opened before an error is closed
