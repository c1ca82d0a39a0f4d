"""Starting processes and learning of their end.

Owns SIGCHLD, the table of children and the one place where the agent forks. As PID 1 (or a subreaper, in tests) the agent also
inherits every orphan of the sandbox: those are reaped here too, but never before whoever started them had the chance. It does not
decide what a command is nor when to kill it (``commands``, ``shell``, ``trees``).
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import functools
import logging
import os
import resource
import signal
import subprocess
import sys
import termios
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from holdfast_wire.errors import HoldfastError

from .forking import Forker
from .trees import read_tag

log = logging.getLogger("session_agent.procs")

Exit = Callable[[int], None]
"""Called once with the wait status (as of ``os.waitpid``)."""

_STRANGER_GRACE_S = 1.0
_PR_SET_CHILD_SUBREAPER = 36
_RLIMIT_RTTIME = 15
_DIED_UNSEEN = 255 << 8
_NO_PROGRAM = (errno.ENOEXEC, errno.ELOOP, errno.ENAMETOOLONG, errno.EISDIR, errno.ETXTBSY, errno.ELIBBAD, errno.EINVAL)
"""What is wrong with the program that was named, not with the sandbox."""


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


class Reaper:
    """Waits for all children. ``spawn`` registers before the loop can run again, so no exit is ever missed."""

    def __init__(self, *, oom_score_adj: int | None = None, forker: Forker | None = None) -> None:
        self._forker = forker or Forker()
        self._owners: dict[int, Exit] = {}
        self._strangers: dict[int, float] = {}
        self._burial: asyncio.TimerHandle | None = None
        self._oom_score_adj = None if oom_score_adj is None else str(oom_score_adj).encode()
        self._own_score = -1
        self._own_score_adj = b"0"
        self._favoured = False
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        """Take over SIGCHLD of the running loop, and the sandbox's orphans."""
        self._loop = asyncio.get_running_loop()
        self._favoured = os.getpriority(os.PRIO_PROCESS, 0) < 0
        if os.getpid() != 1:
            import ctypes  # a sandbox's first process gets the orphans anyway

            ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._loop.add_signal_handler(signal.SIGCHLD, self.reap)
        _ignore_for_ourselves_alone()
        self._open_own_score()
        self._forker.start()
        self.reap()

    def stop(self) -> None:
        """Give SIGCHLD back. Children are not touched."""
        if self._loop is not None:
            self._loop.remove_signal_handler(signal.SIGCHLD)
        if self._burial is not None:
            self._burial.cancel()
            self._burial = None
        self._strangers.clear()
        self._forker.stop()
        if self._own_score >= 0:
            os.close(self._own_score)
            self._own_score = -1

    @property
    def pids(self) -> frozenset[int]:
        """The children somebody waits for."""
        return frozenset(self._owners)

    def spawn(
        self,
        argv: Sequence[str],
        launch: Launch,
        stdio: Stdio,
        on_exit: Exit,
        *,
        tag: int = 0,
        tty: bool = False,
        place: dict[int, int] | None = None,
    ) -> int:
        """Start ``argv`` in a session of its own and return its pid.

        ``tag`` marks it and all its descendants (``trees``). ``tty`` makes descriptor 0 the controlling terminal. ``place`` gives it
        descriptors under numbers of its own (target → ours); both cost a real fork instead of a vfork.
        Raises ``CannotExecuteError`` for the program, ``HoldfastError`` for everything else.
        """
        tagged = _set_tag(tag) if tag else False
        scored = self._set_own_score(self._oom_score_adj)
        reserved = _reserve_low() if place else []
        in_child = _take_terminal if tty else functools.partial(_place, place) if place else None
        try:
            process: subprocess.Popen[bytes] = self._forker.call(
                functools.partial(
                    subprocess.Popen,
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
                    preexec_fn=in_child,
                )
            )
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            raise _explain(error, argv[0], launch) from None
        finally:
            if tagged:
                _set_tag(0)
            if scored:
                self._set_own_score(self._own_score_adj)
            for descriptor in reserved:
                os.close(descriptor)
        if self._favoured:
            _be_ordinary(process.pid)
        self._forker.born_early(process.pid)
        process.returncode = 0  # its wait is ours: keeps Popen from reaping or warning
        pid = process.pid
        self._owners[pid] = on_exit
        return pid

    def reap(self) -> None:
        """Collect every child that ended."""
        while True:
            try:
                info = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if info is None:
                return
            if info.si_pid in self._owners:
                self._collect(info.si_pid)
            else:
                # waitid keeps naming this one first, so look at our own children one by one
                self._meet(info.si_pid)
                for pid in list(self._owners):
                    self._collect(pid)
                return

    def bury(self, match: Callable[[int], bool]) -> None:
        """Reap the dead whose mark matches, of a tree that was killed: else they count against the sandbox's limit of processes.

        Not before the last of them is dead: that nothing new fits beside the dead is what keeps a fork bomb from growing again.
        """
        for pid in set(child_pids()) - self._owners.keys():
            tag = read_tag(pid)
            if tag is not None and match(tag):
                self._strangers.pop(pid, None)
                try:
                    os.waitpid(pid, os.WNOHANG)
                except ChildProcessError:
                    pass

    def _collect(self, pid: int) -> None:
        try:
            ended, status = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            ended, status = pid, _DIED_UNSEEN
        if not ended:
            return
        owner = self._owners.pop(pid, None)
        if owner is not None:
            try:
                owner(status)
            except Exception:
                log.exception("the owner of process %d failed to take its exit", pid)

    def _meet(self, first: int) -> None:
        """Orphans of the sandbox, or children that code of ours waits for itself: give the latter a moment."""
        assert self._loop is not None
        now = self._loop.time()
        for pid in {first, *child_pids()} - self._owners.keys():
            if pid in self._strangers:
                continue
            try:
                ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                continue
            if ended is not None:
                self._strangers[pid] = now
        if self._strangers and self._burial is None:
            self._burial = self._loop.call_later(_STRANGER_GRACE_S, self._bury)

    def _bury(self) -> None:
        assert self._loop is not None
        self._burial = None
        due = self._loop.time() - _STRANGER_GRACE_S + 0.01
        for pid in [pid for pid, seen in self._strangers.items() if seen <= due]:
            del self._strangers[pid]
            if pid not in self._owners:
                try:
                    os.waitpid(pid, os.WNOHANG)
                except ChildProcessError:
                    pass
        if self._strangers:
            self._burial = self._loop.call_later(_STRANGER_GRACE_S, self._bury)
        self.reap()

    def _open_own_score(self) -> None:
        if self._oom_score_adj is not None and self._own_score < 0:
            try:
                self._own_score = os.open("/proc/self/oom_score_adj", os.O_RDWR | os.O_CLOEXEC)
                self._own_score_adj = os.pread(self._own_score, 16, 0).strip()
            except OSError:
                self._own_score = -1

    def _set_own_score(self, value: bytes | None) -> bool:
        """Be the better victim for the moment of a fork: a child that was told afterwards would have children of its own that are not."""
        if self._own_score < 0 or value is None:
            return False
        try:
            os.pwrite(self._own_score, value, 0)
        except OSError:
            return False
        return True


