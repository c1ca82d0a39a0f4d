"""One reconciliation pass: read records and sandboxes, plan, read again what the plan would end, carry out the plan.

Owns the order of reading (the store's marker before and after, so that a wipe in between is seen) and the execution. It decides nothing
(``plan``). Records and sandboxes come from what was kept of the store's changes and of the runtime's watch, so a quiet pass costs the same
for any number of sandboxes; both may be late, so that nothing is ended without a fresh look at its record and its sandbox, and a pass
that scans all records also lists all sandboxes.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence

from holdfast_wire.errors import HoldfastError

from gateway.model.records import Record, SandboxSpec, Status
from gateway.placement.errors import FencedError, PlacementUnavailableError
from gateway.placement.keys import shard_of
from gateway.placement.store import PlacementStore
from gateway.runtimes.base import Runtime, SandboxStatus

from .plan import CREATE_LOST, NODE_LOST, Action, MarkFailed, MarkPaused, MarkReady, Plan, Rebuild, Remove, plan
from .pool_refill import PoolRefill, is_spare

log = logging.getLogger("gateway.controller")

_READS_UNTIL_SCAN = 30
"""At the deployed interval every record is read every five minutes."""
_AT_ONCE = 64
"""Removals, and looks at the runtime, that run at once."""
_LOOKS = 100
"""Sandboxes that are looked at one by one; for more, all are listed."""
SETTLE_S = 15.0
"""How long after a wipe gateways may add the sandboxes that they are creating: they look every five seconds (``lifecycle.creation``)."""
_STATUSES: Mapping[str, Status] = {"starting": "pending", "ready": "ready", "failed": "failed"}
_PASSES_UNTIL_AGREED = 6
"""How many passes with complete records come from one comparison of groups and quotas to the next."""


class Reconciler:
    """See the module."""

    def __init__(self, store: PlacementStore, runtime: Runtime, grace_s: float, pool_refill: PoolRefill | None = None) -> None:
        self._store = store
        self._runtime = runtime
        self._grace_s = grace_s
        self._pool_refill = pool_refill
        self._records = RecordCache(store)
        self._suspects: frozenset[Action] = frozenset()
        self._passes = 0
        self._at_once = asyncio.Semaphore(_AT_ONCE)
        self.start_removals: Callable[[list[tuple[str, str]], int], Awaitable[None]] = self.remove
        """Called with the sandboxes that a pass removes; it need not wait until they are removed."""
        self._was_complete = False
        """Whether the store was complete in an earlier pass."""
        self.further_reconcilers: list[Callable[[Mapping[str, Record], int], Awaitable[None]]] = []
        """Functions that reconcile something else (groups, quotas) with complete records; called with the records and the term."""
        self.uncount: Callable[[SandboxSpec, int], Awaitable[None]] | None = None
        """Called with each sandbox that a pass records as failed, and the term."""
        self.began_at: float | None = None
        """When the runtime last started without sandboxes (``Synced.began_at``)."""

    async def run_once(self, term: int) -> list[Action]:
        """One pass as the leader of ``term``; the actions taken. Raises FencedError and the errors of store and runtime."""
        began_at = self.began_at  # read before the lists, so that they are not older
        before = await self._store.marker()
        offers = await self._pool_refill.read_offers() if self._pool_refill else {}
        records = await self._records.read(before)
        # Listed after the records: a sandbox that was created in between has no record here, and writing the record again changes nothing.
        # The watch may have missed sandboxes, so all are listed when all records were scanned, and when the store was wiped: a sandbox
        # that the watch does not show yet would get no record, and would be removed later.
        listed = before is None or self._records.scanned
        everything = await (self._runtime.list_all() if listed else self._runtime.list_watched())
        spares = [sandbox for sandbox in everything if is_spare(sandbox)]
        sandboxes = [sandbox for sandbox in everything if not is_spare(sandbox)]

        async def planned(*, whole: bool) -> Plan:
            return plan(
                records,
                sandboxes,
                await self._store.tombstones({one.sandbox_id for one in sandboxes if one.sandbox_id not in records}),
                now=time.time(),
                grace_s=self._grace_s,
                whole=whole,
                suspects=self._suspects,
                began_at=began_at,
            )

        result = await planned(whole=before is not None)
        # This includes sandboxes that would be rebuilt: since the records were read, one may have been created and have failed.
        ending = {_sandbox_id(action) for action in result.actions if not isinstance(action, MarkReady)}
        ending |= {_sandbox_id(suspect) for suspect in self._suspects}  # the watch may not show what a list showed
        if ending:
            ending |= {_sandbox_id(suspect) for suspect in result.suspects}
            await self._records.refresh(ending)
            sandboxes = await self._look_again(sandboxes, ending)
        whole = before is not None and before == await self._store.marker()
        if ending or not whole:
            result = await planned(whole=whole)
        self._suspects = result.suspects
        await self._act(result.actions, term)
        await self._records.refresh({_sandbox_id(action) for action in result.actions})
        if whole and self._passes % _PASSES_UNTIL_AGREED == 0:
            for reconcile in self.further_reconcilers:
                await reconcile(records, term)
        self._passes += whole
        if self._pool_refill:
            await self._pool_refill.reconcile(offers, spares, term)
        if before is None:
            self._passes = 0  # groups and quotas are compared in the next pass
            # A new deployment has no gateway that could be creating a sandbox.
            settle_s = SETTLE_S if self._was_complete or everything else 0.0
            await self._store.set_marker(secrets.token_hex(8), term=term, settle_s=settle_s)
            log.info("the placement store was empty: its records were rebuilt from the %d running sandboxes", len(everything))
        self._was_complete = True
        return result.actions

    async def _look_again(self, sandboxes: list[SandboxStatus], ids: Collection[str]) -> list[SandboxStatus]:
        """The sandboxes; those with one of the ids are requested from the runtime again."""
        if len(ids) > _LOOKS:
            return [sandbox for sandbox in await self._runtime.list_all() if not is_spare(sandbox)]
        found = [sandbox for sandbox in sandboxes if sandbox.sandbox_id not in ids]

        async def one(id_: str) -> list[SandboxStatus]:
            async with self._at_once:
                return await self._runtime.get(id_)

        for again in await asyncio.gather(*map(one, ids)):
            found += again
        return found

    async def remove(self, ended: Iterable[tuple[str, str]], term: int) -> None:
        """Remove from the runtime what has ended in the store: ids and incarnations. A later pass retries what fails.

        Removals cannot be undone, so the term is checked again before each of them.
        """

        async def one(sandbox_id: str, incarnation: str) -> None:
            async with self._at_once:
                await self._store.check_term(term)
                try:
                    await self._runtime.delete(sandbox_id, incarnation)
                except HoldfastError as error:
                    log.warning("removing %s failed: %s", sandbox_id, error.code)

        for outcome in await asyncio.gather(*(one(*pair) for pair in ended), return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

    async def _act(self, actions: list[Action], term: int) -> None:
        removals: list[tuple[str, str]] = []
        for action in actions:
            try:
                match action:
                    case Rebuild(sandbox):
                        spec = sandbox.spec
                        if spec.group:
                            await self._store.group_join(spec.owner, spec.group, spec.sandbox_id, ttl_s=spec.group_ttl_s, term=term)
                        status, cause = _STATUSES[sandbox.state], sandbox.cause if sandbox.state == "failed" else None
                        cause = cause or (NODE_LOST if status == "failed" else None)
                        outcome = await self._store.rebuild(
                            spec, sandbox.endpoint, sandbox.created_at, status=status, cause=cause, paused=sandbox.paused, term=term
                        )
                        if outcome == "rebuilt":
                            log.info("record of %s rebuilt: %s", sandbox.sandbox_id, status)
                        elif outcome == "deleted":
                            log.info("sandbox %s was deleted while its record was missing", sandbox.sandbox_id)
                            removals.append((sandbox.sandbox_id, sandbox.incarnation))
                    case MarkReady(sandbox_id, incarnation, endpoint):
                        await self._store.mark_ready(sandbox_id, incarnation, endpoint, term=term)
                    case MarkPaused(sandbox_id, incarnation, paused):
                        await self._store.check_term(term)
                        await self._store.mark_paused(sandbox_id, incarnation, paused)
                    case MarkFailed(sandbox_id, incarnation, cause):
                        log.info("sandbox %s has failed: %s", sandbox_id, cause.reason)
                        # A sandbox that is about to be declared never created may have been created since it was read.
                        was: Status | None = "pending" if cause == CREATE_LOST else None
                        entry = await self._store.mark_failed(sandbox_id, incarnation, cause, was=was, term=term)
                        if self.uncount and isinstance(entry, Record) and (entry.incarnation, entry.status) == (incarnation, "failed"):
                            await self.uncount(entry.spec, term)
                    case Remove(sandbox_id, incarnation):
                        removals.append((sandbox_id, incarnation))
            except (FencedError, PlacementUnavailableError):
                raise
            except HoldfastError as error:
                log.warning("%s of sandbox %s failed: %s", type(action).__name__, _sandbox_id(action), error.code)
        if removals:
            log.info("removing what is left of %d ended sandboxes", len(removals))
            await self.start_removals(removals, term)


def _sandbox_id(action: Action) -> str:
    return action.sandbox.sandbox_id if isinstance(action, Rebuild) else action.sandbox_id


class RecordCache:
    """The records of all sandboxes, kept from pass to pass and brought up to date from the store's changes.

    All records are read at first, after a wipe of the store, if the list of changes is incomplete, and from time to time, for changes by
    another version. A read that raised is repeated from the start.
    """

    def __init__(self, store: PlacementStore) -> None:
        self._store = store
        self._records: dict[str, Record] = {}
        self._cursor: Sequence[str] | None = None
        self._marker: str | None = None
        self._reads = 0
        self.scanned = False
        """Whether the last read was of all records, not only of what changed."""

    async def read(self, marker: str | None) -> Mapping[str, Record]:
        """All records as of now; ``marker`` is the store's completeness marker."""
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
