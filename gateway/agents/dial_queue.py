"""How many agents one replica dials at the same time; the others wait in order.

A thousand agents that are asked at once on one machine share its processors, so each answers when nearly all have, and all exceed the time
limit of a dial together. If fewer are asked at the same time, each answers quickly.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

AT_ONCE = 64
OF_ONE_OWNER = 16
"""Most dials of one owner at a time. Fewer than all, so that an owner whose agents do not answer does not delay the others."""
PLACE_S = 0.1
"""For how long a dial counts. Agents that do not answer, such as those of a lost machine, delay the others by no more than that."""


class DialQueue:
    """Places for dials, so many for all and so many for one owner."""

    def __init__(self, at_once: int = AT_ONCE, of_one_owner: int = OF_ONE_OWNER, place_s: float = PLACE_S) -> None:
        self._places = asyncio.Semaphore(at_once)
        self._place_s = place_s
        self.waiting = 0
        """Dials that wait for a place."""
        self._of_owner: defaultdict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(of_one_owner))
        """One entry for each owner; their number is limited by the keys file."""

    @asynccontextmanager
    async def place(self, owner: str) -> AsyncIterator[None]:
        """Wait for a place, first come first served, and hold it until the block or ``place_s`` is over, whichever comes first."""
        self.waiting += 1
        waits = True
        try:
            async with self._held(self._of_owner[owner]), self._held(self._places):
                self.waiting -= 1
                waits = False
                yield
        finally:
            self.waiting -= waits

    @asynccontextmanager
    async def _held(self, places: asyncio.Semaphore) -> AsyncIterator[None]:
        await places.acquire()
        held = True

        def leave() -> None:
            nonlocal held
            if held:
                held = False
                places.release()

        timer = asyncio.get_running_loop().call_later(self._place_s, leave)
        try:
            yield
        finally:
            timer.cancel()
            leave()
