"""Memory reservations: bytes of bodies, files and output that the REST requests of this replica hold, in all and for one owner.

Owns the counters and the refusal: many large requests at once must not take the memory that sessions need. A request gives its bytes
back when it has been answered. Sessions stream and reserve nothing. ``app`` begins a reservation for each request; ``request_fields``
and ``operations`` add to it, through the context of the request's task.
"""

from __future__ import annotations

from collections import Counter
from contextvars import ContextVar
from typing import Final

from holdfast_wire.errors import HoldfastError

_SMALL_BYTES: Final = 64 * 1024
"""Requests up to this size are not counted: the number of connections limits them."""


class MemoryReservations:
    """One per replica. ``limit_bytes`` for all; an owner has three quarters of it."""

    def __init__(self, limit_bytes: int) -> None:
        self.reserved_bytes = 0
        self._limit = limit_bytes
        self._owners: Counter[str] = Counter()

    def change(self, owner: str, size: int) -> None:
        """Change the number of reserved bytes. Raises ``overloaded`` if the limit would be exceeded."""
        if size > 0 and (self.reserved_bytes + size > self._limit or self._owners[owner] + size > self._limit * 3 // 4):
            raise HoldfastError(
                "overloaded",
                "too many large requests and answers are under way on this replica",
                hint="retry after the seconds in Retry-After with fewer requests at a time, or use a session, which streams",
            )
        self.reserved_bytes += size
        self._owners[owner] += size
        if not self._owners[owner]:
            del self._owners[owner]


class RequestReservation:
    """What one request has reserved, from its head to the end of its answer. ``owner`` is set once it is known."""

    def __init__(self, memory: MemoryReservations) -> None:
        self.owner = ""
        self._memory = memory
        self._uncounted = 0
        self._size = 0

    def add(self, size: int) -> None:
        """Reserve so many bytes more. Raises HoldfastError ``overloaded``."""
        self._uncounted += size
        if self._uncounted > _SMALL_BYTES:
            self._memory.change(self.owner, self._uncounted)
            self._size += self._uncounted
            self._uncounted = 0

    def release(self) -> None:
        if self._size:
            self._memory.change(self.owner, -self._size)
            self._size = 0

    def __enter__(self) -> None:
        self._token = _current.set(self)

    def __exit__(self, *_: object) -> None:
        _current.reset(self._token)
        self.release()


def reserve_memory(size: int) -> None:
    """Reserve so many bytes more for the current request. Raises HoldfastError ``overloaded``."""
    reservation = _current.get()
    if reservation is not None:
        reservation.add(size)


def reserve_for(owner: str) -> None:
    """Set the owner of the current request."""
    reservation = _current.get()
    if reservation is not None:
        reservation.owner = owner


_current: ContextVar[RequestReservation | None] = ContextVar("memory reservation of the current request", default=None)
