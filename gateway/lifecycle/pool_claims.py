"""Adoption of a waiting spare instead of a cold start.

Owns the race of several replicas for one sandbox: its record states once what it is created from. Who gets a spare is decided by the
runtime, when the spare is adopted; what the store offers is a hint. If anything fails, the sandbox is created without a spare. Called by
``creation`` for requests that fit a pool.
"""

from __future__ import annotations

import contextlib
import logging
import time

from holdfast_wire.errors import HoldfastError

from gateway.model.records import SandboxSpec
from gateway.placement.redis_spares import COLD_START
from gateway.runtimes.base import CreateRequest
from gateway.service import Gateway

log = logging.getLogger("gateway")

_TRIES = 3
"""Spares tried before the pool is given up: a lost spare is detected by adopting it."""
_ADOPT_S = 10.0


async def claim(gateway: Gateway, spec: SandboxSpec, request: CreateRequest, pool: str, timeout_s: float) -> str | None:
    """A spare as the requested sandbox, or None for a cold start.

    Raises ``sandbox_exists`` when another replica is creating the sandbox, and what the store raises.
    """
    store, failed = gateway.store, ""
    for number in range(_TRIES):
        spare = await store.take_spare(pool)
        source = await store.assign_spare(spec.sandbox_id, spec.incarnation, spare or COLD_START, failed)
        if spare is not None and source != spare:
            await store.offer_spares(pool, {spare: time.time()})
        if source == COLD_START:
            _count(gateway, "empty" if number == 0 else "failed")
            return None
        if not source:
            raise HoldfastError("sandbox_exists", "the sandbox has been created already, or has ended")
        try:
            endpoint = await gateway.runtime.adopt(source, request, min(timeout_s, _ADOPT_S))
        except HoldfastError as error:
            log.info("the spare %s cannot be used: %s", source, error.code)
            if error.code != "sandbox_not_found":
                await _discard(gateway, source, request)
            elif any(one.incarnation == request.incarnation for one in await gateway.runtime.get(request.sandbox_id)):
                # The spare is not lost: another replica, which saw it in the record, has adopted it.
                raise HoldfastError("sandbox_exists", "another replica is already creating this sandbox") from None
            failed = source
            continue
        _count(gateway, "warm")
        return endpoint
    if await store.assign_spare(spec.sandbox_id, spec.incarnation, COLD_START, failed) != COLD_START:
        raise HoldfastError("sandbox_exists", "another replica is already creating this sandbox, or it has ended")
    _count(gateway, "failed")
    return None


async def _discard(gateway: Gateway, spare: str, request: CreateRequest) -> None:
    """Remove a spare whose adoption failed half-way, under its own id and under the new one."""
    for sandbox_id, incarnation in ((spare, None), (request.sandbox_id, request.incarnation)):
        with contextlib.suppress(HoldfastError):  # the controller removes what remains
            await gateway.runtime.delete(sandbox_id, incarnation)


def _count(gateway: Gateway, outcome: str) -> None:
    gateway.metrics.count("pool_claims_total", outcome=outcome)
