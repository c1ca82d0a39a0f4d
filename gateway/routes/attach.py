"""``WS /sandboxes/{id}/session``: from a client's upgrade to a running relay.

Owns the order: origin, key, session limit, placement (or a signed ticket), dial; only then is the client accepted. Every refusal is an HTTP
status with a problem document, never an accepted socket that closes. ``sessions.relay`` does the rest.
"""

from __future__ import annotations

import time

from holdfast_wire.errors import HoldfastError
from starlette.websockets import WebSocket

from gateway.agents.dial import Dialled, dial
from gateway.http.origin import check_origin
from gateway.http.problems import problem_response
from gateway.http.takeover import EXTENSION, TakeoverProtocol
from gateway.model.records import Record
from gateway.placement.errors import PlacementUnavailableError
from gateway.service import Gateway, gateway_of
from gateway.sessions import tickets
from gateway.sessions.relay import ClientEnd, Relay
from gateway.sessions.tickets import Ticket


async def attach(websocket: WebSocket) -> None:
    """The endpoint."""
    gateway = gateway_of(websocket)
    try:
        check_origin(gateway.settings.allowed_origins, websocket)
        owner = gateway.owner(websocket)
        gateway.attached.enter(owner)
    except HoldfastError as error:
        await websocket.send_denial_response(problem_response(error))
        return
    try:
        await _attach(gateway, owner, websocket.path_params["sandbox_id"], websocket)
    except HoldfastError as error:
        gateway.metrics.count("attach_refused_total", code=error.code)
        await websocket.send_denial_response(problem_response(error))
    finally:
        gateway.attached.leave(owner)


async def _attach(gateway: Gateway, owner: str, sandbox_id: str, websocket: WebSocket) -> None:
    settings, begun = gateway.settings.relay, time.monotonic()
    ticket, dialled = await _reach(gateway, owner, sandbox_id, websocket.headers.get(tickets.HEADER))
    relay = Relay(sandbox_id, dialled.transport, settings.buffer_bytes, settings.linger_s)
    server: TakeoverProtocol = websocket.scope["extensions"][EXTENSION]
    try:
        header = (tickets.HEADER.lower().encode(), tickets.sign(gateway.secret, ticket).encode())
        await websocket.accept(headers=[header])
        client = server.take_over(ClientEnd(relay, server), lambda: gateway.attached.go_away(relay))
        if client is None:
            return
        gateway.metrics.count("attach_total")
        gateway.metrics.observe("attach_seconds", time.monotonic() - begun)
        gateway.attached.add(relay)
        relay.start(client, dialled.early, settings.buffer_bytes)
        await relay.done
    finally:
        gateway.attached.discard(relay)
        if not relay.done.done():
            relay.abort()


async def _reach(gateway: Gateway, owner: str, sandbox_id: str, ticket_text: str | None) -> tuple[Ticket, Dialled]:
    """A connection to the sandbox's agent, by a valid ticket, else by placement."""
    timeout_s = gateway.settings.relay.dial_timeout_s
    if ticket_text:
        ticket = tickets.read(gateway.secrets, ticket_text, time.time())
        if ticket is not None and ticket.sandbox_id == sandbox_id and ticket.owner == owner:
            try:
                return ticket, await _dial(gateway, ticket, timeout_s)
            except HoldfastError as error:
                # Placement knows why the sandbox is gone; where placement is down too, only the dial's own error is known.
                try:
                    await gateway.ready(owner, sandbox_id)
                except PlacementUnavailableError:
                    raise error from None
    ticket = _ticket(gateway, await gateway.ready(owner, sandbox_id))
    return ticket, await _dial(gateway, ticket, timeout_s)


async def _dial(gateway: Gateway, ticket: Ticket, timeout_s: float) -> Dialled:
    return await dial(ticket.endpoint, gateway.secrets, ticket.sandbox_id, ticket.incarnation, timeout_s)


def _ticket(gateway: Gateway, record: Record) -> Ticket:
    expires_at = time.time() + gateway.settings.relay.ticket_ttl_s
    return Ticket(record.sandbox_id, record.owner, record.incarnation, record.endpoint, expires_at)
