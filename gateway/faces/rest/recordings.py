"""Routes of recordings: what happened in sandboxes, also after they are gone."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from gateway.faces.table import parts
from gateway.http.paging import latest_first, paged
from gateway.http.request_fields import Fields
from gateway.http.responses import json_response
from gateway.use_cases import recordings

_MOST_OFFSET = 2**53


async def list_owned(request: Request) -> Response:
    """``GET /recordings?sandbox=&limit=&cursor=``: the latest first."""
    gateway, principal = parts(request)
    found = await recordings.list_owned(gateway, principal, request.query_params.get("sandbox") or "")
    return json_response(
        paged(request, "recordings", found, lambda one: latest_first(one.get("started_at"), one["recording_id"]), lambda one: one)
    )


async def read(request: Request) -> Response:
    """``GET /recordings/{id}``."""
    gateway, principal = parts(request)
    return json_response(await recordings.describe(gateway, principal, request.path_params["recording_id"]))


async def content(request: Request) -> Response:
    """``GET /recordings/{id}/lines?offset=``: the lines so far, one JSON object each, from a byte on."""
    gateway, principal = parts(request)
    offset = Fields(dict(request.query_params)).integer("offset", 0, least=0, most=_MOST_OFFSET)
    recording_id = request.path_params["recording_id"]
    await recordings.describe(gateway, principal, recording_id)
    pieces = recordings.content(gateway, principal, recording_id, offset)
    headers = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
    return StreamingResponse(pieces, media_type="application/x-ndjson", headers=headers)


async def remove(request: Request) -> Response:
    """``DELETE /recordings/{id}``."""
    gateway, principal = parts(request)
    await recordings.remove(gateway, principal, request.path_params["recording_id"])
    return json_response({"status": "deleted", "recording_id": request.path_params["recording_id"]})
