"""Rates in Redis: a part of ``store.PlacementStore``.

Owns one step on one bucket. A bucket fills steadily and holds so much that a burst is possible; all replicas take from the same one.
"""

from __future__ import annotations

from . import keys
from .redis_steps import RedisSteps


class RedisRates(RedisSteps):
    """Buckets by the subject and the name of its limit."""

    async def take_rate(self, bucket: str, per_minute: float, burst: float, least: float, wanted: float) -> tuple[float, float]:
        """Take ``wanted`` or less, but at least ``least``. Returns what was taken, and if it was nothing, after how many seconds ``least``
        will be there. A negative bucket, after ``spend_rate``, fills up first."""
        granted, wait_ms, _ = await self._run("rate", [keys.rate(bucket)], [per_minute, burst, least, wanted, ""])
        return float(granted), int(wait_ms) / 1000

    async def spend_rate(self, bucket: str, per_minute: float, burst: float, amount: float) -> float:
        """Take ``amount`` although it may not be there, because it was used already; returns after how many seconds there will be some."""
        _, wait_ms, _ = await self._run("rate", [keys.rate(bucket)], [per_minute, burst, 0, amount, 1])
        return int(wait_ms) / 1000

    async def rate_left(self, bucket: str, per_minute: float, burst: float) -> float:
        """How much there is to take now; below 0 if more was used than there was."""
        _, _, left = await self._run("rate", [keys.rate(bucket)], [per_minute, burst, 0, 0, ""])
        return float(left)
