"""Spares of warm pools in Redis: a part of ``store.PlacementStore``.

Owns the set of spares that a pool offers. It is a hint: the runtime alone decides who gets a spare, so an id that is offered twice, or
no longer exists, costs a create one try.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from . import keys
from .redis_connection import Argument
from .redis_steps import RedisSteps, as_fields, ms

COLD_START = "cold"
"""The value of ``assign_spare`` for a sandbox that is created without a spare."""


class RedisSpares(RedisSteps):
    """The offers of warm pools."""

    async def take_spare(self, pool: str) -> str | None:
        """Remove the oldest spare from what a pool offers; None when it offers none. Only adopting it shows whether it is still there."""
        popped: list[str] = await self._redis.command("ZPOPMIN", keys.spares(pool))
        return popped[0] if popped else None

    async def assign_spare(self, sandbox_id: str, incarnation: str, spare_id: str, instead_of: str = "") -> str:
        """Store what a pending sandbox is created from: a spare or ``COLD_START``. Set once; ``instead_of`` is what the caller saw fail.

        The answer is the stored value, "" when the sandbox is no longer pending.
        """
        source: str = await self._run("assign", [keys.record(sandbox_id)], [incarnation, spare_id, instead_of])
        return source

    async def spares(self, pool: str) -> dict[str, float] | None:
        """The spares that the pool offers, and when they were created; None while the store is being rebuilt."""
        complete, found = await self._run("spares", [keys.spares(pool), keys.marker(keys.shard_of(pool))], [])
        return {id_: int(float(at)) / 1000 for id_, at in as_fields(found).items()} if complete else None

    async def offer_spares(self, pool: str, spares: Mapping[str, float], *, term: int | None = None) -> None:
        """Offer spares, given with their times of creation. Without a term, a gateway returns a spare that it took and did not use."""
        await self._offer(pool, [part for id_, created_at in spares.items() for part in (ms(created_at), id_)], term)

    async def withdraw_spares(self, pool: str, spare_ids: Iterable[str], *, term: int) -> None:
        """Stop offering these spares. A gateway that has taken one may still adopt it."""
        await self._offer(pool, [part for id_ in spare_ids for part in ("", id_)], term)

    async def _offer(self, pool: str, changes: list[Argument], term: int | None) -> None:
        if not changes:
            return
        found = [keys.spares(pool), keys.term(keys.shard_of(pool))]
        await self._run("offer", found, [term, *changes])
