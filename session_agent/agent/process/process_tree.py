"""Finding and killing all processes of a command, shell or terminal, and no others.

Owns the mark of a process tree: a value of the soft limit RLIMIT_RTTIME, which has no effect on processes without real-time scheduling.
Children inherit it over fork and exec, so it also identifies processes that called setsid, forked twice or cleared their environment.
Setting it needs no privilege and takes half a microsecond. Where ``/proc`` does not show it, descendants are found by their parents.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import time
from collections.abc import Callable, Generator, Iterable

log = logging.getLogger("session_agent.agent.process.process_tree")

_RLIMIT_RTTIME = 15
_MARK = 1 << 62
_AGENT_BITS, _OWNER_BITS, _RUN_BITS = 16, 24, 22
_LABEL = b"Max realtime timeout"
_FIRST_PAUSES = 5
"""After so many passes the pauses between them become longer."""
_PASS_INTERVAL_S = 0.01
_LONGEST_PAUSE_S = 0.1
_PASSES = 500
KILL_PATIENCE_S = 3.0
"""How long processes to which SIGKILL was sent may take to end, before their end is reported without them. One that waits for a device or
a file server in the kernel (state D) ends only when that has answered. With a shell's ``abort_patience_s`` it is less than the 5 s that
a cancelled call of the SDK waits; 2 GiB of memory take 0.5 s to free on a busy machine."""
_SLICE_S = 0.005
"""How long a scan may run before it returns to the event loop."""
_MANY_PROC_ENTRIES = 400
"""Entries of ``/proc`` (some 60 are not processes) above which the whole sandbox is stopped before a tree is killed."""
_killing: set[TreeKill] = set()
"""The kills in progress."""


class Tags:
    """Allocates marks: an owner for each command, shell or terminal; each run of a shell adds its number (``run_tag``).

    A random part distinguishes agents that share a pid namespace, as in tests.
    """

    def __init__(self) -> None:
        self._agent = _MARK | (int.from_bytes(os.urandom(_AGENT_BITS // 8), "big") << (_OWNER_BITS + _RUN_BITS))
        self._owners = 0

    def owner(self) -> int:
        """A mark that no other living process tree of this agent has."""
        self._owners = (self._owners + 1) % (1 << _OWNER_BITS)
        return self._agent | (self._owners << _RUN_BITS)

    def is_own(self, tag: int) -> bool:
        """Whether this agent allocated the mark."""
        return tag >> (_OWNER_BITS + _RUN_BITS) == self._agent >> (_OWNER_BITS + _RUN_BITS)


def run_tag(owner: int, number: int) -> int:
    """The mark of one run of an owner."""
    return owner | (number % (1 << _RUN_BITS))


def mark_run(pid: int, tag: int) -> bool:
    """Mark a running process: children that it starts from now on inherit ``tag``. False if that is not permitted."""
    try:
        try:
            _, hard = resource.prlimit(pid, _RLIMIT_RTTIME, (tag, resource.RLIM_INFINITY))
        except PermissionError:  # its hard limit was lowered and cannot be raised
            _, hard = resource.prlimit(pid, _RLIMIT_RTTIME)
        if hard != resource.RLIM_INFINITY:
            resource.prlimit(pid, _RLIMIT_RTTIME, (tag, hard))
    except (OSError, ValueError):
        return False
    return True


def owned_by(tag: int) -> Callable[[int], bool]:
    """A predicate for marks: whether the mark belongs to the owner of ``tag``, in any run."""
    return lambda other: other >> _RUN_BITS == tag >> _RUN_BITS


def members(match: Callable[[int], bool], roots: Iterable[int] = (), exclude: Iterable[int] = ()) -> list[int]:
    """Living processes whose mark matches, and descendants of ``roots``; without those in ``exclude`` and the agent itself."""
    scan = ProcessScan(match, roots, exclude)
    for _ in scan.steps():
        pass
    return scan.found


class ProcessScan:
    """One pass over all processes. ``found``: those that ``members`` returns; ``others``: the rest, without the agent."""

    def __init__(self, match: Callable[[int], bool], roots: Iterable[int] = (), exclude: Iterable[int] = ()) -> None:
        self._match = match
        self._roots = frozenset(roots)
        self._exclude = frozenset(exclude)
        self.found: list[int] = []
        self.others: list[int] = []

    def steps(self) -> Generator[None, None, None]:
        """Yield before each process; the results are valid once the generator is exhausted."""
        found: set[int] = set()
        parents: dict[int, int] = {}
        for name in os.listdir("/proc"):
            if not name.isdigit():
                continue
            yield
            stat = _read(f"/proc/{name}/stat")
            if stat is None:
                continue
            # The name in parentheses may hold any character: fields are counted from its end.
            fields = stat[stat.rfind(b")") + 2 :].split(None, 18)
            if fields[0] in b"ZX" and int(fields[17]) < 2:  # with more threads only the first one has ended
                continue
            pid = int(name)
            parents[pid] = int(fields[1])
            tag = read_tag(pid)
            if (tag is not None and self._match(tag)) or pid in self._roots:
                found.add(pid)
        grown = bool(self._roots)
        while grown:
            more = {pid for pid, parent in parents.items() if parent in found and pid not in found}
            found |= more
            grown = bool(more)
        agent = {1, os.getpid()}
        self.found = sorted(found - self._exclude - agent)
        self.others = sorted(parents.keys() - set(self.found) - agent)


def read_tag(pid: int) -> int | None:
    """The mark of a process, None if it has none or ``/proc`` does not show it."""
    limits = _read(f"/proc/{pid}/limits")
    if limits is None:
        return None
    at = limits.rfind(_LABEL)
    if at < 0:
        return None
    word = limits[at + len(_LABEL) :].split(None, 1)[0]
    return int(word) if word.isdigit() else None


def marked(match: Callable[[int], bool]) -> list[int]:
    """Processes, also ended ones, whose mark matches. One system call for each process, where that is permitted."""
    found: list[int] = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            tag: int | None = resource.prlimit(int(name), _RLIMIT_RTTIME)[0]
        except PermissionError:
            tag = read_tag(int(name))
        except OSError:
            continue
        if tag is not None and match(tag):
            found.append(int(name))
    return found


def is_being_killed(pid: int) -> bool:
    """Whether a process, dead or alive, belongs to a tree that is being killed."""
    if not _killing:
        return False
    tag = read_tag(pid)
    return tag is not None and any(kill.matches(tag) for kill in _killing)


def has_unowned_children(known: frozenset[int]) -> bool:
    """Whether the agent has children besides ``known``. If not, no process has outlived the leader of its tree."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", "rb") as file:
            children = file.read()  # one system call returns some 600 children at most
    except OSError:
        return True
    return any(int(pid) not in known for pid in children.split())


