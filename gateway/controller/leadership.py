"""Which controller acts: the lease and its fencing term.

Owns the renewal and the moment from which we may act (every shard refuses older terms) or no longer may (the lease may have run out,
by our own clock), and how long after an outage of the store nobody's silence counts. Called by ``loop``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

from gateway.placement.store import FencedError, PlacementStore, PlacementUnavailableError
from gateway.settings import ControllerSettings

log = logging.getLogger("gateway.controller")

_AFTER_END_S = 0.01
"""How long after the end of another's lease it is asked for."""
_PATIENCE_MOST_S = 600.0


class Leadership:
    """``term`` is ours while we lead, else None."""

    def __init__(self, store: PlacementStore, holder: str, settings: ControllerSettings) -> None:
        self.term: int | None = None
        self.changed = asyncio.Event()
        """Set whenever a new term begins."""
        self._leading = asyncio.Event()
        self._store = store
        self._holder = holder
        self._settings = settings
        self._last_term = 0
        self._good_until = 0.0
        self._answered_at: float | None = None
        self._away_since: float | None = None
        self._patient_until = 0.0

    @property
    def settled(self) -> bool:
        """Whether the store has been back for as long as it was away.

        Till then who uses a sandbox, or holds a group, may not have come to say so again, and nothing may end for that.
        """
        return self._away_since is None and asyncio.get_running_loop().time() >= self._patient_until

    async def run(self) -> None:
        """Take and renew the lease until cancelled. Who waits asks again the moment the other's lease ends, not a period later."""
        while True:
            await self.renew()
            pause_s = self._settings.lease_renew_s
            if self.term is None:
                with contextlib.suppress(PlacementUnavailableError):
                    pause_s = min(pause_s, await self._store.lease_left_s() + _AFTER_END_S)
            await asyncio.sleep(pause_s)

    async def until_leading(self) -> None:
        """Wait for a term of ours; returns at once while there is one."""
        while self.term is None:
            self._leading.clear()
            await self._leading.wait()

    async def renew(self) -> None:
        clock = asyncio.get_running_loop().time
        asked = clock()
        try:
            term = await self._store.lead(self._holder, self._settings.lease_ttl_s, self._last_term)
            self._back(asked)
            if term is not None and term != self.term:
                await self._store.fence(term)
                log.info("leading, term %d", term)
                self.changed.set()
            if term is None and self.term is not None:
                log.info("another controller leads")
            self.term = term
            if term is not None:
                self._leading.set()
        except FencedError:
            self.term = None
        except PlacementUnavailableError:
            if self._away_since is None:
                self._away_since = asked if self._answered_at is None else self._answered_at
            if asked >= self._good_until:
                self.term = None
            return
        if self.term is not None:
            self._last_term = self.term
            self._good_until = asked + self._settings.lease_ttl_s

    def _back(self, asked: float) -> None:
        """It answers."""
        self._answered_at = asked
        if self._away_since is not None:
            now = asyncio.get_running_loop().time()
            self._patient_until = now + min(now - self._away_since, _PATIENCE_MOST_S)
            self._away_since = None

    def lost(self) -> None:
        """A write of ours was refused: somebody else leads."""
        self.term = None

    async def resign(self) -> None:
        self.term = None
        with contextlib.suppress(PlacementUnavailableError):  # then the lease runs out by itself
            await self._store.resign(self._holder)
