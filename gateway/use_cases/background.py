"""Work that outlives its request: tasks of the app, steps repeated while the store or the runtime is down, and removals of sandboxes.

Owns their bounds and pauses. All of them end when the replica stops; the controller completes the rest. Owned by ``service.Gateway``.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import math
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any

from holdfast_wire.errors import HoldfastError

from gateway.placement.errors import PlacementUnavailableError
from gateway.runtimes.base import Runtime, RuntimeUnavailableError

log = logging.getLogger("gateway")

_REPEATED = 1000
"""Steps that are repeated at a time; more are left to the controller."""
_REMOVING = 32
"""Removals that may run behind answered requests."""
_REMOVAL_PAUSES_S = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0)


class BackgroundTasks:
    """Tasks that are owned by the app and cancelled with it; their failures are logged."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self.repeated: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def repeat(self, step: Callable[[], Awaitable[object]], pauses_s: Iterable[float], name: str, *, until: float = math.inf) -> None:
        """Try a step again, once after each pause that begins before the loop's time ``until``, while the store or the runtime is down."""
        if len(self.repeated) < _REPEATED:
            task = self.start(_repeat(step, pauses_s, until), name)
            self.repeated.add(task)
            task.add_done_callback(self.repeated.discard)

    async def aclose(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            error = task.exception()
            if not isinstance(error, HoldfastError):
                log.error("%s failed", task.get_name(), exc_info=error)


class Removals:
    """The removal of sandboxes from the runtime, after their records are deleted."""

    def __init__(self, background: BackgroundTasks) -> None:
        self._background = background
        self.running: set[asyncio.Task[None]] = set()

    async def start(self, runtime: Runtime, sandbox_id: str, incarnation: str) -> None:
        """Start a removal, and wait for it if many are running, which slows clients that delete faster than the runtime removes."""
        removal = self._background.start(self._remove(runtime, sandbox_id, incarnation), f"removal of {sandbox_id}")
        self.running.add(removal)
        removal.add_done_callback(self.running.discard)
        if len(self.running) > _REMOVING:
            await asyncio.wait([removal])

    async def wait(self, timeout_s: float) -> None:
        """Wait for the running removals, but not for those that wait until the runtime is available again."""
        if self.running:
            await asyncio.wait(self.running, timeout=timeout_s)

    async def _remove(self, runtime: Runtime, sandbox_id: str, incarnation: str) -> None:
        """Remove a sandbox.

        An error other than an unavailable runtime ends the attempts: the tombstone remains, and the controller removes the sandbox. The
        removal is repeated here too, because if the store lost the tombstone, the remains would be mistaken for a live sandbox.
        """
        delete = functools.partial(runtime.delete, sandbox_id, incarnation)
        try:
            await delete()
        except RuntimeUnavailableError:
            self._background.repeat(delete, _REMOVAL_PAUSES_S, f"another removal of {sandbox_id}")


async def _repeat(step: Callable[[], Awaitable[object]], pauses_s: Iterable[float], until: float) -> None:
    clock = asyncio.get_running_loop().time
    for pause_s in pauses_s:
        if clock() >= until:
            return
        await asyncio.sleep(pause_s)
        with contextlib.suppress(RuntimeUnavailableError, PlacementUnavailableError):
            await step()
            return
