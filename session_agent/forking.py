"""Where the agent forks, so that what it starts is born among the commands and not beside the agent.

Owns one thread. Control groups of the first version hold threads, and a child begins in the group of the thread that forked it: so the
thread moves itself to the commands' group once (which can wait 10 ms for the kernel), and forking from it costs a hand-over instead
of a move. The limits of commands hold from their first instruction, and the agent keeps its reserve of memory, processes and CPU.
Used by ``procs``; where the node hands over no groups everything is forked by the caller.
"""

from __future__ import annotations

import os
import queue
import signal
import threading
from collections.abc import Callable, Sequence
from typing import Any

_CROWD = 160
"""Entries of ``/proc``, some 60 of which are no processes."""


class Forker:
    """``thread_fds`` are open ``tasks`` files of the commands' groups, ``join_fds`` their ``cgroup.procs``."""

    def __init__(self, thread_fds: Sequence[int] = (), join_fds: Sequence[int] = (), *, crowd: int = _CROWD) -> None:
        self._crowd = crowd
        self._thread_fds = tuple(thread_fds)
        self._join_fds = tuple(join_fds)
        self._asked: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        self._answered: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()
        self._early: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._ready = False

    def start(self) -> None:
        """Begin to move there; until that is done ``call`` runs things where it is called."""
        if self._thread_fds and self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="forker", daemon=True)
            try:
                self._thread.start()
            except RuntimeError:
                self._thread = None  # no room for a thread: the outer limits hold

    def stop(self) -> None:
        """End the thread. Not waited for: the process ends as well."""
        self._ready = False
        self._asked.put(None)

    def call(self, start: Callable[[], Any]) -> Any:
        """What ``start`` returns or raises. It forks: from here where the commands' group is crowded or has no room left.

        So that a sandbox full of processes can still be looked into, by its owner alone, as nothing in it asks the agent; and so that
        the agent does not wait for a thread, and a child that has not come to its exec, to be given their turns among hundreds.
        """
        if not self._ready or len(os.listdir("/proc")) > self._crowd:
            return start()
        self._asked.put(start)
        result, error = self._answered.get()
        if isinstance(error, BlockingIOError):
            return start()
        if error is not None:
            raise error
        return result

    def born_early(self, pid: int) -> None:
        """A process that was started before the thread was in its place is moved when it is."""
        if self._thread is not None and not self._ready:
            self._early.put(pid)

    def _serve(self) -> None:
        # Signals to the agent are for its loop. In here one would wait for this thread's turn among the commands.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        if not self._move(self._thread_fds, threading.get_native_id()):
            return
        self._ready = True
        while not self._early.empty():
            self._move(self._join_fds, self._early.get())
        while (start := self._asked.get()) is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)  # a child has the mask of the thread that forked it
            try:
                answer: tuple[Any, BaseException | None] = (start(), None)
            except BaseException as error:  # noqa: BLE001 - it is the caller's
                answer = (None, error)
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
            self._answered.put(answer)
            del start

    @staticmethod
    def _move(files: Sequence[int], task: int) -> bool:
        done = True
        for descriptor in files:
            try:
                os.pwrite(descriptor, b"%d" % task, 0)
            except OSError:
                done = False
        return done
