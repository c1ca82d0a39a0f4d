"""The control groups of a sandbox, used through descriptors that the node opened.

Owns two kinds of descriptors: ``cgroup.procs`` files, which move a process into the group of the commands (the agent stays outside of
it), and files that count out-of-memory kills. The kernel checks a write against the rights of the process that opened the file, so the
agent needs no permission on the groups themselves. In a pod the agent opens the counters itself and moves no process. Without control
groups every method does nothing.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence

from .crowding import Placement


class Groups:
    """``join_fds`` are open ``cgroup.procs`` files of the commands' groups, ``events_fds`` open files with an ``oom_kill`` line.

    ``placement`` decides where processes start.
    """

    def __init__(self, join_fds: Sequence[int] = (), events_fds: Sequence[int] = (), placement: Placement | None = None) -> None:
        self._join_fds = tuple(join_fds)
        self._placement = placement or Placement()
        self._events_fds = tuple(events_fds)

    def join(self, pid: int) -> None:
        """Move a long-lived process (a shell or a terminal); processes that it starts later are members too.

        A move can wait 10 ms for the kernel, so it runs on a thread. One-off commands are not moved here: with cgroup v1 they move
        themselves (``fork``), otherwise only the limits of the whole sandbox apply to them. What started in the rescue group, because
        the sandbox is crowded, is moved later (``processes``).
        """
        if self._join_fds and not self._placement.has_rescued:
            asyncio.get_running_loop().run_in_executor(None, self._join, pid)

    def oom_kills(self) -> int:
        """How many processes of the sandbox the kernel has killed so far because memory ran out."""
        return sum(_oom_kills(descriptor) for descriptor in self._events_fds)

    def _join(self, pid: int) -> None:
        text = b"%d" % pid
        for descriptor in self._join_fds:
            try:
                os.pwrite(descriptor, text, 0)
            except OSError:
                continue  # the process has ended, or the group is full: the limits of the whole sandbox still apply


def container_events(root: str = "/sys/fs/cgroup") -> tuple[int, ...]:
    """The ``events_fds`` of a container, which sees only its own group: cgroup v2, else v1 (``oom_kill`` since Linux 4.13)."""
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
