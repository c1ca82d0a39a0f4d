"""The controller's life: lead, watch, expire, reconcile, side by side.

Owns when each runs. All of them are level-triggered: an event only makes a pass come earlier, so a lost one, a kill -9 or an outage of
the store costs time and nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine, Iterator
from typing import Any

from holdfast_wire.errors import HoldfastError

from gateway.placement.store import FencedError, PlacementStore
from gateway.runtimes.base import Runtime, Synced, WentAway
from gateway.settings import ControllerSettings

from .leadership import Leadership
from .pool_keeper import PoolKeeper
from .reconcile import Reconciler

log = logging.getLogger("gateway.controller")


class Controller:
    """One of possibly many; it acts only while it leads."""

    def __init__(
        self, store: PlacementStore, runtime: Runtime, holder: str, settings: ControllerSettings, keeper: PoolKeeper | None = None
    ) -> None:
        self._store = store
        self._runtime = runtime
        self._settings = settings
        self.leadership = Leadership(store, holder, settings)
        self._keeper = keeper
        self._reconciler = Reconciler(store, runtime, settings.grace_s, keeper)

    async def run(self) -> None:
        """Until cancelled; gives the lease up at the end."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.leadership.run(), name="leadership")
                group.create_task(self._watch(), name="watch")
                group.create_task(self._expire(), name="expiry")
                group.create_task(self._reconcile(), name="reconciliation")
                if self._keeper:
                    group.create_task(self._refill(self._keeper, group), name="refill")
        finally:
            await self.leadership.resign()

    async def _watch(self) -> None:
        async for event in self._runtime.watch():
            if isinstance(event, Synced):
                self._reconciler.began_at = event.began_at
                self.leadership.changed.set()
            elif isinstance(event, WentAway):
                term = self.leadership.term
                if term is not None:
                    with self._guard("recording an end"):
                        await self._store.mark_failed(event.sandbox_id, event.incarnation, event.cause, term=term)

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(self._settings.expiry_interval_s)
            term = self.leadership.term
            if term is not None:
                with self._guard("expiry"):
                    expired = await self._store.claim_expired(term)
                    for one in expired:
                        log.info("sandbox %s has ended: %s", one.sandbox_id, one.cause.reason)
                    await self._reconciler.remove([(one.sandbox_id, one.incarnation) for one in expired], term)

    async def _refill(self, keeper: PoolKeeper, group: asyncio.TaskGroup) -> None:
        def spawn(work: Coroutine[Any, Any, None], name: str) -> None:
            group.create_task(work, name=name)

        while True:
            await asyncio.sleep(self._settings.refill_interval_s)
            term = self.leadership.term
            if term is not None:
                with self._guard("refilling the pools"):
                    await keeper.refill(term, spawn)

    async def _reconcile(self) -> None:
        changed = self.leadership.changed
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._settings.reconcile_interval_s):
                    await changed.wait()
            changed.clear()
            term = self.leadership.term
            if term is not None:
                with self._guard("reconciliation"):
                    await self._reconciler.run_once(term)

    @contextlib.contextmanager
    def _guard(self, what: str) -> Iterator[None]:
        try:
            yield
        except FencedError:
            self.leadership.lost()
        except HoldfastError as error:
            log.warning("%s must wait: %s", what, error.code)
        except Exception:
            log.exception("%s failed", what)
