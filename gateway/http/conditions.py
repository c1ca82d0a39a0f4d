"""Conditional requests (RFC 9110 §13): entity tags of documents, ``If-None-Match`` and ``If-Match``.

Owns the comparison and the 304 answer. The tag of a sandbox is its record's version, that of another document a hash of its bytes.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any, Final

import orjson
from holdfast_wire.errors import HoldfastError
from starlette.requests import Request
from starlette.responses import Response

_TAG: Final = re.compile(r'(W/)?"([!#-~]*)"')
_HEADER: Final = re.compile(r'[ \t]*(W/)?"[!#-~]*"[ \t]*(,[ \t]*(W/)?"[!#-~]*"[ \t]*)*')
_CHARACTERS: Final = 4000
_MOST: Final = 64
"""Tags in one header."""


def document_response(
    request: Request, body: Any, *, version: str = "", status: int = 200, headers: dict[str, str] | None = None
) -> Response:
    """The document with its entity tag, or 304 if the request has that tag in ``If-None-Match``.

    ``version``: a text that differs between two states of the document; without it, the bytes of the document are used.
    """
    content = orjson.dumps(body)
    tag = version or hashlib.sha256(content).hexdigest()[:32]
    found = {**(headers or {}), "ETag": f'"{tag}"'}
    if request.method in ("GET", "HEAD") and names(request.headers.get("if-none-match"), tag):
        return Response(None, 304, found)
    return Response(content, status, found, "application/json")


def wanted_versions(request: Request) -> list[str] | None:
    """The tags in ``If-Match``, of which the document must have one; None if any will do. Raises ``invalid_argument``."""
    text = request.headers.get("if-match")
    if text is None or text.strip() == "*":
        return None
    return _tags(text, weak=False)


def check_version(wanted: list[str] | None, version: str) -> None:
    """Raise ``precondition_failed`` if the document has none of the tags in ``If-Match``."""
    if wanted is not None and version not in wanted:
        raise HoldfastError("precondition_failed", "the document has changed since the version that If-Match names")


def names(header: str | None, tag: str) -> bool:
    """Whether a header ``If-None-Match`` names the tag; weak tags count (RFC 9110 §8.8.3.2). Raises ``invalid_argument``."""
    if header is None:
        return False
    return header.strip() == "*" or tag in _tags(header, weak=True)


def _tags(text: str, *, weak: bool) -> list[str]:
    if len(text) > _CHARACTERS or not _HEADER.fullmatch(text):
        raise HoldfastError("invalid_argument", "If-Match and If-None-Match must be * or entity tags in double quotes")
    return [tag for is_weak, tag in _TAG.findall(text)[:_MOST] if weak or not is_weak]
