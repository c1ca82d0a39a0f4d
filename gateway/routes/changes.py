"""``PUT /sandboxes/{id}/lifetime`` and ``…/network``: changes of a running sandbox.

Owns the forms of the requests, and for the network the order: the runtime enforces it first, then the record is changed, so that a caller
with an answer can rely on it. Safe to repeat.
"""

from __future__ import annotations

from holdfast_wire.errors import HoldfastError
from starlette.requests import Request
from starlette.responses import Response

from gateway.http.request_fields import Fields, read_json
from gateway.http.responses import json_response
from gateway.model.option_fields import read_network
from gateway.service import live, reachable, sandbox_request

from .sandboxes import describe


async def lifetime(request: Request) -> Response:
    """Answers the changed sandbox. ``{"lifetime_s": …}`` counts from now, ``{"extend_s": …}`` from the current end."""
    gateway, owner, sandbox_id = sandbox_request(request)
    fields = Fields(await read_json(request, 64 * 1024))
    from_now_s, longer_s = fields.seconds("lifetime_s"), fields.seconds("extend_s")
    if (from_now_s is None) == (longer_s is None):
        raise HoldfastError("invalid_argument", "give lifetime_s, which counts from now, or extend_s, which is added to what is left")
    entry = await gateway.store.change_lifetime(sandbox_id, owner, from_now_s=from_now_s, longer_s=longer_s or 0.0)
    record = live(await gateway.owned(entry, owner, sandbox_id))
    if record.status == "failed":
        reachable(record)  # raises the reason
    return json_response(describe(gateway, record))


async def network(request: Request) -> Response:
    """Answers the changed sandbox. Raises ``unsupported`` where the runtime cannot enforce it."""
    gateway, owner, sandbox_id = sandbox_request(request)
    egress = read_network(await read_json(request, 256 * 1024))
    record = await gateway.ready(owner, sandbox_id)
    await gateway.runtime.set_egress(sandbox_id, record.incarnation, egress)
    entry = await gateway.store.mark_egress(sandbox_id, record.incarnation, egress)
    return json_response(describe(gateway, live(await gateway.owned(entry, owner, sandbox_id))))
