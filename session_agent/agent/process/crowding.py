"""Which control groups a new process joins: the commands', or in a crowded sandbox a group that a fork bomb cannot use up.

A fork bomb takes all memory, processor time and processes of the commands' groups, and a command that starts among its thousand
processes does not get as far as its exec. So while there are very many processes a new one starts outside these groups, where it has
a part of the reserve that is kept for the agent: enough to look around and to kill the bomb. Only clients can start processes this way.
``processes`` moves it to the commands' groups later. Used by ``fork``, ``processes`` and ``cgroups``.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from .known_names import KnownNames

_SPARE_PIDS = 16
"""Processes that a command must still be able to start in the commands' group; if the group has fewer left it is crowded."""
_MANY_TASKS, _MANY_PROCESSES = 128, 128
"""It is also crowded with so many processes. Processes with hundreds of threads, such as a Java server, are not counted as many."""

_LIST_BYTES = 4096
"""Most bytes of the list of rescued tasks that are read; a few dozen tasks fit into the reserve."""


class Placement:
    """``task_fds`` are open ``tasks`` files of the commands' groups: a process that writes 0 to one moves itself into that group.

    ``rescue_fds`` are those of the rescue group, for crowded sandboxes, which can be read too; ``pids_fds`` are the files ``pids.current``
    and ``pids.max`` of the commands' group.
    """

    def __init__(self, task_fds: Sequence[int] = (), pids_fds: Sequence[int] = (), rescue_fds: Sequence[int] = ()) -> None:
        self._task_fds = tuple(task_fds)
        self._pids_fds = tuple(pids_fds)
        self._rescue_fds = tuple(rescue_fds)
        self._names = KnownNames()
        self.has_rescued = False
        """Whether a process that ``choose`` placed outside the commands' groups may still be there."""

    def __bool__(self) -> bool:
        """Whether there are groups to join."""
        return bool(self._task_fds)

    def choose(self, path: str = "") -> tuple[int, ...]:
        """The ``tasks`` files of the groups that a new process joins. ``path``: its variable ``PATH``."""
        if not self._is_crowded():
            if self._rescue_fds:
                self._names.look_up(path)
            return self._task_fds
        self.has_rescued = True
        return self._rescue_fds

    def end_rescue(self) -> None:
        """Move all tasks of the rescue group to the commands' groups. Blocks, up to 10 ms for each, longer beside a fork bomb."""
        self.has_rescued = False
        for task in os.pread(self._rescue_fds[0], _LIST_BYTES, 0).split() if self._rescue_fds else ():
            for descriptor in self._task_fds:
                try:
                    os.pwrite(descriptor, task, 0)
                except OSError:
                    continue  # it has ended

    def _is_crowded(self) -> bool:
        if not self._pids_fds:
            return False
        current, most = self._pids_fds
        try:
            tasks = int(os.pread(current, 32, 0))
            if tasks < _MANY_TASKS and tasks + _SPARE_PIDS <= _limit(most):
                return False
            return tasks + _SPARE_PIDS > _limit(most) or sum(name.isdigit() for name in os.listdir("/proc")) > _MANY_PROCESSES
        except (OSError, ValueError):
            return False


def _limit(descriptor: int) -> float:
    text = os.pread(descriptor, 32, 0).strip()
    return float("inf") if text == b"max" else int(text)