def kill_group(pid: int, number: int) -> None:
    """Signal the process group that ``pid`` leads. It was started in a new session, so this is never the agent's group."""
    assert pid > 1
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        pass


def signal_all(pids: Iterable[int], number: int) -> None:
    """Signal each process that still exists."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            pass


class TreeKill:
    """Kills matching processes until none is left, in time slices so that the event loop is not blocked; then calls ``done``.

    Processes that have got SIGKILL and still are the same ``patience_s`` later stay in ``left``: they start no other process, run no other
    instruction of their program, and end when the kernel lets them. Until then the kernel counts them as processes of the sandbox.

    If there are many processes, one of them may be a fork bomb, which forks faster than processes are found. Then the whole sandbox is
    stopped first: ``kill(-1, SIGSTOP)`` reaches every process, also one that is being forked. After the kill all others continue. Only
    PID 1 of a pid namespace does this: from any other process, -1 would reach every process of the machine.
    """

    def __init__(
        self,
        match: Callable[[int], bool],
        done: Callable[[], None],
        *,
        roots: Iterable[int] = (),
        exclude: Iterable[int] = (),
        patience_s: float = KILL_PATIENCE_S,
    ) -> None:
        self._match = match
        self._done = done
        self._roots = tuple(roots)
        self._exclude = tuple(exclude)
        self._patience_s = patience_s
        self._passes = 0
        self._unchanged = 0
        """How many passes have found only what the one before them had killed, and all of it."""
        self._changed_at = 0.0
        self.left: frozenset[int] = frozenset()
        """Processes that the last pass has found. Once it is ``over``: those that SIGKILL has not ended yet."""
        self._timer: asyncio.TimerHandle | None = None
        self._stopped_all = False
        self.over = False
        _killing.add(self)
        self._start_pass()

    def matches(self, tag: int) -> bool:
        """Whether processes with this mark are being killed."""
        return self._match(tag)

    def cancel(self) -> None:
        """Kill no more processes, and let stopped ones continue."""
        self._end()
        if self._timer is not None:
            self._timer.cancel()
        if self._stopped_all:
            self._signal_everything(signal.SIGCONT)

    def _start_pass(self) -> None:
        if not self._unchanged and os.getpid() == 1 and len(os.listdir("/proc")) > _MANY_PROC_ENTRIES:
            self._signal_everything(signal.SIGSTOP)
        self._scan = ProcessScan(self._match, self._roots, self._exclude)
        self._steps = self._scan.steps()
        self._run_slice()

    def _signal_everything(self, number: signal.Signals) -> None:
        self._stopped_all = number == signal.SIGSTOP
        try:
            os.kill(-1, number)
        except ProcessLookupError:
            pass  # the agent is the only process

    def _run_slice(self) -> None:
        until = time.monotonic() + _SLICE_S
        while time.monotonic() < until:
            if next(self._steps, self) is self:
                self._end_pass(self._scan.found)
                return
        self._timer = asyncio.get_running_loop().call_later(0, self._run_slice)

    def _end_pass(self, alive: list[int]) -> None:
        self._passes += 1
        now = time.monotonic()
        self._unchanged = self._unchanged + 1 if self._passes > 1 and self.left == frozenset(alive) else 0
        if not self._unchanged:
            self.left, self._changed_at = frozenset(alive), now
        if self._passes > 2 and not self._unchanged and not self._stopped_all:
            # the tree forks faster than one pass kills: stop its processes first
            signal_all(alive, signal.SIGSTOP)
        signal_all(alive, signal.SIGKILL)
        if self._stopped_all:
            self._stopped_all = False
            signal_all(self._scan.others, signal.SIGCONT)
        if not alive or self._passes > _PASSES or (self._unchanged and now - self._changed_at >= self._patience_s):
            if alive:
                log.error(
                    "%d processes of a process tree have not ended after %d rounds of SIGKILL: %s", len(alive), self._passes, alive[:5]
                )
            self._end()
            self._done()
            return
        self._roots = tuple(pid for pid in self._roots if pid in alive)
        delay = 0.001 if self._passes < _FIRST_PAUSES else min(_PASS_INTERVAL_S * (1 + self._unchanged), _LONGEST_PAUSE_S)
        self._timer = asyncio.get_running_loop().call_later(delay, self._start_pass)

    def _end(self) -> None:
        self.over = True
        _killing.discard(self)


def _read(path: str) -> bytes | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.read(descriptor, 65536)
    except OSError:
        return None
    finally:
        os.close(descriptor)
