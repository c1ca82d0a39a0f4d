"""Pre-pulled images of the pools file: applied periodically, so that an edited file is followed and a removed object restored.

Owns the schedule; the runtime does the work (``base.Images.keep``). Called by ``loop``.
"""

from __future__ import annotations

from collections.abc import Callable

from gateway.metrics import Metrics
from gateway.placement.store import PlacementStore
from gateway.runtimes.base import Runtime


class Prepull:
    """``names`` returns the images that the file lists now."""

    def __init__(self, store: PlacementStore, runtime: Runtime, names: Callable[[], tuple[str, ...]], metrics: Metrics) -> None:
        self._store = store
        self._runtime = runtime
        self._names = names
        self._metrics = metrics
        self._had = True
        """Whether an image may be kept that is no longer listed: what a previous controller kept is unknown."""

    async def keep(self, term: int) -> None:
        """One pass. Raises FencedError and the errors of store and runtime."""
        names, images = self._names(), self._runtime.images
        if images is None or not (names or self._had):
            return
        await self._store.check_term(term)
        kept = await images.keep(names)
        self._had = bool(names)
        for image in kept:
            self._metrics.gauge("prepull_nodes_ready", image.ready or 0, image=image.name)
            self._metrics.gauge("prepull_nodes_wanted", image.wanted or 0, image=image.name)
