"""The sandbox's control groups, as far as the agent may touch them.

Owns the descriptors the node hands over: files that move a process among the commands, apart from the agent, and the count of
out-of-memory kills there. They were opened by the node, so a write is judged by its rights and cannot be turned on another group.
Where there are none (a pod, or no control groups), nothing here does anything.
"""

from __future__ import annotations

import os
from collections.abc import Sequence


class Groups:
    """``join_fds`` are open ``cgroup.procs`` files of the commands' groups, ``events_fd`` an open file with an ``oom_kill`` line."""

    def __init__(self, join_fds: Sequence[int] = (), events_fd: int | None = None) -> None:
        self._join_fds = tuple(join_fds)
        self._events_fd = events_fd

    def join(self, pid: int) -> None:
        """Move a process that has just been started. What it may have started before stays under the outer limits."""
        text = b"%d" % pid
        for descriptor in self._join_fds:
            try:
                os.pwrite(descriptor, text, 0)
            except OSError:
                continue  # it has ended already, or the group is full: the outer limits hold

    def oom_kills(self) -> int:
        """Processes of the sandbox's commands that the kernel has killed for want of memory so far."""
        if self._events_fd is None:
            return 0
        try:
            lines = os.pread(self._events_fd, 4096, 0).splitlines()
        except OSError:
            return 0
        return next((int(line[9:]) for line in lines if line.startswith(b"oom_kill ") and line[9:].isdigit()), 0)
