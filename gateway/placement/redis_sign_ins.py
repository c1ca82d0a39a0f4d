"""Links that sign in to the page once, in Redis: a part of ``store.PlacementStore``.

Owns nothing but their two steps. A wipe of Redis ends all of them: then a person pastes an API key. Sessions are not stored here.
"""

from __future__ import annotations

from . import keys
from .redis_steps import RedisSteps, ms


class RedisSignIns(RedisSteps):
    """Links by the digest of their token."""

    async def offer_sign_in(self, token_digest: str, key_digest: str, lifetime_s: float) -> None:
        """Store which key a link signs in."""
        await self._redis.command("SET", keys.sign_in(token_digest), key_digest, "PX", ms(lifetime_s))

    async def take_sign_in(self, token_digest: str) -> str:
        """The digest of the key, for the first caller; "" if there is no such link."""
        found: str = await self._run("take_sign_in", [keys.sign_in(token_digest)], [])
        return found
