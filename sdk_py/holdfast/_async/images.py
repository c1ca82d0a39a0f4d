"""The images of the service's store: list, import, pull, remove."""

from __future__ import annotations

from holdfast._async.rest import AsyncRest, ImageList
from holdfast._requests import LocalImage, image_source
from holdfast._results import ImageInfo

IMPORT_TIMEOUT_S = 3600.0


class AsyncImages:
    """``client.images``."""

    def __init__(self, rest: AsyncRest) -> None:
        self._rest = rest

    async def list(self) -> ImageList:
        """All images."""
        return await self._rest.images()

    async def import_(self, path: LocalImage, name: str) -> ImageInfo:
        """Import an OCI layout, a docker or OCI archive, or a root directory. ``path`` is read by the service, on its machine."""
        return await self._rest.add_image({"path": image_source(path), "name": name}, IMPORT_TIMEOUT_S)

    async def pull(self, name: str) -> ImageInfo:
        """Fetch an image from a registry. Raises ``ImageNotFoundError``."""
        return await self._rest.add_image({"name": name}, IMPORT_TIMEOUT_S)

    async def remove(self, name: str) -> None:
        """Remove an image. Raises ``ConflictError`` while sandboxes use it."""
        await self._rest.remove_image(name)
