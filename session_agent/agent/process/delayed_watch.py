"""A delay before the event loop watches a new command.

Owns one timer for all commands of an agent. Most commands end within the delay; their output is read once, when they end. A command that
runs longer is watched from then on: its start is reported and its output is sent as it arrives. Watching every command from its start
would cost four iterations of the event loop and two messages, which is more than a short command takes.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

DELAY_S = 0.005


class Watchable(Protocol):
    """A process that can be watched."""

    def watch(self) -> None:
        """Report its start, and its output as it comes."""
        ...


class DelayedWatch:
    """The commands that are not watched yet. One instance per agent."""

    def __init__(self) -> None:
        self._waiting: dict[Watchable, float] = {}
        """When the delay of each ends, the first to end first."""
        self._timer: asyncio.TimerHandle | None = None

    def add(self, process: Watchable) -> None:
        """Watch ``process`` after the delay, unless it is removed before."""
        loop = asyncio.get_running_loop()
        due = self._waiting[process] = loop.time() + DELAY_S
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
        now = loop.time()
        for process in [process for process, due in self._waiting.items() if due <= now]:
            process.watch()
        if self._waiting and self._timer is None:
            self._timer = loop.call_at(next(iter(self._waiting.values())), self._fire, loop)
