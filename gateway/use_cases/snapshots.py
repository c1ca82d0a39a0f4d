"""Snapshots and pauses of a running sandbox.

Owns their order: the runtime does it first, then the record is changed, so that a caller with an answer can rely on it; the controller
corrects a record whose gateway ended in between. What a pause to disk keeps of the shells comes from ``shell_states``. Called by faces.
"""

from __future__ import annotations

import time

from holdfast_wire.errors import HoldfastError

from gateway.identity.principal import Principal
from gateway.model.records import Paused, Record
from gateway.runtimes.base import Image, Snapshots

from . import shell_states
from .images import image_name
from .service import Gateway, live, settled
from .shell_states import Lost


async def snapshot(gateway: Gateway, principal: Principal, sandbox: str, name: str | None) -> Image:
    """Store the sandbox's files, as they are at one instant, as an image of its owner. A paused sandbox stays paused.

    Raises ``unsupported``, ``no_space``, and ``sandbox_paused`` for one whose files are on disk already.
    """
    name = None if name is None else image_name(name)
    record, began = settled(await gateway.record(principal.owner, sandbox)), time.monotonic()
    image = await snapshots_of(gateway).snapshot(record.sandbox_id, record.incarnation, name)
    gateway.metrics.count("snapshots_total")
    gateway.metrics.observe("snapshot_seconds", time.monotonic() - began)
    return image


async def pause(gateway: Gateway, principal: Principal, sandbox: str, *, to_disk: bool, wait_s: float) -> tuple[Record, list[Lost]]:
    """Stop the sandbox, and return its record and what cannot be kept. May be repeated.

    To disk: its shells finish their commands for ``wait_s`` at most (0: not at all); what else runs ends and is listed.
    """
    record, lost = settled(await gateway.record(principal.owner, sandbox)), list[Lost]()
    runtime = snapshots_of(gateway)
    if record.paused == "disk" or (record.paused and not to_disk):
        return record, lost
    if to_disk and record.paused:
        hint = "resume it, then pause it to disk"
        raise HoldfastError("sandbox_paused", f"sandbox {sandbox!r} is paused, so its shells cannot be saved", hint=hint)
    if to_disk:
        async with shell_states.held(gateway, record, wait_s) as dump:
            await runtime.suspend(record.sandbox_id, record.incarnation, dump.data)
            lost = dump.lost
    else:
        await runtime.pause(record.sandbox_id, record.incarnation)
    record = await _paused(gateway, record, "disk" if to_disk else "memory")
    gateway.metrics.count("pauses_total", to="disk" if to_disk else "memory")
    return record, lost


async def resume(gateway: Gateway, principal: Principal, sandbox: str) -> tuple[Record, list[Lost]]:
    """Continue a paused sandbox; returns its record and what could not be restored. Does nothing for one that runs."""
    record, lost = settled(await gateway.record(principal.owner, sandbox)), list[Lost]()
    runtime = snapshots_of(gateway)
    shells = await runtime.resume(record.sandbox_id, record.incarnation)
    if shells:
        lost = await shell_states.restore(gateway, record, shells)
        await runtime.resumed(record.sandbox_id, record.incarnation)
    if not record.paused:
        return record, lost
    record = await _paused(gateway, record, "")
    gateway.metrics.count("resumes_total")
    return record, lost


async def _paused(gateway: Gateway, record: Record, paused: Paused) -> Record:
    return live(await gateway.owned(record.owner, record.name, lambda id_: gateway.store.mark_paused(id_, record.incarnation, paused)))


def snapshots_of(gateway: Gateway) -> Snapshots:
    """The runtime, if it can. Raises ``unsupported``."""
    if not isinstance(gateway.runtime, Snapshots):
        hint = "use the one-machine runtime (`holdfast up`), which has them; in a cluster create another sandbox and copy the files"
        raise HoldfastError("unsupported", "this runtime has no snapshots, branches and pauses of sandboxes", hint=hint)
    return gateway.runtime
