"""Which processes belong to which run of a living shell.

Owns the numbering of runs and their marks (``process_tree``). The shell is marked before each run, so what the run starts inherits the
mark. Where the kernel does not permit that, bash marks itself; with another shell a run's processes are all of the shell's processes that
did not exist before the run. Called by ``shell``.
"""

from __future__ import annotations

from collections.abc import Callable

from session_agent.agent.process.process_tree import mark_run, marked, members, owned_by, run_tag

from .run import Run


class RunProcesses:
    """The marks of one shell's runs. ``tag`` is the mark of the shell, whatever process it lives in."""

    __slots__ = ("_can_mark", "_is_bash", "_runs", "tag")

    def __init__(self, tag: int, *, is_bash: bool) -> None:
        self.tag = tag
        self._is_bash = is_bash
        self._runs = 0
        self._can_mark = True

    def begin(self, run: Run, shell_pid: int) -> int | None:
        """Mark the shell for ``run``. Returns the mark if the shell has to set it itself."""
        self._runs += 1
        run.tag = run_tag(self.tag, self._runs)
        if self._can_mark and not mark_run(shell_pid, run.tag):
            self._can_mark = False
        if self._can_mark:
            return None
        if not self._is_bash:
            run.before = frozenset(members(owned_by(self.tag)))
        return run.tag

    def match(self, run: Run) -> Callable[[int], bool]:
        """A predicate for marks: whether a process belongs to ``run``, unless it is in ``run.before``."""
        if not self._can_mark and not self._is_bash:
            return owned_by(self.tag)
        return lambda tag: tag == run.tag

    def marked(self, run: Run, shell_pid: int) -> list[int]:
        """Processes of ``run``, also ended ones, without the shell itself; fast."""
        return [pid for pid in marked(self.match(run)) if pid != shell_pid and pid not in run.before]

    def of(self, run: Run, shell_pid: int) -> list[int]:
        """The living processes of ``run``, without the shell itself."""
        return members(self.match(run), exclude=run.before | {shell_pid})
