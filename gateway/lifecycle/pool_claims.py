"""Making a sandbox of a waiting spare instead of from nothing.

Owns the race of several replicas for one sandbox and for one spare: a sandbox's record says once what it is made of, and a spare is
handed to one taker. Whatever goes wrong, the sandbox is made cold. Called by ``sandboxes`` for requests that fit a pool.
"""

from __future__ import annotations

import logging

from holdfast_wire.errors import HoldfastError

from gateway.model.records import SandboxSpec
from gateway.placement.store import COLD_START
from gateway.runtimes.base import CreateRequest, Endpoint
from gateway.service import Gateway

log = logging.getLogger("gateway")

_TRIES = 3
"""Spares tried before one gives up on the pool: dead ones are found by whoever takes them."""
_ADOPT_S = 10.0


async def claim(gateway: Gateway, spec: SandboxSpec, request: CreateRequest, pool: str, timeout_s: float) -> Endpoint | None:
    """A spare as the ordered sandbox, or None: make it cold.

    Raises ``sandbox_exists`` when another replica is turning a spare into it, and what the store raises.
    """
    store, before = gateway.store, ""
    for number in range(_TRIES):
        spare = await store.take_spare(pool)
        wanted = spare or COLD_START
        holds = await store.assign_spare(spec.sandbox_id, spec.incarnation, wanted, before)
        if spare is not None and holds != spare:
            await store.return_spare(pool, spare)
        if holds == COLD_START:
            _count(gateway, "empty" if number == 0 else "failed")
            return None
        if not holds:
            raise HoldfastError("sandbox_exists", "it is made already, or has ended")
        try:
            made = await gateway.runtime.adopt(holds, request, min(timeout_s, _ADOPT_S))
        except HoldfastError as error:
            log.info("the spare %s cannot be used: %s", holds, error.code)
            if error.code != "sandbox_not_found":
                await _clear(gateway, holds, request)
            elif await _being_made(gateway, request):
                raise HoldfastError("sandbox_exists", "another replica is at it") from None
            before = holds
            continue
        _count(gateway, "warm")
        return made
    if await store.assign_spare(spec.sandbox_id, spec.incarnation, COLD_START, before) != COLD_START:
        raise HoldfastError("sandbox_exists", "another replica is at it, or it has ended")
    _count(gateway, "failed")
    return None


async def _being_made(gateway: Gateway, request: CreateRequest) -> bool:
    """Whether the runtime has it: then the spare was not lost but used, by a replica that saw it noted in the record."""
    sandbox = [one for one in await gateway.runtime.list_all() if one.sandbox_id == request.sandbox_id]
    return any(one.incarnation == request.incarnation for one in sandbox)


async def _clear(gateway: Gateway, spare: str, request: CreateRequest) -> None:
    """Nothing may be left of a spare that failed half-way: neither under its own name nor under the new one."""
    for sandbox_id, incarnation in ((spare, None), (request.sandbox_id, request.incarnation)):
        try:
            await gateway.runtime.delete(sandbox_id, incarnation)
        except HoldfastError:
            pass  # the controller finds it


def _count(gateway: Gateway, outcome: str) -> None:
    gateway.metrics.count("pool_claims_total", outcome=outcome)
