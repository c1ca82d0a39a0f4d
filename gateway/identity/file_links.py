"""Signed links to one file of one sandbox, for one direction, until they expire.

Owns the link's format and signature. A link names an incarnation, so it opens nothing of a later sandbox of the same name, and the key that
made it, with which it ends. Called by ``use_cases.file_links``.
"""

from __future__ import annotations

import base64
import hmac
from dataclasses import astuple, dataclass
from typing import Final, Literal

import orjson

_LINK_BYTES: Final = 8 * 1024


@dataclass(frozen=True, slots=True)
class FileLink:
    """``expires_at`` is seconds since the epoch, ``key_digest`` the SHA-256 of the key that made the link."""

    name: str
    """The sandbox's."""
    owner: str
    incarnation: str
    path: str
    method: Literal["GET", "PUT"]
    user: str
    expires_at: int
    key_digest: str


def sign(secret: str, link: FileLink) -> str:
    """The link as text: letters, digits, ``-``, ``_`` and one dot."""
    text = base64.urlsafe_b64encode(orjson.dumps(astuple(link))).decode().rstrip("=")
    return f"{text}.{_mac(secret, text)}"


def read(secrets: tuple[str, ...], text: str, now: float) -> FileLink | None:
    """The link, if it was signed with one of ``secrets`` and has not expired; else None."""
    body, _, mac = text.partition(".")
    if len(text) > _LINK_BYTES or not text.isascii() or not any(hmac.compare_digest(mac, _mac(secret, body)) for secret in secrets):
        return None
    try:
        link = FileLink(*orjson.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))))
    except TypeError:
        return None  # a replica of another version signed it
    return link if link.expires_at > now else None


def _mac(secret: str, text: str) -> str:
    return hmac.digest(secret.encode(), b"file:" + text.encode(), "sha256").hex()
