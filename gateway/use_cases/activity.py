"""Activity of a sandbox in placement: it is renewed while REST works in the sandbox.

Owns when placement is updated. A sandbox without an idle limit costs nothing here; what its sessions do is known to its agent
(``agents.dial``). Called by the use cases that work in a sandbox, and by
faces while they read such a request's body.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Final

from gateway.model.records import Record
from gateway.placement.errors import PlacementUnavailableError

from .service import Gateway

_TOUCHES_PER_LIMIT: Final = 3
_LEAST_S: Final = 0.1
_MOST_S: Final = 10.0
_UNLIMITED: Final = contextlib.nullcontext()


def in_use(gateway: Gateway, record: Record) -> AbstractContextManager[None]:
    """The sandbox is in use until the block ends; its idle time counts from there."""
    idle_s = record.spec.idle_timeout_s
    return _UNLIMITED if idle_s is None else _in_use(gateway, record.sandbox_id, idle_s)


@contextlib.contextmanager
def _in_use(gateway: Gateway, sandbox_id: str, idle_s: float) -> Iterator[None]:
    every_s = min(max(idle_s / _TOUCHES_PER_LIMIT, _LEAST_S), _MOST_S)

    async def touch_often() -> None:
        while True:
            await _touch(gateway, sandbox_id)
            await asyncio.sleep(every_s)

    task = gateway.background.start(touch_often(), f"activity of {sandbox_id}")
    try:
        yield
    finally:
        task.cancel()
        gateway.background.start(_touch(gateway, sandbox_id), f"end of the use of {sandbox_id}")


async def _touch(gateway: Gateway, sandbox_id: str) -> None:
    with contextlib.suppress(PlacementUnavailableError):  # after an outage idle sandboxes continue at first (``controller.leadership``)
        await gateway.store.touch([sandbox_id])
