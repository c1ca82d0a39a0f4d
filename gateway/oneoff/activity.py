"""Noting that a sandbox is in use while REST works in it, so that its idle limit counts from the end of that.

Owns when placement is told. Only a sandbox that has an idle limit costs anything here; what sessions do there
its agent knows (``idle_time``). Called by ``operations``, and by the routes while the body of a request for it comes.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final

from gateway.model.records import Record
from gateway.placement.store import PlacementUnavailableError
from gateway.service import Gateway

_OFTEN: Final = 3
"""How often in the time of the limit."""
_LEAST_S: Final = 0.1
_MOST_S: Final = 10.0


@contextlib.asynccontextmanager
async def in_use(gateway: Gateway, record: Record) -> AsyncIterator[None]:
    """Around whatever is done in the sandbox."""
    idle_s = record.spec.idle_timeout_s
    if idle_s is None:
        yield
        return
    noting = gateway.background.start(_note_often(gateway, record.sandbox_id, idle_s), f"use of {record.sandbox_id}")
    try:
        yield
    finally:
        noting.cancel()
        gateway.background.start(_note(gateway, record.sandbox_id), f"end of the use of {record.sandbox_id}")


async def _note_often(gateway: Gateway, sandbox_id: str, idle_s: float) -> None:
    while True:
        await _note(gateway, sandbox_id)
        await asyncio.sleep(min(max(idle_s / _OFTEN, _LEAST_S), _MOST_S))


async def _note(gateway: Gateway, sandbox_id: str) -> None:
    with contextlib.suppress(PlacementUnavailableError):  # then nothing ends for this (``controller.leadership``)
        await gateway.store.touch([sandbox_id])
