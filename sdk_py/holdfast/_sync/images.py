# Generated from ../_async by infra/scripts/generate_sync.py: edit that, then run `make generate`.
"""The images of the service's store: list, import, pull, remove."""

from __future__ import annotations

from holdfast._sync.rest import Rest, ImageList
from holdfast._requests import LocalImage, image_source
from holdfast._results import ImageInfo

IMPORT_TIMEOUT_S = 3600.0


class Images:
    """``client.images``."""

    def __init__(self, rest: Rest) -> None:
        self._rest = rest

    def list(self) -> ImageList:
        """All images."""
        return self._rest.images()

    def import_(self, path: LocalImage, name: str) -> ImageInfo:
        """Import an OCI layout, a docker or OCI archive, or a root directory. ``path`` is read by the service, on its machine."""
        return self._rest.add_image({"path": image_source(path), "name": name}, IMPORT_TIMEOUT_S)

    def pull(self, name: str) -> ImageInfo:
        """Fetch an image from a registry. Raises ``ImageNotFoundError``."""
        return self._rest.add_image({"name": name}, IMPORT_TIMEOUT_S)

    def remove(self, name: str) -> None:
        """Remove an image. Raises ``ConflictError`` while sandboxes use it."""
        self._rest.remove_image(name)
