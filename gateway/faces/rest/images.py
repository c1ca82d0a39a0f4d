"""Routes of images: list, import, pull, tag, export, remove.

Owns the form of their requests and answers.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from holdfast_wire.errors import HoldfastError
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from gateway.faces.table import parts
from gateway.http.paging import paged
from gateway.http.request_fields import Fields, body_chunk, canonical, read_json
from gateway.http.responses import json_response
from gateway.runtimes.base import Image
from gateway.use_cases import images

_CHUNK = 1024 * 1024
_CONFIG_BYTES = 1024 * 1024


async def list_images(request: Request) -> Response:
    """``GET /images?limit=&cursor=&steps=``."""
    gateway, principal = parts(request)
    steps = Fields(dict(request.query_params)).get("steps") in ("true", "1")
    found = await images.list_all(gateway, principal, steps=steps)
    return json_response(paged(request, "images", found, lambda image: f"{image.name}\n{image.digest}\n{image.shared:d}", image_map))


async def image_config(request: Request) -> Response:
    """``GET /images/config?name=``: the digest of an image, its configuration in OCI's form, and the service's processor."""
    gateway, principal = parts(request)
    return json_response(await images.config(gateway, principal, Fields(dict(request.query_params)).required("name")))


async def import_image(request: Request) -> Response:
    """``POST /images?name=``: the body is an archive."""
    gateway, principal = parts(request)
    image = await images.load(gateway, principal, request.query_params.get("name"), _chunks(request), shared=_is_shared(request))
    return json_response(image_map(image), 201)


async def _chunks(request: Request) -> AsyncIterator[bytes]:
    more = True
    while more:
        chunk, more = await body_chunk(request)
        yield chunk


async def pull_image(request: Request) -> Response:
    """``POST /images/pull`` ``{name, shared}``."""
    gateway, principal = parts(request)
    fields = Fields(await read_json(request, 64 * 1024))
    image = await images.pull(gateway, principal, fields.required("name"), shared=fields.boolean("shared", False))
    return json_response(image_map(image), 201)


async def tag_image(request: Request) -> Response:
    """``POST /images/tag`` ``{name, tag, shared, config}``: with ``config`` the new name is that of an image with this configuration."""
    gateway, principal = parts(request)
    fields = Fields(await read_json(request, _CONFIG_BYTES))
    name, tag, shared, config = fields.required("name"), fields.required("tag"), fields.boolean("shared", False), fields.get("config")
    if config is not None and not isinstance(config, dict):
        raise HoldfastError("invalid_argument", "config must be an object in OCI's form of an image's configuration")
    canonical({"config": config})  # raises for what the node could not be sent
    return json_response(image_map(await images.tag(gateway, principal, name, tag, shared=shared, config=config)), 201)


async def save_image(request: Request) -> Response:
    """``GET /images/archive?name=``: an OCI archive, which ``POST /images`` and docker read."""
    gateway, principal = parts(request)
    name = Fields(dict(request.query_params)).required("name")
    held = contextlib.AsyncExitStack()
    file, size = await held.enter_async_context(images.saved(gateway, principal, name))

    async def chunks() -> AsyncIterator[bytes]:
        async with held:
            while chunk := await asyncio.to_thread(file.read, _CHUNK):
                yield chunk

    return StreamingResponse(chunks(), headers={"Content-Length": str(size)}, media_type="application/x-tar")


async def remove_image(request: Request) -> Response:
    """``DELETE /images/{name}``."""
    gateway, principal = parts(request)
    name = request.path_params["name"]
    await images.remove(gateway, principal, name, shared=_is_shared(request))
    return json_response({"status": "deleted", "name": name})


def _is_shared(request: Request) -> bool:
    return request.query_params.get("shared", "").lower() in ("true", "1")


def image_map(image: Image) -> dict[str, Any]:
    """An image in REST's form."""
    body = {"name": image.name, "digest": image.digest, "size_bytes": image.size_bytes, "created": image.created, "shared": image.shared}
    if image.parent:
        body["parent"] = image.parent
    return body if image.wanted is None else {**body, "nodes": {"ready": image.ready, "wanted": image.wanted}}
