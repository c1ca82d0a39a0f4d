"""Which processes belong to a command or shell, and ending all of them and only them.

Owns the marking of process trees. A tree is marked by the soft limit RLIMIT_RTTIME (meaningless to anything that is not scheduled in
real time): it is inherited over fork and exec, so it also finds what called setsid, forked twice and cleared its environment,
needs no privilege and costs half a microsecond. Where ``/proc`` does not show it, ancestry decides. Called by ``command``, ``shell``
and ``terminal``.
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
_PASS_INTERVAL_S = 0.01
_PASSES = 500
_SLICE_S = 0.005
"""How long a survey may keep the loop."""
_CROWD = 400
"""Entries of ``/proc``, some 60 of which are no processes, above which a tree is not killed before everything stands still."""
_killing: set[TreeKill] = set()
"""Those that are under way."""


class Tags:
    """Hands out marks: one owner per command, shell or terminal, and under it one number per run.

    A random part keeps agents apart that share a pid namespace, as tests do.
    """

    def __init__(self) -> None:
        self._agent = _MARK | (int.from_bytes(os.urandom(_AGENT_BITS // 8), "big") << (_OWNER_BITS + _RUN_BITS))
        self._owners = 0

    def owner(self) -> int:
        """A mark that no other living tree of this agent has."""
        self._owners = (self._owners + 1) % (1 << _OWNER_BITS)
        return self._agent | (self._owners << _RUN_BITS)

    def ours(self, tag: int) -> bool:
        """Matches everything that was started by this agent."""
        return tag >> (_OWNER_BITS + _RUN_BITS) == self._agent >> (_OWNER_BITS + _RUN_BITS)


def run_tag(owner: int, number: int) -> int:
    """The mark of one run of an owner."""
    return owner | (number % (1 << _RUN_BITS))


def mark_run(pid: int, tag: int) -> bool:
    """Mark a running process so that what it starts from now on carries ``tag``. False where that is not permitted."""
    try:
        try:
            _, hard = resource.prlimit(pid, _RLIMIT_RTTIME, (tag, resource.RLIM_INFINITY))
        except PermissionError:  # it was lowered
            _, hard = resource.prlimit(pid, _RLIMIT_RTTIME)
        if hard != resource.RLIM_INFINITY:
            resource.prlimit(pid, _RLIMIT_RTTIME, (tag, hard))
    except (OSError, ValueError):
        return False
    return True


def owned_by(tag: int) -> Callable[[int], bool]:
    """Matches every run of the owner of ``tag``."""
    return lambda other: other >> _RUN_BITS == tag >> _RUN_BITS


def members(match: Callable[[int], bool], roots: Iterable[int] = (), spare: Iterable[int] = ()) -> list[int]:
    """Living processes whose mark matches, with the descendants of ``roots``; never those in ``spare``, nor the agent."""
    survey = Survey(match, roots, spare)
    for _ in survey.steps():
        pass
    return survey.found


class Survey:
    """One look at all processes, one at a time: ``found`` are those that ``members`` describes, ``others`` the rest but the agent."""

    def __init__(self, match: Callable[[int], bool], roots: Iterable[int] = (), spare: Iterable[int] = ()) -> None:
        self._match = match
        self._roots = frozenset(roots)
        self._spare = frozenset(spare)
        self.found: list[int] = []
        self.others: list[int] = []

    def steps(self) -> Generator[None, None, None]:
        """Exhaust it: only the whole picture is one."""
        found: set[int] = set()
        parents: dict[int, int] = {}
        for name in os.listdir("/proc"):
            if not name.isdigit():
                continue
            yield
            stat = _read(f"/proc/{name}/stat")
            if stat is None:
                continue
            state, parent = _state_and_parent(stat)
            if state in b"ZX":
                continue
            pid = int(name)
            parents[pid] = parent
            tag = read_tag(pid)
            if (tag is not None and self._match(tag)) or pid in self._roots:
                found.add(pid)
        grown = bool(self._roots)
        while grown:
            more = {pid for pid, parent in parents.items() if parent in found and pid not in found}
            found |= more
            grown = bool(more)
        agent = {1, os.getpid()}
        self.found = sorted(found - self._spare - agent)
        self.others = sorted(parents.keys() - set(self.found) - agent)


def read_tag(pid: int) -> int | None:
    """The mark of a process, None where it has none or ``/proc`` does not show it."""
    limits = _read(f"/proc/{pid}/limits")
    if limits is None:
        return None
    at = limits.rfind(_LABEL)
    if at < 0:
        return None
    word = limits[at + len(_LABEL) :].split(None, 1)[0]
    return int(word) if word.isdigit() else None


def is_being_killed(pid: int) -> bool:
    """Whether a process, dead or alive, belongs to a tree that is being killed now."""
    if not _killing:
        return False
    tag = read_tag(pid)
    return tag is not None and any(kill.concerns(tag) for kill in _killing)


def has_strangers(known: frozenset[int]) -> bool:
    """Whether the agent has unowned children: only then can a tree have outlived its leader."""
    children = _read(f"/proc/self/task/{os.getpid()}/children")
    if children is None:
        return True
    return any(int(pid) not in known for pid in children.split())


def kill_group(pid: int, number: int) -> None:
    """Signal the process group that ``pid`` leads; it was started in a session of its own, so this is never ours."""
    assert pid > 1
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        pass


def signal_all(pids: Iterable[int], number: int) -> None:
    """Signal each; those that are gone already are none of our business."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            pass


