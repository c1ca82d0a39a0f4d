"""Branches: several running sandboxes that begin with the files, variables, options and shells of another.

Owns the order: the shells' states and the files are taken together, then every branch is created as any other sandbox (queue, quotas,
group, record), then its shells are started. Either all branches are ready or none is left. Called by faces.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Coroutine
from dataclasses import dataclass, replace
from typing import Any, Final

from holdfast_wire.errors import HoldfastError

from gateway.identity.principal import Principal
from gateway.model.names import id_of
from gateway.model.records import Cause, Record, SandboxSpec

from . import shell_states
from .create import NewSandbox, create
from .service import Gateway
from .shell_states import Dump, Lost
from .snapshots import snapshots_of

MOST: Final = 256
"""Most branches of one request."""


@dataclass(frozen=True, slots=True)
class Branching:
    """A request for branches."""

    names: tuple[str, ...]
    """The names of the branches."""
    chosen_names: bool
    """Whether the caller chose them."""
    fingerprint: str
    key: str | None
    """The request's idempotency key: with it a client that gave up can delete what the request made."""
    wait_s: float
    """How long the parent's shells may take to finish their commands; 0: they are not waited for."""
    turn: int | None = None
    """The turn of the parent's episode, if the caller says so."""


@dataclass(frozen=True, slots=True)
class Branched:
    """The branches, all ready, and what of the parent does not continue in them."""

    records: list[Record]
    lost: list[Lost]


async def branch(gateway: Gateway, principal: Principal, name: str, request: Branching) -> Branched:
    """Create the branches.

    Raises what ``create`` raises, ``sandbox_paused``, ``unsupported``, ``no_space``, and ``wait_timeout`` if a shell is not idle in time.
    """
    parent, began = await gateway.ready(principal.owner, name), time.monotonic()
    runtime = snapshots_of(gateway)
    specs = [_spec(parent.spec, branch, request, principal) for branch in request.names]
    async with shell_states.held(gateway, parent, request.wait_s) as dump:
        point = await runtime.hold(parent.sandbox_id, parent.incarnation)
    try:
        made = await _all(gateway, [_one(gateway, principal, spec, request, point) for spec in specs], specs, dump)
    finally:
        with contextlib.suppress(HoldfastError):  # the runtime removes it later
            await asyncio.shield(runtime.release(point))
    gateway.metrics.count("branches_total", len(made))
    gateway.metrics.observe("branch_seconds", time.monotonic() - began)
    lost = dict.fromkeys((*dump.lost, *(one for _, lost in made for one in lost)))
    return Branched([record for record, _ in made], list(lost))


def _spec(parent: SandboxSpec, name: str, request: Branching, principal: Principal) -> SandboxSpec:
    sandbox_id, incarnation = id_of(parent.owner, name), secrets.token_hex(8)
    made = replace(parent, sandbox_id=sandbox_id, incarnation=incarnation, parent=parent.name, turn=request.turn, request="")
    return replace(made, key_id=principal.key_id)


async def _one(gateway: Gateway, principal: Principal, spec: SandboxSpec, request: Branching, point: str) -> Record:
    new = NewSandbox(
        spec,
        fingerprint=request.fingerprint,
        key=request.key,
        chosen_id=request.chosen_names,
        exclusive=True,
        wait=True,
        branch_point=point,
    )
    return await create(gateway, principal, new)


async def _restored(gateway: Gateway, creation: asyncio.Task[Record], dump: Dump) -> tuple[Record, list[Lost]]:
    """The branch with its shells. The creation goes on if this is cancelled."""
    record = await asyncio.shield(creation)
    return record, await shell_states.restore(gateway, record, dump.data) if dump.data else []


async def _all(
    gateway: Gateway, creates: list[Coroutine[Any, Any, Record]], specs: list[SandboxSpec], dump: Dump
) -> list[tuple[Record, list[Lost]]]:
    """The results, or the first error; what was created, or still is, is then deleted behind the answer."""
    creations = [asyncio.create_task(one) for one in creates]
    tasks = [asyncio.create_task(_restored(gateway, creation, dump)) for creation in creations]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        gateway.background.start(_delete(gateway, specs, creations), f"deletion of the branches of {specs[0].parent}")
        raise


async def _delete(gateway: Gateway, specs: list[SandboxSpec], creations: list[asyncio.Task[Record]]) -> None:
    """Delete the branches, once none is being created any more: one without a record yet would not be found."""
    cause = Cause("deleted", "caller", "another branch of the same request could not be created")
    await asyncio.gather(*creations, return_exceptions=True)
    for spec in specs:
        entry = await gateway.store.delete(spec.sandbox_id, cause, owner=spec.owner, incarnation=spec.incarnation)
        if isinstance(entry, Record):
            await gateway.quotas.ended(spec)
            await gateway.removals.start(gateway.runtime, spec.sandbox_id, spec.incarnation)
