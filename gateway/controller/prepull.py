"""The images of the pools file, pulled ahead: seen to now and then, so that an edited file is followed and what was removed comes back.

Owns nothing but the when; the runtime owns the how (``base.Images.keep``). Called by ``loop``.
"""

from __future__ import annotations

from collections.abc import Callable

from gateway.placement.store import PlacementStore
from gateway.runtimes.base import Runtime
from gateway.telemetry import Metrics


class Prepull:
    """``names`` gives the images as the file has them now."""

    def __init__(self, store: PlacementStore, runtime: Runtime, names: Callable[[], tuple[str, ...]], metrics: Metrics) -> None:
        self._store = store
        self._runtime = runtime
        self._names = names
        self._metrics = metrics
        self._had = True
        """Whether something may be kept that is to be dropped: of a former controller's doings nothing is known."""

    async def keep(self, term: int) -> None:
        """One look. Raises FencedError and the errors of store and runtime."""
        names, images = self._names(), self._runtime.images
        if images is None or not (names or self._had):
            return
        await self._store.check_term(term)
        kept = await images.keep(names)
        self._had = bool(names)
        for image in kept:
            self._metrics.gauge("prepull_nodes_ready", image.ready or 0, image=image.name)
            self._metrics.gauge("prepull_nodes_wanted", image.wanted or 0, image=image.name)