def _be_ordinary(pid: int) -> None:
    """Take from a new process the priority that is the agent's; by its group, to catch also what it may have forked by now."""
    try:
        os.setpriority(os.PRIO_PGRP, pid, 0)
    except OSError:
        pass  # it has ended already


def _ignore_for_ourselves_alone() -> None:
    """Turn signals that we were told to ignore into handlers that do nothing: an exec keeps the former and resets the latter.

    A command that inherits an ignored SIGINT cannot be interrupted, and its shell goes on with the next line of the script.
    """
    for number in signal.valid_signals() - {signal.SIGPIPE, signal.SIGXFSZ}:  # which Popen restores
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, _do_nothing)


def _do_nothing(number: int, frame: object) -> None:
    """As ignoring it."""


def _take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _place(place: dict[int, int]) -> None:
    for target, source in place.items():
        os.dup2(source, target, inheritable=True)
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) not in place:
            try:
                os.set_inheritable(int(name), False)
            except OSError:
                pass  # the descriptor that listed them


def _reserve_low() -> list[int]:
    """Occupy the one-digit descriptors, so that none of Popen's own comes to lie where ``place`` wants to put one."""
    taken = [os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)]
    while taken[-1] < 10:
        taken.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    return taken


def _set_tag(tag: int) -> bool:
    """Mark the agent itself for the moment of a fork: children inherit the mark with no race (see ``trees``)."""
    try:
        _, hard = resource.getrlimit(_RLIMIT_RTTIME)
        resource.setrlimit(_RLIMIT_RTTIME, (tag or hard, hard))
    except (OSError, ValueError):
        return False
    return True


def _explain(error: Exception, program: str, launch: Launch) -> Exception:
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


def kill_signal(group: int, number: int) -> None:
    """Signal a process group that is not the agent's own."""
    if group > 1 and group != os.getpgrp():
        os.killpg(group, number)


def exit_outcome(status: int) -> tuple[int, str | None]:
    """A wait status as ``(exit_code, signal name)``: a signalled process gives 128+n and the name, as a shell shows it."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return 128 + number, signal_name(number)
    return os.waitstatus_to_exitcode(status), None


def signal_name(number: int) -> str:
    """``KILL`` for 9; real-time signals by number."""
    try:
        return signal.Signals(number).name.removeprefix("SIG")
    except ValueError:
        return str(number)


def child_pids() -> list[int]:
    """The agent's children, dead ones included; empty where the kernel does not list them."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", "rb") as file:
            return [int(pid) for pid in file.read().split()]
    except OSError:
        return []


def is_signal(name: str) -> bool:
    """Whether there is a signal of this name, with or without SIG."""
    return isinstance(getattr(signal, "SIG" + name.upper().removeprefix("SIG"), None), signal.Signals)


def signal_number(name: str) -> int:
    """9 for ``KILL`` or ``SIGKILL``. Raises ``HoldfastError``."""
    found = getattr(signal, "SIG" + name.upper().removeprefix("SIG"), None)
    if not isinstance(found, signal.Signals):
        raise HoldfastError("invalid_argument", f"there is no signal {name!r:.40}", hint="INT, TERM, KILL, HUP, USR1, …")
    return int(found)


assert sys.platform == "linux"
