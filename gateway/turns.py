"""Work on received bytes that is too much for one turn of the event loop: it is continued in later turns, a bounded part in each.

Owns the order. Connections with a valid key go first, one piece in each turn, and each queues again behind the others. All connections
without one share a number of steps per turn; addresses are served in rotation, so what one address sends delays another by one piece at
most. Used by the HTTP protocol, the relay and the connections to agents; each of them reads no further while work of its own waits, so the
queues are limited by the number of connections.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final
from weakref import WeakKeyDictionary

STEPS: Final = 512
"""Heads and parts of bodies, weighted, that all connections without a valid key may cause in one turn: one or two milliseconds."""


class Turns:
    """The deferred work of all connections of one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[Callable[[], None]] = deque()
        self._of_address: dict[str, deque[Callable[[], None]]] = {}
        """Of connections without a valid key. The address that was served last is the last."""
        self._left = STEPS
        self._scheduled = False

    @property
    def waiting(self) -> int:
        """How many pieces of work wait for a later turn."""
        return len(self._waiting) + sum(map(len, self._of_address.values()))

    def add(self, work: Callable[[], None]) -> None:
        """Call ``work`` in a later turn, after what was added before. It must not raise."""
        self._waiting.append(work)
        self._schedule()

    def add_without_key(self, address: str, work: Callable[[], None]) -> None:
        """Call ``work`` in a later turn, in rotation with other addresses. It must not raise, and it calls ``spend``."""
        self._of_address.setdefault(address, deque()).append(work)
        self._schedule()

    def has_room(self) -> bool:
        """Whether a connection without a valid key may be served in this turn, without ``add_without_key``."""
        return self._left > 0 and not self._of_address

    def spend(self, steps: int) -> None:
        """A connection without a valid key has caused ``steps``."""
        self._left -= steps
        self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        self._scheduled = False
        self._left = STEPS
        if self._waiting:
            self._waiting.popleft()()
        while self._of_address and self._left > 0:
            address = next(iter(self._of_address))
            queue = self._of_address.pop(address)
            work = queue.popleft()
            if queue:
                self._of_address[address] = queue
            self._left -= 1
            work()
        if self._waiting or self._of_address:
            self._schedule()


_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, Turns] = WeakKeyDictionary()


def turns() -> Turns:
    """The turns of the running event loop."""
    loop = asyncio.get_running_loop()
    found = _turns.get(loop)
    if found is None:
        found = _turns[loop] = Turns(loop)
    return found