class TreeKill:
    """Kills what matches until nothing does, a slice of time after the other, so that the event loop is not blocked.

    Where there are many processes one of them may be a fork bomb, which makes new ones faster than they can be found. All of the
    sandbox is stopped at once then (``kill(-1, SIGSTOP)`` reaches every process, also one that is being forked), the tree is killed, and
    the others go on. Only the first process of a pid namespace may do that: for anybody else -1 means the machine.
    """

    def __init__(
        self,
        match: Callable[[int], bool],
        done: Callable[[], None],
        *,
        roots: Iterable[int] = (),
        spare: Iterable[int] = (),
    ) -> None:
        self._match = match
        self._done = done
        self._roots = tuple(roots)
        self._spare = tuple(spare)
        self._passes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._stopped_all = False
        self.over = False
        _killing.add(self)
        self._look()
        self._step()

    def concerns(self, tag: int) -> bool:
        """Whether what carries this mark is to be killed."""
        return self._match(tag)

    def cancel(self) -> None:
        """Stop looking; what was killed stays dead."""
        self._end()
        if self._timer is not None:
            self._timer.cancel()
        if self._stopped_all:
            self._signal_everything(signal.SIGCONT)

    def _look(self) -> None:
        if os.getpid() == 1 and len(os.listdir("/proc")) > _CROWD:
            self._signal_everything(signal.SIGSTOP)
        self._survey = Survey(self._match, self._roots, self._spare)
        self._walk = self._survey.steps()

    def _signal_everything(self, number: signal.Signals) -> None:
        self._stopped_all = number == signal.SIGSTOP
        try:
            os.kill(-1, number)
        except ProcessLookupError:
            pass  # there is nothing but the agent

    def _step(self) -> None:
        until = time.monotonic() + _SLICE_S
        while time.monotonic() < until:
            if next(self._walk, self) is self:
                self._end_pass(self._survey.found)
                return
        self._timer = asyncio.get_running_loop().call_later(0, self._step)

    def _end_pass(self, alive: list[int]) -> None:
        self._passes += 1
        if self._passes > 2 and not self._stopped_all:
            # it forks faster than one pass kills: stopped processes fork no more
            signal_all(alive, signal.SIGSTOP)
        signal_all(alive, signal.SIGKILL)
        if self._stopped_all:
            self._stopped_all = False
            signal_all(self._survey.others, signal.SIGCONT)
        if not alive or self._passes > _PASSES:
            if alive:
                log.error("%d processes of a tree survived %d rounds of SIGKILL", len(alive), self._passes)
            self._end()
            self._done()
            return
        self._roots = tuple(pid for pid in self._roots if pid in alive)
        delay = 0.001 if self._passes < 5 else _PASS_INTERVAL_S
        self._timer = asyncio.get_running_loop().call_later(delay, self._again)

    def _end(self) -> None:
        self.over = True
        _killing.discard(self)

    def _again(self) -> None:
        self._look()
        self._step()


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


def _state_and_parent(stat: bytes) -> tuple[bytes, int]:
    # the name in parentheses may hold anything, so count from its end
    fields = stat[stat.rfind(b")") + 2 :].split(None, 2)
    return fields[0], int(fields[1])
