"""How many agents one replica dials at the same time; the others wait in order.

A thousand agents that are asked at once on one machine share its processors, so each answers when nearly all have, and all exceed the time
limit of a dial together. Asked in turn, each answers quickly.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

AT_ONCE = 64
"""More than any number of agents that answer at a rate a replica can use: a thousand a second at 64 ms each."""
PLACE_S = 0.5
"""For how long a dial counts: agents that do not answer, such as those of a lost machine, must not keep the others waiting."""


class DialQueue:
    """Places for dials."""

    def __init__(self, at_once: int = AT_ONCE, place_s: float = PLACE_S) -> None:
        self._places = asyncio.Semaphore(at_once)
        self._place_s = place_s

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Wait for a place, first come first served, and hold it until the block or ``place_s`` is over, whichever comes first."""
        await self._places.acquire()
        held = True

        def leave() -> None:
            nonlocal held
            if held:
                held = False
                self._places.release()

        timer = asyncio.get_running_loop().call_later(self._place_s, leave)
        try:
            yield
        finally:
            timer.cancel()
            leave()
