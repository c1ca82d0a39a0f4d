"""Which controller acts: the lease and its fencing term.

Owns the renewal; from when this controller may act (every shard refuses older terms) and until when (the lease may have expired, by the
local clock); and for how long after a store outage missing heartbeats and missing use are ignored. Called by ``loop``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

from gateway.placement.errors import FencedError, PlacementUnavailableError
from gateway.placement.store import PlacementStore
from gateway.settings import ControllerSettings

log = logging.getLogger("gateway.controller")

_AFTER_END_S = 0.01
"""How long after the end of another's lease this controller tries to take it."""
_PATIENCE_MOST_S = 600.0


class Leadership:
    """``term`` is set while this controller leads, else None."""

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
        """Whether the store has been available again for as long as it was down.

        Until then, heartbeats and activity may be missing because of the outage, so no sandbox or group may be ended for that.
        """
        return self._away_since is None and asyncio.get_running_loop().time() >= self._patient_until

    async def run(self) -> None:
        """Take and renew the lease until cancelled. A waiting controller tries again at the moment the lease ends, not a period later."""
        while True:
            await self.renew()
            pause_s = self._settings.lease_renew_s
            if self.term is None:
                with contextlib.suppress(PlacementUnavailableError):
                    pause_s = min(pause_s, await self._store.lease_left_s() + _AFTER_END_S)
            await asyncio.sleep(pause_s)

    async def until_leading(self) -> None:
        """Wait until this controller leads; returns at once while it does."""
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
                log.info("this controller is the leader now (term %d)", term)
                self.changed.set()
            if term is None and self.term is not None:
                log.info("another controller is the leader now")
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
        """The store has answered."""
        self._answered_at = asked
        if self._away_since is not None:
            now = asyncio.get_running_loop().time()
            self._patient_until = now + min(now - self._away_since, _PATIENCE_MOST_S)
            self._away_since = None

    def lost(self) -> None:
        """A write was refused: another controller leads."""
        self.term = None

    async def resign(self) -> None:
        self.term = None
        with contextlib.suppress(PlacementUnavailableError):  # then the lease expires
            await self._store.resign(self._holder)
