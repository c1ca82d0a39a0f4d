# Generated from ../_async by infra/scripts/generate_sync.py: edit that, then run `make generate`.
"""The images of the service's store: list, import, pull, remove."""

from __future__ import annotations

from holdfast._archives import LocalImage, image_pieces
from holdfast._sync.rest import Rest, ImageList
from holdfast._public import public
from holdfast._results import ImageInfo

IMPORT_TIMEOUT_S = 3600.0


@public
class Images:
    """``client.images``: the images that the service has, and how others come there. Sandboxes are made from them by name."""

    def __init__(self, rest: Rest) -> None:
        self._rest = rest

    def list(self) -> ImageList:
        """All images."""
        return self._rest.images()

    def import_(self, path: LocalImage, name: str) -> ImageInfo:
        """Import a docker or OCI archive, an OCI layout, or the tar or directory of a root file system. It is read here and sent.

        ``path`` is the archive or directory here, ``name`` what it is called from then on.
        """
        return self._rest.load_image(name, image_pieces(path), IMPORT_TIMEOUT_S)

    def pull(self, name: str) -> ImageInfo:
        """Fetch an image from a registry; in a cluster, to every node that takes sandboxes.

        Raises ``ImageNotFoundError``, and ``ImagePullError`` where the registry failed or cannot be reached.
        ``name`` is as docker writes it: ``python:3.12``, ``registry.example/team/image:tag``.
        """
        return self._rest.pull_image(name, IMPORT_TIMEOUT_S)

    def remove(self, name: str) -> None:
        """Remove an image; in a cluster, stop keeping it on the nodes. Raises ``ConflictError`` while sandboxes use it.

        ``name`` is that of ``list``.
        """
        self._rest.remove_image(name)
