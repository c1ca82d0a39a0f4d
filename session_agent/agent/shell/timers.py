"""The timers of a living shell: one that can be postponed at little cost, and one that asks for a report again and again.

Postponing ``LazyTimer`` only stores the new time: the timer of the event loop stays as it is, and is set again if it fires too early. A
shell moves its timer with every run, so most timers never fire. ``monitor`` uses that one; ``abort``, ``monitor`` and ``rebuild`` return a
``Retry``, which ``shell`` cancels.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from .process import ShellProcess

NEVER = float("inf")


class LazyTimer:
    """Calls ``then`` once, at the time of the last ``set``."""

    __slots__ = ("_armed_at", "_due", "_handle", "_loop", "_then")

    def __init__(self, loop: asyncio.AbstractEventLoop, then: Callable[[], None]) -> None:
        self._loop = loop
        self._then = then
        self._due = self._armed_at = NEVER
        self._handle: asyncio.TimerHandle | None = None

    def set(self, due: float) -> None:
        """Fire at ``due``, by the loop's clock."""
        self._due = due
        if due < self._armed_at:
            if self._handle is not None:
                self._handle.cancel()
            self._armed_at = due
            self._handle = self._loop.call_at(due, self._fire)

    def cancel(self) -> None:
        """Do not fire."""
        self._armed_at = NEVER
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _fire(self) -> None:
        self._handle, self._armed_at = None, NEVER
        if self._loop.time() < self._due:
            self.set(self._due)
        else:
            self._then()


class Retry:
    """Calls ``again`` after each of ``pauses`` until ``cancel``, and ``give_up`` after the last one.

    Timers are counted, not time: while the agent is not scheduled it reads no reports. ``pauses`` may end early for what it finds: it is
    advanced before the reports are read, and one of those may explain that.
    """

    __slots__ = ("_again", "_give_up", "_loop", "_pauses", "_process", "_timer")

    def __init__(
        self, process: ShellProcess, pauses: Iterator[float], give_up: Callable[[], None], again: Callable[[], None] | None = None
    ) -> None:
        self._process = process
        self._pauses = pauses
        self._give_up = give_up
        self._again = again
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(next(pauses), self._fire)

    def cancel(self) -> None:
        """Stop asking: the report has arrived, or is not needed any more."""
        self._timer.cancel()

    def _fire(self) -> None:
        pause_s = next(self._pauses, None)
        self._process.read_reports()
        if self._process.status is not None or self._timer.cancelled():
            return
        if pause_s is None:
            self._give_up()
            return
        if self._again is not None:
            self._again()
        self._timer = self._loop.call_later(pause_s, self._fire)
