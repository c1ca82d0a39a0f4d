"""``WS /sandboxes/{id}/session``: hands a client's connection to a session of the sandbox's agent.

Owns the refusal of a request without an upgrade. Every refusal is an HTTP status with a problem document, never an accepted socket that
closes. ``sessions.attach`` does the rest.
"""

from __future__ import annotations

from holdfast_wire.errors import HoldfastError
from starlette.requests import Request

from gateway.faces.table import parts, use_of
from gateway.http.bounded_protocol import TAKE_OVER
from gateway.use_cases.audited import following


async def attach(request: Request) -> None:
    """Raises every refusal; afterwards the connection is the session's."""
    gateway, principal = parts(request)
    take_over = request.scope.get(TAKE_OVER)
    if take_over is None:
        raise HoldfastError("not_found", "this route accepts only WebSocket upgrades", hint="use a WebSocket client, or the SDK")
    name = request.path_params["sandbox_id"]
    async with following(gateway, principal, name):
        await gateway.attach(principal.owner, name, request.headers, take_over, use_of(request))
