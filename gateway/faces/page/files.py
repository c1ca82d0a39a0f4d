"""The files of the page: HTML, style and ES modules of this folder, and the modules of others that a build put into ``static/vendor``.

Owns their types and the headers that every answer of the page has. The policy permits no script and no style in the HTML itself, and no
other host: what a sandbox says is only ever a text node, and if that fails this holds.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from holdfast_wire.errors import HoldfastError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.staticfiles import StaticFiles

_FOLDER: Final = Path(__file__).parent / "static"
_PATH: Final = re.compile(r"[a-z0-9_-]+(?:[./][a-z0-9_-]+)*\.([a-z]+)")
_TYPES: Final = {"js": "text/javascript", "mjs": "text/javascript", "css": "text/css", "svg": "image/svg+xml", "json": "application/json"}
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS: Final = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
_files: Final = StaticFiles(directory=_FOLDER, check_dir=False)


async def index(request: Request) -> Response:
    """``GET /ui``."""
    return await _answer(request, "index.html", "text/html")


async def read(request: Request) -> Response:
    """``GET /ui/{path}``: a file. ``/ui/`` is the page too."""
    path = request.path_params["path"]
    if not path:
        return RedirectResponse("/ui", 308, HEADERS)
    match = _PATH.fullmatch(path)
    if match is None or match[1] not in _TYPES:
        raise HoldfastError("not_found", f"the page has no file {path[:200]!r}")
    return await _answer(request, path, _TYPES[match[1]])


async def _answer(request: Request, path: str, media_type: str) -> Response:
    try:
        response = await _files.get_response(path, request.scope)
    except HTTPException:
        raise HoldfastError("not_found", f"the page has no file {path[:200]!r}") from None
    response.headers.update(HEADERS)
    if response.status_code == 200:
        response.headers["Content-Type"] = f"{media_type}; charset=utf-8"
    return response
