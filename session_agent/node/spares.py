"""Spare containers: created in advance, for the images that were requested last.

Owns the spares; demand.py decides how many of each image. Refilling starts a moment after the last create, so that it slows neither a burst
nor the first commands of a new sandbox; if no spare is left, it starts at once. Spares that are no longer needed are destroyed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

from holdfast_wire.errors import HoldfastError

from session_agent.node.containers import Container, ContainerFactory
from session_agent.node.demand import TOTAL, Demand, most_spares
from session_agent.node.images.spec import ImageSpec

log = logging.getLogger(__name__)
_LULL_S = 0.1
_QUIET_S = 1.0
"""How long after the last create spares above the minimum are created, so that refilling takes no CPU time from new sandboxes."""
_TRIM_S = 10.0
"""How often spares that are no longer needed are destroyed."""
_Key = tuple[str, tuple[str, ...]]


class Spares:
    """The spare containers. One task creates them; `stop` ends the task and destroys them."""

    def __init__(self, containers: ContainerFactory, per_image: int) -> None:
        self._containers = containers
        self._demand: Demand[_Key] = Demand(per_image, most_spares())
        self._stock: dict[_Key, list[Container]] = {}
        self._images: dict[_Key, ImageSpec] = {}
        self._dead: list[Container] = []
        self._busy = 0
        self._died_unexpectedly = False
        self._changed = asyncio.Event()
        """Set when a create has finished or a spare has ended."""
        self._done_at = 0.0
        self._lull_until = 0.0
        self._refilling: asyncio.Task[None] | None = None
        self._discarding: set[asyncio.Future[list[BaseException | None]]] = set()
        """They end whether or not the task that wanted them is cancelled; ``stop`` waits for them."""

    def start(self) -> None:
        self._refilling = asyncio.get_running_loop().create_task(self._refill(), name="refill spares")

    async def stop(self) -> None:
        if self._refilling:
            self._refilling.cancel()
            await asyncio.wait([self._refilling])
        await self._discard(self._dead + [container for stock in self._stock.values() for container in stock])
        self._stock.clear()
        await asyncio.gather(*self._discarding)

    def take(self, image: ImageSpec) -> Container | None:
        """A spare container of *image*, or None; the caller owns it and must call `done` afterwards."""
        self._busy += 1
        key = _key(image)
        stock = self._stock.setdefault(key, [])
        self._images[key] = image
        self._demand.asked(key, self._now())
        while stock:
            container = stock.pop()
            container.on_end = None
            if container.pidfd >= 0:
                return container
        return None

    def count(self) -> int:
        return sum(len(stock) for stock in self._stock.values())

    def stats(self) -> dict[str, int]:
        """How many spares exist, how many are wanted, and the limit."""
        return {
            "spares": self.count(),
            "spares_wanted": sum(self._demand.wanted(self._now()).values()),
            "spares_most": self._demand.most if self._demand.least else 0,
        }

    def done(self) -> None:
        """The create that called `take` has finished."""
        self._busy -= 1
        self._died_unexpectedly = False
        self._done_at = self._now()
        if not self._busy:
            asked_last = next(iter(self._demand.wanted(self._now())), None)
            left = asked_last is not None and self._stock.get(asked_last)
            self._lull_until = self._done_at + (_LULL_S if left else 0.0)
            self._changed.set()

    async def drop_image(self, digest: str) -> None:
        """Destroy the spares of an image that is to be removed."""
        for key in [key for key in self._stock if key[0] == digest]:
            self._images.pop(key, None)
            self._demand.forget(key)
            await self._discard(self._stock.pop(key, []))

    async def _refill(self) -> None:
        pause_s: float | None = None
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._changed.wait()
            self._changed.clear()
            dead, self._dead = self._dead, []
            await self._discard(dead)
            pause_s = await self._create_missing()

    async def _create_missing(self) -> float | None:
        """Create spares until none is missing or a create comes. Returns after how long to check again if nothing changes."""
        while not self._busy and not self._died_unexpectedly:
            lull_s = self._lull_until - self._now()
            if lull_s > 0:
                return lull_s
            await self._discard_surplus()
            key = self._missing()
            if key is None:
                if self._missing(quiet=True) is not None:
                    return _QUIET_S
                break
            if not await self._create(key):
                break
        return _TRIM_S if self.count() > TOTAL else None

    async def _create(self, key: _Key) -> bool:
        """Create one spare; False if that is not possible now."""
        try:
            container = await self._containers.create(self._images[key], None, ahead=True)
        except (HoldfastError, OSError) as error:
            log.warning("a spare container cannot be created: %s", error)
            return False
        stock = self._stock.get(key)
        if stock is None:
            await self._discard([container])
        else:
            container.on_end = lambda: self._died(container, stock)
            stock.append(container)
            await self._discard_surplus()
        return True

    def _missing(self, *, quiet: bool = False) -> _Key | None:
        """An image with too few spares. *quiet*: count as if no create had come for a while."""
        now = self._now()
        full = quiet or now - self._done_at >= _QUIET_S
        wanted = self._demand.wanted(now).items()
        return next((key for key, count in wanted if len(self._stock[key]) < (count if full else min(count, self._demand.least))), None)

    async def _discard_surplus(self) -> None:
        """Destroy surplus spares, the oldest first."""
        wanted = self._demand.wanted(self._now())
        surplus: list[Container] = []
        for key, stock in list(self._stock.items()):
            first = max(0, len(stock) - wanted.get(key, 0))
            surplus += stock[:first]
            del stock[:first]
            if key not in wanted:
                self._images.pop(key, None)
                del self._stock[key]
        await self._discard(surplus)

    def _died(self, container: Container, stock: list[Container]) -> None:
        """Release the resources of a spare that has ended.

        New spares are created only after the next create, because they may end for the same reason.
        """
        if container in stock:
            stock.remove(container)
            self._dead.append(container)
            self._died_unexpectedly = True
            self._changed.set()

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()

    async def _discard(self, containers: list[Container]) -> None:
        for container in containers:
            container.on_end = None
        work = asyncio.gather(*(self._containers.destroy(container) for container in containers), return_exceptions=True)
        self._discarding.add(work)
        work.add_done_callback(self._discarding.discard)
        await asyncio.shield(work)


def _key(image: ImageSpec) -> _Key:
    return image.digest, image.layers
