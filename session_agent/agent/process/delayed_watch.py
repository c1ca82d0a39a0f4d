"""A delay before the event loop watches a new command.

Owns the delay and one timer for all commands. Most commands end within the delay; their output is read once, when they end. A command
that runs longer is watched from then on: its start is reported and its output is sent as it arrives. Watching every command from its
start would cost four iterations of the event loop and two messages, which is more than a short command takes.

On a busy machine a short command takes long, and watching it makes it take longer. There the delay grows while the command writes nothing,
and the commands after it begin with the delay that it reached.
"""

from __future__ import annotations

import asyncio
import os
from typing import Protocol

DELAY_S = 0.005
BUSY_FACTOR = 8
"""On a busy machine each delay is so many times as long as the one before it."""
BUSY_MOST_S = 0.4
"""The longest of these delays: 5, 40 and 320 ms, and then the command is watched."""
LOAD_FILE = "/proc/loadavg"
_RUNNABLE_PER_CORE = 2
"""A machine on which more processes than that want to run is busy."""


class Watchable(Protocol):
    """A process that can be watched."""

    def watch(self) -> None:
        """Report its start, and its output as it comes."""
        ...

    def has_output(self) -> bool:
        """Whether it has written something that was not read yet."""
        ...


class DelayedWatch:
    """The commands that are not watched yet. One instance per agent."""

    def __init__(self) -> None:
        self._waiting: dict[Watchable, tuple[float, float]] = {}
        """When the delay of each ends, and how long it is."""
        self._delay_s = DELAY_S
        self._timer: asyncio.TimerHandle | None = None

    def add(self, process: Watchable) -> None:
        """Watch ``process`` after a delay, unless it is removed before."""
        loop = asyncio.get_running_loop()
        due = loop.time() + self._delay_s
        self._waiting[process] = due, self._delay_s
        if self._timer is None:
            self._timer = loop.call_at(due, self._fire, loop)

    def remove(self, process: Watchable) -> None:
        """Do not watch ``process`` later: it has ended, or it is watched already."""
        self._waiting.pop(process, None)

    def cancel(self) -> None:
        """Watch none of them."""
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fire(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        now, waiting = loop.time(), self._waiting
        due = [process for process, (when, _) in waiting.items() if when <= now]
        if not waiting or ((due or self._delay_s > DELAY_S) and not is_busy()):
            self._delay_s = DELAY_S
            due += [process for process, (when, delay_s) in waiting.items() if when > now and delay_s > DELAY_S]
            for process in due:
                process.watch()
        else:
            for process in due:
                longer_s = waiting[process][1] * BUSY_FACTOR
                if longer_s > BUSY_MOST_S or process.has_output():
                    process.watch()
                else:
                    waiting[process] = now + longer_s, longer_s
                    self._delay_s = longer_s
        if waiting and self._timer is None:
            self._timer = loop.call_at(min(waiting.values())[0], self._fire, loop)


def is_busy() -> bool:
    """Whether far more processes want to run on this machine than it has cores (proc_loadavg(5), the fourth field)."""
    try:
        # A named pipe in its place, on which a blocking open would never return, reads as empty.
        descriptor = os.open(LOAD_FILE, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            text = os.read(descriptor, 64)
        finally:
            os.close(descriptor)
        return int(text.split()[3].partition(b"/")[0]) > _RUNNABLE_PER_CORE * (os.cpu_count() or 1)
    except (OSError, ValueError, IndexError):  # /proc is not there, or a sandbox put something in its place
        return False
