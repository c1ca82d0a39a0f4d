"""The warm pools' refill: creates spares, and carries out ``pool_plan``.

Owns the creating tasks (in the controller's task group), their number and rate. Every step is recorded in the store before it, or checked
there after it, so that the next controller finds whatever a killed one left.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast_wire.errors import HoldfastError
from holdfast_wire.proof import agent_token

from gateway.lifecycle.reserved_labels import READY_LABEL
from gateway.metrics import Metrics
from gateway.placement.store import FencedError, PlacementStore, PlacementUnavailableError
from gateway.pools import KEY_LABEL, POOL_LABEL, PREFIX, Pool
from gateway.runtimes.base import CreateRequest, Runtime, SandboxStatus
from gateway.settings import ControllerSettings

from .pool_plan import Discard, Forget, Offer, PoolAction, Withdraw, missing, plan_spares

log = logging.getLogger("gateway.controller")

_BACKOFF_MOST_S = 60.0


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
        self.closed_until = now + random.uniform(0.5, 1.0) * min(2.0**self.failures, _BACKOFF_MOST_S)  # noqa: S311


class PoolRefill:
    """``pools`` returns the current definitions; ``spawn`` starts a task that ends with the controller."""

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
        self._making: dict[str, str] = {}
        self._paces: dict[str, _Pace] = {}

    async def refill(self, term: int, spawn: Callable[[Coroutine[Any, Any, None], str], object]) -> None:
        """Start creating what is missing; cheap when nothing is. After a wipe of the store ``carry_out`` comes first."""
        clock = asyncio.get_running_loop().time
        pools = self._pools()
        generation = await self._store.generation() if pools else None
        states = {key: await self._store.spares(key) for key in pools}
        if generation is None or await self._store.generation() != generation:
            return  # the store was wiped, and possibly rebuilt, while the spares were counted
        for key, pool in pools.items():
            state = states[key]
            self._metrics.gauge("pool_spares", len(state.spares), pool=pool.name)
            self._metrics.gauge("pool_making", len(state.making), pool=pool.name)
            pace = self._paces.setdefault(key, _Pace(max(pool.refill_per_s, 1.0), clock()))
            room = self._settings.spares_at_once - len(self._making)
            for _ in range(pace.allow(min(missing(pool, state), room), pool.refill_per_s, clock())):
                id_, incarnation = f"{PREFIX}{secrets.token_hex(10)}", secrets.token_hex(8)
                self._making[id_] = key
                spawn(self._make(pool, id_, incarnation, term, pace), f"creation of {id_}")

    async def carry_out(self, states: Mapping[str, Any], statuses: Iterable[SandboxStatus], term: int) -> list[PoolAction]:
        """Carry out the plan for the existing spares. ``states`` are from ``read_states``, read before the runtime's list."""
        actions = plan_spares(
            self._pools(), states, statuses, now=time.time(), ours=self._making.keys(), claim_grace_s=self._settings.claim_grace_s
        )
        for action in actions:
            match action:
                case Offer(pool, id_):
                    await self._store.offer_spare(pool, id_, term=term)
                case Withdraw(pool, id_):
                    await self._store.withdraw_spare(pool, id_, term=term)
                case Forget(pool, id_):
                    await self._store.forget_spare(pool, id_, term=term)
                case Discard(pool, id_, None):
                    if await self._store.abandon_spare(pool, id_, term=term):
                        await self._remove(pool, id_, None, term)
                case Discard(pool, id_, incarnation):
                    await self._discard(pool, id_, incarnation, self._settings.claim_grace_s, term)
        return actions

    async def read_states(self) -> Mapping[str, Any]:
        """What the store knows of every pool, including removed ones."""
        keys = {*self._pools(), *await self._store.pool_keys()}
        return {key: await self._store.spares(key) for key in keys}

    async def _discard(self, pool: str, id_: str, incarnation: str | None, taken_for_s: float, term: int) -> None:
        if await self._store.claim_spare(pool, id_, taken_for_s, term=term):  # else a gateway took it, and may be using it
            await self._remove(pool, id_, incarnation, term)

    async def _remove(self, pool: str, id_: str, incarnation: str | None, term: int) -> None:
        await self._store.check_term(term)
        try:
            await self._runtime.delete(id_, incarnation)
        except HoldfastError as error:
            log.warning("removing the spare %s failed: %s", id_, error.code)
            return  # it stays claimed: a later pass retries
        await self._store.forget_spare(pool, id_, term=term)
        self._metrics.count("pool_discards_total")

    async def _make(self, pool: Pool, id_: str, incarnation: str, term: int, pace: _Pace) -> None:
        """Never raises: the remains of a failure are in the store, for ``carry_out``."""
        key = pool.key
        try:
            await self._store.plan_spare(key, id_, term=term)
            try:
                await self._runtime.create(self._order(pool, id_, incarnation), self._settings.spare_timeout_s)
            except HoldfastError as error:
                pace.failed(asyncio.get_running_loop().time())
                self._metrics.count("pool_failures_total", pool=pool.name, code=error.code)
                log.warning("a spare of pool %s could not be created: %s", pool.name, error.code)
                await self._discard(key, id_, incarnation, 0.0, term)
                return
            pace.failures = 0
            await self._store.offer_spare(key, id_, term=term)
            self._metrics.count("pool_makes_total", pool=pool.name)
        except (FencedError, PlacementUnavailableError) as error:
            log.info("the spare %s is left to a later pass: %s", id_, error.code)
        except Exception:
            pace.failed(asyncio.get_running_loop().time())
            log.exception("creating a spare of pool %s failed", pool.name)
        finally:
            self._making.pop(id_, None)

    def _order(self, pool: Pool, id_: str, incarnation: str) -> CreateRequest:
        return CreateRequest(
            sandbox_id=id_,
            incarnation=incarnation,
            token=agent_token(self._secret, id_, incarnation),
            owner="",
            image=pool.image,
            cores=pool.cores,
            memory_bytes=pool.memory_bytes,
            disk_bytes=pool.disk_bytes,
            labels={POOL_LABEL: pool.name, KEY_LABEL: pool.key, READY_LABEL: f"{self._settings.spare_timeout_s:g}"},
            egress=pool.egress,
            options=pool.options,
        )
