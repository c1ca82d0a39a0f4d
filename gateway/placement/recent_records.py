"""Records that were read a moment ago, for a face whose requests follow each other and each need the same record.

Owns for how long a record may be used again: for a quarter of a second, and not after this replica has changed anything in the store. A
request then sees at most what one would see that had arrived so much earlier. Called by ``use_cases.previews``.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Final

from gateway.model.records import Record

FRESH_S: Final = 0.25
_MOST: Final = 1024
"""Most records; beyond that all are forgotten."""


class RecentRecords:
    """One per replica. ``changes`` returns a number that rises with each change of the store by this replica."""

    def __init__(self, changes: Callable[[], int], clock: Callable[[], float] = time.monotonic) -> None:
        self._changes = changes
        self._clock = clock
        self._found: dict[tuple[str, str], tuple[Record, int, float]] = {}
        """By owner and name: the record, the number and the time before it was read."""

    async def get(self, owner: str, name: str, read: Callable[[str, str], Awaitable[Record]]) -> Record:
        """The record that ``read`` returned a moment ago, or returns now. Raises what ``read`` raises."""
        changes, now = self._changes(), self._clock()
        found = self._found.get((owner, name))
        if found is not None and found[1] == changes and now - found[2] < FRESH_S:
            return found[0]
        record = await read(owner, name)
        if len(self._found) >= _MOST:
            self._found.clear()
        self._found[owner, name] = record, changes, now
        return record

    def forget(self, owner: str, name: str) -> None:
        """The record turned out to be out of date, or may be."""
        self._found.pop((owner, name), None)
