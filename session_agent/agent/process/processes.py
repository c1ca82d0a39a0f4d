"""Starting processes and learning of their end.

Owns SIGCHLD, the table of children and what is known of each: whether it has started, whether it has ended. As PID 1 (or a subreaper,
in tests) the agent also inherits every orphan of the sandbox: those are reaped here too, at once where no other code of the process
waits for children.
How a child is forked is decided by ``fork``, what a command is and when to kill it by ``command``, ``shell`` and ``process_tree``.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import sys
from collections.abc import Callable, Sequence

from holdfast_wire.errors import HoldfastError

from .fork import Forker, Launch, Starting, Stdio
from .process_tree import is_being_killed, read_tag

log = logging.getLogger("session_agent.agent.process.processes")

Exit = Callable[[int], None]
"""Called once with the wait status (as of ``os.waitpid``)."""

Start = Callable[[Exception | None], None]
"""Called once with what kept a process from starting, or None."""

_STRANGER_GRACE_S = 1.0
_PR_SET_CHILD_SUBREAPER = 36
_RLIMIT_RTTIME = 15
_DIED_UNSEEN = 255 << 8


class Reaper:
    """Waits for all children. ``spawn`` registers before the loop can run again, so no exit is ever missed.

    ``sole``: nothing else in this process starts children, so a dead one that ``spawn`` did not make is an orphan of the sandbox.
    """

    def __init__(self, *, oom_score_adj: int | None = None, forker: Forker | None = None, sole: bool = False) -> None:
        self._forker = forker or Forker()
        self._sole = sole
        self._owners: dict[int, Exit] = {}
        self._starting: dict[int, tuple[Starting, Start]] = {}
        self._strangers: dict[int, float] = {}
        self._burial: asyncio.TimerHandle | None = None
        self._oom_score_adj = None if oom_score_adj is None else str(oom_score_adj).encode()
        self._own_score = -1
        self._own_score_adj = b"0"
        self._favoured = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wakeup: tuple[int, int] = (-1, -1)

    def start(self) -> None:
        """Take over SIGCHLD of the running loop, and the sandbox's orphans."""
        self._loop = asyncio.get_running_loop()
        self._favoured = os.getpriority(os.PRIO_PROCESS, 0) < 0
        if os.getpid() != 1:
            import ctypes  # a sandbox's first process gets the orphans anyway

            ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        # Not by the loop's handlers: they import ``inspect``, a MiB, and take two turns of the loop for a signal.
        self._wakeup = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._loop.add_reader(self._wakeup[0], self._signalled)
        # A pipe that is full of signals loses no more than their number, and one is enough: Python would log each, from a flood of deaths.
        signal.set_wakeup_fd(self._wakeup[1], warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _do_nothing)
        _ignore_for_ourselves_alone()
        self._open_own_score()
        self._forker.start()
        self.reap()

    def stop(self) -> None:
        """Give SIGCHLD back. Children are not touched."""
        if self._loop is not None and self._wakeup[0] >= 0:
            self._loop.remove_reader(self._wakeup[0])
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.set_wakeup_fd(-1)
            for descriptor in self._wakeup:
                os.close(descriptor)
            self._wakeup = (-1, -1)
        if self._burial is not None:
            self._burial.cancel()
            self._burial = None
        self._strangers.clear()
        for pid in list(self._starting):
            self._forget(pid)
        if self._own_score >= 0:
            os.close(self._own_score)
            self._own_score = -1

    @property
    def pids(self) -> frozenset[int]:
        """The children that have an owner."""
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
        on_start: Start | None = None,
        watch: bool = True,
    ) -> int:
        """Start ``argv`` in a session of its own and return its pid; ``is_starting``: whether that is not yet known to have succeeded.

        ``tag`` marks it and all its descendants (``process_tree``). For ``tty`` and ``place`` see ``fork``. Raises ``CannotExecuteError``
        for the program, ``HoldfastError`` for everything else. For a child that is still starting ``on_start`` is called once, before
        ``on_exit``: with None, or such an error, after which there is no ``on_exit``. Without ``on_start`` a failed start is an exit with
        127. ``watch`` False: ``on_start`` is called at the child's end, or after ``watch``.
        """
        tagged = _set_tag(tag) if tag else False
        scored = self._set_own_score(self._oom_score_adj)
        try:
            pid, starting = self._forker.fork(argv, launch, stdio, tty=tty, place=place)
        finally:
            if tagged:
                _set_tag(0)
            if scored:
                self._set_own_score(self._own_score_adj)
        if self._favoured:
            _be_ordinary(pid)
        self._owners[pid] = on_exit
        if starting is not None:
            self._starting[pid] = (starting, on_start or _not_told)
            if watch:
                self.watch(pid)
        return pid

    def watch(self, pid: int) -> None:
        """Call ``on_start`` as soon as it is known how the start went, and not only at the child's end."""
        starting, _ = self._starting.get(pid, (None, None))
        if starting is not None and not starting.watched:
            starting.watched = True
            self._running().add_reader(starting.descriptor, self._settle, pid)

    def is_starting(self, pid: int) -> bool:
        """Whether it has yet to become its program."""
        return pid in self._starting

    def _settle(self, pid: int, *, ended: bool = False) -> None:
        """Report how a start went. A child that ``ended`` reports no more."""
        starting, on_start = self._starting[pid]
        if not starting.settle() and not ended:
            return
        self._forget(pid)
        error = starting.error()
        if error is not None and on_start is not _not_told:
            self._owners[pid] = _unowned  # the stub's own end has no owner
        try:
            on_start(error)
        except Exception:
            log.exception("the owner of process %d failed to take its start", pid)

    def _forget(self, pid: int) -> None:
        starting, _ = self._starting.pop(pid)
        if starting.watched:
            self._running().remove_reader(starting.descriptor)
        starting.close()

    def _running(self) -> asyncio.AbstractEventLoop:
        assert self._loop is not None
        return self._loop

    def _signalled(self) -> None:
        os.read(self._wakeup[0], 65536)
        self.reap()

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
            elif self._sole and not is_being_killed(info.si_pid):
                self._strangers.pop(info.si_pid, None)
                os.waitpid(info.si_pid, os.WNOHANG)
            else:
                # waitid keeps naming this one first, so look at our own children one by one
                self._meet(info.si_pid)
                for pid in list(self._owners):
                    self._collect(pid)
                return

    def reap_orphans(self, match: Callable[[int], bool]) -> None:
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
        if pid in self._starting:
            self._settle(pid, ended=True)
        owner = self._owners.pop(pid, None)
        if owner is not None:
            try:
                owner(status)
            except Exception:
                log.exception("the owner of process %d failed to take its exit", pid)

    def _meet(self, first: int) -> None:
        """Orphans of a tree that is being killed, or children that other code reaps itself: give both a moment (see ``reap_orphans``)."""
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
        """Raise our own score for the moment of a fork: a child whose score was set afterwards might have forked children before that."""
        if self._own_score < 0 or value is None:
            return False
        try:
            os.pwrite(self._own_score, value, 0)
        except OSError:
            return False
        return True


