"""The leases of recordings in Redis: a part of ``store.PlacementStore``.

Owns which replica makes which recording. A recording is named by a text that its maker chooses. When its replica is gone, another one takes
it after the lease.
"""

from __future__ import annotations

from collections.abc import Iterable

from . import keys
from .redis_steps import RedisSteps, ms


class RedisRecordings(RedisSteps):
    """Leases of recordings."""

    async def hold_recordings(self, replica: str, own: Iterable[str], lease_s: float, most: int) -> tuple[list[str], list[str]]:
        """Renew ``own``, and take at most ``most`` whose lease has expired. Returns those that another replica holds, and those taken."""
        lost, taken = await self._run("recordings", [keys.recordings(), keys.recording_holders()], [replica, ms(lease_s), most, *own])
        return lost, taken

    async def end_recording(self, name: str) -> None:
        """The recording is complete."""
        await self._redis.command("ZREM", keys.recordings(), name)
        await self._redis.command("HDEL", keys.recording_holders(), name)

    async def leave_recording(self, replica: str, name: str) -> None:
        """The replica stops: another one takes the recording at once."""
        if await self._redis.command("HGET", keys.recording_holders(), name) == replica:
            await self._redis.command("ZADD", keys.recordings(), "XX", 0, name)
