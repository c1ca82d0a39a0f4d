"""What sandboxes have written, stored at one instant: as images, for branches, and for a pause to disk.

Owns how that is taken: as a clone of the sandbox's disk (a reflink where the data folder's file system can share blocks between files, else
a copy of its blocks if these are few), or as a copy of its files; the processes stand still meanwhile. Also owns the branch points, which
exist only while branches are created from them, and the clones; no file of either outlives the node. ``sandboxes`` decides which sandbox,
and holds its lock meanwhile; ``server`` releases the branch points of a gateway that has ended. Infra decision 0099.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from holdfast_wire.errors import HoldfastError

from session_agent.node.containers import Container, ContainerFactory
from session_agent.node.images.spec import ImageSpec
from session_agent.node.images.store import ImageStore
from session_agent.node.images.upper import Copied
from session_agent.node.kernel.disks import Clone
from session_agent.node.sandbox import Sandbox

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Point:
    owner: str
    env: dict[str, str]
    image: ImageSpec


class Snapshots:
    """All of one node. ``in_use`` returns whether a sandbox uses a layer."""

    def __init__(self, images: ImageStore, containers: ContainerFactory, in_use: Callable[[str], bool]) -> None:
        self._images = images
        self._containers = containers
        self._in_use = in_use
        self._points: dict[str, _Point] = {}
        self._standing: set[Sandbox] = set()

    async def store(self, box: Sandbox, container: Container, name: str | None) -> dict[str, Any]:
        """Store an image of the sandbox's owner. Raises what ``ImageStore.commit`` raises."""
        return await self._commit(box, container, name, owner=box.request.owner)

    @contextlib.asynccontextmanager
    async def kept(self, box: Sandbox, container: Container) -> AsyncIterator[None]:
        """Store the files of a sandbox that is paused to disk, for ``ImageStore.held``. Within the block its processes stand still, so that
        nothing happens after the copy; afterwards they continue, unless they were ended. Raises what ``ImageStore.commit`` raises."""
        async with self._still(box, container):
            await self._commit(box, container, None, holder=box.request.sandbox_id)
            yield

    async def hold(self, box: Sandbox, container: Container) -> str:
        """Store the files and variables of a sandbox; returns the name of the branch point. Raises what ``ImageStore.commit`` raises."""
        name = secrets.token_hex(16)
        if self._containers.can_clone(container):
            clone = await self._clone(box, container)
            layer = f"clone {name}"
            try:
                image = self._images.above(box.image, layer)
            except HoldfastError:
                clone.close()
                raise
            self._containers.clones[layer] = clone
        else:
            await self._commit(box, container, None, holder=_holder(name))
            image = self._images.held(_holder(name))
        self._points[name] = _Point(box.request.owner, box.request.env, image)
        return name

    def files(self, name: str, owner: str) -> tuple[ImageSpec, dict[str, str]]:
        """The files and variables of a branch point. Raises HoldfastError(image_not_found)."""
        point = self._points.get(name)
        if point is None or point.owner != owner:
            raise HoldfastError("image_not_found", "the state to branch from exists no more", hint="branch again")
        return point.image, point.env

    async def release(self, name: str) -> None:
        """Remove a branch point, if it exists; its layer goes with the last sandbox that uses it. Raises OSError."""
        if self._points.pop(name, None) is not None:
            await self._images.release_held([_holder(name)])
            self.close_unused()

    def uses_layer(self, path: str) -> bool:
        """Whether a branch can be created that uses this layer."""
        return any(path in point.image.layers for point in self._points.values())

    def close_unused(self) -> None:
        """Close the clones that neither a sandbox nor a branch point uses. Called after a sandbox has ended, too."""
        for layer in [layer for layer in self._containers.clones if not self.uses_layer(layer) and not self._in_use(layer)]:
            self._containers.clones.pop(layer).close()

    async def _commit(self, box: Sandbox, container: Container, name: str | None, *, holder: str = "", owner: str = "") -> dict[str, Any]:
        clones = {path: self._containers.clones[path] for path in box.image.layers if path in self._containers.clones}
        below = {path: _copier(self._containers, clone) for path, clone in clones.items()}
        async with self._written(box, container) as copy:
            return await self._images.commit(box.image, name, copy, below=below, holder=holder, owner=owner)

    @contextlib.asynccontextmanager
    async def _written(self, box: Sandbox, container: Container) -> AsyncIterator[Callable[[str, str], Awaitable[Copied]]]:
        """What copies the sandbox's files, as they were at one instant, to a directory."""
        if not self._containers.can_share(container):
            yield lambda target, pool: self._frozen(box, container, lambda: self._containers.copy_written(container, target, pool))
            return
        clone = await self._clone(box, container)
        try:
            yield _copier(self._containers, clone)
        finally:
            clone.close()

    async def _clone(self, box: Sandbox, container: Container) -> Clone:
        await self._containers.write_out(container)
        return await self._frozen(box, container, lambda: self._containers.clone(container))

    async def _frozen(self, box: Sandbox, container: Container, step: Callable[[], Awaitable[T]]) -> T:
        """Do *step* while no process of the sandbox runs."""
        async with self._still(box, container):
            return await step()

    @contextlib.asynccontextmanager
    async def _still(self, box: Sandbox, container: Container) -> AsyncIterator[None]:
        """No process of the sandbox runs within the block, which may be entered again within itself."""
        if box.paused or box in self._standing:
            yield
            return
        await self._containers.freeze(container)
        self._standing.add(box)
        try:
            yield
        finally:
            self._standing.discard(box)
            self._containers.thaw(container)


def _copier(containers: ContainerFactory, clone: Clone) -> Callable[[str, str], Awaitable[Copied]]:
    return lambda target, pool: containers.copy_clone(clone, target, pool)


def _holder(name: str) -> str:
    # Not the form of a sandbox's id.
    return f"+{name}"
