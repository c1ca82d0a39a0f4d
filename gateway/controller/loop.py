"""The controller's tasks: lead, watch (and record why sandboxes ended), expire, reconcile, concurrently.

Owns their schedule. All of them are level-triggered: an event only starts a pass earlier, so a lost event, a kill -9 or an outage of the
store costs time and nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator

from holdfast_wire.errors import HoldfastError

from gateway.metrics import Metrics
from gateway.model.records import PlannedEnd, Status
from gateway.placement.errors import FencedError
from gateway.placement.store import AskIdle, PlacementStore
from gateway.runtimes.base import EndAnnounced, Event, Runtime, SandboxEnded, Synced
from gateway.settings import AdmissionSettings, ControllerSettings

from .groups import Groups
from .leadership import Leadership
from .pool_refill import PoolRefill, Prepull
from .quota_counts import QuotaCounts
from .reconciler import Reconciler

log = logging.getLogger("gateway.controller")

_UNRECORDED = 10_000
"""Events kept while they cannot be recorded; of more the oldest are dropped, and the reconciler finds their sandboxes missing."""
_UNRECORDED_S = 60.0
_START_S = 10.0
"""How long after the start a step that must be repeated is no reason for a warning: the processes of one machine start together."""
_FAILED_PAUSE_S = 10.0
"""Longest pause after a step that failed: creates wait for the first verdict of a probe."""


class Controller:
    """A controller. Several may run; each acts only while it leads."""

    def __init__(
        self,
        store: PlacementStore,
        runtime: Runtime,
        holder: str,
        settings: ControllerSettings,
        pool_refill: PoolRefill | None = None,
        admission: AdmissionSettings | None = None,
        metrics: Metrics | None = None,
        prepull: Prepull | None = None,
        ask_idle: AskIdle | None = None,
    ) -> None:
        self.metrics = metrics or Metrics()
        self._started_at = time.monotonic()
        self._store = store
        self._runtime = runtime
        self._settings = settings
        self.leadership = Leadership(store, holder, settings)
        self._pool_refill = pool_refill
        self._ask_idle = ask_idle
        self._prepull = prepull
        self._reconciler = Reconciler(store, runtime, settings.grace_s, pool_refill)
        self._groups = Groups(store, self._reconciler.remove)
        self._reconciler.further_reconcilers += [self._groups.reconcile, QuotaCounts(store, admission).reconcile]
        self._unrecorded: deque[tuple[float, Event]] = deque(maxlen=_UNRECORDED)

    async def run(self) -> None:
        """Run until cancelled; the lease is released at the end."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.leadership.run(), name="leadership")
                group.create_task(self._watch(), name="watch")
                group.create_task(self._reconcile(), name="reconciliation")
                for what, every_s, step in self._periodic(group):
                    group.create_task(self._repeat(what, every_s, step), name=what)
        finally:
            await self.leadership.resign()

    def _periodic(self, group: asyncio.TaskGroup) -> Iterator[tuple[str, float, Callable[[int], Awaitable[None]]]]:
        """The periodic steps; ``group`` owns the tasks that create spares."""
        settings = self._settings
        yield "expiry", settings.expiry_interval_s, self._expire
        yield "freeing groups", settings.expiry_interval_s, self._free_groups
        yield "collecting unused objects", settings.collect_interval_s, self._collect
        if (pool_refill := self._pool_refill) is not None:

            async def refill(term: int) -> None:
                if term == pool_refill.agreed_term:
                    await pool_refill.refill(term, group.create_task)

            yield "refilling the pools", settings.refill_interval_s, refill
        if self._prepull:
            yield "pre-pulling images", settings.prepull_interval_s, self._prepull.keep

    async def _watch(self) -> None:
        async for event in self._runtime.watch():
            if isinstance(event, Synced):
                self._reconciler.began_at = event.began_at
                self.leadership.changed.set()
            term, recorded = self.leadership.term, False
            if term is not None:
                with self._guard("recording an event"):
                    await self._record(event, term)
                    recorded = True
            if not recorded:
                self._unrecorded.append((time.monotonic(), event))

    async def _replay(self, term: int) -> None:
        """Record the events that came while no controller was the leader or the store was down: a cause is sent only once, and later lists
        may not show it."""
        while self._unrecorded:
            at, event = self._unrecorded[0]
            if time.monotonic() - at < _UNRECORDED_S:
                await self._record(event, term)
            self._unrecorded.popleft()

    async def _record(self, event: Event, term: int) -> None:
        match event:
            case SandboxEnded(sandbox_id, incarnation, cause):
                # The replica that creates a sandbox records why it was deleted meanwhile: the runtime cleans up before that is recorded.
                was: Status | None = "ready" if (cause.reason, cause.fault) == ("deleted", "caller") else None
                await self._store.mark_failed(sandbox_id, incarnation, cause, was=was, term=term)
                self.metrics.count("sandboxes_ended_total", reason=cause.reason, fault=cause.fault)
            case EndAnnounced(sandbox_id, incarnation, cause, deadline):
                log.info("sandbox %s will end soon: %s", sandbox_id, cause.reason)
                await self._store.mark_leaving(sandbox_id, incarnation, PlannedEnd(cause, deadline), term=term)

    async def _repeat(self, what: str, every_s: float, step: Callable[[int], Awaitable[None]]) -> None:
        """Repeat the step while this controller is the leader. A step that failed is repeated sooner if it is rare."""
        while True:
            await self.leadership.until_leading()
            term, pause_s = self.leadership.term, min(every_s, _FAILED_PAUSE_S)
            if term is not None:
                with self._guard(what):
                    await step(term)
                    pause_s = every_s
            await asyncio.sleep(pause_s)

    async def _expire(self, term: int) -> None:
        if self.leadership.settled:
            expired = await self._store.claim_expired(term, ask=self._ask_idle)
            for one in expired:
                log.info("sandbox %s has ended: %s", one.sandbox_id, one.cause.reason)
                self.metrics.count("sandboxes_expired_total", reason=one.cause.reason)
            await self._reconciler.remove([(one.sandbox_id, one.incarnation) for one in expired], term)

    async def _free_groups(self, term: int) -> None:
        if self.leadership.settled:
            await self._groups.free(term)

    async def _collect(self, term: int) -> None:
        """Remove unused objects. The runtime also probes what it is declared to enforce; creates depend on the result."""
        await self._runtime.collect()

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
                    await self._replay(term)
                    begun = time.monotonic()
                    for action in await self._reconciler.run_once(term):
                        self.metrics.count("reconcile_actions_total", action=type(action).__name__)
                    self.metrics.observe("reconcile_seconds", time.monotonic() - begun)
                    self.metrics.count("reconcile_passes_total")
            self.metrics.gauge("leading", 0 if self.leadership.term is None else 1)

    @contextlib.contextmanager
    def _guard(self, what: str) -> Iterator[None]:
        try:
            yield
        except FencedError:
            self.leadership.lost()
        except HoldfastError as error:
            if error.retryable and time.monotonic() < self._started_at + _START_S:
                log.info("starting; %s waits: %s", what, error.message)
            else:
                log.warning("%s failed and will be repeated: %s", what, error.message)
        except Exception:
            log.exception("%s failed", what)
