"""Images: list, import, pull, tag, export and remove, where the runtime has an image store.

Owns the form of names, who may change an image, and where an archive is stored while it arrives. The store itself is the runtime's. Called
by faces.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import re
import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import IO, Any, Final

from holdfast_wire.errors import HoldfastError

from gateway.identity.principal import Principal
from gateway.runtimes.base import HasImages, Image, ImageArchives, Images

from .service import Gateway

_REMOVALS_S: Final = 10.0
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]{0,254}")
_CHUNK: Final = 1024 * 1024


async def list_all(gateway: Gateway, principal: Principal, *, steps: bool = False) -> list[Image]:
    """The images that the owner's sandboxes can be created from; with ``steps`` also those that are kept only for later builds."""
    return await _images(gateway).list_all(principal.owner, steps=steps)


async def config(gateway: Gateway, principal: Principal, name: str) -> dict[str, Any]:
    """The digest and configuration of an image. Raises ``image_not_found``."""
    return await _archives(gateway).config(image_name(name), principal.owner)


async def load(gateway: Gateway, principal: Principal, name: str | None, archive: AsyncIterator[bytes], *, shared: bool) -> Image:
    """Import an archive, which is written to a file beside the node's data, never held in memory."""
    name, owner = image_name(name), _owner(gateway, principal, shared=shared)
    images = _archives(gateway)
    limit = gateway.settings.rest.image_bytes
    handle, path = tempfile.mkstemp(prefix="image-", suffix=".tar", dir=_uploads(gateway))
    size = 0
    try:
        with os.fdopen(handle, "wb") as file:
            async for chunk in archive:
                size += len(chunk)
                if size > limit:
                    raise HoldfastError("request_too_large", f"the archive is over {limit} bytes")
                await asyncio.to_thread(file.write, chunk) if len(chunk) >= _CHUNK else file.write(chunk)
        if not size:
            raise HoldfastError("image_invalid", "the body is empty, where an image archive was expected")
        return await images.load(Path(path), name, owner)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        hint = "free space in the service's data folder, or remove images; then send it again"
        raise HoldfastError("no_space", f"the archive cannot be stored: {error.strerror}", hint=hint, fault="infrastructure") from None
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


async def pull(gateway: Gateway, principal: Principal, name: str, *, shared: bool) -> Image:
    """Pull an image from its registry."""
    return await _images(gateway).pull(image_name(name), _owner(gateway, principal, shared=shared))


async def tag(
    gateway: Gateway, principal: Principal, name: str, other: str, *, shared: bool, config: dict[str, Any] | None = None
) -> Image:
    """Give an image that the owner may use another name, with ``config`` as one with this configuration. Raises ``image_not_found``."""
    images = _archives(gateway)
    if shared:
        _owner(gateway, principal, shared=True)
    return await images.tag(image_name(name), image_name(other), principal.owner, config, shared=shared)


@contextlib.asynccontextmanager
async def saved(gateway: Gateway, principal: Principal, name: str) -> AsyncIterator[tuple[IO[bytes], int]]:
    """An image as an OCI archive: the open file, which exists nowhere else, and its size. Raises ``image_not_found``, ``unsupported``."""
    images = _archives(gateway)
    folder = await asyncio.to_thread(tempfile.mkdtemp, prefix="save-", dir=_uploads(gateway))
    try:
        path = Path(folder) / "image.tar"
        await images.save(image_name(name), path, principal.owner)
        file = await asyncio.to_thread(open, path, "rb")
    finally:
        await asyncio.to_thread(shutil.rmtree, folder, True)
    with file:
        yield file, os.fstat(file.fileno()).st_size


async def remove(gateway: Gateway, principal: Principal, name: str, *, shared: bool) -> None:
    """Remove an image. Raises ``image_in_use``."""
    name, owner = image_name(name), _owner(gateway, principal, shared=shared)
    await gateway.removals.wait(_REMOVALS_S)  # deleted sandboxes stop using the image
    await _images(gateway).remove(name, owner)


def _images(gateway: Gateway) -> Images:
    if not isinstance(gateway.runtime, HasImages):
        raise HoldfastError("unsupported", "this runtime has no image store", hint="push images to the cluster's registry")
    return gateway.runtime.images


def _archives(gateway: Gateway) -> ImageArchives:
    images = _images(gateway)
    if not isinstance(images, ImageArchives):
        hint = "build it elsewhere and push it to the cluster's registry, or pull it from there"
        raise HoldfastError(
            "unsupported", "a cluster has no image archives, no builds, and no names of images besides its registries'", hint=hint
        )
    return images


def _uploads(gateway: Gateway) -> Path:
    folder = gateway.settings.data_dir / "uploads"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def _owner(gateway: Gateway, principal: Principal, *, shared: bool) -> str:
    """Whose image is changed: the caller's, or with ``shared`` everybody's, which only operators may change."""
    if not shared:
        return principal.owner
    if principal.owner not in gateway.settings.operators:
        hint = "leave out shared to use an image of your own, or ask the operator; HOLDFAST_OPERATORS of the gateway lists them"
        raise HoldfastError("permission_denied", "only an operator's key may change shared images", hint=hint)
    return ""


def image_name(name: str | None) -> str:
    """The name, if it can be one. Raises ``invalid_argument``."""
    if not name or not _NAME.fullmatch(name) or ".." in name:
        raise HoldfastError("invalid_argument", "name must be an image name such as 'python:3.11-slim'")
    return name
