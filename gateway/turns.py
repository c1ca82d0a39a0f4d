"""Work on received bytes that is too much for one turn of the event loop: it is continued in later turns, one piece in each.

Owns the order of the pieces, which is fair: a connection that has more to do queues again behind the others. Many small messages in one
read would otherwise delay every other connection for as long as they take together. Used by the HTTP protocol, the relay and the
connections to agents; each of them reads no further while work of its own waits, so the queue is limited by the number of connections.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from weakref import WeakKeyDictionary


class Turns:
    """The deferred work of all connections of one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[Callable[[], None]] = deque()

    def add(self, work: Callable[[], None]) -> None:
        """Call ``work`` in a later turn, after what was added before. It must not raise."""
        self._waiting.append(work)
        if len(self._waiting) == 1:
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        try:
            self._waiting[0]()
        finally:
            self._waiting.popleft()
            if self._waiting:
                self._loop.call_soon(self._run)


_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, Turns] = WeakKeyDictionary()


def turns() -> Turns:
    """The turns of the running event loop."""
    loop = asyncio.get_running_loop()
    found = _turns.get(loop)
    if found is None:
        found = _turns[loop] = Turns(loop)
    return found
