"""Signed placement tickets: an attach returns one, and a resume sends it back, so that it does not need Redis.

Owns the ticket's format and signature. A ticket names one incarnation, so after the sandbox's end it has no effect: an agent at that
address cannot prove that identity. It does not replace the API key.
"""

from __future__ import annotations

import base64
import hmac
from dataclasses import dataclass

import orjson

HEADER = "X-Holdfast-Ticket"
_TICKET_BYTES = 2048


@dataclass(frozen=True, slots=True)
class Ticket:
    """The endpoint of one incarnation of a sandbox, and its owner. ``expires_at`` is seconds since the epoch."""

    sandbox_id: str
    owner: str
    incarnation: str
    endpoint: str
    expires_at: float


def sign(secret: str, ticket: Ticket) -> str:
    body = orjson.dumps([ticket.sandbox_id, ticket.owner, ticket.incarnation, ticket.endpoint, int(ticket.expires_at)])
    text = base64.urlsafe_b64encode(body).decode().rstrip("=")
    return f"{text}.{_mac(secret, text)}"


def read(secrets: tuple[str, ...], text: str, now: float) -> Ticket | None:
    """The ticket, if it was signed with one of ``secrets``, has not expired, and its format is known; else None."""
    body, _, mac = text.partition(".")
    if len(text) > _TICKET_BYTES or not text.isascii() or not any(hmac.compare_digest(mac, _mac(secret, body)) for secret in secrets):
        return None
    try:
        ticket = Ticket(*orjson.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))))
    except TypeError:
        return None  # a replica of another version signed it: placement is used instead
    return ticket if ticket.expires_at > now else None


def _mac(secret: str, body: str) -> str:
    return hmac.digest(secret.encode(), b"ticket:" + body.encode(), "sha256").hex()
