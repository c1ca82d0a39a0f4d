"""Spares of warm pools in Redis: a part of ``redis_store.RedisStore``.

Owns which step runs on which keys of a pool. A pool's sets share one slot with its shard's fence.
"""

from __future__ import annotations

from gateway.model.records import PoolState

from . import keys
from .redis_steps import RedisSteps, as_fields, as_text, ms
from .store import SHARDS, FencedError


class RedisSpares(RedisSteps):
    """See ``PlacementStore``."""

    async def take_spare(self, pool: str) -> str | None:
        return as_text(await self._run("take", [keys.spares(pool), keys.taken(pool)], [""])) or None

    async def return_spare(self, pool: str, spare_id: str) -> None:
        await self._run("take", [keys.spares(pool), keys.taken(pool)], [spare_id])

    async def assign_spare(self, sandbox_id: str, incarnation: str, spare_id: str, instead_of: str = "") -> str:
        return as_text(await self._run("assign", [keys.record(sandbox_id)], [incarnation, spare_id, instead_of]))

    async def spares(self, pool: str) -> PoolState:
        now, *sets = await self._run("spares", [keys.making(pool), keys.spares(pool), keys.taken(pool)], [])

        def ages(answer: list[bytes]) -> dict[str, float]:
            return {id_: (int(now) - int(float(at))) / 1000 for id_, at in as_fields(answer).items()}

        return PoolState(*(ages(answer) for answer in sets))

    async def pool_keys(self) -> set[str]:
        answers = await self._redis.many([("SMEMBERS", keys.pools(shard)) for shard in range(SHARDS)])
        return {as_text(key) for answer in answers for key in answer}

    async def plan_spare(self, pool: str, spare_id: str, *, term: int) -> None:
        await self._spare("plan", pool, spare_id, term)

    async def offer_spare(self, pool: str, spare_id: str, *, term: int) -> bool:
        return await self._spare("offer", pool, spare_id, term)

    async def claim_spare(self, pool: str, spare_id: str, taken_for_s: float, *, term: int) -> bool:
        return await self._spare("claim", pool, spare_id, term, taken_for_s)

    async def abandon_spare(self, pool: str, spare_id: str, *, term: int) -> bool:
        return await self._spare("abandon", pool, spare_id, term)

    async def withdraw_spare(self, pool: str, spare_id: str, *, term: int) -> None:
        await self._spare("withdraw", pool, spare_id, term)

    async def forget_spare(self, pool: str, spare_id: str, *, term: int) -> None:
        await self._spare("forget", pool, spare_id, term)

    async def _spare(self, verb: str, pool: str, spare_id: str, term: int, taken_for_s: float = 0.0) -> bool:
        shard = keys.shard_of(pool)
        answer = await self._run(
            "spare",
            [keys.making(pool), keys.spares(pool), keys.taken(pool), keys.pools(shard), keys.term(shard)],
            [verb, pool, spare_id, ms(taken_for_s), term],
        )
        if int(answer) < 0:
            raise FencedError
        return int(answer) == 1
