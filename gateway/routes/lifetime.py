"""``PUT /sandboxes/{id}/lifetime``: when a sandbox ends at the latest, changed while it runs.

Owns the two forms of the request. Placement keeps the time; the other limits (idle, heartbeat, group) are unaffected.
"""

from __future__ import annotations

from holdfast_wire.errors import HoldfastError
from starlette.requests import Request
from starlette.responses import Response

from gateway.http.request_fields import Fields, read_json
from gateway.http.responses import json_response
from gateway.service import gateway_of, live, reachable

from .sandboxes import describe


async def change(request: Request) -> Response:
    """Answers the changed sandbox. ``{"lifetime_s": …}`` counts from now, ``{"extend_s": …}`` from the current end."""
    gateway = gateway_of(request)
    owner = gateway.owner(request)
    sandbox_id = request.path_params["sandbox_id"]
    fields = Fields(await read_json(request, 64 * 1024))
    from_now_s, longer_s = fields.seconds("lifetime_s"), fields.seconds("extend_s")
    if (from_now_s is None) == (longer_s is None):
        raise HoldfastError("invalid_argument", "give lifetime_s, which counts from now, or extend_s, which is added to what is left")
    entry = await gateway.store.change_lifetime(sandbox_id, owner, from_now_s=from_now_s, longer_s=longer_s or 0.0)
    record = live(await gateway.owned(entry, owner, sandbox_id))
    if record.status == "failed":
        reachable(record)  # raises why
    return json_response(describe(gateway, record))
