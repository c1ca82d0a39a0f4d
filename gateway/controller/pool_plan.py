"""The actions that keep every pool at its size: pure functions of what is known.

Owns when a spare is created, offered, withdrawn and removed. A spare has no owner, so it is removed without the evidence that a sandbox
requires, but only once no gateway can take it. Called by ``pool_refill``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from gateway.model.records import PoolState
from gateway.pools import KEY_LABEL, PREFIX, Pool
from gateway.runtimes.base import SandboxStatus

_SURGE = 2
"""Spares of a pool, existing or in creation, are at most this many times its size while old ones are replaced."""


@dataclass(frozen=True, slots=True)
class Offer:
    """It is ready and not offered: the controller that created it is gone, or the store lost it."""

    pool: str
    spare_id: str


@dataclass(frozen=True, slots=True)
class Withdraw:
    """It is offered and does not exist."""

    pool: str
    spare_id: str


@dataclass(frozen=True, slots=True)
class Discard:
    """It failed, is too old, one too many, of an outdated definition, or was taken and never used."""

    pool: str
    spare_id: str
    incarnation: str | None = None


@dataclass(frozen=True, slots=True)
class Forget:
    """It was taken long ago, and no sandbox has its id."""

    pool: str
    spare_id: str


PoolAction = Offer | Withdraw | Discard | Forget


def is_spare(sandbox: SandboxStatus) -> bool:
    """Whether it is a spare: no sandbox of an owner can have the label."""
    return KEY_LABEL in sandbox.labels and not sandbox.owner and sandbox.sandbox_id.startswith(PREFIX)


def missing(pool: Pool, state: PoolState) -> int:
    """How many spares to create now."""
    fresh = sum(1 for age_s in state.spares.values() if age_s < pool.max_age_s)
    wanted = pool.size - fresh - len(state.making)
    room = _SURGE * pool.size - len(state.spares) - len(state.making)
    return max(min(wanted, room), 0)


def plan_spares(
    pools: Mapping[str, Pool],
    states: Mapping[str, PoolState],
    statuses: Iterable[SandboxStatus],
    *,
    now: float,
    ours: Collection[str] = (),
    claim_grace_s: float,
) -> list[PoolAction]:
    """``states`` were read before ``statuses``. ``ours`` are being created by this controller."""
    actions: list[PoolAction] = []
    there: dict[str, dict[str, SandboxStatus]] = {}
    for sandbox in statuses:
        there.setdefault(sandbox.labels[KEY_LABEL], {})[sandbox.sandbox_id] = sandbox
    for key in {**states, **there}:
        state, mine = states.get(key, PoolState()), there.get(key, {})
        waiting = []
        for sandbox in mine.values():
            waiting += _judge(key, pools.get(key), state, sandbox, ours, claim_grace_s, actions)
        actions += [Discard(key, one.sandbox_id, one.incarnation) for one in _surplus(pools.get(key), waiting, now)]
        actions += [Withdraw(key, id_) for id_ in state.spares if id_ not in mine]
        # The controller that created it is gone; whether the runtime will still finish it is not known.
        actions += [Discard(key, id_) for id_ in state.making if id_ not in mine and id_ not in ours]
        actions += [Forget(key, id_) for id_, age_s in state.taken.items() if id_ not in mine and age_s >= claim_grace_s]
    return actions


def _judge(
    key: str,
    pool: Pool | None,
    state: PoolState,
    sandbox: SandboxStatus,
    ours: Collection[str],
    claim_grace_s: float,
    actions: list[PoolAction],
) -> list[SandboxStatus]:
    """The spare itself where it can stay."""
    id_ = sandbox.sandbox_id
    if id_ in ours:
        return []
    taken_s = state.taken.get(id_)
    if taken_s is not None and taken_s < claim_grace_s:
        return []
    if pool is None or sandbox.state == "failed" or taken_s is not None:
        actions.append(Discard(key, id_, sandbox.incarnation))
        return []
    if sandbox.state != "ready":
        return []  # it replaces no other spare until it is ready
    if id_ not in state.spares:
        actions.append(Offer(key, id_))
    return [sandbox]


def _surplus(pool: Pool | None, waiting: list[SandboxStatus], now: float) -> list[SandboxStatus]:
    if pool is None:
        return []
    fresh = sorted((one for one in waiting if now - one.created_at < pool.max_age_s), key=lambda one: one.created_at)
    if len(fresh) < pool.size:
        return []  # the old ones serve until there are enough new ones
    old = [one for one in waiting if now - one.created_at >= pool.max_age_s]
    return old + fresh[: len(fresh) - pool.size]
