"""Starting child processes and reaping them.

Owns SIGCHLD and the table of children with the callbacks for their start and exit. As PID 1 (or as a subreaper, in tests) the agent
also inherits every orphan of the sandbox and reaps it: at once if no other code of this process waits for children, else after a delay.
``fork`` decides how a child is forked; ``command``, ``shell`` and ``process_tree`` decide when it is killed.
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
"""Called once with the wait status, as from ``os.waitpid``."""

Start = Callable[[Exception | None], None]
"""Called once with the error that kept a process from starting, or None."""

_ZOMBIE_GRACE_S = 1.0
"""How long a dead child without an owner is left to other code of this process that may wait for it."""
_RESCUE_S = 10.0
"""How long a process stays outside the commands' groups after one was started there because the sandbox was crowded."""
_PR_SET_CHILD_SUBREAPER = 36
_RLIMIT_RTTIME = 15
_UNKNOWN_STATUS = 255 << 8
"""The status of a child that other code has reaped: exit code 255."""
_FAILED_START = (127 << 8, _UNKNOWN_STATUS)
"""The status of a stub after a failure that it has reported, if it is known."""


class Reaper:
    """Starts children, reaps them when SIGCHLD arrives and passes each exit status to the callback given to ``spawn``.

    ``spawn`` registers the child before the event loop can run again, so no exit is missed. ``sole``: no other code in this process
    starts children, so a dead child that ``spawn`` did not start is an orphan of the sandbox and is reaped at once.
    """

    def __init__(self, *, oom_score_adj: int | None = None, forker: Forker | None = None, sole: bool = False) -> None:
        self._forker = forker or Forker()
        self._sole = sole
        self.cpu_s: float | None = None
        """During an exit callback: the CPU time of that child and of those that it has waited for, in seconds."""
        self._owners: dict[int, Exit] = {}
        self._starting: dict[int, tuple[Starting, Start]] = {}
        self._zombies: dict[int, float] = {}
        """Dead children without an owner, with the time at which each was found."""
        self._zombie_timer: asyncio.TimerHandle | None = None
        self._oom_score_adj = None if oom_score_adj is None else str(oom_score_adj).encode()
        self._own_score_fd = -1
        self._own_score_adj = b"0"
        self._has_raised_priority = False
        self._rescue_timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wakeup: tuple[int, int] = (-1, -1)

    def start(self) -> None:
        """Install the SIGCHLD handler on the running loop and become the reaper of the sandbox's orphans."""
        self._loop = asyncio.get_running_loop()
        self._has_raised_priority = os.getpriority(os.PRIO_PROCESS, 0) < 0
        if os.getpid() != 1:
            import ctypes  # needed only here: PID 1 inherits orphans without a prctl

            ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        # Not loop.add_signal_handler: it imports ``inspect`` (1 MiB) and takes two iterations of the loop for a signal.
        self._wakeup = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._loop.add_reader(self._wakeup[0], self._sigchld_received)
        # If the pipe is full the signals in it suffice, since one reads all exits. Python would log each signal that does not fit.
        signal.set_wakeup_fd(self._wakeup[1], warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _empty_handler)
        _replace_inherited_ignores()
        self._open_own_score()
        self._forker.start()
        self.reap()

    def stop(self) -> None:
        """Restore the default handling of SIGCHLD. Children keep running."""
        if self._loop is not None and self._wakeup[0] >= 0:
            self._loop.remove_reader(self._wakeup[0])
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.set_wakeup_fd(-1)
            for descriptor in self._wakeup:
                os.close(descriptor)
            self._wakeup = (-1, -1)
        if self._zombie_timer is not None:
            self._zombie_timer.cancel()
            self._zombie_timer = None
        if self._rescue_timer is not None:
            self._rescue_timer.cancel()
            self._rescue_timer = None
        self._zombies.clear()
        for pid in list(self._starting):
            self._close_start(pid)
        if self._own_score_fd >= 0:
            os.close(self._own_score_fd)
            self._own_score_fd = -1

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
        """Start ``argv`` in a new session and return its pid. Until its exec is confirmed, ``is_starting(pid)`` is True.

        ``tag`` marks the child and all its descendants (``process_tree``). For ``tty`` and ``place`` see ``Forker.fork``. Raises
        ``CannotExecuteError`` if the program cannot be executed, ``HoldfastError`` for any other failure. If the child is still starting
        on return, ``on_start`` is called once: with None, after which ``on_exit`` follows, or with such an error, after which it does not.
        Without ``on_start`` a failed start is reported as an exit with 127. With ``watch`` False, ``on_start`` is called only when the
        child ends or after a call of ``watch``.
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
        if self._has_raised_priority:
            _reset_priority(pid)
        if self._forker.placement.has_rescued:
            self._end_rescue_later()
        self._owners[pid] = on_exit
        if starting is not None:
            self._starting[pid] = (starting, on_start or _ignore_start)
            if watch:
                self.watch(pid)
        return pid

    def watch(self, pid: int) -> None:
        """Call ``on_start`` as soon as the exec has succeeded or failed, not only when the child ends."""
        starting, _ = self._starting.get(pid, (None, None))
        if starting is not None and not starting.watched:
            starting.watched = True
            self._running_loop().add_reader(starting.descriptor, self._finish_start, pid)

    def is_starting(self, pid: int) -> bool:
        """Whether the child's exec is not confirmed yet."""
        return pid in self._starting

    def _finish_start(self, pid: int, status: int | None = None) -> None:
        """Call ``on_start`` if the report is complete; the report of a child that has ended with ``status`` is.

        Another process may have written a failure to the report. So it counts only once the child has ended as a stub does after one.
        """
        starting, on_start = self._starting[pid]
        if not starting.read_report() and status is None:
            return
        error = starting.error() if status is None or status in _FAILED_START else None
        if error is not None and status is None:
            self._running_loop().remove_reader(starting.descriptor)  # its end follows at once
            return
        self._close_start(pid)
        if error is not None and on_start is not _ignore_start:
            self._owners[pid] = _ignore_exit  # the owner gets the error instead of the stub's exit
        try:
            on_start(error)
        except Exception:
            log.exception("the start callback of process %d failed", pid)

    def _close_start(self, pid: int) -> None:
        starting, _ = self._starting.pop(pid)
        if starting.watched:
            self._running_loop().remove_reader(starting.descriptor)
        starting.close()

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        assert self._loop is not None
        return self._loop

    def _sigchld_received(self) -> None:
        os.read(self._wakeup[0], 65536)
        self.reap()

    def reap(self) -> None:
        """Reap every child that has ended."""
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
                self._zombies.pop(info.si_pid, None)
                os.waitpid(info.si_pid, os.WNOHANG)
            else:
                # waitid would return this child again and again, so the owned children are polled one by one
                self._note_zombies(info.si_pid)
                for pid in list(self._owners):
                    self._collect(pid)
                return

    def reap_orphans(self, match: Callable[[int], bool]) -> None:
        """Reap the dead orphans whose mark matches. Call after their whole tree is dead.

        Zombies count against the sandbox's limit of processes. While a fork bomb is being killed they are left, because the full limit
        keeps it from forking again.
        """
        for pid in set(child_pids()) - self._owners.keys():
            tag = read_tag(pid)
            if tag is not None and match(tag):
                self._zombies.pop(pid, None)
                _reap_one(pid)

    def _collect(self, pid: int) -> None:
        """Reap the child if it has ended, and call its callbacks."""
        try:
            ended, status, usage = os.wait4(pid, os.WNOHANG)
            self.cpu_s = usage.ru_utime + usage.ru_stime
        except ChildProcessError:
            ended, status, self.cpu_s = pid, _UNKNOWN_STATUS, None
        if not ended:
            return
        if pid in self._starting:
            self._finish_start(pid, status)
        owner = self._owners.pop(pid, None)
        if owner is not None:
            try:
                owner(status)
            except Exception:
                log.exception("the exit callback of process %d failed", pid)

    def _note_zombies(self, first: int) -> None:
        """Reap dead children without an owner after a delay: other code may wait for them, or their tree is still being killed."""
        loop = self._running_loop()
        now = loop.time()
        for pid in {first, *child_pids()} - self._owners.keys():
            if pid in self._zombies:
                continue
            try:
                ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                continue
            if ended is not None:
                self._zombies[pid] = now
        if self._zombies and self._zombie_timer is None:
            self._zombie_timer = loop.call_later(_ZOMBIE_GRACE_S, self._reap_zombies)

    def _reap_zombies(self) -> None:
        loop = self._running_loop()
        self._zombie_timer = None
        due = loop.time() - _ZOMBIE_GRACE_S + 0.01
        for pid in [pid for pid, seen in self._zombies.items() if seen <= due]:
            del self._zombies[pid]
            if pid not in self._owners:
                _reap_one(pid)
        if self._zombies:
            self._zombie_timer = loop.call_later(_ZOMBIE_GRACE_S, self._reap_zombies)
        self.reap()

    def _end_rescue_later(self) -> None:
        """Move the processes that started outside the commands' groups there, some time after the last of them has started."""
        if self._rescue_timer is not None:
            self._rescue_timer.cancel()
        self._rescue_timer = self._running_loop().call_later(_RESCUE_S, self._end_rescue)

    def _end_rescue(self) -> None:
        self._rescue_timer = None
        try:
            self._running_loop().run_in_executor(None, self._forker.placement.end_rescue)
        except RuntimeError:  # no thread can be started: the whole sandbox is at its limit of processes
            self._end_rescue_later()

    def _open_own_score(self) -> None:
        if self._oom_score_adj is not None and self._own_score_fd < 0:
            try:
                self._own_score_fd = os.open("/proc/self/oom_score_adj", os.O_RDWR | os.O_CLOEXEC)
                self._own_score_adj = os.pread(self._own_score_fd, 16, 0).strip()
            except OSError:
                self._own_score_fd = -1

    def _set_own_score(self, value: bytes | None) -> bool:
        """Set the agent's own OOM score during a fork: the child inherits it, and so do children that it forks at once."""
        if self._own_score_fd < 0 or value is None:
            return False
        try:
            os.pwrite(self._own_score_fd, value, 0)
        except OSError:
            return False
        return True


