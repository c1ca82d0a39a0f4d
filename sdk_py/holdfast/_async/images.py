"""The images of the service's store: list, import, pull, tag, save, remove."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import ref

from holdfast._arguments import bad
from holdfast._async.rest import AsyncRest
from holdfast._errors import ClientClosedError, ConflictError, NotFoundError
from holdfast._public import public
from holdfast._results import ImageInfo, take
from holdfast._transport.aio.events import run_blocking
from holdfast._transport.rest.readers import image_info
from holdfast._urls import quoted

if TYPE_CHECKING:
    from holdfast import AsyncSandboxClient  # by the public name: its module imports this one
    from holdfast._archives import LocalImage
    from holdfast._build_results import BuildEvent
    from holdfast._local_files import LocalPath

IMPORT_TIMEOUT_S = 3600.0
ImageList = list[ImageInfo]


@public
class AsyncImages:
    """``client.images``: the images of the service, and methods that add and remove images. Sandboxes are created from them by name."""

    def __init__(self, rest: AsyncRest, client: AsyncSandboxClient | None = None) -> None:
        self._rest = rest
        self._client = None if client is None else ref(client)  # no circle: the end of an unclosed client is reported at once

    async def list(self) -> ImageList:
        """Your own images and the shared ones. Where both have a name, your own is used."""
        rows = take((await self._rest.request("GET", "/images")).map(), "images", list, default=[])
        return [image_info(row) for row in rows if isinstance(row, dict)]

    async def import_(self, path: LocalImage, name: str, *, shared: bool = False) -> ImageInfo:
        """Import a docker or OCI archive, an OCI layout, or the tar or directory of a root file system.

        ``path`` is the archive or directory on this machine, whose content is sent; ``name`` is the name of the new image. With ``shared``
        all owners may use it, which only an operator's key may request.
        """
        from holdfast._archives import image_pieces

        query, body = {"name": name, **_shared(shared)}, _flow(image_pieces(path))
        return await self._added("/images", params=query, content=body)

    async def pull(self, name: str, *, shared: bool = False) -> ImageInfo:
        """Fetch an image from a registry; in a cluster, to every node that takes sandboxes.

        Raises ``ImageNotFoundError``, ``InvalidArgumentError`` for a registry that the service does not allow, and ``ImagePullError`` if
        the registry failed or cannot be reached. ``name`` is written as for docker: ``python:3.12``, ``registry.example/team/image:tag``.
        ``shared`` is as in ``import_``.
        """
        return await self._added("/images/pull", json={"name": name} | ({"shared": True} if shared else {}))

    async def tag(self, name: str, tag: str, *, shared: bool = False) -> ImageInfo:
        """Give the image ``name`` the further name ``tag``, as ``docker tag`` does. Raises ``ImageNotFoundError``.

        ``shared`` is as in ``import_``, of the new name.
        """
        body = {"name": image_name_of(name, "name"), "tag": image_name_of(tag, "tag")}
        answer = await self._rest.request("POST", "/images/tag", json=body | ({"shared": True} if shared else {}))
        return image_info(answer.map())

    async def save(self, name: str, path: LocalPath) -> int:
        """Write the image ``name`` to the file ``path`` as an OCI archive, which ``import_`` and docker read. Returns its size in bytes.

        Raises ``ImageNotFoundError``, ``UnsupportedError`` for an image that lies above the machine's own files, and ``FileExistsError``.
        """
        query = {"name": image_name_of(name, "name")}
        file = await run_blocking(open, path, "xb")
        try:
            with file:
                await self._rest.request("GET", "/images/archive", params=query, timeout_s=IMPORT_TIMEOUT_S, idempotent=False, into=file)
                return file.tell()
        except BaseException:
            os.unlink(path)
            raise

    async def build(
        self,
        directory: LocalPath = ".",
        name: str | None = None,
        *,
        dockerfile: LocalPath | bytes | None = None,
        build_args: Mapping[str, str] | None = None,
        target: str = "",
        use_cache: bool = True,
        pull: bool = False,
        labels: Mapping[str, str] | None = None,
        block_network: bool = False,
        secrets: Mapping[str, bytes] | None = None,
        cpu: float | str | None = None,
        memory: int | str | None = None,
        disk: int | str | None = None,
        timeout: float | None = None,
        shared: bool = False,
        on_event: Callable[[BuildEvent], None] | None = None,
    ) -> ImageInfo:
        """Build an image from a Dockerfile, in sandboxes of the service, and give it ``name``.

        ``directory`` is the build context here, ``dockerfile`` a path or the text itself (default: ``Dockerfile`` in it).
        ``build_args`` are the values of ARG, ``target`` is the stage to build, ``labels`` are added to the image's. A step is not repeated
        if an earlier build of yours did the same to the same files, unless ``use_cache`` is false. ``pull``: fetch base images again.
        ``block_network``: RUN has no network; without it, it has the internet. ``secrets`` are the contents for ``RUN --mount=type=secret``
        by their id. ``cpu``, ``memory`` and ``disk`` are limits of each step, as in ``create_sandbox``, and ``timeout`` is that of each RUN
        in seconds. ``on_event`` is called with what happens. ``shared`` is as in ``import_``.

        Raises ``DockerfileError`` with the line for what is wrong, ``BuildError`` with the output if a RUN fails, ``UnsupportedError``
        where the runtime has no snapshots, as a cluster, and what ``create_sandbox`` raises.
        """
        from holdfast._async.building import AsyncBuild
        from holdfast._build.request import BuildRequest

        client = None if self._client is None else self._client()
        if client is None:
            raise ClientClosedError("client_closed", "the client of these images is gone", hint="keep the client while it builds")
        if name is not None:
            image_name_of(name, "name")
        if isinstance(dockerfile, str) and "\n" in dockerfile:
            dockerfile = dockerfile.encode()
        request = BuildRequest(
            Path(directory),
            name,
            dockerfile=dockerfile,
            build_args=dict(build_args or {}),
            target=target,
            use_cache=use_cache,
            pull=pull,
            labels=dict(labels or {}),
            block_network=block_network,
            secrets=dict(secrets or {}),
            cpu=cpu,
            memory=memory,
            disk=disk,
            timeout=timeout,
            shared=shared,
            on_event=on_event,
        )
        return await AsyncBuild(client, request).run()

    async def _architecture(self) -> str:
        """The processor of the service's sandboxes, in OCI's words."""
        found = (await self._rest.request("GET", "/images/config", params={"name": "host"})).map()
        return take(found, "architecture", str, default="") or "amd64"

    async def prune(self) -> int:
        """Remove the steps that earlier builds of yours have left for later ones; returns how many. Those in use stay."""
        from holdfast._async.building import STEP

        rows = take((await self._rest.request("GET", "/images", params={"steps": "true"})).map(), "images", list, default=[])
        names = [info.name for row in rows if isinstance(row, dict) and (info := image_info(row)).name.startswith(f"{STEP}:")]
        removed = 0
        for one in names:
            with contextlib.suppress(ConflictError, NotFoundError):  # a build uses it, or it was removed meanwhile
                await self.remove(one)
                removed += 1
        return removed

    async def _added(self, path: str, **more: Any) -> ImageInfo:
        return image_info((await self._rest.request("POST", path, timeout_s=IMPORT_TIMEOUT_S, idempotent=False, **more)).map())

    async def remove(self, name: str, *, shared: bool = False) -> None:
        """Remove an image; in a cluster, stop keeping it on the nodes. Raises ``ConflictError`` while sandboxes use it.

        ``name`` is as in ``list``, and ``shared`` as in ``import_``: without it, only your own image is removed.
        """
        await self._rest.request("DELETE", f"/images/{quoted(image_name_of(name, 'name'), '/:@')}", params=_shared(shared))


def image_name_of(name: object, argument: str) -> str:
    """The name, if it can be one. Raises ``InvalidArgumentError``."""
    if not isinstance(name, str) or not name:
        raise bad(f"{argument} must be the name of an image")
    return name


def _shared(shared: bool) -> dict[str, str]:
    return {"shared": "true"} if shared else {}


async def _flow(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    """Bytes from the disk as a request's body."""
    while piece := await run_blocking(next, pieces, b""):
        yield piece
