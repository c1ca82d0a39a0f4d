"""Signed tokens that open one port of one sandbox until they expire.

Owns the token's format and signature. A token names an incarnation, so it opens nothing of a later sandbox of the same name, and an owner,
so that the lookup of the sandbox is the same as with a key. It is no key: it opens no other route. Called by ``use_cases.previews``.
"""

from __future__ import annotations

import base64
import hmac
from dataclasses import dataclass
from typing import Final

import orjson

_TOKEN_BYTES: Final = 1024


@dataclass(frozen=True, slots=True)
class PreviewToken:
    """``expires_at`` is seconds since the epoch."""

    name: str
    """The sandbox's."""
    owner: str
    incarnation: str
    port: int
    expires_at: int
    key_digest: str = ""
    """The SHA-256 of the key that made the link, which ends with it; "" in links of versions before."""


def sign(secret: str, token: PreviewToken) -> str:
    """The token as text: letters, digits, ``-``, ``_`` and one dot."""
    body = orjson.dumps([token.name, token.owner, token.incarnation, token.port, token.expires_at, token.key_digest])
    text = base64.urlsafe_b64encode(body).decode().rstrip("=")
    return f"{text}.{_mac(secret, text)}"


def read(secrets: tuple[str, ...], text: str, now: float) -> PreviewToken | None:
    """The token, if it was signed with one of ``secrets`` and has not expired; else None."""
    body, _, mac = text.partition(".")
    if len(text) > _TOKEN_BYTES or not text.isascii() or not any(hmac.compare_digest(mac, _mac(secret, body)) for secret in secrets):
        return None
    try:
        token = PreviewToken(*orjson.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))))
    except TypeError:
        return None  # a replica of another version signed it
    return token if token.expires_at > now else None


def _mac(secret: str, text: str) -> str:
    return hmac.digest(secret.encode(), b"preview:" + text.encode(), "sha256").hex()
