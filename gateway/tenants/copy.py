"""This replica's copy of all projects and stored keys, by which requests are admitted without a step in Redis.

Owns when the copy is compared with Redis (every half second, and at once for a key that is not in it), the restoration of an emptied Redis,
the change of entries, and the note of when a key was used last. A copy is complete or it is not used: until the first comparison a stored
key is answered with 503, never refused. Called by ``gateway.app``, ``use_cases.keys`` and ``use_cases.projects``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from holdfast_wire.errors import HoldfastError

from gateway.identity.keys import digest_of, unknown_key
from gateway.identity.principal import Identities, Principal, Scope, member_of, project_of
from gateway.identity.tenants import KEY_FORM, KEY_PREFIX, Tenants
from gateway.placement.errors import PlacementUnavailableError
from gateway.placement.store import PlacementStore

from .file import TenantFile
from .uses import Use, Uses

log = logging.getLogger("gateway.tenants")

COMPARE_S: Final = 0.5
"""How often the copy is compared with Redis: a revocation takes effect on every replica within this time and one step in Redis."""
_NOTE_S: Final = 30.0
"""How often the last uses of keys are stored."""
_ATTEMPTS: Final = 10
KEYS_MOST: Final = 10_000
"""Most stored keys, revoked ones included: bounds the copy, some 6 MiB."""
PROJECTS_MOST: Final = 2_000


class TenantCopy:
    """One per replica. An ``Identities`` of stored keys, and of all others as ``others`` knows them."""

    def __init__(self, store: PlacementStore, others: Identities, file: TenantFile | None) -> None:
        """Raises ``ValueError`` if the file cannot be read."""
        self.others = others
        self.tenants = Tenants()
        self.uses = Uses(self._admit_again)
        self._store = store
        self._file = file
        self._entries: dict[str, str] = {}
        self._compared_at = -1.0
        """When the last comparison with Redis began, by the loop's clock; below 0 before the first."""
        self._lock = asyncio.Lock()
        self._used: dict[str, float] = {}
        self._last_uses: dict[str, float] = {}
        if file is not None:
            version, entries, self._last_uses = file.read()
            self._set(version, entries)

    # Identities -------------------------------------------------------------------------------------------------------

    async def principal_of(self, key: str | None) -> Principal:
        """See ``principal.Identities``. Also raises ``placement_unavailable`` for a stored key while it cannot be known."""
        if key is None or not key.startswith(KEY_PREFIX):
            return await self.others.principal_of(key)
        if not KEY_FORM.fullmatch(key):
            raise unknown_key()
        return await self._stored(digest_of(key))

    async def principal_of_digest(self, digest: str) -> Principal:
        """See ``principal.Identities``."""
        return self.others.current(digest) or await self._stored(digest)

    def current(self, digest: str) -> Principal | None:
        """See ``principal.Identities``."""
        return self.others.current(digest) or self.tenants.principal(digest, time.time())

    def digests_of(self, owner: str) -> list[str]:
        """See ``principal.Identities``."""
        return [*self.others.digests_of(owner), *(key.digest for key in self.tenants.keys.values() if key.owner == owner)]

    async def _stored(self, digest: str) -> Principal:
        found = self.tenants.principal(digest, time.time())
        if found is None:  # another replica may have made it a moment ago
            await self._compare(since=asyncio.get_running_loop().time())
            found = self.tenants.principal(digest, time.time())
            if found is None:
                raise unknown_key()
        self._used[found.key_id] = time.time()
        return found

    # Admission --------------------------------------------------------------------------------------------------------

    def admitted(self, principal: Principal, scope: Scope, owner: str | None, project: str | None) -> Principal:
        """The principal of a request that needs ``scope`` and names an owner and a project, or None. Raises ``scope_missing``."""
        principal.require(scope)
        if owner is None and project is None:
            return principal
        acting = self.tenants.acting(principal, owner, project)
        acting.require(scope)
        return acting

    async def granted(self, digest: str, space: str, scopes: frozenset[Scope]) -> Principal:
        """The principal of a link or token of a key: what of ``scopes`` the key has at the moment for the owner and project ``space``.

        Without ``digest``, the key that made it cannot be asked. Raises ``key_invalid``, also if the key may not act there any more.
        """
        if not digest:
            return Principal(space, project=project_of(space), scopes=scopes, bound=True)
        key = await self.principal_of_digest(digest)
        try:
            acting = self.tenants.acting(key, member_of(space), project_of(space))
        except HoldfastError:
            raise HoldfastError("key_invalid", "the key of this link or token may not act for this owner any more") from None
        return replace(acting, scopes=acting.scopes & scopes, bound=True)

    def _admit_again(self, use: Use) -> None:
        principal = self.current(use.principal.credential)
        if principal is None:
            raise unknown_key()
        self.admitted(principal, use.scope, use.owner, use.project)

    # The copy ---------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Compare with Redis, and end what is no longer permitted, until cancelled."""
        noted_at = time.monotonic()
        while True:
            with contextlib.suppress(HoldfastError):
                await self._compare(since=asyncio.get_running_loop().time())
            ended = self.uses.check()
            if ended:
                log.info("%d requests and sessions were ended: their keys no longer permit them", ended)
            if time.monotonic() - noted_at >= _NOTE_S:
                noted_at = time.monotonic()
                await self.note_uses()
            await asyncio.sleep(COMPARE_S)

    async def change(self, decide: Callable[[Tenants], Mapping[str, str | None]]) -> None:
        """Make a change: ``decide`` gets the latest version and returns the entries that it writes, or None where it removes one; it may
        refuse by raising, and is called again if another replica changes something meanwhile. Effective here on return, elsewhere within
        ``COMPARE_S``. Raises ``placement_unavailable``, or ``internal`` if the file cannot be written; then the change may be in effect.
        """
        for _ in range(_ATTEMPTS):
            await self._compare(since=asyncio.get_running_loop().time())
            async with self._lock:
                version = self.tenants.version
                entries = decide(self.tenants)
                if not await self._store.change_tenants(version, entries):
                    continue
                after = {name: text for name, text in {**self._entries, **entries}.items() if text is not None}
                self._set(version + 1, after)
                await self._save()
            self.uses.check()
            return
        raise PlacementUnavailableError("other changes of projects and keys came first each time")

    async def last_uses(self) -> dict[str, float]:
        """When each stored key was used last, as far as it is known."""
        return {**self._last_uses, **await self._store.key_uses(), **self._used}

    async def note_uses(self) -> None:
        """Store when keys were used last; what cannot be stored now is stored later."""
        used = dict(self._used)
        self._last_uses.update(used)
        with contextlib.suppress(HoldfastError):
            await self._store.note_uses(used)
            for key_id, at in used.items():
                if self._used.get(key_id) == at:
                    del self._used[key_id]
            if used:
                async with self._lock:
                    await self._save()

    async def aclose(self) -> None:
        await self.note_uses()

    async def _compare(self, since: float) -> None:
        """Compare with Redis, unless another request has begun to do so after ``since``. Raises ``placement_unavailable``."""
        async with self._lock:
            if self._compared_at >= since:
                return
            begun = asyncio.get_running_loop().time()
            version = await self._store.tenants_version()
            if version > self.tenants.version:
                version, entries = await self._store.tenants()
                self._set(version, entries)
                with contextlib.suppress(HoldfastError):
                    await self._save()
            elif version < self.tenants.version and await self._store.restore_tenants(self.tenants.version, self._entries):
                log.warning("the projects and keys were missing in Redis, and have been written again")
            self._compared_at = begun

    def _set(self, version: int, entries: dict[str, str]) -> None:
        self._entries = entries
        self.tenants = Tenants.read(version, entries)

    async def _save(self) -> None:
        if self._file is None:
            return
        try:
            uses = {key_id: at for key_id, at in self._last_uses.items() if key_id in self.tenants.keys}
            await asyncio.to_thread(self._file.write, self.tenants.version, dict(self._entries), uses)
        except (OSError, ValueError) as error:
            log.error("the file of projects and keys cannot be written: %s", error)
            raise HoldfastError("internal", "the file of projects and keys cannot be written", hint="look at the gateway's log") from error
