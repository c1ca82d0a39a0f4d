"""``GET /audit``: the latest entries of this replica's audit log, for operators."""

from __future__ import annotations

import time
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from gateway.faces.table import gateway_of
from gateway.http.request_fields import Fields
from gateway.http.responses import json_response

_FIELDS = ("sandbox", "owner", "project", "key_id", "event")


async def query(request: Request) -> Response:
    """``GET /audit?sandbox=&owner=&project=&key_id=&event=&since=&limit=``: ``since`` is in seconds before now."""
    fields = Fields(dict(request.query_params))
    limit = fields.integer("limit", 1000, least=1, most=10_000)
    since_s = fields.seconds("since") or 366 * 86400.0
    wanted = {name: value for name in _FIELDS if (value := fields.text(name, most=256))}

    def passes(entry: dict[str, Any]) -> bool:
        return all(entry.get(name) == value for name, value in wanted.items())

    entries = await gateway_of(request).audit.query(passes, time.time() - since_s, limit)
    return json_response({"entries": entries}, headers={"Cache-Control": "no-store"})
