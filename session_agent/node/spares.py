"""Spare containers: created ahead of requests, for the images that were asked for last.

Owns how many there are and of what. Policy: up to PER_IMAGE of each image in demand, at most TOTAL; the image longest
not asked for gives way. Filling starts when no create is running, nor was a moment ago: neither a burst nor the first commands of a
fresh sandbox are slowed by it. Only where none is left it starts at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict

from holdfast_wire.errors import HoldfastError

from session_agent.node.containers import Container, ContainerFactory
from session_agent.node.images.spec import ImageSpec

log = logging.getLogger(__name__)
TOTAL = 8
_LULL_S = 0.1
_Key = tuple[str, tuple[str, ...]]


class Spares:
    """A small stock of containers. One task fills it; `stop` ends the task and destroys the stock."""

    def __init__(self, containers: ContainerFactory, per_image: int) -> None:
        self._containers = containers
        self._per_image = per_image
        self._stock: OrderedDict[_Key, list[Container]] = OrderedDict()
        self._images: dict[_Key, ImageSpec] = {}
        self._dead: list[Container] = []
        self._busy = 0
        self._distrust = False
        self._wanted = asyncio.Event()
        self._lull: asyncio.TimerHandle | None = None
        self._filler: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._filler = asyncio.get_running_loop().create_task(self._fill(), name="fill spares")

    async def stop(self) -> None:
        self._no_lull()
        if self._filler:
            self._filler.cancel()
            await asyncio.wait([self._filler])
        await self._discard(self._dead + [container for stock in self._stock.values() for container in stock])
        self._stock.clear()

    def take(self, image: ImageSpec) -> Container | None:
        """A container of *image*, if there is one; the caller owns it. To be followed by `done`."""
        self._busy += 1
        self._no_lull()
        key = _key(image)
        stock = self._stock.setdefault(key, [])
        self._images[key] = image
        self._stock.move_to_end(key)
        while stock:
            container = stock.pop()
            container.on_end = None
            if container.pidfd >= 0:
                return container
        return None

    def count(self) -> int:
        return sum(len(stock) for stock in self._stock.values())

    def done(self) -> None:
        """The create that took is over."""
        self._busy -= 1
        self._distrust = False
        if not self._busy:
            asked_last = next(reversed(self._stock.values()), None)
            self._no_lull()
            self._lull = asyncio.get_running_loop().call_later(_LULL_S if asked_last else 0.0, self._wanted.set)

    def _no_lull(self) -> None:
        if self._lull is not None:
            self._lull.cancel()

    async def drop_image(self, digest: str) -> None:
        """Destroy the spares of an image that is to be removed."""
        for key in [key for key in self._stock if key[0] == digest]:
            self._images.pop(key, None)
            await self._discard(self._stock.pop(key))

    async def _fill(self) -> None:
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            dead, self._dead = self._dead, []
            await self._discard(dead)
            while not self._busy and not self._distrust and (key := self._lacking()) is not None:
                try:
                    container = await self._containers.create(self._images[key], None, ahead=True)
                except (HoldfastError, OSError) as error:
                    log.warning("cannot create a spare container: %s", error)
                    break
                stock = self._stock.get(key)
                if stock is None:
                    await self._discard([container])
                    continue
                container.on_end = lambda container=container, stock=stock: self._died(container, stock)
                stock.append(container)
                await self._evict()

    def _lacking(self) -> _Key | None:
        newest_first = reversed(self._stock)
        for age, key in enumerate(newest_first):
            if age * self._per_image >= TOTAL:
                return None
            if len(self._stock[key]) < self._per_image:
                return key
        return None

    async def _evict(self) -> None:
        while self.count() > TOTAL:
            oldest = next(iter(self._stock))
            self._images.pop(oldest, None)
            await self._discard(self._stock.pop(oldest))

    def _died(self, container: Container, stock: list[Container]) -> None:
        """What it held is given back at once; others are made after the next create, lest they all die in a row."""
        if container in stock:
            stock.remove(container)
            self._dead.append(container)
            self._distrust = True
            self._wanted.set()

    async def _discard(self, containers: list[Container]) -> None:
        for container in containers:
            container.on_end = None
        await asyncio.gather(*(self._containers.destroy(container) for container in containers), return_exceptions=True)


def _key(image: ImageSpec) -> _Key:
    return image.digest, image.layers
