"""What is to be done so that every pool has its spares: pure functions, called on what is known.

Owns when a spare is made, offered, withdrawn and removed. A spare belongs to nobody, so it is removed without the evidence a sandbox
gets, but only once nobody can take it any more. Called by ``pool_refill``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from gateway.model.records import PoolState
from gateway.pools import KEY_LABEL, PREFIX, Pool
from gateway.runtimes.base import Present

_SURGE = 2
"""At most this many times its size of a pool's spares exist or are made while old ones are replaced."""


@dataclass(frozen=True, slots=True)
class Offer:
    """It is ready and not on offer: its maker is gone, or the store forgot it."""

    pool: str
    spare_id: str


@dataclass(frozen=True, slots=True)
class Withdraw:
    """It is on offer and not there."""

    pool: str
    spare_id: str


@dataclass(frozen=True, slots=True)
class Discard:
    """It failed, is too old, one too many, of a definition of before, or was taken and never used."""

    pool: str
    spare_id: str
    incarnation: str | None = None


@dataclass(frozen=True, slots=True)
class Forget:
    """It was taken long ago, and nothing bears its id."""

    pool: str
    spare_id: str


PoolAction = Offer | Withdraw | Discard | Forget


def is_spare(present: Present) -> bool:
    """Whether it waits for somebody: no sandbox of an owner can carry the label."""
    return KEY_LABEL in present.labels and not present.owner and present.sandbox_id.startswith(PREFIX)


def missing(pool: Pool, state: PoolState) -> int:
    """How many spares are to be made now."""
    fresh = sum(1 for age_s in state.spares.values() if age_s < pool.max_age_s)
    wanted = pool.size - fresh - len(state.making)
    room = _SURGE * pool.size - len(state.spares) - len(state.making)
    return max(min(wanted, room), 0)


def tend(
    pools: Mapping[str, Pool],
    states: Mapping[str, PoolState],
    presents: Iterable[Present],
    *,
    now: float,
    ours: Collection[str] = (),
    claim_grace_s: float,
) -> list[PoolAction]:
    """``states`` were read before ``presents``. ``ours`` are being made by this controller, which sees to them itself."""
    actions: list[PoolAction] = []
    there: dict[str, dict[str, Present]] = {}
    for present in presents:
        there.setdefault(present.labels[KEY_LABEL], {})[present.sandbox_id] = present
    for key in {**states, **there}:
        state, mine = states.get(key, PoolState()), there.get(key, {})
        waiting = []
        for present in mine.values():
            waiting += _judge(key, pools.get(key), state, present, ours, claim_grace_s, actions)
        actions += [Discard(key, one.sandbox_id, one.incarnation) for one in _surplus(pools.get(key), waiting, now)]
        actions += [Withdraw(key, id_) for id_ in state.spares if id_ not in mine]
        # Its maker is gone, and whether the runtime will still make it is not known.
        actions += [Discard(key, id_) for id_ in state.making if id_ not in mine and id_ not in ours]
        actions += [Forget(key, id_) for id_, age_s in state.taken.items() if id_ not in mine and age_s >= claim_grace_s]
    return actions


def _judge(
    key: str, pool: Pool | None, state: PoolState, present: Present, ours: Collection[str], claim_grace_s: float, actions: list[PoolAction]
) -> list[Present]:
    """The spare itself where it can stay, as far as it goes."""
    id_ = present.sandbox_id
    if id_ in ours:
        return []
    taken_s = state.taken.get(id_)
    if taken_s is not None and taken_s < claim_grace_s:
        return []
    if pool is None or present.state == "failed" or taken_s is not None:
        actions.append(Discard(key, id_, present.incarnation))
        return []
    if present.state != "ready":
        return []  # nothing is replaced by what may never come up
    if id_ not in state.spares:
        actions.append(Offer(key, id_))
    return [present]


def _surplus(pool: Pool | None, waiting: list[Present], now: float) -> list[Present]:
    if pool is None:
        return []
    fresh = sorted((one for one in waiting if now - one.created_at < pool.max_age_s), key=lambda one: one.created_at)
    if len(fresh) < pool.size:
        return []  # the old ones serve until there are enough new ones
    old = [one for one in waiting if now - one.created_at >= pool.max_age_s]
    return old + fresh[: len(fresh) - pool.size]
