"""``PUT /sandboxes/{id}/network``: what a running sandbox may reach, from now on.

Owns the order: the runtime enforces it first, then the record is changed, so that a caller with an answer can rely on it. Safe to repeat.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from gateway.http.request_fields import read_json
from gateway.http.responses import json_response
from gateway.model.option_fields import read_network
from gateway.service import gateway_of, live

from .sandboxes import describe


async def change(request: Request) -> Response:
    """Answers the changed sandbox. Raises ``unsupported`` where the runtime cannot enforce it."""
    gateway = gateway_of(request)
    owner = gateway.owner(request)
    sandbox_id = request.path_params["sandbox_id"]
    egress = read_network(await read_json(request, 256 * 1024))
    record = await gateway.ready(owner, sandbox_id)
    await gateway.runtime.allow(sandbox_id, record.incarnation, egress)
    entry = await gateway.store.mark_egress(sandbox_id, record.incarnation, egress)
    return json_response(describe(gateway, live(await gateway.owned(entry, owner, sandbox_id))))
