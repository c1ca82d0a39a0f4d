"""Rates of owners, projects and keys: creates, requests and bytes in a minute, counted for all replicas together.

Owns what this replica has taken from the buckets in Redis and not used yet, so that a request with a high limit rarely needs a step there,
and one without limits never. What is not used within a second is forgotten. Bytes are counted when they have been sent or received; who has
used too many of them waits (``paced``), and further requests are refused meanwhile. While Redis is away nothing is refused. Called by
``gateway.app`` and ``use_cases.create``.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from holdfast_wire.errors import HoldfastError

from gateway.identity.limits import Limits
from gateway.metrics import Metrics
from gateway.placement.errors import PlacementUnavailableError
from gateway.placement.store import PlacementStore

BURST_S: Final = 10.0
"""A bucket holds what it gains in this time, and at least one."""
_AHEAD_S: Final = 0.25
"""How much of a rate one step takes: the share of this time."""
_KEPT_S: Final = 1.0
_FORGET_ABOVE: Final = 4096
"""So many allowances are kept at the most; beyond it those that have expired are removed."""
_WORDS: Final = {
    "creates_per_minute": "creates in a minute",
    "requests_per_minute": "requests in a minute",
    "output_bytes_per_minute": "bytes of output in a minute",
    "upload_bytes_per_minute": "bytes of uploads in a minute",
}


@dataclass(slots=True)
class _Allowance:
    left: float = 0.0
    until: float = 0.0
    """By the monotonic clock: what is left is forgotten then."""
    blocked_until: float = 0.0
    """There is nothing in the bucket before."""
    unspent: float = 0.0
    """Bytes that were used and are not taken from the bucket yet."""


class Rates:
    """One per replica."""

    def __init__(self, store: PlacementStore, metrics: Metrics) -> None:
        self._store = store
        self._metrics = metrics
        self._allowances: dict[str, _Allowance] = {}

    async def request(self, held: Sequence[tuple[str, Limits]]) -> None:
        """Count a request. Raises ``rate_limited`` where one of the limits is reached, also if a limit on bytes is."""
        now = time.monotonic()
        blocked = [
            (allowance.blocked_until - now, subject, name, getattr(limits, name))
            for subject, limits in held
            for name in ("output_bytes_per_minute", "upload_bytes_per_minute")
            if getattr(limits, name) is not None and (allowance := self._allowances.get(f"{subject} {name}")) is not None
        ]
        if blocked and (longest := max(blocked))[0] > 0:
            wait_s, subject, name, most = longest
            raise self._refused(subject, name, most, wait_s)
        for subject, limits in held:
            if limits.requests_per_minute is not None:
                await self._take(subject, "requests_per_minute", limits.requests_per_minute, 1)

    async def create(self, held: Sequence[tuple[str, Limits]]) -> None:
        """Count a create. Raises ``rate_limited``."""
        for subject, limits in held:
            if limits.creates_per_minute is not None:
                await self._take(subject, "creates_per_minute", limits.creates_per_minute, 1)

    async def paced(self, held: Sequence[tuple[str, Limits]], name: str, size: int) -> None:
        """Count bytes that were sent or received, and wait for as long as the limit requires."""
        wait_s = 0.0
        for subject, limits in held:
            most = getattr(limits, name)
            if most is not None:
                wait_s = max(wait_s, await self._spend(subject, name, most, size))
        if wait_s > 0:
            await asyncio.sleep(wait_s)

    async def _take(self, subject: str, name: str, per_minute: float, cost: float) -> None:
        allowance, now = self._allowance(subject, name), time.monotonic()
        if now >= allowance.until:
            allowance.left = 0.0
        if allowance.left >= cost:
            allowance.left -= cost
            return
        if (wait_s := allowance.blocked_until - now) > 0:
            raise self._refused(subject, name, per_minute, wait_s)
        wanted = max(cost, math.floor(per_minute / 60 * _AHEAD_S))
        try:
            taken, wait_s = await self._store.take_rate(f"{subject} {name}", per_minute, burst_of(per_minute), cost, wanted)
        except PlacementUnavailableError:
            return
        if taken < cost:
            allowance.blocked_until = time.monotonic() + wait_s
            raise self._refused(subject, name, per_minute, wait_s)
        allowance.left += taken - cost
        allowance.until = time.monotonic() + _KEPT_S

    async def _spend(self, subject: str, name: str, per_minute: float, size: int) -> float:
        """Count bytes; returns for how many seconds to wait."""
        allowance = self._allowance(subject, name)
        allowance.unspent += size
        now = time.monotonic()
        if allowance.unspent < per_minute / 60 * _AHEAD_S and now < allowance.until:
            return max(allowance.blocked_until - now, 0.0)
        amount, allowance.unspent = allowance.unspent, 0.0
        try:
            wait_s = await self._store.spend_rate(f"{subject} {name}", per_minute, burst_of(per_minute), amount)
        except PlacementUnavailableError:
            return 0.0
        allowance.until = time.monotonic() + _KEPT_S
        allowance.blocked_until = time.monotonic() + wait_s
        return wait_s

    def _allowance(self, subject: str, name: str) -> _Allowance:
        key = f"{subject} {name}"
        found = self._allowances.get(key)
        if found is None:
            if len(self._allowances) >= _FORGET_ABOVE:
                now = time.monotonic()
                self._allowances = {
                    one: kept for one, kept in self._allowances.items() if kept.until > now or kept.blocked_until > now or kept.unspent
                }
            found = self._allowances[key] = _Allowance()
        return found

    def _refused(self, subject: str, name: str, per_minute: float, wait_s: float) -> HoldfastError:
        self._metrics.count("requests_limited_total", limit=name)
        detail = {
            "retry_after_s": max(math.ceil(wait_s), 1),
            "limit": {"subject": subject, "name": name, "most": per_minute, "wait_s": round(wait_s, 3)},
        }
        return HoldfastError("rate_limited", f"{subject.replace(':', ' ')} may have {per_minute:g} {_WORDS[name]}", detail=detail)


def burst_of(per_minute: float) -> float:
    """How much a bucket of this rate holds."""
    return max(per_minute / 60 * BURST_S, 1.0)
