"""The records of all sandboxes, kept from pass to pass and brought up to date from the store's changes.

Owns when everything is read again: at first, after a wipe of the store, where its changes are incomplete, and now and then, for what was
changed by other means than a step of this version. Called by ``reconciler``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from gateway.model.records import Record
from gateway.placement.keys import shard_of
from gateway.placement.store import PlacementStore

_READS_UNTIL_SCAN = 30
"""At the deployed interval every record is read every five minutes."""


class RecordCache:
    """See the module. One that raised is read again from the start."""

    def __init__(self, store: PlacementStore) -> None:
        self._store = store
        self._records: dict[str, Record] = {}
        self._cursor: Sequence[str] | None = None
        self._marker: str | None = None
        self._reads = 0
        self.scanned = False
        """Whether the last read was of all records, not only of what changed."""

    async def read(self, marker: str | None) -> Mapping[str, Record]:
        """All records as of now; ``marker`` is the store's generation."""
        if marker is None or marker != self._marker or self._reads >= _READS_UNTIL_SCAN:
            self._cursor, self._reads = None, 0
        cursor, self._cursor = self._cursor, None
        changes = await self._store.changes(cursor)  # before the records, so that a change in between is seen by the next read
        self.scanned = cursor is None
        lost = frozenset(changes.lost)
        if lost:
            self._records = {id_: record for id_, record in self._records.items() if shard_of(id_) not in lost}
            async for record in self._store.scan(changes.lost):
                self._records[record.sandbox_id] = record
        # Replicas renew a pending record, which is not a change.
        await self.refresh(changes.ids | {id_ for id_, record in self._records.items() if record.status == "pending"})
        self._cursor, self._marker = changes.cursor, marker
        self._reads += 1
        return self._records

    async def refresh(self, sandbox_ids: Collection[str]) -> None:
        """Read these again."""
        found = {record.sandbox_id: record for record in await self._store.records(sandbox_ids)}
        for id_ in sandbox_ids:
            self._records.pop(id_, None)
        self._records |= found
