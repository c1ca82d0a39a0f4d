"""A timer that is put off far more often than it fires.

Owns the trick: putting it off costs an assignment, since the event loop's own timer is left where it is and looks again when it fires.
Called by ``shell`` for every run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class LazyTimer:
    """Calls ``then`` once, at the time that ``put_off`` named last."""

    __slots__ = ("_due", "_handle", "_loop", "_then")

    def __init__(self, loop: asyncio.AbstractEventLoop, then: Callable[[], None]) -> None:
        self._loop = loop
        self._then = then
        self._due = 0.0
        self._handle: asyncio.TimerHandle | None = None

    def put_off(self, due: float) -> None:
        """Fire at ``due`` by the loop's clock, which is never before the time it was to fire at until now."""
        self._due = due
        if self._handle is None:
            self._handle = self._loop.call_at(due, self._fire)

    def cancel(self) -> None:
        """Do not fire."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _fire(self) -> None:
        self._handle = None
        if self._loop.time() < self._due:
            self._handle = self._loop.call_at(self._due, self._fire)
        else:
            self._then()
