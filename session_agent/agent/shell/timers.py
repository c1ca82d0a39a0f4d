"""The timer by which a shell ends and watches its runs: moved with each of them, it seldom fires.

Owns the trick: putting it off costs an assignment, since the event loop's own timer is left where it is and looks again when it fires.
Called by ``shell`` for every run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

NEVER = float("inf")


class LazyTimer:
    """Calls ``then`` once, at the time that ``set`` named last."""

    __slots__ = ("_armed_at", "_due", "_handle", "_loop", "_then")

    def __init__(self, loop: asyncio.AbstractEventLoop, then: Callable[[], None]) -> None:
        self._loop = loop
        self._then = then
        self._due = self._armed_at = NEVER
        self._handle: asyncio.TimerHandle | None = None

    def set(self, due: float) -> None:
        """Fire at ``due`` by the loop's clock, and not before."""
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
