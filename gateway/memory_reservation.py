"""Memory reservations: bytes of bodies, files and output that the REST requests of this replica hold, in all and for one owner.

Owns the counters and the refusal: many large requests at once must not take the memory that sessions need. A request gives its bytes
back when it has been answered. Sessions stream and reserve nothing. ``app`` begins a reservation for each request; ``request_fields``
and ``operations`` add to it, through the context of the request's task.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Final

from holdfast_wire.errors import HoldfastError

_SMALL_BYTES: Final = 64 * 1024
"""Below this nothing is counted: there can be as many of these as there are connections."""


class MemoryReservations:
    """One per replica. ``limit_bytes`` for all; an owner has three quarters of it."""

    def __init__(self, limit_bytes: int) -> None:
        self.held = 0
        self._limit = limit_bytes
        self._owners: Counter[str] = Counter()

    def change(self, owner: str, size: int) -> None:
        """Raises ``overloaded`` when more is to be held than there is."""
        if size > 0 and (self.held + size > self._limit or self._owners[owner] + size > self._limit * 3 // 4):
            raise HoldfastError(
                "overloaded",
                "too many large requests and answers are under way on this replica",
                hint="retry after Retry-After, fewer at a time, or use a session, which streams",
            )
        self.held += size
        self._owners[owner] += size
        if not self._owners[owner]:
            del self._owners[owner]


class RequestReservation:
    """What one request holds. ``owner`` is set once it is known."""

    def __init__(self, memory: MemoryReservations) -> None:
        self.owner = ""
        self._memory = memory
        self._uncounted = 0
        self._size = 0

    def add(self, size: int) -> None:
        """Hold so many bytes more. Raises HoldfastError ``overloaded``."""
        self._uncounted += size
        if self._uncounted > _SMALL_BYTES:
            self._memory.change(self.owner, self._uncounted)
            self._size += self._uncounted
            self._uncounted = 0

    def release(self) -> None:
        self._memory.change(self.owner, -self._size)
        self._size = 0


@contextlib.contextmanager
def holding(memory: MemoryReservations) -> Iterator[None]:
    """Around one request, from its head to the end of its answer."""
    held = RequestReservation(memory)
    token = _current.set(held)
    try:
        yield
    finally:
        _current.reset(token)
        held.release()


def hold(size: int) -> None:
    """The request this runs for holds so many bytes more. Raises HoldfastError ``overloaded``."""
    held = _current.get()
    if held is not None:
        held.add(size)


def hold_for(owner: str) -> None:
    """Whose request it is."""
    held = _current.get()
    if held is not None:
        held.owner = owner


_current: ContextVar[RequestReservation | None] = ContextVar("what the present request holds", default=None)
