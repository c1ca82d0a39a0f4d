"""The time limit of an exchange with a server, which does not count the time in which this process was too busy to read the answer.

A thousand requests that arrive together keep the event loop from reading for longer than a step of the placement store may take. An
``asyncio.timeout`` then expires although the answer has arrived, and a busy replica would report an outage that does not exist.
"""

from __future__ import annotations

import asyncio
from types import TracebackType

_PARTS = 8


class TurnLimit:
    """As ``asyncio.timeout(limit_s)``, counted in eight parts, each of which ends on another turn of the event loop.

    A turn of any length uses up one part at most, and each turn reads what has arrived. Raises ``TimeoutError``.
    """

    __slots__ = ("_left", "_limit", "_loop", "_part_s", "_timer")

    def __init__(self, limit_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._limit = asyncio.timeout(None)
        self._part_s = limit_s / _PARTS
        self._left = _PARTS

    async def __aenter__(self) -> None:
        await self._limit.__aenter__()
        self._timer = self._loop.call_later(self._part_s, self._part_ended)

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._timer.cancel()
        await self._limit.__aexit__(kind, error, trace)

    def _part_ended(self) -> None:
        self._left -= 1
        if self._left:
            self._timer = self._loop.call_later(self._part_s, self._part_ended)
        else:
            self._limit.reschedule(self._loop.time())
