"""Quota counts reconciled with the records: corrects what a killed gateway counted, or failed to count.

Owns the comparison, called after passes of ``reconciler`` whose records are complete, and the release of sandboxes whose end the controller
records.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from gateway.identity.tenants import Tenants
from gateway.model.records import Quota, Record, SandboxSpec
from gateway.placement.store import PlacementStore
from gateway.settings import AdmissionSettings
from gateway.use_cases.admission import counted_for

from .groups import UNMADE_S


class QuotaCounts:
    """Does nothing if no quota is set."""

    def __init__(self, store: PlacementStore, settings: AdmissionSettings | None, unmade_s: float = UNMADE_S) -> None:
        self._store = store
        self._settings = settings or AdmissionSettings()
        self._tenants = Tenants()
        """The latest limits of owners, projects and keys."""
        self._unmade_s = unmade_s

    async def ended(self, spec: SandboxSpec, term: int) -> None:
        """Stop counting a sandbox whose end this controller has recorded. By the latest limits known here; ``reconcile`` corrects it."""
        for one in counted_for(self._settings, self._tenants.limits, spec):
            await self._store.release(one.usage, spec.sandbox_id, term=term)

    async def reconcile(self, records: Mapping[str, Record], term: int) -> None:
        if await self._store.tenants_version() != self._tenants.version:
            self._tenants = Tenants.read(*await self._store.tenants())
        limits = self._tenants.limits
        if not (self._settings.owner_quota or self._settings.quota or any(one.has_quotas for one in limits.values())):
            return
        wanted: dict[str, dict[str, Record]] = {}
        for record in records.values():
            if record.status != "failed":
                for one in counted_for(self._settings, limits, record.spec):
                    wanted.setdefault(one.usage, {})[record.sandbox_id] = record
        for owner in {*wanted, *await self._store.usage_owners()}:
            await self._agree(owner, wanted.get(owner, {}), term)

    async def _agree(self, owner: str, wanted: Mapping[str, Record], term: int) -> None:
        counted = await self._store.usage_entries(owner)
        over = {sandbox_id: int(since) / 1000 for sandbox_id, since in counted.items() if sandbox_id not in wanted}
        ended, living = await self._looked_up(owner, over)
        for sandbox_id, since_s in over.items():
            if sandbox_id not in living and (ended.get(sandbox_id, 0.0) >= since_s or time.time() - since_s > self._unmade_s):
                await self._store.release(owner, sandbox_id, counted[sandbox_id], term=term)
        await self._count_missing(owner, wanted, counted, term)

    async def _looked_up(self, owner: str, sandbox_ids: Iterable[str]) -> tuple[dict[str, float], set[str]]:
        """When the ended ones among the sandboxes ended, and which live: some were created since the records were listed."""
        ids = list(sandbox_ids)
        ended = {id_: tombstone.ended_at for id_, tombstone in (await self._store.tombstones(ids)).items()}
        records = await self._store.records(ids)
        ended |= {record.sandbox_id: record.ended_at or 0.0 for record in records if record.status == "failed"}
        limits = self._tenants.limits
        living = {
            one.sandbox_id
            for one in records
            if one.status != "failed" and owner in [counted.usage for counted in counted_for(self._settings, limits, one.spec)]
        }
        return ended, living

    async def _count_missing(self, owner: str, wanted: Mapping[str, Record], counted: Mapping[str, str], term: int) -> None:
        missing = [sandbox_id for sandbox_id in wanted if sandbox_id not in counted]
        for record in await self._store.records(missing):  # the others have ended since
            if record.status == "failed":
                continue  # it failed since, and was uncounted
            await self._store.reserve(owner, record.spec, Quota(), term=term)
