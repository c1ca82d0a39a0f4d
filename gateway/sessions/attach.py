"""The attach of a session: from a client's upgrade to a running relay.

Owns the order: session limit, placement (or a signed ticket), dial; only then is the client accepted. Every refusal is raised before that.
The route has checked the origin and the key. ``relay`` does the rest. Knows neither the parts of the gateway nor the frames of a session.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Protocol

from holdfast_wire.errors import HoldfastError
from holdfast_wire.websocket_frames import accept_key

from gateway.agents.dial import Dialled
from gateway.metrics import Metrics
from gateway.model.names import name_of
from gateway.model.records import Record
from gateway.placement.errors import PlacementUnavailableError
from gateway.settings import RelaySettings
from gateway.tracing import Spans

from . import tickets
from .registry import AttachedSessions
from .relay import ClientEnd, Relay
from .tickets import Ticket

_KEY_ENDED: Final = "the key of this session is no longer valid"
_KEY: Final = re.compile(r"[A-Za-z0-9+/]{22}==")


class TakeOver(Protocol):
    """``http.bounded_protocol.BoundedHttpProtocol.take_over``, a bound method of the client's connection."""

    def __call__(
        self, head: bytes, successor: asyncio.Protocol, on_shutdown: Callable[[], None]
    ) -> tuple[asyncio.Transport, bytes] | None: ...


class KeyUse(Protocol):
    """``tenants.uses.Use``."""

    on_end: Callable[[], object] | None


class Attach:
    """Attaches sessions.

    ``secrets`` returns the accepted ones, of which the first signs; ``dial`` reaches an agent; ``find`` is the record of a ready sandbox,
    by owner and name.
    """

    def __init__(
        self,
        settings: RelaySettings,
        secrets: Callable[[], tuple[str, ...]],
        attached: AttachedSessions,
        dial: Callable[[Record | Ticket], Awaitable[Dialled]],
        find: Callable[[str, str], Awaitable[Record]],
        metrics: Metrics,
        spans: Spans | None = None,
    ) -> None:
        self._settings = settings
        self._secrets = secrets
        self._attached = attached
        self._dial = dial
        self._find = find
        self._metrics = metrics
        self._spans = spans or Spans()

    async def __call__(self, owner: str, name: str, headers: Mapping[str, str], take_over: TakeOver, use: KeyUse | None = None) -> None:
        """Attach, and relay until the session's connection ends. Raises every refusal; afterwards the connection is the session's.

        ``use`` ends the session when the key that it was attached with is no longer valid: the client then attaches again, and is refused.
        """
        accepted = _accepted(headers)
        self._attached.enter(owner)
        try:
            await self._attach(owner, name, headers.get(tickets.HEADER), accepted, take_over, use)
        except HoldfastError as error:
            self._metrics.count("attach_refused_total", code=error.code)
            raise
        finally:
            self._attached.leave(owner)

    async def _attach(
        self, owner: str, name: str, ticket_text: str | None, accepted: bytes, take_over: TakeOver, use: KeyUse | None
    ) -> None:
        settings, begun, resumes = self._settings, time.monotonic(), ticket_text is not None
        with self._spans.span("attach.dial", sandbox_id=name):
            ticket, dialled = await self._reach(owner, name, ticket_text)
        relay = Relay(ticket.sandbox_id, dialled.transport, settings.buffer_bytes, settings.linger_s)
        try:
            head = accepted + tickets.sign(self._secrets()[0], ticket).encode() + b"\r\n\r\n"
            protocol: asyncio.Protocol = take_over.__self__  # type: ignore[attr-defined]
            taken = take_over(head, ClientEnd(relay, protocol), lambda: self._attached.go_away(relay))
            if taken is None:
                return
            client, client_early = taken
            self._metrics.count("attach_total")
            self._metrics.observe("attach_seconds", time.monotonic() - begun)
            self._spans.end_request()
            if resumes:
                self._metrics.count("session_resumes_total")
            relay.on_bytes = self._count_bytes
            self._attached.add(relay)
            if use is not None:
                use.on_end = lambda: relay.close(1001, _KEY_ENDED)
            relay.start(client, dialled.early, settings.buffer_bytes, client_early)
            await relay.done
        finally:
            self._attached.discard(relay)
            if not relay.done.done():
                relay.abort()

    def _count_bytes(self, up: int, down: int) -> None:
        self._metrics.count("session_bytes_total", up, direction="up")
        self._metrics.count("session_bytes_total", down, direction="down")

    async def _reach(self, owner: str, name: str, ticket_text: str | None) -> tuple[Ticket, Dialled]:
        """A connection to the sandbox's agent, by a valid ticket, else by placement."""
        if ticket_text:
            ticket = tickets.read(self._secrets(), ticket_text, time.time())
            if ticket is not None and ticket.owner == owner and name_of(owner, ticket.sandbox_id) == name:
                try:
                    return ticket, await self._dial(ticket)
                except HoldfastError as error:
                    # Placement has the reason of the sandbox's end; if placement is down too, the dial's own error is raised.
                    try:
                        await self._find(owner, name)
                    except PlacementUnavailableError:
                        raise error from None
        record = await self._find(owner, name)
        expires_at = time.time() + self._settings.ticket_ttl_s
        ticket = Ticket(record.sandbox_id, record.owner, record.incarnation, record.endpoint, expires_at)
        return ticket, await self._dial(ticket)


def _accepted(headers: Mapping[str, str]) -> bytes:
    """The head of the answer that accepts the upgrade, but for the ticket (RFC 6455 §4.2)."""
    key = headers.get("sec-websocket-key", "")
    if headers.get("sec-websocket-version") != "13" or not _KEY.fullmatch(key):
        raise HoldfastError("protocol_error", "the request is not an opening handshake of WebSocket version 13")
    head = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: "
    return f"{head}{accept_key(key)}\r\n{tickets.HEADER}: ".encode()