def _be_ordinary(pid: int) -> None:
    """Take from a new process the priority that is the agent's; also by its group, to catch what it may have forked by now."""
    for kind in (os.PRIO_PROCESS, os.PRIO_PGRP):
        try:
            os.setpriority(kind, pid, 0)
        except OSError:
            pass  # it has ended already, or leads no group yet


def _not_told(error: Exception | None) -> None:
    """No callback was given for the start."""


def _unowned(status: int) -> None:
    """No callback was given for the exit."""


def _ignore_for_ourselves_alone() -> None:
    """Turn inherited ignored signals into handlers that do nothing: an exec keeps the former and resets the latter.

    A command that inherits an ignored SIGINT cannot be interrupted, and its shell goes on with the next line of the script.
    """
    ignored = _ignored() - {signal.SIGPIPE, signal.SIGXFSZ}  # which Popen restores
    for number in ignored & signal.valid_signals() if ignored else ():
        signal.signal(number, _do_nothing)


def _ignored() -> set[int]:
    """The signals that this process ignores, by proc(5): asking Python for all 64 is a quarter of the calls of an agent's start."""
    with open("/proc/self/status", "rb") as file:
        mask = int(file.read().partition(b"SigIgn:")[2].split(maxsplit=1)[0], 16)
    return {number for number in range(1, mask.bit_length() + 1) if mask >> (number - 1) & 1}


def _do_nothing(number: int, frame: object) -> None:
    """As ignoring it."""


def _set_tag(tag: int) -> bool:
    """Mark the agent itself for the moment of a fork: children inherit the mark with no race (see ``process_tree``)."""
    try:
        _, hard = resource.getrlimit(_RLIMIT_RTTIME)
        resource.setrlimit(_RLIMIT_RTTIME, (tag or hard, hard))
    except (OSError, ValueError):
        return False
    return True


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
