"""Obtain a sandbox from the runtime: adopt a spare of a warm pool if one fits, else create one.

Owns which spare is tried, and what is repeated while another incarnation or another replica has the id. The runtime decides which request
gets a spare. Called by ``create``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import Final

from holdfast_wire.errors import HoldfastError
from holdfast_wire.proof import agent_token

from gateway.model.records import Record, SandboxSpec
from gateway.placement.errors import PlacementUnavailableError
from gateway.placement.redis_spares import COLD_START
from gateway.pools import key_of
from gateway.runtimes.base import CreateRequest, Pools

from .service import Gateway

log = logging.getLogger("gateway")

_PAUSE_LEAST_S: Final = 0.02
_EXISTS_MOST_S: Final = 5.0
_TRIES: Final = 3
"""How many spares are tried before a new sandbox is created instead: a lost spare is only noticed when it is adopted."""
_ADOPT_S: Final = 10.0


async def provision(gateway: Gateway, spec: SandboxSpec, env: dict[str, str], deadline: float, branch_point: str = "") -> str:
    """The endpoint of the sandbox. ``deadline`` is on the loop's clock; queueing has used part of the time.

    Creating is repeated while another incarnation has the id, or another replica is creating this one: that replica may have ended.
    """
    token, *others = (agent_token(secret, spec.sandbox_id, spec.incarnation) for secret in gateway.secrets)
    request = CreateRequest(spec, token, env, tuple(others), branch_point)
    clock = asyncio.get_running_loop().time
    pools = gateway.pools.read()
    pool = pools.get(key_of(spec)) if pools and not branch_point else None
    if pool is not None and isinstance(runtime := gateway.runtime, Pools):
        adopted = await _claim(gateway, runtime, spec, request, pool.key, max(deadline - clock(), 0.01))
        if adopted:
            return adopted
    pause_s = _PAUSE_LEAST_S
    while True:
        try:
            return await gateway.runtime.create(request, max(deadline - clock(), 0.01))
        except HoldfastError as error:
            if error.code != "sandbox_exists" or clock() >= deadline:
                raise
        found = await gateway.runtime.get(spec.sandbox_id)
        await begin(gateway, spec)  # afterwards: any other incarnation found is then older than this one
        for sandbox in found:
            if sandbox.incarnation != spec.incarnation:
                await gateway.runtime.delete(spec.sandbox_id, sandbox.incarnation)
        await asyncio.sleep(pause_s)
        pause_s = min(pause_s * 1.5, _EXISTS_MOST_S)


async def _claim(gateway: Gateway, runtime: Pools, spec: SandboxSpec, request: CreateRequest, pool: str, timeout_s: float) -> str | None:
    """Adopt a spare as the requested sandbox; None if one has to be created.

    Several replicas may create the same sandbox, so its record stores, once, what it is created from. The runtime decides which request
    gets a spare; the store's offers are only hints. Raises ``sandbox_exists`` when another replica is creating the sandbox, and what the
    store raises.
    """
    store, failed = gateway.store, ""
    for number in range(_TRIES):
        spare = await store.take_spare(pool)
        source = await store.assign_spare(spec.sandbox_id, spec.incarnation, spare or COLD_START, failed)
        if spare is not None and source != spare:
            await store.offer_spares(pool, {spare: time.time()})
        if source == COLD_START:
            _count_claim(gateway, "empty" if number == 0 else "failed")
            return None
        if not source:
            raise HoldfastError("sandbox_exists", "the sandbox has been created already, or has ended")
        try:
            endpoint = await runtime.adopt(source, request, min(timeout_s, _ADOPT_S))
        except HoldfastError as error:
            log.info("the spare %s cannot be used: %s", source, error.code)
            if error.code != "sandbox_not_found":
                await _discard(gateway, source, spec)
            elif any(one.incarnation == spec.incarnation for one in await gateway.runtime.get(spec.sandbox_id)):
                # The spare is not lost: another replica has found it in the record and adopted it.
                raise HoldfastError("sandbox_exists", "another replica is already creating this sandbox") from None
            failed = source
            continue
        _count_claim(gateway, "warm")
        return endpoint
    if await store.assign_spare(spec.sandbox_id, spec.incarnation, COLD_START, failed) != COLD_START:
        raise HoldfastError("sandbox_exists", "another replica is already creating this sandbox, or it has ended")
    _count_claim(gateway, "failed")
    return None


async def _discard(gateway: Gateway, spare: str, spec: SandboxSpec) -> None:
    """Remove a spare whose adoption failed before its end, under its own id and under the new one."""
    for sandbox_id, incarnation in ((spare, None), (spec.sandbox_id, spec.incarnation)):
        with contextlib.suppress(HoldfastError):  # the controller removes what remains
            await gateway.runtime.delete(sandbox_id, incarnation)


def _count_claim(gateway: Gateway, outcome: str) -> None:
    gateway.metrics.count("pool_claims_total", outcome=outcome)


async def begin(gateway: Gateway, spec: SandboxSpec) -> None:
    """The creation begins. Raises ``sandbox_exists`` when the record is no longer pending: it may have been deleted meanwhile."""
    with contextlib.suppress(PlacementUnavailableError):
        entry = await gateway.store.begin(spec.sandbox_id, spec.incarnation)
        pending = isinstance(entry, Record) and entry.incarnation == spec.incarnation and entry.status == "pending"
        if entry is not None and not pending:
            raise HoldfastError("sandbox_exists", "the sandbox has been created already, or has ended")
