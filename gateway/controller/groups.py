"""Groups that have ended: their sandboxes are deleted, and the store's membership is reconciled.

Owns the order: a group ends first, so that nothing can join; then each sandbox's record, then the sandbox itself, then the membership.
After a crash at any point a later pass continues. Called by ``loop``.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from weakref import WeakValueDictionary

from gateway.model.records import Cause, Group, Record, SandboxSpec
from gateway.placement.keys import group_key
from gateway.placement.store import PlacementStore

log = logging.getLogger("gateway.controller")

LAPSED = Cause("group-lease", "caller", "the lease of the sandbox's group expired: no heartbeat came")
UNMADE_S = 60.0
"""After this time a group member or counted sandbox without a record will never be created; before that, it may be in creation."""

Remove = Callable[[list[tuple[str, str]], int], Awaitable[None]]


class Groups:
    """``remove`` ends sandboxes in the runtime, given ids, incarnations and the term; ``uncount`` is called with each that has ended."""

    def __init__(
        self,
        store: PlacementStore,
        remove: Remove,
        unmade_s: float = UNMADE_S,
        uncount: Callable[[SandboxSpec, int], Awaitable[None]] | None = None,
    ) -> None:
        self._store = store
        self._remove = remove
        self._unmade_s = unmade_s
        self._uncount = uncount
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """By group, held by what changes its members: a sandbox that is being deleted must not be counted as lost."""

    async def due(self) -> list[str]:
        """The keys of the groups that have ended, or whose lease has expired."""
        return await self._store.due_groups()

    async def free(self, key: str, term: int) -> None:
        """Delete some sandboxes of a group, if it has ended or its lease has expired."""
        async with self._lock(key):
            group = await self._store.group_lapse(key, LAPSED, term=term)
            if group is not None and group.members:
                await self._free(group, term)

    def _lock(self, key: str) -> asyncio.Lock:
        lock = self._locks.get(key)
        if lock is None:
            lock = self._locks[key] = asyncio.Lock()
        return lock

    async def reconcile(self, records: Mapping[str, Record], term: int) -> None:
        """Remove members that have no record and are not being created; add sandboxes that their group does not list."""
        members = {key: await self._store.group_members(key) for key in await self._store.group_keys()}
        for key, ids in members.items():
            unknown = {sandbox_id: joined_at for sandbox_id, joined_at in ids.items() if sandbox_id not in records}
            found = {record.sandbox_id for record in await self._store.records(unknown)}  # created since the records were listed
            for sandbox_id, joined_at in await self._over({id_: at for id_, at in unknown.items() if id_ not in found}):
                await self._store.group_leave(key, sandbox_id, joined_at, term=term)
        lost = [one for one in records.values() if one.spec.group and one.sandbox_id not in members.get(_key(one), {})]
        for one in lost:
            lock = self._lock(_key(one))
            if lock.locked():
                continue  # its sandboxes are being deleted; the next comparison looks again
            async with lock:
                for record in await self._store.records([one.sandbox_id]):  # it may have ended since
                    if record.spec.group and record.sandbox_id not in await self._store.group_members(_key(record)):
                        await self._store.group_join(
                            record.owner, record.spec.group, record.sandbox_id, ttl_s=record.spec.group_ttl_s, term=term
                        )

    async def _free(self, group: Group, term: int) -> None:
        records = {record.sandbox_id: record for record in await self._store.records(group.members)}
        ended: list[tuple[str, str]] = []
        gone: list[tuple[str, float]] = []
        for sandbox_id, joined_at in group.members.items():
            record = records.get(sandbox_id)
            if record is not None and (record.owner, record.spec.group) == (group.owner, group.name):
                await self._end(record, group.cause or LAPSED, term)
                ended.append((sandbox_id, record.incarnation))
                gone.append((sandbox_id, joined_at))
            elif record is not None:
                gone.append((sandbox_id, joined_at))
        gone += await self._over({id_: joined_at for id_, joined_at in group.members.items() if id_ not in records})
        if ended:
            log.info("a group of %d sandboxes has ended (%s): %d are removed", group.count, (group.cause or LAPSED).reason, len(ended))
            await self._remove(ended, term)
        for sandbox_id, joined_at in gone:
            await self._store.group_leave(group.key, sandbox_id, joined_at, term=term)

    async def _over(self, unknown: Mapping[str, float]) -> list[tuple[str, float]]:
        """The members without a record that have ended since they joined, or whose creation has failed."""
        tombstones = await self._store.tombstones(unknown)
        ended = {id_ for id_, tombstone in tombstones.items() if tombstone.ended_at >= unknown[id_]}
        return [(id_, at) for id_, at in unknown.items() if id_ in ended or time.time() - at > self._unmade_s]

    async def _end(self, record: Record, cause: Cause, term: int) -> None:
        """A sandbox that had failed keeps that cause."""
        await self._store.delete(record.sandbox_id, record.cause or cause, owner=record.owner, incarnation=record.incarnation, term=term)
        if self._uncount:
            await self._uncount(record.spec, term)


def _key(record: Record) -> str:
    return group_key(record.owner, record.spec.group)
