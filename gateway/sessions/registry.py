"""The sessions attached to this replica.

Owns the registry, the limits per owner and on full buffers, the periodic sweep (silence, stalls) and the drain. When a replica dies only
the sockets are lost. Called by ``routes.attach`` and the app's lifespan.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter

from holdfast_wire.errors import TABLE, HoldfastError

from gateway.settings import RelaySettings

from .relay import Relay

log = logging.getLogger("gateway.sessions.registry")


class AttachedSessions:
    """All attached sessions of one replica."""

    def __init__(self, settings: RelaySettings) -> None:
        self._settings = settings
        self._relays: dict[Relay, None] = {}
        self._owners: Counter[str] = Counter()
        self._stalled: dict[Relay, None] = {}
        self.draining = False

    def __len__(self) -> int:
        return len(self._relays)

    def enter(self, owner: str) -> None:
        """Count one more session of ``owner``. Raises HoldfastError when there are too many, or the replica is shutting down."""
        if self.draining:
            raise HoldfastError("draining", "this replica is shutting down")
        if self._owners[owner] >= self._settings.sessions_per_owner:
            limit = self._settings.sessions_per_owner
            raise HoldfastError("session_limit", f"{limit} sessions of this key's owner are attached to this replica already")
        self._owners[owner] += 1

    def leave(self, owner: str) -> None:
        self._owners[owner] -= 1
        if not self._owners[owner]:
            del self._owners[owner]

    def add(self, relay: Relay) -> None:
        self._relays[relay] = None
        relay.on_stall = self._on_stall

    def discard(self, relay: Relay) -> None:
        self._relays.pop(relay, None)
        self._stalled.pop(relay, None)

    def _on_stall(self, relay: Relay) -> None:
        """Limit the memory of clients that stop reading: too many full buffers cut off the one that has been full longest."""
        if not relay.client_paused and not relay.agent_paused:
            self._stalled.pop(relay, None)
            return
        self._stalled.setdefault(relay)
        if len(self._stalled) > self._settings.stalled_sessions:
            longest = next(iter(self._stalled))
            del self._stalled[longest]
            log.info("session of %s: cut off, too many sessions have a full buffer", longest.sandbox_id)
            longest.abort()

    async def run(self) -> None:
        """Sweep until cancelled."""
        while True:
            await asyncio.sleep(self._settings.sweep_interval_s)
            self.sweep()

    def sweep(self) -> None:
        """Cut off sessions that are silent or stalled for too long."""
        settings = self._settings
        for relay in list(self._relays):
            relay.sweep()
            relay.count_bytes()
            if relay.quiet_sweeps * settings.sweep_interval_s >= settings.idle_limit_s:
                log.info("session of %s: silent for %g s, cut off", relay.sandbox_id, settings.idle_limit_s)
                relay.close(1001, "the session was silent for too long")
            elif relay.stalled_sweeps * settings.sweep_interval_s >= settings.stall_limit_s:
                log.info("session of %s: a side read nothing for %g s, cut off", relay.sandbox_id, settings.stall_limit_s)
                relay.abort()

    def go_away(self, relay: Relay) -> None:
        """The server shuts down: ask this session to leave. Sessions left when the drain ends are closed with 1012."""
        if not self.draining:
            self.draining = True
            asyncio.get_running_loop().call_later(self._settings.drain_s, self._close_the_rest)
        relay.go_away(self._settings.drain_s, self._settings.drain_s / 2, "shutdown")

    def _close_the_rest(self) -> None:
        for relay in list(self._relays):
            relay.close(TABLE["draining"].close_code, "this replica is shutting down")
