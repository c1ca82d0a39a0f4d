"""``/files``: the content of files, in both directions and of any size.

Owns what E2B's SDKs may send and ask for: a multipart form or the bytes themselves, with gzip or without. Files are written in place, as
E2B does it, so that programs which have one open see the new content; REST and sessions replace files whole.
"""

from __future__ import annotations

import mimetypes
import zlib
from collections.abc import AsyncIterator
from email.utils import formatdate
from typing import Any, Final
from urllib.parse import quote

from holdfast_wire.errors import HoldfastError
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.audit.lines import masked_path
from gateway.faces.table import note, parts
from gateway.http.bounded_protocol import CONNECTED
from gateway.http.multipart import FormPart, file_parts
from gateway.http.request_fields import Fields, body_chunk
from gateway.http.responses import json_response
from gateway.use_cases import accounts, streams

from .actors import actor_of
from .entries import METADATA
from .filesystem import Tree, tree_of
from .targets import ended, ready_record

_GZIP: Final = 16 + zlib.MAX_WBITS
_PIECE_BYTES: Final = 256 * 1024
_FIELD: Final = "x-metadata-"
_SAFE: Final = (("cache-control", "private, no-cache"), ("content-security-policy", "sandbox"), ("x-content-type-options", "nosniff"))
"""A file is shown in a browser, as E2B does it, but as no page of this service: the sandbox has written it."""
_KEY_CHARACTERS: Final = 246
_NOTED: Final = 20
"""Paths of one form that are in its entry of the audit log."""


async def health(request: Request) -> Response:
    """``GET /health``: 204 while the sandbox can be used."""
    await ready_record(request)
    return Response(status_code=204)


async def download(request: Request) -> ASGIApp:
    """``GET /files?path=&username=``."""
    gateway, _ = parts(request)
    query = Fields(dict(request.query_params))
    record = await ready_record(request)
    actor = actor_of(await accounts.users(gateway, record), query.text("username", "", most=512) or "")
    path = actor.path(query.text("path", "") or "")
    note(request, path=masked_path(path))
    return _Download(request, record, path, compressed=_accepts_gzip(request))


async def upload(request: Request) -> Response:
    """``POST /files?path=&username=``."""
    query = Fields(dict(request.query_params))
    path = query.text("path", "") or ""
    tree = await tree_of(request, user=query.text("username", "", most=512) or "")
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    metadata = _metadata(request)
    written: list[str] = []
    if kind == "application/octet-stream":
        if not path:
            raise HoldfastError("invalid_argument", "path query parameter is required for raw body upload", hint="")
        target = tree.actor.path(path)
        note(request, path=masked_path(target))
        written.append(await _write(tree, target, _body(request), metadata))
    elif kind == "multipart/form-data":
        async for part in file_parts(request.headers["content-type"], _body(request)):
            target = _target(tree, part, path, written)
            note(request, paths=[masked_path(one) for one in (*written, target)[:_NOTED]])
            written.append(await _write(tree, target, part.pieces(), metadata))
    else:
        message = f"unsupported content type: {kind[:100]}, expected multipart/form-data or application/octet-stream"
        raise HoldfastError("invalid_argument", message, hint="")
    more = {"metadata": metadata} if metadata else {}
    return json_response([{"path": one, "name": one.rpartition("/")[2], "type": "file", **more} for one in written])


def _target(tree: Tree, part: FormPart, path: str, written: list[str]) -> str:
    target = tree.actor.path(path or part.name)
    if target in written:
        raise HoldfastError("invalid_argument", f"you cannot upload multiple files to the same path {target[:200]!r}", hint="")
    return target


async def _write(tree: Tree, path: str, pieces: AsyncIterator[bytes], metadata: dict[str, str]) -> str:
    """Write a file, whose metadata is then this and no other; returns its absolute path."""
    params = {"path": path, "atomic": False, "xattrs": {"prefix": METADATA, "values": metadata}, **tree.actor.owner()}
    try:
        await streams.write(tree.gateway, tree.record, params, pieces)
    except HoldfastError as error:
        if error.code == "is_a_directory":
            raise HoldfastError("is_a_directory", f"path is a directory: {path[:200]}", hint="") from None
        raise ended(error) from None
    if path.startswith("/"):
        return path
    return str((await tree.stat(path)).get("path") or path)


def _metadata(request: Request) -> dict[str, str]:
    """The metadata in the fields ``X-Metadata-…``; of several of a name the first. Raises ``invalid_argument``."""
    found: dict[str, str] = {}
    for name, value in request.headers.items():
        key = name.removeprefix(_FIELD)
        if not name.startswith(_FIELD) or not key:
            continue
        if len(key) > _KEY_CHARACTERS or not (key + value).isascii() or not (key + value).isprintable():
            raise HoldfastError(
                "invalid_argument", f"metadata {key[:60]!r} must be printable ASCII, its key at most {_KEY_CHARACTERS} bytes"
            )
        found.setdefault(key, value)
    return found


