"""Contents of files and folders as they are: streams of bytes in both directions, of any size, with ranges, entity tags and checksums.

Owns ranges (RFC 9110 §14), conditional requests, digests (RFC 9530) and links without a key. No browser shows what is answered as a page of
this service. ``files`` has the routes of Orchard Env, with base64.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import AsyncIterator
from email.utils import formatdate
from typing import Any, Final, Literal

from holdfast_wire.errors import HoldfastError
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.audit.lines import masked
from gateway.faces.table import gateway_of, note, parts
from gateway.http.access import scheme_of
from gateway.http.bounded_protocol import CONNECTED
from gateway.http.request_fields import Fields, body_chunk, read_json
from gateway.http.responses import json_response, problem_response
from gateway.identity.file_links import FileLink
from gateway.identity.principal import Principal
from gateway.model.records import Record
from gateway.use_cases import describe, file_links, streams
from gateway.use_cases.file_links import LINK_S, MOST_LINK_S

PARAMETER: Final = "holdfast_link"
"""The query parameter with a link."""
_LINK: Final = "holdfast.file_link"
_RANGE: Final = re.compile(r"bytes=([0-9]{0,19})-([0-9]{0,19})")
_DIGEST: Final = re.compile(r"(?:^|,)\s*sha-256=:([A-Za-z0-9+/=]{44}):\s*(?:$|,)")
_SAFE: Final = {
    "Cache-Control": "private, no-cache",
    "Content-Disposition": "attachment",
    "Content-Security-Policy": "sandbox",
    "X-Content-Type-Options": "nosniff",
}


async def grant(connection: HTTPConnection) -> Principal | None:
    """The principal of a request with a link; None without one. Raises ``key_invalid`` for a link that is not valid here."""
    text = connection.query_params.get(PARAMETER)
    if not text:
        return None
    name, method = connection.path_params["sandbox_id"], connection.scope.get("method", "")
    connection.scope[_LINK], principal = await file_links.granted(gateway_of(connection), text, name, method)
    return principal


async def read(request: Request) -> ASGIApp:
    """``GET /sandboxes/{id}/files/content?path=&user=``, also with ``Range``, ``If-Range`` and ``If-None-Match``."""
    record, params = await _about(request)
    return _Content(request, record, params)


async def write(request: Request) -> Response:
    """``PUT /sandboxes/{id}/files/content?path=&user=``: the body replaces the file in one step, with its missing parent directories."""
    record, params = await _about(request)
    declared = request.headers.get("content-length", "")
    if declared.isdecimal():
        params["size"] = int(declared)
    if digest := _sha256(request):
        params["sha256"] = digest
    result = await streams.write(gateway_of(request), record, params, _body(request))
    size, sha256 = result.get("size"), result.get("sha256")
    note(request, size=size if isinstance(size, int) else None)
    return json_response({"path": params["path"], "size": size, "sha256": sha256})


async def read_archive(request: Request) -> ASGIApp:
    """``GET /sandboxes/{id}/files/archive?path=&user=``: a file or folder as a tar archive."""
    record, params = await _about(request)
    return _Archive(request, record, params)


async def write_archive(request: Request) -> Response:
    """``PUT /sandboxes/{id}/files/archive?path=&user=``: the tar archive in the body is unpacked in a folder, which it does not leave."""
    record, params = await _about(request)
    result = await streams.write(gateway_of(request), record, params, _body(request), kind="upload")
    return json_response({"path": params["path"], "entries": result.get("entries"), "bytes": result.get("bytes")})


async def link(request: Request) -> Response:
    """``POST /sandboxes/{id}/files/links``: ``{"path", "method": "GET" or "PUT", "user", "expires_s"}``."""
    gateway, principal = parts(request)
    name = request.path_params["sandbox_id"]
    fields = Fields(await read_json(request, 64 * 1024))
    path, method = fields.path(), fields.text("method", "GET", most=10)
    if method not in ("GET", "PUT"):
        raise HoldfastError("invalid_argument", "method must be GET or PUT")
    expires_s = fields.seconds("expires_s", most=MOST_LINK_S) or LINK_S
    user = fields.text("user", "", most=512) or ""
    note(request, path=masked(path), link=method)
    chosen: Literal["GET", "PUT"] = "GET" if method == "GET" else "PUT"
    text, expires_at = await file_links.link(gateway, principal, name, path, chosen, user, expires_s)
    base = gateway.settings.public_url or f"{scheme_of(request, gateway.settings)}://{request.headers.get('host', '')}"
    body = {"url": f"{base}/sandboxes/{name}/files/content?{PARAMETER}={text}", "method": method, "expires_at": expires_at}
    return json_response(body, 201, {"Cache-Control": "no-store"})


async def _about(request: Request) -> tuple[Record, dict[str, Any]]:
    """The sandbox, and the path and user of the request or of its link."""
    gateway, principal = parts(request)
    record = await describe.ready(gateway, principal, request.path_params["sandbox_id"])
    given: FileLink | None = request.scope.get(_LINK)
    query = Fields(dict(request.query_params)) if given is None else Fields({"path": given.path, "user": given.user or None})
    params: dict[str, Any] = {"path": query.path()}
    if (user := query.user()) is not None:
        params["user"] = user
    note(request, path=masked(params["path"]))
    return record, params


async def _body(request: Request) -> AsyncIterator[bytes]:
    more = True
    while more:
        chunk, more = await body_chunk(request)
        if chunk:
            yield chunk


def _sha256(request: Request) -> str:
    """The SHA-256 that the request states for its body, in hexadecimal; "" if it states none. Raises ``invalid_argument``."""
    text = request.headers.get("repr-digest") or request.headers.get("content-digest")
    if not text:
        return ""
    found = _DIGEST.search(text)
    try:
        return base64.b64decode(found[1], validate=True).hex() if found else ""
    except binascii.Error:
        raise HoldfastError("invalid_argument", "the digest is not base64", hint="Repr-Digest: sha-256=:BASE64:") from None


class _Content:
    """The content of a file, or a part of it. An ASGI application."""

    def __init__(self, request: Request, record: Record, params: dict[str, Any]) -> None:
        self._request = request
        self._record = record
        self._params = params

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request, gateway = self._request, gateway_of(self._request)
        wanted = _RANGE.fullmatch(request.headers.get("range", "").strip())
        if request.method == "HEAD" or wanted or "if-none-match" in request.headers:
            async with streams.reading(gateway, self._record, {**self._params, "offset": 0, "length": 0}) as file:
                info = file.info
            tag, size = _tag(info), _size(info)
            if tag and tag in [one.strip().removeprefix("W/") for one in request.headers.get("if-none-match", "").split(",")]:
                await Response(status_code=304, headers={"ETag": tag})(scope, receive, send)
                return
            if request.method == "HEAD":
                await self._start(send, info, 200, size)
                await send({"type": "http.response.body", "body": b"", "more_body": False})
                return
            if wanted and wanted[0] != "bytes=-" and request.headers.get("if-range", tag) == tag:
                await self._part(wanted, info, scope, receive, send)
                return
        async with streams.reading(gateway, self._record, self._params) as file:
            await self._start(send, file.info, 200, _size(file.info))
            await self._send(file.pieces(), send)

    async def _part(self, wanted: re.Match[str], info: dict[str, Any], scope: Scope, receive: Receive, send: Send) -> None:
        size = _size(info)
        first = int(wanted[1]) if wanted[1] else max(size - int(wanted[2]), 0)
        last = min(int(wanted[2]), size - 1) if wanted[1] and wanted[2] else size - 1
        if first >= size or last < first:
            error = HoldfastError("invalid_argument", f"the file has {size} bytes, and no such range")
            refusal = problem_response(error)
            refusal.status_code = 416
            refusal.headers["Content-Range"] = f"bytes */{size}"
            await refusal(scope, receive, send)
            return
        params = {**self._params, "offset": first, "length": last - first + 1}
        async with streams.reading(gateway_of(self._request), self._record, params) as file:
            if _tag(file.info) != _tag(info):
                raise HoldfastError("io_error", "the file has changed during the request", hint="send the request again")
            await self._start(send, info, 206, last - first + 1, f"bytes {first}-{last}/{size}")
            await self._send(file.pieces(), send)

    async def _start(self, send: Send, info: dict[str, Any], status: int, length: int, part: str = "") -> None:
        headers = {**_SAFE, "Content-Type": "application/octet-stream", "Accept-Ranges": "bytes"}
        if length or _size(info):  # files in /proc report 0
            headers["Content-Length"] = str(length)
        headers |= {"Content-Range": part} if part else {}
        headers |= {"ETag": tag} if (tag := _tag(info)) else {}
        mtime = info.get("mtime")
        if isinstance(mtime, int | float) and 0 <= mtime < 2**40:
            headers["Last-Modified"] = formatdate(mtime, usegmt=True)
        lines = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": status, "headers": lines})

    async def _send(self, pieces: AsyncIterator[bytes], send: Send) -> None:
        async for piece in pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
            if not self._request.scope[CONNECTED]():
                return
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class _Archive(_Content):
    """A tar archive of a file or folder. An ASGI application."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with streams.reading(gateway_of(self._request), self._record, self._params, kind="download") as archive:
            headers = {**_SAFE, "Content-Type": "application/x-tar"}
            lines = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
            await send({"type": "http.response.start", "status": 200, "headers": lines})
            if self._request.method == "HEAD":
                await send({"type": "http.response.body", "body": b"", "more_body": False})
                return
            await self._send(archive.pieces(), send)


def _size(info: dict[str, Any]) -> int:
    size = info.get("size")
    return size if type(size) is int and size >= 0 else 0


def _tag(info: dict[str, Any]) -> str:
    """The entity tag of a file's state, by its size and its time of change; "" if the agent does not report them."""
    size, mtime = info.get("size"), info.get("mtime")
    if type(size) is not int or not isinstance(mtime, int | float) or not 0 <= mtime < 2**40:
        return ""
    return f'"{size:x}-{int(mtime * 1_000_000):x}"'
