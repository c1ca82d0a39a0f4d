"""A timer that can be postponed at little cost.

Postponing it only stores the new time: the timer of the event loop stays as it is, and is set again if it fires too early. A shell moves
its timer with every run, so most timers never fire. Used by ``monitor``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

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
