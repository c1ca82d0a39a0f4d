"""``GET /sandboxes/{id}/history``: the last commands of a sandbox, as the sandbox reports them."""

from __future__ import annotations

import dataclasses

from starlette.requests import Request
from starlette.responses import Response

from gateway.faces.table import parts
from gateway.http.paging import paged
from gateway.http.responses import json_response
from gateway.use_cases import history


async def commands(request: Request) -> Response:
    """The oldest first, those that run included."""
    gateway, principal = parts(request)
    found = await history.commands(gateway, principal, request.path_params["sandbox_id"])
    return json_response(
        paged(request, "commands", found, lambda one: f"{one.started_at or 0.0:020.6f}:{one.command_id}", dataclasses.asdict)
    )