async def _body(request: Request) -> AsyncIterator[bytes]:
    """The body, decompressed. Raises ``invalid_argument`` for another encoding than gzip."""
    encoding = request.headers.get("content-encoding", "identity").lower()
    if encoding not in ("identity", "gzip", ""):
        raise HoldfastError("invalid_argument", f"unsupported Content-Encoding: {encoding[:50]}, supported: [gzip]", hint="")
    inflate = zlib.decompressobj(_GZIP) if encoding == "gzip" else None
    more = True
    while more:
        chunk, more = await body_chunk(request)
        if inflate is None:
            yield chunk
            continue
        try:
            while chunk:
                if inflate.eof:
                    inflate = zlib.decompressobj(_GZIP)  # a gzip file may have several members (RFC 1952 §2.2)
                yield inflate.decompress(chunk, _PIECE_BYTES)
                chunk = inflate.unused_data if inflate.eof else inflate.unconsumed_tail
        except zlib.error as error:
            raise HoldfastError("invalid_argument", f"error decompressing request body: {error}", hint="") from None
    if inflate is not None and not inflate.eof:
        raise HoldfastError("invalid_argument", "error decompressing request body: it ends too early", hint="")


def _accepts_gzip(request: Request) -> bool:
    """Whether gzip is the encoding that the client prefers (RFC 9110 §12.5.3). Raises ``unsupported`` if it accepts none that there is."""
    qualities: dict[str, float] = {}
    for part in request.headers.get("accept-encoding", "").lower().split(","):
        name, _, parameter = part.partition(";")
        quality = parameter.strip().removeprefix("q=")
        try:
            qualities.setdefault(name.strip(), float(quality) if quality else 1.0)
        except ValueError:
            qualities.setdefault(name.strip(), 1.0)
    plain = qualities.get("identity", qualities.get("*", 1.0))
    gzip = qualities.get("gzip", 0.0 if plain else qualities.get("*", 0.0))
    if not plain and not gzip:
        raise HoldfastError("invalid_argument", "no acceptable encoding found, supported: [identity, gzip]", hint="")
    return gzip > 0 and gzip >= qualities.get("identity", 0.0)


class _Download:
    """The content of a file. An ASGI application."""

    def __init__(self, request: Request, record: Any, path: str, *, compressed: bool) -> None:
        self._request = request
        self._record = record
        self._path = path
        self._compressed = compressed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with streams.reading(parts(self._request)[0], self._record, {"path": self._path}) as file:
                await send({"type": "http.response.start", "status": 200, "headers": self._headers(file.info)})
                await self._send(file.pieces(), send)
        except HoldfastError as error:
            raise self._refusal(error) from None

    async def _send(self, pieces: AsyncIterator[bytes], send: Send) -> None:
        deflate = zlib.compressobj(wbits=_GZIP) if self._compressed else None
        async for piece in pieces:
            body = piece if deflate is None else deflate.compress(piece)
            if body:
                await send({"type": "http.response.body", "body": body, "more_body": True})
            if not self._request.scope[CONNECTED]():
                return
        await send({"type": "http.response.body", "body": b"" if deflate is None else deflate.flush(), "more_body": False})

    def _headers(self, info: dict[str, Any]) -> list[tuple[bytes, bytes]]:
        name = self._path.rpartition("/")[2]
        kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
        kind += "; charset=utf-8" if kind.startswith("text/") else ""
        disposition = f"inline; filename*=utf-8''{quote(name, safe='')}"
        headers = [("content-type", kind), ("content-disposition", disposition), ("vary", "Accept-Encoding"), *_SAFE]
        size, mtime = info.get("size"), info.get("mtime")
        if self._compressed:
            headers.append(("content-encoding", "gzip"))
        elif type(size) is int and size > 0:  # files in /proc report 0
            headers.append(("content-length", str(size)))
        if isinstance(mtime, int | float) and 0 <= mtime < 2**40:
            headers.append(("last-modified", formatdate(mtime, usegmt=True)))
        return [(key.encode(), value.encode("latin-1", "replace")) for key, value in headers]

    def _refusal(self, error: HoldfastError) -> HoldfastError:
        if error.code == "file_not_found":
            return HoldfastError("file_not_found", f"path '{self._path[:200]}' does not exist", hint="")
        if error.code == "is_a_directory":
            return HoldfastError("is_a_directory", f"path '{self._path[:200]}' is a directory", hint="")
        return ended(error)
