"""The watch of the pods that this replica creates: one for all of them.

Owns the watch, restricted to this replica's pods, which runs while creates wait and a little longer, and the newest state of each awaited
pod: a slow waiter sees the latest state, never a queue. A second watch delivers the kubelets' warnings. Called by ``creation``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from gateway.runtimes.kubernetes.api.client import Api
from gateway.runtimes.kubernetes.api.watch import Changed, Keyed, Listed, Vanished, Watch, WatchSettings
from gateway.runtimes.kubernetes.names import MADE_BY, SELECTOR, label_value

from .pod_events import WARNINGS, Warned, read_warning
from .status import PodStatus, read_pod

log = logging.getLogger("gateway.kubernetes")
T = TypeVar("T", bound=Keyed)

_WARNINGS_KEPT = 7
IDLE_S = 60.0
"""How long the watch continues when no create waits."""


class PodChanges:
    """The newest state of one pod. ``gone`` is set once it no longer exists."""

    def __init__(self) -> None:
        self.latest: PodStatus | None = None
        self.gone = False
        self.warned: list[Warned] = []
        """The kubelet's latest warnings, the newest last."""
        self._changed = asyncio.Event()

    def update(self, facts: PodStatus, *, gone: bool = False) -> None:
        self.latest, self.gone = facts, gone
        self._changed.set()

    def warn(self, warned: Warned) -> None:
        self.warned = [*self.warned[-_WARNINGS_KEPT:], warned]
        self._changed.set()

    async def changed(self) -> None:
        """Wait for a change since the last call."""
        await self._changed.wait()
        self._changed.clear()


class PodWatch:
    """See the module."""

    def __init__(self, api: Api, path: str, replica: str, settings: WatchSettings) -> None:
        self._api = api
        self._path = path
        self._selector = f"{SELECTOR},{MADE_BY}={label_value(replica)}"
        self._settings = settings
        self._waiting: dict[str, set[PodChanges]] = {}
        self._watches: list[Watch[Any]] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._idle: asyncio.TimerHandle | None = None

    @asynccontextmanager
    async def follow(self, name: str) -> AsyncIterator[PodChanges]:
        """The state of the pod of that name, whatever its uid, until the block ends. Entered before the pod is created."""
        changes = PodChanges()
        self._waiting.setdefault(name, set()).add(changes)
        self._wake()
        try:
            yield changes
        finally:
            others = self._waiting[name]
            others.discard(changes)
            if not others:
                del self._waiting[name]
            if not self._waiting:
                self._idle = asyncio.get_running_loop().call_later(IDLE_S, self._stop)

    def retry_now(self) -> None:
        """The API server answers: a watch in a back-off pause continues at once."""
        for watch in self._watches:
            watch.retry_now()

    async def aclose(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
        for task in self._tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    def _wake(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        if self._tasks:
            return
        pods = Watch(self._api, self._path, self._selector, read_pod, self._settings)
        events = f"{self._path.rpartition('/')[0]}/events"
        warnings = Watch(self._api, events, "", read_warning, self._settings, fields=WARNINGS, history=False)
        self._watches = [pods, warnings]
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self._deliver(pods, self._update), name="watch of pods being created"),
            loop.create_task(self._deliver(warnings, self._warn), name="watch of kubelets' warnings"),
        ]

    def _stop(self) -> None:
        self._idle = None
        if not self._waiting:
            for task in self._tasks:
                task.cancel()
            self._tasks = []

    async def _deliver(self, watch: Watch[T], to: Callable[[T, bool], None]) -> None:
        while True:
            try:
                async with contextlib.aclosing(watch.changes()) as changes:
                    async for change in changes:
                        match change:
                            case Changed(found, _):
                                to(found, False)
                            case Vanished(found):
                                to(found, True)
                            case Listed():
                                pass  # its objects were delivered as changes
            except Exception:
                log.exception("a watch for pods being created failed")
                await asyncio.sleep(1.0)

    def _update(self, facts: PodStatus, gone: bool) -> None:
        for changes in self._waiting.get(facts.name, ()):
            changes.update(facts, gone=gone)

    def _warn(self, warned: Warned, gone: bool) -> None:
        for changes in () if gone else self._waiting.get(warned.pod, ()):
            changes.warn(warned)
