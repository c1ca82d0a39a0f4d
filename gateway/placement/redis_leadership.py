"""Who leads the controllers, and which terms may write, in Redis: a part of ``store.PlacementStore``.

Owns the lease, the fencing terms and the completeness marker of each shard: without it the shard's records are not known to be complete.
"""

from __future__ import annotations

from . import keys
from .errors import FencedError
from .keys import SHARDS
from .redis_steps import RedisSteps, ms, script


class RedisLeadership(RedisSteps):
    """Lease, terms and markers."""

    async def lead(self, holder: str, ttl_s: float, least_term: int = 0) -> int | None:
        """Take or renew the lease: the fencing term when ``holder`` leads, None when another does."""
        return int(await self._run("lead", [keys.lease(), keys.last_term()], [holder, ms(ttl_s), least_term])) or None

    async def lease_left_s(self) -> float:
        """How long the lease is still valid if it is not renewed; 0 if no lease exists."""
        return max(int(await self._redis.command("PTTL", keys.lease())), 0) / 1000

    async def resign(self, holder: str) -> None:
        """Release the lease, if ``holder`` has it."""
        await self._run("resign", [keys.lease()], [holder])

    async def fence(self, term: int) -> None:
        """Refuse every later write of an older term, in every shard. Raises ``FencedError`` when this term is the older."""
        await self._fence_all(term, "")

    async def marker(self) -> str | None:
        """The marker of a complete store: None when any shard lost it."""
        markers = set(await self._redis.many([("GET", keys.marker(shard)) for shard in range(SHARDS)]))
        return None if len(markers) != 1 or None in markers else markers.pop()

    async def knows(self, sandbox_id: str) -> bool:
        """Whether an id without an entry is known to be unused: not while records are being rebuilt, nor shortly afterwards."""
        shard = keys.shard_of(sandbox_id)
        marked, settling = await self._redis.many([("EXISTS", keys.marker(shard)), ("EXISTS", keys.settling(shard))])
        return bool(marked and not settling)

    async def complete(self) -> bool:
        """Whether the store has the records of all sandboxes, including those that gateways are creating."""
        marker = await self.marker()
        settling = await self._redis.many([("EXISTS", keys.settling(shard)) for shard in range(SHARDS)])
        return marker is not None and not any(settling)

    async def set_marker(self, marker: str, *, term: int, settle_s: float = 0.0) -> None:
        """Set the marker in every shard, once records are rebuilt.

        For ``settle_s`` more seconds gateways may add the sandboxes that they are creating, and an unknown id is not known to be unused.
        """
        await self._fence_all(term, marker, settle_s)

    async def _fence_all(self, term: int, marker: str, settle_s: float = 0.0) -> None:
        await self._redis.run_many(
            script("fence"),
            [([keys.term(shard), keys.marker(shard), keys.settling(shard)], [term, marker, ms(settle_s)]) for shard in range(SHARDS)],
        )

    async def check_term(self, term: int) -> None:
        """Raises ``FencedError`` when another holds the lease, or none does: checked before actions that the store cannot refuse."""
        held = await self._redis.command("HGET", keys.lease(), "term")
        if held is None or int(held) != term:
            raise FencedError
