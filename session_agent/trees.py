"""Which processes belong to a command or shell, and ending all of them and only them.

Owns the marking of process trees. A tree is marked by the soft limit RLIMIT_RTTIME (meaningless to anything that is not scheduled in
real time): it is inherited over fork and exec, so it also finds what called setsid, forked twice and cleared its environment,
needs no privilege and costs half a microsecond. Where ``/proc`` does not show it, ancestry decides. Called by ``commands``, ``shell``
and ``terminal``.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import secrets
import signal
from collections.abc import Callable, Iterable

log = logging.getLogger("session_agent.trees")

_RLIMIT_RTTIME = 15
_MARK = 1 << 62
_AGENT_BITS, _OWNER_BITS, _RUN_BITS = 16, 20, 26
_LABEL = b"Max realtime timeout"
_PASS_INTERVAL_S = 0.01
_PASSES = 500


class Tags:
    """Hands out marks: one owner per command, shell or terminal, and under it one number per run.

    A random part keeps agents apart that share a pid namespace, as tests do.
    """

    def __init__(self) -> None:
        self._agent = _MARK | (secrets.randbits(_AGENT_BITS) << (_OWNER_BITS + _RUN_BITS))
        self._owners = 0

    def owner(self) -> int:
        """A mark that no other living tree of this agent has."""
        self._owners = (self._owners + 1) % (1 << _OWNER_BITS)
        return self._agent | (self._owners << _RUN_BITS)


def run_tag(owner: int, number: int) -> int:
    """The mark of one run of an owner."""
    return owner | (number % (1 << _RUN_BITS))


def mark_run(pid: int, tag: int) -> bool:
    """Mark a running process so that what it starts from now on carries ``tag``. False where that is not permitted."""
    try:
        _, hard = resource.prlimit(pid, _RLIMIT_RTTIME)
        resource.prlimit(pid, _RLIMIT_RTTIME, (tag, hard))
    except (OSError, ValueError):
        return False
    return True


def owned_by(tag: int) -> Callable[[int], bool]:
    """Matches every run of the owner of ``tag``."""
    return lambda other: other >> _RUN_BITS == tag >> _RUN_BITS


def members(match: Callable[[int], bool], roots: Iterable[int] = (), spare: Iterable[int] = ()) -> list[int]:
    """Living processes whose mark matches, with the descendants of ``roots``; never those in ``spare``, nor the agent."""
    found: set[int] = set()
    parents: dict[int, int] = {}
    roots = set(roots)
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        stat = _read(f"/proc/{name}/stat")
        if stat is None:
            continue
        state, parent = _state_and_parent(stat)
        if state in b"ZX":
            continue
        pid = int(name)
        parents[pid] = parent
        tag = read_tag(pid)
        if (tag is not None and match(tag)) or pid in roots:
            found.add(pid)
    grown = bool(roots)
    while grown:
        more = {pid for pid, parent in parents.items() if parent in found and pid not in found}
        found |= more
        grown = bool(more)
    return sorted(found - set(spare) - {1, os.getpid()})


def read_tag(pid: int) -> int | None:
    """The mark of a process, None where it has none or ``/proc`` does not say."""
    limits = _read(f"/proc/{pid}/limits")
    if limits is None:
        return None
    at = limits.rfind(_LABEL)
    if at < 0:
        return None
    word = limits[at + len(_LABEL) :].split(None, 1)[0]
    return int(word) if word.isdigit() else None


def has_strangers(known: frozenset[int]) -> bool:
    """Whether the agent has children that nobody waits for: only then can a tree have outlived its leader."""
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
    """Kills what matches until nothing does, a pass at a time, so that the loop goes on under a fork bomb."""

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
        self._step()

    def cancel(self) -> None:
        """Stop looking; what was killed stays dead."""
        if self._timer is not None:
            self._timer.cancel()

    def _step(self) -> None:
        alive = members(self._match, self._roots, self._spare)
        self._passes += 1
        if not alive or self._passes > _PASSES:
            if alive:
                log.error("%d processes of a tree survived %d rounds of SIGKILL", len(alive), self._passes)
            self._done()
            return
        if self._passes > 2:
            # it forks faster than one pass kills: stopped processes fork no more
            signal_all(alive, signal.SIGSTOP)
            alive = members(self._match, self._roots, self._spare)
        signal_all(alive, signal.SIGKILL)
        self._roots = tuple(pid for pid in self._roots if pid in alive)
        delay = 0.001 if self._passes < 5 else _PASS_INTERVAL_S
        self._timer = asyncio.get_running_loop().call_later(delay, self._step)


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