def _reap_one(pid: int) -> None:
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        pass  # other code was faster


def _reset_priority(pid: int) -> None:
    """Give a new process normal priority instead of the agent's; by its group too, which includes what it has forked by now."""
    for kind in (os.PRIO_PROCESS, os.PRIO_PGRP):
        try:
            os.setpriority(kind, pid, 0)
        except OSError:
            pass  # it has ended already, or leads no group yet


def _ignore_start(error: Exception | None) -> None:
    """The start callback of a child for which none was given."""


def _ignore_exit(status: int) -> None:
    """The exit callback of a child whose failed start was reported."""


def _replace_inherited_ignores() -> None:
    """Replace inherited "ignored" dispositions by empty handlers: exec keeps ignored signals ignored and resets handlers to the default.

    A command that inherits an ignored SIGINT cannot be interrupted: its shell would go on with the next line of the script.
    """
    ignored = _ignored() - {signal.SIGPIPE, signal.SIGXFSZ}  # which Popen restores
    for number in ignored & signal.valid_signals() if ignored else ():
        signal.signal(number, _empty_handler)


def _ignored() -> set[int]:
    """The signals that this process ignores, from proc(5): 64 calls of ``signal.getsignal`` would be a quarter of all calls at start."""
    with open("/proc/self/status", "rb") as file:
        mask = int(file.read().partition(b"SigIgn:")[2].split(maxsplit=1)[0], 16)
    return {number for number in range(1, mask.bit_length() + 1) if mask >> (number - 1) & 1}


def _empty_handler(number: int, frame: object) -> None:
    """A handler without effect."""


def _set_tag(tag: int) -> bool:
    """Mark the agent itself during a fork: the child inherits the mark without a race (see ``process_tree``)."""
    try:
        _, hard = resource.getrlimit(_RLIMIT_RTTIME)
        resource.setrlimit(_RLIMIT_RTTIME, (tag or hard, hard))
    except (OSError, ValueError):
        return False
    return True


def kill_signal(group: int, number: int) -> None:
    """Signal a process group, unless it is the agent's own."""
    if group > 1 and group != os.getpgrp():
        os.killpg(group, number)


def exit_outcome(status: int) -> tuple[int, str | None]:
    """``(exit_code, signal name)`` of a wait status. A process that was killed by signal n gives 128+n and the name, as in a shell."""
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
    """The agent's children, zombies included; empty if the kernel does not list them."""
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
