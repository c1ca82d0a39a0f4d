"""``WS /sandboxes/{id}/session``: from a client's upgrade to a running relay.

Owns the order: origin, key, session limit, placement (or a signed ticket), dial; only then is the client accepted. Every refusal is an HTTP
status with a problem document, never an accepted socket that closes. ``sessions.relay`` does the rest.
"""

from __future__ import annotations

import re
import time

from holdfast_wire.errors import HoldfastError
from holdfast_wire.websocket_frames import accept_key
from starlette.requests import Request

from gateway.agents.dial import Dialled
from gateway.http.bounded_protocol import TAKE_OVER
from gateway.model.records import Record
from gateway.placement.errors import PlacementUnavailableError
from gateway.service import Gateway, gateway_of
from gateway.sessions import tickets
from gateway.sessions.relay import ClientEnd, Relay
from gateway.sessions.tickets import Ticket

_KEY = re.compile(r"[A-Za-z0-9+/]{22}==")


async def attach(request: Request) -> None:
    """The endpoint. Raises every refusal; afterwards the connection is the session's."""
    gateway = gateway_of(request)
    gateway.check_origin(request)
    owner = gateway.owner(request)
    accepted = _accepted(request)
    gateway.attached.enter(owner)
    try:
        await _attach(gateway, owner, request.path_params["sandbox_id"], request, accepted)
    except HoldfastError as error:
        gateway.metrics.count("attach_refused_total", code=error.code)
        raise
    finally:
        gateway.attached.leave(owner)


def _accepted(request: Request) -> bytes:
    """The head of the answer that accepts the upgrade, but for the ticket (RFC 6455 §4.2)."""
    if TAKE_OVER not in request.scope:
        raise HoldfastError("not_found", "this route accepts only WebSocket upgrades", hint="use a WebSocket client, or the SDK")
    key = request.headers.get("sec-websocket-key", "")
    if request.headers.get("sec-websocket-version") != "13" or not _KEY.fullmatch(key):
        raise HoldfastError("protocol_error", "the request is not an opening handshake of WebSocket version 13")
    head = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: "
    return f"{head}{accept_key(key)}\r\n{tickets.HEADER}: ".encode()


async def _attach(gateway: Gateway, owner: str, sandbox_id: str, request: Request, accepted: bytes) -> None:
    settings, begun = gateway.settings.relay, time.monotonic()
    ticket, dialled = await _reach(gateway, owner, sandbox_id, request.headers.get(tickets.HEADER))
    relay = Relay(sandbox_id, dialled.transport, settings.buffer_bytes, settings.linger_s)
    try:
        head = accepted + tickets.sign(gateway.secrets[0], ticket).encode() + b"\r\n\r\n"
        take_over = request.scope[TAKE_OVER]
        taken = take_over(head, ClientEnd(relay, take_over.__self__), lambda: gateway.attached.go_away(relay))
        if taken is None:
            return
        client, client_early = taken
        gateway.metrics.count("attach_total")
        gateway.metrics.observe("attach_seconds", time.monotonic() - begun)
        gateway.attached.add(relay)
        relay.start(client, dialled.early, settings.buffer_bytes, client_early)
        await relay.done
    finally:
        gateway.attached.discard(relay)
        if not relay.done.done():
            relay.abort()


async def _reach(gateway: Gateway, owner: str, sandbox_id: str, ticket_text: str | None) -> tuple[Ticket, Dialled]:
    """A connection to the sandbox's agent, by a valid ticket, else by placement."""
    if ticket_text:
        ticket = tickets.read(gateway.secrets, ticket_text, time.time())
        if ticket is not None and ticket.sandbox_id == sandbox_id and ticket.owner == owner:
            try:
                return ticket, await gateway.dial(ticket)
            except HoldfastError as error:
                # Placement has the reason of the sandbox's end; if placement is down too, the dial's own error is raised.
                try:
                    await gateway.ready(owner, sandbox_id)
                except PlacementUnavailableError:
                    raise error from None
    ticket = _ticket(gateway, await gateway.ready(owner, sandbox_id))
    return ticket, await gateway.dial(ticket)


def _ticket(gateway: Gateway, record: Record) -> Ticket:
    expires_at = time.time() + gateway.settings.relay.ticket_ttl_s
    return Ticket(record.sandbox_id, record.owner, record.incarnation, record.endpoint, expires_at)
