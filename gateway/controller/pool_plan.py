"""The actions that keep every pool at its size: pure functions of the spares that exist and of those that are offered.

Owns when a spare is created, offered, withdrawn and removed. A spare has no owner, so it is removed without the evidence that a sandbox
requires; one that is being adopted in this moment is not removed by the runtime. Called by ``pool_refill``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from gateway.model.labels import KEY_LABEL
from gateway.pools import PREFIX, Pool
from gateway.runtimes.base import SandboxStatus

_SURGE = 2
"""Spares of a pool, existing or in creation, are at most this many times its size while old ones are replaced."""


@dataclass(frozen=True, slots=True)
class Offer:
    """It is ready and not offered: the controller that created it is gone, the gateway that took it is, or the store lost it."""

    pool: str
    spare_id: str
    created_at: float


@dataclass(frozen=True, slots=True)
class Withdraw:
    """It is offered and does not exist."""

    pool: str
    spare_id: str


@dataclass(frozen=True, slots=True)
class Discard:
    """It failed, is too old, one too many, or of an outdated definition."""

    pool: str
    spare_id: str
    incarnation: str


PoolAction = Offer | Withdraw | Discard


def is_spare(sandbox: SandboxStatus) -> bool:
    """Whether it is a spare: no sandbox of an owner can have the label."""
    return KEY_LABEL in sandbox.spec.labels and not sandbox.spec.owner and sandbox.sandbox_id.startswith(PREFIX)


def missing(pool: Pool, offered: Mapping[str, float], coming: int, now: float) -> int:
    """How many spares to create now; ``coming`` are in creation, or not offered yet."""
    fresh = sum(1 for created_at in offered.values() if now - created_at < pool.max_age_s)
    return max(min(pool.size - fresh - coming, _SURGE * pool.size - len(offered) - coming), 0)


def plan_spares(
    pools: Mapping[str, Pool],
    offered: Mapping[str, Mapping[str, float]],
    spares: Iterable[SandboxStatus],
    *,
    now: float,
    ours: Collection[str],
) -> list[PoolAction]:
    """What to do. ``ours`` are in creation by this controller; ``offered`` was read before ``spares``."""
    actions: list[PoolAction] = []
    there: dict[str, list[SandboxStatus]] = {}
    for spare in spares:
        if spare.sandbox_id not in ours:
            there.setdefault(spare.spec.labels[KEY_LABEL], []).append(spare)
    for key in {**offered, **there}:
        pool, mine = pools.get(key), there.get(key, [])
        waiting = [spare for spare in mine if pool is not None and spare.state == "ready"]
        unwanted = [spare for spare in mine if pool is None or spare.state == "failed"] + _surplus(pool, waiting, now)
        leaving = {spare.sandbox_id for spare in unwanted}
        ids = {spare.sandbox_id for spare in mine}
        known = leaving.union(offered.get(key, ()))
        actions += [Offer(key, spare.sandbox_id, spare.created_at) for spare in waiting if spare.sandbox_id not in known]
        actions += [Discard(key, spare.sandbox_id, spare.incarnation) for spare in unwanted]
        actions += [Withdraw(key, id_) for id_ in offered.get(key, ()) if id_ not in ids and id_ not in ours]
    return actions


def _surplus(pool: Pool | None, waiting: list[SandboxStatus], now: float) -> list[SandboxStatus]:
    if pool is None:
        return []
    fresh = sorted((one for one in waiting if now - one.created_at < pool.max_age_s), key=lambda one: one.created_at)
    if len(fresh) < pool.size:
        return []  # the old ones serve until there are enough new ones
    old = [one for one in waiting if now - one.created_at >= pool.max_age_s]
    return old + fresh[: len(fresh) - pool.size]
