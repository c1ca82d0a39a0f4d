"""The watch of the pods that this replica creates: one for all of them.

Owns the watch, restricted to this replica's pods, which runs while creates wait and a little longer, and the newest state of each awaited
pod: a slow waiter sees the latest state, never a queue. While pods are slow it also reads the kubelets' warnings. Called by ``creation``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gateway.runtimes.base import RuntimeUnavailableError
from gateway.runtimes.kubernetes.api.client import Api, ApiError
from gateway.runtimes.kubernetes.api.watch import Changed, Listed, Vanished, Watch, WatchSettings
from gateway.runtimes.kubernetes.names import MADE_BY, SELECTOR, label_value

from . import pod_events
from .pod_events import Warned
from .status import PodStatus, read_pod

log = logging.getLogger("gateway.kubernetes")

_WARNINGS = 7
_ASK_S = 0.5
_ASK_MOST_S = 10.0
IDLE_S = 60.0
"""How long the watch continues when no create waits."""


class PodChanges:
    """The newest state of one pod. ``gone`` is set once it no longer exists."""

    def __init__(self) -> None:
        self.latest: PodStatus | None = None
        self.gone = False
        self.warned: list[Warned] = []
        """The kubelet's latest warnings, the newest last."""
        self.warnings_of = ""
        """The uid of the pod whose warnings are wanted as well."""
        self._changed = asyncio.Event()

    def update(self, facts: PodStatus, *, gone: bool = False) -> None:
        self.latest, self.gone = facts, gone
        self._changed.set()

    def warn(self, warned: Warned) -> None:
        self.warned = [*self.warned[-_WARNINGS:], warned]
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
        self._watch: Watch[PodStatus] | None = None
        self._task: asyncio.Task[None] | None = None
        self._warnings_task: asyncio.Task[None] | None = None
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

    def hurry(self) -> None:
        """The API server answers: a watch in a back-off pause continues at once."""
        if self._watch is not None:
            self._watch.hurry()

    def want_warnings(self, changes: PodChanges, uid: str) -> None:
        """Also read the kubelets' warnings while this pod is awaited: it is slow."""
        changes.warnings_of = uid
        if self._warnings_task is None or self._warnings_task.done():
            self._warnings_task = asyncio.get_running_loop().create_task(self._poll_warnings(), name="kubelets' warnings")

    async def aclose(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
        for task in (self._task, self._warnings_task):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task

    def _wake(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run(), name="watch of pods being created")

    def _stop(self) -> None:
        self._idle = None
        if self._task is not None and not self._waiting:
            self._task.cancel()
            self._task = None

    async def _poll_warnings(self) -> None:
        """One list for all slow pods, as long as there are any. A watch would need one more permission, for a few seconds of use."""
        while True:
            slow = {changes.warnings_of: changes for waiting in self._waiting.values() for changes in waiting if changes.warnings_of}
            if not slow:
                return
            began = asyncio.get_running_loop().time()
            try:
                for warned in await pod_events.warnings(self._api, self._path, self._settings.page):
                    changes = slow.get(warned.pod_uid)
                    if changes is not None and warned not in changes.warned:
                        changes.warn(warned)
            except (ApiError, RuntimeUnavailableError) as error:
                log.info("events cannot be read: %s", error)
                if isinstance(error, ApiError) and not error.passing:
                    return  # each create queries its own events later
            await asyncio.sleep(pause_s(asyncio.get_running_loop().time() - began))

    async def _run(self) -> None:
        self._watch = watch = Watch(self._api, self._path, self._selector, read_pod, self._settings)
        while True:
            try:
                async with contextlib.aclosing(watch.changes()) as changes:
                    async for change in changes:
                        match change:
                            case Changed(facts, _):
                                self._deliver(facts, gone=False)
                            case Vanished(facts):
                                self._deliver(facts, gone=True)
                            case Listed():
                                pass  # its objects were delivered as changes
            except Exception:
                log.exception("the watch of pods being created failed")
                await asyncio.sleep(1.0)

    def _deliver(self, facts: PodStatus, *, gone: bool) -> None:
        for changes in self._waiting.get(facts.name, ()):
            changes.update(facts, gone=gone)


def pause_s(took_s: float) -> float:
    """Until the next list of warnings, when the last took ``took_s``: the API server reads all events of the namespace for each.

    In a burst of slow pods there are thousands, and one list took over a second; at most a fifth of the time goes to lists.
    """
    return min(max(_ASK_S, 4 * took_s), _ASK_MOST_S)
