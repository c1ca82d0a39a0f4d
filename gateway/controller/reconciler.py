"""One pass: look at everything, plan, act.

Owns the order of looking (the store's marker before and after, so that a wipe in between is seen) and the carrying out. It decides
nothing (``plan``) and remembers only the suspects of the pass before.
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
from gateway.runtimes.base import Present, Runtime

from .plan import CREATE_LOST, Action, MarkFailed, MarkReady, Rebuild, Remove, plan
from .pool_plan import is_spare
from .pool_refill import PoolKeeper

log = logging.getLogger("gateway.controller")

_AT_ONCE = 16
"""Removals that run side by side."""


class Reconciler:
    """See the module."""

    def __init__(self, store: PlacementStore, runtime: Runtime, grace_s: float, keeper: PoolKeeper | None = None) -> None:
        self._store = store
        self._runtime = runtime
        self._grace_s = grace_s
        self._keeper = keeper
        self._suspects: frozenset[Action] = frozenset()
        self.agreements: list[Callable[[Mapping[str, Record], int], Awaitable[None]]] = []
        """What else is to agree with the records, when these are known to be whole; called with the records and the term."""
        self.began_at: float | None = None
        """The runtime's last word on when it began with nothing."""

    async def run_once(self, term: int) -> list[Action]:
        """One pass as the leader of ``term``; what was done. Raises FencedError and the errors of store and runtime."""
        began_at = self.began_at  # said before the lists are asked for, so that they are not older
        before = await self._store.generation()
        pools = await self._keeper.look() if self._keeper else {}
        presents = await self._runtime.list_all()
        records = {record.sandbox_id: record async for record in self._store.scan()}
        # What was made while we looked is in the second list; what is in neither list is missing; what has no record and is not in the
        # second went while we looked.
        later = {_key(present): present for present in await self._runtime.list_all()}
        everything = {_key(present): present for present in presents if present.sandbox_id in records} | later
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
        if self._keeper:
            await self._keeper.tend(pools, [spare for spare in spares if _key(spare) in later], term)
        if before is None:
            await self._store.mark_generation(secrets.token_hex(8), term=term)
            log.info("the placement store was new or wiped: %d sandboxes of the runtime are recorded", len(everything))
        return planned.actions

    async def remove(self, ended: Iterable[tuple[str, str]], term: int) -> None:
        """Remove from the runtime what has ended in the store: ids and incarnations. What fails is found again by a later pass.

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
                    case Rebuild(present):
                        spec = to_spec(present)
                        if spec.group:
                            await self._store.group_join(spec.owner, spec.group, spec.sandbox_id, ttl_s=spec.group_ttl_s, term=term)
                        if await self._store.rebuild(spec, present.endpoint, present.created_at, term=term):
                            log.info("record of %s rebuilt", present.sandbox_id)
                    case MarkReady(sandbox_id, incarnation, endpoint):
                        await self._store.mark_ready(sandbox_id, incarnation, endpoint, "", term=term)
                    case MarkFailed(sandbox_id, incarnation, cause):
                        log.info("sandbox %s has failed: %s", sandbox_id, cause.reason)
                        # What is about to be called never made may have been made since it was looked at.
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


def _key(present: Present) -> tuple[str, str]:
    """What is left of an id's former holder may be there beside the next."""
    return present.sandbox_id, present.incarnation
