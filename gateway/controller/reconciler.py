"""One reconciliation pass: read everything, plan, act.

Owns the order of reading (the store's marker before and after, so that a wipe in between is seen) and the execution. It decides nothing
(``plan``) and remembers only the suspects of the previous pass.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping

from holdfast_wire.errors import HoldfastError

from gateway.lifecycle.reserved_labels import to_spec
from gateway.model.records import Record, Status
from gateway.placement.store import FencedError, PlacementStore, PlacementUnavailableError
from gateway.runtimes.base import Runtime, SandboxStatus

from .plan import CREATE_LOST, Action, MarkFailed, MarkReady, Rebuild, Remove, plan
from .pool_plan import is_spare
from .pool_refill import PoolRefill

log = logging.getLogger("gateway.controller")

_AT_ONCE = 16
"""Removals that run concurrently."""


class Reconciler:
    """See the module."""

    def __init__(self, store: PlacementStore, runtime: Runtime, grace_s: float, pool_refill: PoolRefill | None = None) -> None:
        self._store = store
        self._runtime = runtime
        self._grace_s = grace_s
        self._pool_refill = pool_refill
        self._suspects: frozenset[Action] = frozenset()
        self.agreements: list[Callable[[Mapping[str, Record], int], Awaitable[None]]] = []
        """What else is reconciled with complete records; called with the records and the term."""
        self.began_at: float | None = None
        """When the runtime last reported an empty start."""

    async def run_once(self, term: int) -> list[Action]:
        """One pass as the leader of ``term``; the actions taken. Raises FencedError and the errors of store and runtime."""
        began_at = self.began_at  # read before the lists, so that they are not older
        before = await self._store.generation()
        pools = await self._pool_refill.read_states() if self._pool_refill else {}
        statuses = await self._runtime.list_all()
        records = {record.sandbox_id: record async for record in self._store.scan()}
        # The second list has what was created during the pass. What neither list has is missing; what has no record and is not in the
        # second list went during the pass.
        later = {_key(sandbox): sandbox for sandbox in await self._runtime.list_all()}
        everything = {_key(sandbox): sandbox for sandbox in statuses if sandbox.sandbox_id in records} | later
        spares = [everything.pop(key) for key in list(everything) if is_spare(everything[key])]
        tombstones = await self._store.tombstones({id_ for id_, _ in everything if id_ not in records})
        whole = before is not None and before == await self._store.generation()
        planned = plan(
            records,
            everything.values(),
            tombstones,
            now=time.time(),
            grace_s=self._grace_s,
            whole=whole,
            suspects=self._suspects,
            began_at=began_at,
        )
        self._suspects = planned.suspects
        await self._act(planned.actions, term)
        if whole:
            for agree in self.agreements:
                await agree(records, term)
        if self._pool_refill:
            await self._pool_refill.carry_out(pools, [spare for spare in spares if _key(spare) in later], term)
        if before is None:
            await self._store.mark_generation(secrets.token_hex(8), term=term)
            log.info("the placement store was new or wiped: %d sandboxes of the runtime are recorded", len(everything))
        return planned.actions

    async def remove(self, ended: Iterable[tuple[str, str]], term: int) -> None:
        """Remove from the runtime what has ended in the store: ids and incarnations. A later pass retries what fails.

        Removals cannot be undone, so the term is checked again before every few of them.
        """

        async def one(sandbox_id: str, incarnation: str) -> None:
            try:
                await self._runtime.delete(sandbox_id, incarnation)
            except HoldfastError as error:
                log.warning("removing %s failed: %s", sandbox_id, error.code)

        everything = list(ended)
        for start in range(0, len(everything), _AT_ONCE):
            await self._store.check_term(term)
            await asyncio.gather(*(one(*pair) for pair in everything[start : start + _AT_ONCE]))

    async def _act(self, actions: list[Action], term: int) -> None:
        removals: list[tuple[str, str]] = []
        for action in actions:
            try:
                match action:
                    case Rebuild(sandbox):
                        spec = to_spec(sandbox)
                        if spec.group:
                            await self._store.group_join(spec.owner, spec.group, spec.sandbox_id, ttl_s=spec.group_ttl_s, term=term)
                        if await self._store.rebuild(spec, sandbox.endpoint, sandbox.created_at, term=term):
                            log.info("record of %s rebuilt", sandbox.sandbox_id)
                    case MarkReady(sandbox_id, incarnation, endpoint):
                        await self._store.mark_ready(sandbox_id, incarnation, endpoint, "", term=term)
                    case MarkFailed(sandbox_id, incarnation, cause):
                        log.info("sandbox %s has failed: %s", sandbox_id, cause.reason)
                        # A sandbox that is about to be declared never created may have been created since it was read.
                        was: Status | None = "pending" if cause == CREATE_LOST else None
                        await self._store.mark_failed(sandbox_id, incarnation, cause, was=was, term=term)
                    case Remove(sandbox_id, incarnation):
                        removals.append((sandbox_id, incarnation))
            except (FencedError, PlacementUnavailableError):
                raise
            except HoldfastError as error:
                log.warning("%s failed: %s", type(action).__name__, error.code)
        if removals:
            log.info("removing what is left of %d ended sandboxes", len(removals))
            await self.remove(removals, term)


def _key(sandbox: SandboxStatus) -> tuple[str, str]:
    """The remains of an id's previous incarnation may exist beside the next one."""
    return sandbox.sandbox_id, sandbox.incarnation
