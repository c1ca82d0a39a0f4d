"""Keeps the warm pools at the size that the pools file sets, and the images that it lists on every node.

Owns the creating tasks (in the controller's task group), their number and rate, and when a spare is offered, withdrawn and removed. The
existing spares are those that the runtime lists, so that the next controller finds what a killed one left; the store only has the ids that
gateways may try to adopt. A spare has no owner, so it is removed without the checks that a sandbox requires; the runtime does not remove a
spare that is being adopted. Called by ``loop`` and ``reconciler``.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from holdfast_wire.errors import HoldfastError
from holdfast_wire.proof import agent_token

from gateway.metrics import Metrics
from gateway.model.labels import KEY_LABEL, POOL_LABEL
from gateway.model.records import SandboxSpec
from gateway.placement.errors import FencedError, PlacementUnavailableError
from gateway.placement.store import PlacementStore
from gateway.pools import PREFIX, Pool
from gateway.runtimes.base import CreateRequest, HasImages, KeptImages, Runtime, SandboxStatus
from gateway.settings import ControllerSettings

log = logging.getLogger("gateway.controller")

_BACKOFF_MOST_S = 60.0
_DOUBLINGS = 30
"""Of a pause: a float takes no more than 1023."""
_SURGE = 2
"""Spares of a pool, existing or in creation, are at most this many times its size while old ones are replaced."""


def is_spare(sandbox: SandboxStatus) -> bool:
    """Whether it is a spare: no sandbox of an owner can have the label."""
    return KEY_LABEL in sandbox.spec.labels and not sandbox.spec.owner and sandbox.sandbox_id.startswith(PREFIX)


def missing(pool: Pool, offered: Mapping[str, float], coming: int, now: float) -> int:
    """How many spares to create now; ``coming`` are in creation, or not offered yet."""
    fresh = sum(1 for created_at in offered.values() if now - created_at < pool.max_age_s)
    return max(min(pool.size - fresh - coming, _SURGE * pool.size - len(offered) - coming), 0)


@dataclass(frozen=True, slots=True)
class SparePlan:
    """What to do with the spares of one pool."""

    offer: dict[str, float]
    """Ready but not offered, with their times of creation: their creator or a gateway that took them has ended, or the store lost them."""
    withdraw: list[str]
    """Offered, but the runtime does not have them."""
    discard: list[SandboxStatus]
    """Failed, too old, too many, or of an outdated definition."""


def plan_spares(
    pool: Pool | None, offered: Collection[str], spares: Sequence[SandboxStatus], *, now: float, ours: Collection[str]
) -> SparePlan:
    """The plan for one pool; None if the pool is no longer defined. ``ours`` are in creation by this controller.

    ``offered`` was read before ``spares``.
    """
    settled = [one for one in spares if one.sandbox_id not in ours]
    ready = [one for one in settled if one.state == "ready"]
    discard = [one for one in settled if pool is None or one.state == "failed"] + ([] if pool is None else _surplus(pool, ready, now))
    there, leaving = {one.sandbox_id for one in settled}, {one.sandbox_id for one in discard}
    return SparePlan(
        offer={one.sandbox_id: one.created_at for one in ready if one.sandbox_id not in leaving and one.sandbox_id not in offered},
        withdraw=[id_ for id_ in offered if id_ not in there and id_ not in ours],
        discard=discard,
    )


def _surplus(pool: Pool, ready: list[SandboxStatus], now: float) -> list[SandboxStatus]:
    fresh = sorted((one for one in ready if now - one.created_at < pool.max_age_s), key=lambda one: one.created_at)
    if len(fresh) < pool.size:
        return []  # the old ones serve until there are enough new ones
    old = [one for one in ready if now - one.created_at >= pool.max_age_s]
    return old + fresh[: len(fresh) - pool.size]


@dataclass(slots=True)
class _Pace:
    """How fast a pool may be refilled: a token bucket of one second's worth, closed for a while after a failure."""

    tokens: float
    at: float
    failures: int = 0
    closed_until: float = 0.0

    def allow(self, wanted: int, per_s: float, now: float) -> int:
        burst = max(per_s, 1.0)
        self.tokens = min(burst, self.tokens + (now - self.at) * per_s)
        self.at = now
        granted = 0 if now < self.closed_until else min(wanted, int(self.tokens))
        self.tokens -= granted
        return granted

    def failed(self, now: float) -> None:
        self.failures += 1
        self.closed_until = now + random.uniform(0.5, 1.0) * min(2.0 ** min(self.failures, _DOUBLINGS), _BACKOFF_MOST_S)  # noqa: S311


