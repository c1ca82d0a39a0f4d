"""Makes sure that no process outlives a run, with two processes that watch each other.

The subreaper is the process the user started; the supervisor is its child and the parent of the stack. Both call
PR_SET_CHILD_SUBREAPER, so orphans of the stack become children of one of them. `kill -9` of the first reaches the
supervisor as SIGTERM (an orderly end); when the supervisor ends, however it ends, the subreaper kills every process
below it. Owns this pairing and process trees; what runs is decided by `supervisor`.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_KILL_DEADLINE_S = 10.0
_LOOK_S = 0.25
_LONG_S = 3600.0
_SIGNAL_SET_BYTES = 128
_OOM_SCORE = -800

_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent(how: signal.Signals, parent: int) -> None:
    """Ask the kernel to send the signal `how` when this process's parent ends; sent at once if it has ended already."""
    _libc.prctl(_PR_SET_PDEATHSIG, int(how), 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), how)


def keep_when_out_of_memory() -> None:
    """As root: have the kernel end other processes of the machine before this one and those that it starts."""
    with contextlib.suppress(OSError):
        score = Path("/proc/self/oom_score_adj")
        if int(score.read_text()) > _OOM_SCORE:
            score.write_text(str(_OOM_SCORE))


def adopt_orphans() -> None:
    """Make this process the parent of every descendant whose own parent ends."""
    if _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def descendants(root: int) -> list[int]:
    """Every process below `root`, from one reading of /proc."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            # The name in parentheses may hold anything: what follows the last parenthesis is state and parent.
            parent = int((entry / "stat").read_bytes().rpartition(b")")[2].split()[1])
        except (OSError, IndexError, ValueError):
            continue
        children.setdefault(parent, []).append(int(entry.name))
    found: list[int] = []
    stack = [root]
    while stack:
        below = children.get(stack.pop(), [])
        found += below
        stack += below
    return found


def kill_descendants() -> list[int]:
    """SIGKILL everything below this process until nothing is left, reaping it. Returns the processes that did not end."""
    end = time.monotonic() + _KILL_DEADLINE_S
    while time.monotonic() < end:
        left = descendants(os.getpid())
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if not reap() and not left:
            return []
        time.sleep(0.01)
    return descendants(os.getpid())


def stop_signals() -> set[signal.Signals]:
    """The signals that end the stack; SIGHUP only if it is not ignored (nohup)."""
    hangup = {signal.SIGHUP} if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN else set()
    return {signal.SIGINT, signal.SIGTERM} | hangup


def next_signal(signals: Iterable[signal.Signals], timeout_s: float) -> int | None:
    """Wait for one of these signals, which are blocked. None after that time, and earlier where this process was stopped and continued.

    Not ``signal.sigtimedwait``: when the time is over after such a stop, it returns a signal that was never sent.
    """
    wanted = sum(1 << (number - 1) for number in signals).to_bytes(_SIGNAL_SET_BYTES, "little")
    limit = (ctypes.c_long * 2)(int(timeout_s), int(timeout_s % 1 * 1e9))  # a struct timespec
    number = int(_libc.sigtimedwait(wanted, None, limit))
    return number if number > 0 else None


def reap() -> list[tuple[int, int]]:
    """(pid, wait status) of every child that has ended by now."""
    ended: list[tuple[int, int]] = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended.append((pid, status))


def run_supervised(supervise: Callable[[], int], make: int | None = None) -> int:
    """Run `supervise` in a child and return its exit status, with nothing left behind.

    SIGINT, SIGTERM and SIGHUP are forwarded to the child, which decides and has them blocked; a signal that ends the child gives 128+n.
    `make` is the process id of the make that runs this one: a signal sent to it alone counts too.
    """
    adopt_orphans()
    keep_when_out_of_memory()
    subreaper = os.getpid()
    signals = stop_signals()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # inherited as ignored, the kernel would report no child
    signal.pthread_sigmask(signal.SIG_BLOCK, signals | {signal.SIGCHLD})
    child = os.fork()
    if child == 0:
        status = 70
        try:
            os.setsid()  # Ctrl-C reaches the subreaper alone, which forwards it once
            adopt_orphans()
            die_with_parent(signal.SIGTERM, subreaper)
            status = supervise()
        finally:
            os._exit(status)
    wait_status = _forward_until_ended(child, signals, make)
    left = kill_descendants()
    if left:
        print(f"up: these processes did not end: {left}", flush=True)
        return 1
    status = os.waitstatus_to_exitcode(wait_status)
    return status if status >= 0 else 128 - status


def _forward_until_ended(child: int, signals: set[signal.Signals], make: int | None) -> int:
    """The wait status of the child; orphans end here too.

    GNU make that is sent SIGINT, SIGHUP or SIGQUIT forwards nothing: it assumes that its jobs were signalled too, and waits.
    """
    looks = 0
    while True:
        found = next_signal(signals | {signal.SIGCHLD}, _LOOK_S if make is not None else _LONG_S)
        if found is None and make is not None:
            looks = looks + 1 if _is_ending(make) else 0
            if looks == 2:  # Ctrl-C on the terminal signals both: then the signal itself has come by now
                os.kill(child, signal.SIGINT)
        elif found is not None and found != signal.SIGCHLD:
            make = None
            os.kill(child, found)
        ended = dict(reap())
        if child in ended:
            return ended[child]


def _is_ending(pid: int) -> bool:
    """Whether it is a make in the handler of such a signal: there it first puts the default back.

    Others may look the same for a moment: a Python blocks all signals while it forks.
    """
    try:
        rows = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    except OSError:
        return False
    if rows["Name"].strip() not in ("make", "gmake"):
        return False
    blocked, handled, ignored = (int(rows[name], 16) for name in ("SigBlk", "SigCgt", "SigIgn"))
    ending = sum(1 << (number - 1) for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT))
    return bool(blocked & ~handled & ~ignored & ending)
