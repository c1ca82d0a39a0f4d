"""The controller's tasks: lead, watch (and record why sandboxes ended), expire, reconcile, concurrently.

Owns their schedule. What concerns one sandbox runs in its worker (``workers``), in the order in which it came; the rest goes on meanwhile.
All of them are level-triggered: an event only starts a pass earlier, so a lost event, a kill -9 or an outage of the store costs time and
nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import time
from collections.abc import Awaitable, Callable, Iterator

from holdfast_wire.errors import HoldfastError

from gateway.metrics import Metrics
from gateway.model.records import PlannedEnd, Record, Status
from gateway.placement.errors import FencedError
from gateway.placement.store import AskIdle, PlacementStore
from gateway.runtimes.base import Collects, EndAnnounced, Event, Runtime, SandboxEnded, Synced
from gateway.settings import AdmissionSettings, ControllerSettings

from .groups import Groups
from .leadership import Leadership
from .pool_refill import PoolRefill, Prepull
from .quota_counts import QuotaCounts
from .reconciler import Reconciler
from .workers import Workers

log = logging.getLogger("gateway.controller")

FINISHED = "finished"
"""The reason of a sandbox that ended with the command that it was created for."""
_UNRECORDED_S = 60.0
"""How long an event is kept that cannot be recorded; later the reconciler finds its sandbox missing."""
_AGAIN_S = 0.25
_RECORDS_AT_ONCE = 16
_EXPIRIES_AT_ONCE = 256
"""Most of these wait for an agent to answer how long its sandbox has been idle."""
_EVENTS_S = 2.0
"""How long a pass waits for events to be recorded."""
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
        self._quotas = QuotaCounts(store, admission)
        self._groups = Groups(store, self._reconciler.remove, uncount=self._quotas.ended)
        self._reconciler.further_reconcilers += [self._groups.reconcile, self._quotas.reconcile]
        self._reconciler.uncount = self._quotas.ended
        self._workers = Workers()
        self._reconciler.start_removals = self._start_removals
        self._records_at_once = asyncio.Semaphore(_RECORDS_AT_ONCE)
        self._expiries_at_once = asyncio.Semaphore(_EXPIRIES_AT_ONCE)
        self._unrecorded: set[asyncio.Future[None]] = set()
        """One for each event that is not recorded yet."""

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
            await self._workers.aclose()
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
            else:
                recorded: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                if self._workers.start(event.sandbox_id, "", functools.partial(self._until_recorded, event, recorded)):
                    self._unrecorded.add(recorded)
                    recorded.add_done_callback(self._unrecorded.discard)

    async def _until_recorded(self, event: EndAnnounced | SandboxEnded, recorded: asyncio.Future[None]) -> None:
        """Record the event, once this controller is the leader and the store answers: a cause is sent only once, and later lists may not
        show it. It is given up after some time: then another controller has recorded it."""
        try:
            async with asyncio.timeout(_UNRECORDED_S):
                while True:
                    await self.leadership.until_leading()
                    term = self.leadership.term
                    with self._guard("recording an event"):
                        if term is not None:
                            async with self._records_at_once:
                                await self._record(event, term)
                            return
                    await asyncio.sleep(_AGAIN_S)
        except TimeoutError:
            return
        finally:
            recorded.cancel()

    async def _record(self, event: Event, term: int) -> None:
        match event:
            case SandboxEnded(sandbox_id, incarnation, cause):
                # The replica that creates a sandbox records why it was deleted meanwhile: the runtime cleans up before that is recorded.
                was: Status | None = "ready" if (cause.reason, cause.fault) == ("deleted", "caller") else None
                entry = await self._store.mark_failed(sandbox_id, incarnation, cause, was=was, term=term)
                if isinstance(entry, Record) and (entry.incarnation, entry.status) == (incarnation, "failed"):
                    await self._quotas.ended(entry.spec, term)
                if cause.reason == FINISHED:  # nothing has failed: it is gone, like a container of `docker run --rm`
                    await self._store.delete(sandbox_id, cause, incarnation=incarnation, term=term)
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
            for id_ in await self._store.due():
                self._workers.start(id_, "expiry", functools.partial(self._expire_one, id_, term))

    async def _expire_one(self, sandbox_id: str, term: int) -> None:
        with self._guard("expiry"):
            async with self._expiries_at_once:
                one = await self._store.expire(sandbox_id, term, self._ask_idle) if self.leadership.settled else None
            if one is not None:
                log.info("sandbox %s has ended: %s", sandbox_id, one.cause.reason)
                self.metrics.count("sandboxes_expired_total", reason=one.cause.reason)
                await self._quotas.ended(one.spec, term)
                await self._reconciler.remove([(sandbox_id, one.incarnation)], term)

    async def _start_removals(self, ended: list[tuple[str, str]], term: int) -> None:
        for sandbox_id, incarnation in ended:
            self._workers.start(sandbox_id, f"removal of {incarnation}", functools.partial(self._remove, sandbox_id, incarnation, term))

    async def _remove(self, sandbox_id: str, incarnation: str, term: int) -> None:
        with self._guard("a removal"):
            await self._reconciler.remove([(sandbox_id, incarnation)], term)

    async def _free_groups(self, term: int) -> None:
        if self.leadership.settled:
            for key in await self._groups.due():
                self._workers.start(f"group {key}", "freeing", functools.partial(self._free_group, key, term))

    async def _free_group(self, key: str, term: int) -> None:
        with self._guard("freeing a group"):
            if self.leadership.settled:
                await self._groups.free(key, term)

    async def _collect(self, term: int) -> None:
        """Remove unused objects. The runtime also probes what it is declared to enforce; creates depend on the result."""
        if isinstance(self._runtime, Collects):
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
                    if self._unrecorded:  # they have causes, which a pass would not know
                        await asyncio.wait(self._unrecorded, timeout=_EVENTS_S)
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
