"""Routes of a sandbox's ports: which of them programs listen on, and links to their previews.

Owns the form of the answers, and the address of a link, which depends on how this request reached the service.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response

from gateway.faces.table import parts
from gateway.http.request_fields import Fields, read_json
from gateway.http.responses import json_response
from gateway.use_cases import ports, previews


async def listening(request: Request) -> Response:
    """``GET /sandboxes/{id}/ports``: as the sandbox reports them."""
    gateway, principal = parts(request)
    found = await ports.listening(gateway, principal, request.path_params["sandbox_id"])
    return json_response({"ports": [{"port": one.port, "address": one.address, "uid": one.uid} for one in found]})


async def link(request: Request) -> Response:
    """``POST /sandboxes/{id}/previews`` ``{port, expires_s?}``."""
    gateway, principal = parts(request)
    fields = Fields(await read_json(request, gateway.settings.rest.body_bytes))
    port = fields.integer("port", 0, least=1, most=65535)
    expires_s = fields.seconds("expires_s", most=previews.MOST_LINK_S) or previews.LINK_S
    made = await previews.link(gateway, principal, request.path_params["sandbox_id"], port, expires_s)
    base = gateway.settings.public_url or f"{request.url.scheme}://{request.headers.get('host', '')}"
    if made.host:
        own = urlsplit(base)
        base = f"{own.scheme}://{made.host}" + (f":{own.port}" if own.port else "")
    address = f"{base}/" if made.host else f"{base}{made.path}"
    body = {
        "port": port,
        "address": address,
        "url": f"{address}?{previews.PARAMETER}={made.token}",
        "token": made.token,
        "header": previews.HEADER,
        "form": "host" if made.host else "path",
        "expires_at": made.expires_at,
    }
    return json_response(body, 201, {"Cache-Control": "no-store"})
