"""The sandbox's control groups, as far as the agent may touch them.

Owns the descriptors the node hands over: files that move a process among the commands, apart from the agent, and the counts of
out-of-memory kills. They were opened by the node, so a write is judged by its rights and cannot be turned on another group.
A pod's agent finds the counts by itself and moves nothing; where there are no control groups, nothing here does anything.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence


class Groups:
    """``join_fds`` are open ``cgroup.procs`` files of the commands' groups, ``events_fds`` open files with an ``oom_kill`` line."""

    def __init__(self, join_fds: Sequence[int] = (), events_fds: Sequence[int] = ()) -> None:
        self._join_fds = tuple(join_fds)
        self._events_fds = tuple(events_fds)

    def join(self, pid: int) -> None:
        """Move a process that will live for long, a shell or a terminal, and so whatever it starts from then on.

        A move can wait 10 ms for the kernel, so it happens on a thread. One-off commands move themselves where groups hold
        threads (``fork``), and are under the sandbox's outer limits elsewhere.
        """
        if self._join_fds:
            asyncio.get_running_loop().run_in_executor(None, self._join, pid)

    def oom_kills(self) -> int:
        """Processes of the sandbox that the kernel has killed for want of memory so far."""
        return sum(_oom_kills(descriptor) for descriptor in self._events_fds)

    def _join(self, pid: int) -> None:
        text = b"%d" % pid
        for descriptor in self._join_fds:
            try:
                os.pwrite(descriptor, text, 0)
            except OSError:
                continue  # it has ended already, or the group is full: the outer limits hold


def container_events(root: str = "/sys/fs/cgroup") -> tuple[int, ...]:
    """What ``events_fds`` is in a container, which sees its own group only: cgroup v2, else v1 (its ``oom_kill`` is of Linux 4.13)."""
    for path in (f"{root}/memory.events", f"{root}/memory/memory.oom_control"):
        try:
            return (os.open(path, os.O_RDONLY | os.O_CLOEXEC),)
        except OSError:
            continue
    return ()


def _oom_kills(descriptor: int) -> int:
    try:
        lines = os.pread(descriptor, 4096, 0).splitlines()
    except OSError:
        return 0
    return next((int(line[9:]) for line in lines if line.startswith(b"oom_kill ") and line[9:].isdigit()), 0)