class PoolRefill:
    """``pools`` returns the current definitions."""

    def __init__(
        self,
        store: PlacementStore,
        runtime: Runtime,
        pools: Callable[[], Mapping[str, Pool]],
        secret: str,
        settings: ControllerSettings,
        metrics: Metrics,
    ) -> None:
        self._store = store
        self._runtime = runtime
        self._pools = pools
        self._secret = secret
        self._settings = settings
        self._metrics = metrics
        self._creating: dict[str, str] = {}
        self._paces: dict[str, _Pace] = {}
        self._unoffered: dict[str, str] | None = None
        """Spares that the previous pass found and that were not offered, by id; None before the first pass."""
        self.agreed_term: int | None = None
        """The term of the last pass: a new controller counts what exists before it creates."""

    async def refill(self, term: int, spawn: Callable[..., object]) -> None:
        """Start creating what is missing, in tasks of ``spawn``. After a wipe of the store ``reconcile`` comes first."""
        clock = asyncio.get_running_loop().time
        for key, pool in self._pools().items():
            offered = await self._store.spares(key)
            if offered is None:
                continue
            creating = {id_ for id_, its in self._creating.items() if its == key}
            unoffered = {id_ for id_, its in (self._unoffered or {}).items() if its == key}
            self._metrics.gauge("pool_spares", len(offered), pool=pool.name)
            self._metrics.gauge("pool_making", len(creating), pool=pool.name)
            pace = self._paces.setdefault(key, _Pace(max(pool.refill_per_s, 1.0), clock()))
            room = self._settings.spares_at_once - len(self._creating)
            wanted = min(missing(pool, offered, len((creating | unoffered).difference(offered)), time.time()), room)
            for _ in range(pace.allow(wanted, pool.refill_per_s, clock())):
                id_, incarnation = f"{PREFIX}{secrets.token_hex(10)}", secrets.token_hex(8)
                self._creating[id_] = key
                spawn(self._create(pool, id_, incarnation, term, pace), name=f"creation of {id_}")

    async def read_offers(self) -> dict[str, dict[str, float] | None]:
        """The spares that the store offers, by pool; None if the store is being rebuilt."""
        return {key: await self._store.spares(key) for key in self._pools()}

    async def reconcile(self, offers: Mapping[str, Mapping[str, float] | None], spares: Sequence[SandboxStatus], term: int) -> None:
        """Make the offers agree with the spares that exist, and remove those that are not wanted. ``offers`` were read before them.

        A spare that is not offered may have been taken a moment ago, so it is offered when two passes see it; at once by a new
        controller and to a new store.
        """
        pools, before, unoffered = self._pools(), self._unoffered, dict[str, str]()
        there: dict[str, list[SandboxStatus]] = {}
        for spare in spares:
            there.setdefault(spare.spec.labels[KEY_LABEL], []).append(spare)
        self._unoffered = unoffered
        for key in {**offers, **there}:
            offered, mine = offers.get(key), there.get(key, [])
            plan = plan_spares(pools.get(key), offered or {}, mine, now=time.time(), ours=self._creating.keys())
            due = {id_: at for id_, at in plan.offer.items() if before is None or id_ in before or offered is None}
            unoffered.update({one.sandbox_id: key for one in mine if one.sandbox_id not in due and one.sandbox_id not in (offered or {})})
            await self._store.offer_spares(key, due, term=term)
            await self._store.withdraw_spares(key, [*plan.withdraw, *(one.sandbox_id for one in plan.discard)], term=term)
            for one in plan.discard:
                await self._remove(one.sandbox_id, one.incarnation, term)
        self.agreed_term = term

    async def _remove(self, id_: str, incarnation: str, term: int) -> None:
        await self._store.check_term(term)
        try:
            await self._runtime.delete(id_, incarnation)
        except HoldfastError as error:
            log.warning("removing the spare %s failed: %s", id_, error.code)
            return  # a later pass retries
        self._metrics.count("pool_discards_total")

    async def _create(self, pool: Pool, id_: str, incarnation: str, term: int, pace: _Pace) -> None:
        """Never raises: what a failure leaves in the runtime is seen by ``reconcile``."""
        try:
            await self._store.check_term(term)
            try:
                await self._runtime.create(self._request(pool, id_, incarnation), self._settings.spare_timeout_s)
            except HoldfastError as error:
                pace.failed(asyncio.get_running_loop().time())
                self._metrics.count("pool_failures_total", pool=pool.name, code=error.code)
                log.warning("a spare of pool %s could not be created: %s", pool.name, error.code)
                await self._remove(id_, incarnation, term)
                return
            pace.failures = 0
            await self._store.offer_spares(pool.key, {id_: time.time()}, term=term)
            self._metrics.count("pool_makes_total", pool=pool.name)
        except (FencedError, PlacementUnavailableError) as error:
            log.info("the spare %s is left to a later pass: %s", id_, error.code)
        except Exception:
            pace.failed(asyncio.get_running_loop().time())
            log.exception("creating a spare of pool %s failed", pool.name)
        finally:
            self._creating.pop(id_, None)

    def _request(self, pool: Pool, id_: str, incarnation: str) -> CreateRequest:
        spec = SandboxSpec(
            sandbox_id=id_,
            owner="",
            incarnation=incarnation,
            image=pool.image,
            cores=pool.cores,
            memory_bytes=pool.memory_bytes,
            disk_bytes=pool.disk_bytes,
            labels={POOL_LABEL: pool.name, KEY_LABEL: pool.key},
            ready_timeout_s=self._settings.spare_timeout_s,
            egress=pool.egress,
            options=pool.options,
        )
        return CreateRequest(spec, agent_token(self._secret, id_, incarnation))


class Prepull:
    """Applies the images that every node pulls in advance, so that an edited file is followed and a removed object restored.

    ``names`` returns the images that the file lists now; the runtime does the work (``base.KeptImages``).
    """

    def __init__(self, store: PlacementStore, runtime: Runtime, names: Callable[[], tuple[str, ...]], metrics: Metrics) -> None:
        self._store = store
        self._runtime = runtime
        self._names = names
        self._metrics = metrics
        self._had = True
        """Whether an image may be kept that is no longer listed: what a previous controller kept is unknown."""

    async def keep(self, term: int) -> None:
        """One pass. Raises FencedError and the errors of store and runtime."""
        if not isinstance(self._runtime, HasImages):
            return
        names, images = self._names(), self._runtime.images
        if not isinstance(images, KeptImages) or not (names or self._had):
            return
        await self._store.check_term(term)
        kept = await images.keep(names)
        self._had = bool(names)
        for image in kept:
            self._metrics.gauge("prepull_nodes_ready", image.ready or 0, image=image.name)
            self._metrics.gauge("prepull_nodes_wanted", image.wanted or 0, image=image.name)
