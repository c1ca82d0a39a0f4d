"""The changes of sandboxes as they happen, for the owners that follow them: one reader of the store for each replica, off every other path.

Owns how often the store is read, which is only while there are followers, and what happens when a follower or the store falls behind. A
change is the state of a sandbox after it: what changes twice within one read comes once. Every change comes at least once. Called by
``use_cases.events``.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gateway.model.records import Changes, Record, Tombstone

from .errors import PlacementUnavailableError
from .store import PlacementStore

READ_S: Final = 0.25
_WAITING: Final = 1024
"""Most changes that wait for one follower; beyond that they are dropped, and it gets a gap."""
_OF_ONE_READ: Final = 2000
"""Most changes that one read looks up at once."""


@dataclass(frozen=True, slots=True)
class Batch:
    """``cursor`` is the position after these changes. ``gap`` is why some before it may be missing, "" if none are.

    ``facts`` are not of the store: what a follower was given besides (``Follower.add_facts``).
    """

    cursor: Sequence[str]
    entries: Sequence[Record | Tombstone]
    gap: str = ""
    facts: Sequence[dict[str, Any]] = ()
    answers: bool | None = None
    """Whether the store answers, in a batch that tells that this has changed."""


class Follower:
    """One reader of an owner's changes."""

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self._batches: deque[Batch] = deque()
        self._waiting = 0
        self._changed = asyncio.Event()
        self.cursor: Sequence[str] = ()
        """The position after what was added last."""

    def add_facts(self, facts: Sequence[dict[str, Any]]) -> None:
        """Add what comes from elsewhere, in order with the changes."""
        self.add(Batch(self.cursor, (), facts=facts))

    def add(self, batch: Batch) -> None:
        self._waiting += len(batch.entries) + len(batch.facts)
        self.cursor = batch.cursor
        if self._waiting > _WAITING:
            self._batches.clear()
            self._waiting, batch = 0, Batch(batch.cursor, (), "this client reads more slowly than sandboxes change")
        self._batches.append(batch)
        self._changed.set()

    async def next(self) -> Batch:
        while not self._batches:
            self._changed.clear()
            await self._changed.wait()
        batch = self._batches.popleft()
        self._waiting -= len(batch.entries) + len(batch.facts)
        return batch


class ChangeFeed:
    """One per replica."""

    def __init__(self, store: PlacementStore) -> None:
        self._store = store
        self._followers: dict[str, set[Follower]] = {}
        self._followed = asyncio.Event()
        self._cursor: Sequence[str] | None = None
        self._answers = True

    def __len__(self) -> int:
        return sum(map(len, self._followers.values()))

    def of_owner(self, owner: str) -> int:
        """How many followers an owner has."""
        return len(self._followers.get(owner, ()))

    def follow(self, owner: str) -> Follower:
        """Begin to collect the owner's changes. ``leave`` ends it."""
        follower = Follower(owner)
        self._followers.setdefault(owner, set()).add(follower)
        self._followed.set()
        return follower

    def leave(self, follower: Follower) -> None:
        followers = self._followers[follower.owner]
        followers.discard(follower)
        if not followers:
            del self._followers[follower.owner]
        if not self._followers:
            self._followed.clear()
            self._cursor = None

    async def since(self, owner: str, cursor: Sequence[str] | None) -> Batch:
        """The owner's changes after a position; without one, only the position. Called after ``follow``, so that none is missed in between.

        Raises ``PlacementUnavailableError``.
        """
        changes = await self._store.changes(cursor)
        self._cursor = self._cursor or changes.cursor  # the feed reads from the position of its first follower on
        if cursor is None:
            return Batch(changes.cursor, ())
        return Batch(changes.cursor, [one for one in await self._entries(changes) if one.owner == owner], _gap(changes))

    async def run(self) -> None:
        """Read the store while there are followers, until cancelled."""
        while True:
            await self._followed.wait()
            try:
                await self._read()
                self._turn(answers=True)
            except PlacementUnavailableError:
                self._turn(answers=False)  # the position stays: what changes meanwhile comes later, or as a gap
            await asyncio.sleep(READ_S)

    def _turn(self, *, answers: bool) -> None:
        """Tell the followers when the store stops to answer, and when it answers again: until then they know only what was before."""
        if answers == self._answers:
            return
        self._answers = answers
        for followers in self._followers.values():
            for follower in followers:
                follower.add(Batch(follower.cursor, (), answers=answers))

    async def _read(self) -> None:
        if self._cursor is None:
            return  # a follower is about to ask for its position
        changes = await self._store.changes(self._cursor)
        entries = await self._entries(changes) if changes.ids else []
        if not self._followers:
            return
        self._cursor, gap = changes.cursor, _gap(changes)
        for owner, followers in list(self._followers.items()):
            own = [one for one in entries if one.owner == owner]
            if own or gap:
                for follower in list(followers):
                    follower.add(Batch(changes.cursor, own, gap))

    async def _entries(self, changes: Changes) -> list[Record | Tombstone]:
        ids = sorted(changes.ids)
        found: list[Record | Tombstone] = []
        for begin in range(0, len(ids), _OF_ONE_READ):
            part = ids[begin : begin + _OF_ONE_READ]
            records = await self._store.records(part)
            found += records
            found += (await self._store.tombstones(_missing(part, records))).values()
        return found


def _missing(ids: Iterable[str], records: Iterable[Record]) -> list[str]:
    present = {record.sandbox_id for record in records}
    return [id_ for id_ in ids if id_ not in present]


def _gap(changes: Changes) -> str:
    return "the store no longer has all changes since that position" if changes.lost else ""
