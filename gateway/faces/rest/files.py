"""Routes of files and patches, for small contents: Orchard Env's whole-file routes. Large ones stream over a session.

Owns base64 and the form of the answers. The agent decides which paths are valid; what it reports is shown, not trusted.
"""

from __future__ import annotations

import base64
import time
from collections.abc import AsyncIterator
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from gateway.audit.lines import masked
from gateway.faces.table import note, parts
from gateway.http.paging import paged
from gateway.http.request_fields import Fields, read_json
from gateway.http.responses import json_response
from gateway.use_cases import describe, files
from gateway.use_cases.activity import in_use

_PIECE = 3 * 64 * 1024
"""Bytes encoded at a time: a multiple of three, so that there is no padding in between."""
_TAIL = b'"}'


async def write(request: Request) -> Response:
    """``POST /sandboxes/{id}/files`` ``{path, content: base64, user?}``."""
    gateway, principal = parts(request)
    record = await describe.ready(gateway, principal, request.path_params["sandbox_id"])
    with in_use(gateway, record):
        fields = Fields(await read_json(request, gateway.settings.rest.body_bytes))
    path = fields.path()
    content = fields.base64("content")
    note(request, path=masked(path), size=len(content))
    await files.write(gateway, record, path, content, fields.user())
    return json_response({"success": True, "path": path, "size": len(content)})


async def read(request: Request) -> Response:
    """``GET /sandboxes/{id}/files?path=&user=``."""
    gateway, principal = parts(request)
    record = await describe.ready(gateway, principal, request.path_params["sandbox_id"])
    fields = Fields(dict(request.query_params))
    path = fields.path()
    note(request, path=masked(path))
    content = await files.read(gateway, record, path, fields.user())
    head = orjson.dumps({"path": path, "size": len(content)})[:-1] + b',"content":"'
    if len(content) <= _PIECE:
        return Response(head + base64.b64encode(content) + _TAIL, media_type="application/json")
    # Encoded while it is sent: the file is in memory once, not four times.
    size = len(head) + (len(content) + 2) // 3 * 4 + len(_TAIL)
    return StreamingResponse(_encoded(head, content), headers={"Content-Length": str(size)}, media_type="application/json")


async def _encoded(head: bytes, content: bytearray) -> AsyncIterator[bytes]:
    yield head
    with memoryview(content) as view:
        for start in range(0, len(view), _PIECE):
            yield base64.b64encode(view[start : start + _PIECE])
    yield _TAIL


async def list_files(request: Request) -> Response:
    """``GET /sandboxes/{id}/files/list?path=&user=&limit=&cursor=``."""
    gateway, principal = parts(request)
    record = await describe.ready(gateway, principal, request.path_params["sandbox_id"])
    fields = Fields(dict(request.query_params))
    path = fields.path(default=".")
    entries = await files.list_all(gateway, record, path, fields.user())
    return json_response(
        {"path": path, **paged(request, "files", [_entry(entry) for entry in entries], lambda one: str(one["name"]), dict)}
    )


async def apply_patch(request: Request) -> Response:
    """``POST /sandboxes/{id}/apply_patch`` ``{patch, timeout_seconds}``. A patch that does not apply is an answer, not an error."""
    gateway, principal = parts(request)
    record = await describe.ready(gateway, principal, request.path_params["sandbox_id"])
    with in_use(gateway, record):
        fields = Fields(await read_json(request, gateway.settings.rest.body_bytes))
    patch = fields.required("patch", most=gateway.settings.rest.body_bytes)
    note(request, size=len(patch))
    timeout_s = fields.seconds("timeout_seconds") or 30.0
    result = await files.patch(gateway, record, patch.encode(), timeout_s)
    success = result.get("success") is True
    exit_code = result.get("exit_code")
    stderr = _text(result.get("stderr"))
    return json_response(
        {
            "success": success,
            "stdout": _text(result.get("stdout")),
            "stderr": stderr,
            "exit_code": exit_code if isinstance(exit_code, int) else None,
            "error": None if success else stderr or "the patch does not apply",
        }
    )


def _entry(entry: dict[str, Any]) -> dict[str, Any]:
    size, mtime = entry.get("size"), entry.get("mtime")
    modified = None
    if isinstance(mtime, int | float) and 0 <= mtime < 2**40:
        modified = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(mtime))
    return {
        "name": _text(entry.get("name")),
        "type": "directory" if entry.get("type") == "directory" else "file",
        "size": size if isinstance(size, int) else 0,
        "modified": modified,
    }


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else ""
