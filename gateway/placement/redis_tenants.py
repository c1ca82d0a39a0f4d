"""Projects and stored keys in Redis: a part of ``store.PlacementStore``.

Owns which step runs on which keys. Redis is where replicas learn of changes; every replica has a copy of all of it (``gateway.tenants``),
from which an emptied Redis is filled again.
"""

from __future__ import annotations

from collections.abc import Mapping

from . import keys
from .redis_steps import RedisSteps, as_fields


class RedisTenants(RedisSteps):
    """Entries by name, their version, and when each key was used last."""

    async def tenants_version(self) -> int:
        """The version of the entries; 0 if Redis has none."""
        return int(await self._redis.command("HGET", keys.tenants(), "=version") or 0)

    async def tenants(self) -> tuple[int, dict[str, str]]:
        """The version, and every entry by name."""
        found = as_fields(await self._redis.command("HGETALL", keys.tenants()))
        return int(found.pop("=version", 0)), found

    async def change_tenants(self, version: int, entries: Mapping[str, str | None]) -> bool:
        """Write entries, or remove those that are None, and raise the version by one. False, and nothing is written, if the version is
        another one than ``version``."""
        flat = [part for name, text in entries.items() for part in (name, text)]
        return bool(await self._run("tenants_change", [keys.tenants()], [version, *flat]))

    async def restore_tenants(self, version: int, entries: Mapping[str, str]) -> bool:
        """Write all entries in place of those of an earlier version, or of none. False if Redis has this version or a later one."""
        flat = [part for name, text in entries.items() for part in (name, text)]
        return bool(await self._run("tenants_restore", [keys.tenants()], [version, *flat]))

    async def note_uses(self, uses: Mapping[str, float]) -> None:
        """Store when keys were used last, in seconds since the epoch."""
        if uses:
            await self._redis.command("HSET", keys.key_uses(), *[part for id_, at in uses.items() for part in (id_, round(at))])

    async def key_uses(self) -> dict[str, float]:
        """When each key was used last."""
        return {id_: float(at) for id_, at in as_fields(await self._redis.command("HGETALL", keys.key_uses())).items()}

    async def forget_uses(self, key_ids: list[str]) -> None:
        """Remove the last use of keys that no longer exist."""
        if key_ids:
            await self._redis.command("HDEL", keys.key_uses(), *key_ids)
