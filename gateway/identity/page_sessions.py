"""Signed sessions of the page: the content of the cookie that a browser sends in place of an API key.

Owns the session's format and signature. A session names a key by its digest, so it ends with the key and has its scopes, and the host that
it was made for, so it is of no use at another. No replica stores it. Called by ``use_cases.page_sessions``.
"""

from __future__ import annotations

import base64
import hmac
from dataclasses import dataclass
from typing import Final

import orjson

_SESSION_BYTES: Final = 1024


@dataclass(frozen=True, slots=True)
class PageSession:
    """``key_digest`` is the SHA-256 of the API key, ``host`` the Host field of the page, ``expires_at`` seconds since the epoch."""

    key_digest: str
    host: str
    expires_at: int


def sign(secret: str, session: PageSession) -> str:
    """The session as text: letters, digits, ``-``, ``_`` and one dot."""
    body = orjson.dumps([session.key_digest, session.host, session.expires_at])
    text = base64.urlsafe_b64encode(body).decode().rstrip("=")
    return f"{text}.{_mac(secret, text)}"


def read(secrets: tuple[str, ...], text: str, host: str, now: float) -> PageSession | None:
    """The session, if it was signed with one of ``secrets`` for this host and has not expired; else None."""
    body, _, mac = text.partition(".")
    if len(text) > _SESSION_BYTES or not text.isascii() or not any(hmac.compare_digest(mac, _mac(secret, body)) for secret in secrets):
        return None
    try:
        session = PageSession(*orjson.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))))
    except TypeError:
        return None  # a replica of another version signed it
    return session if session.expires_at > now and hmac.compare_digest(session.host.encode(), host.encode()) else None


def _mac(secret: str, text: str) -> str:
    return hmac.digest(secret.encode(), b"page:" + text.encode(), "sha256").hex()
