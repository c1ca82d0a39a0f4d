"""Sessions of the page: begun with an API key or a link that works once, and read again from each request.

Owns how long links and sessions are valid. Sessions are signed, so any replica reads them, also after a restart and a wipe of Redis; the
key is looked up with each request, so a session ends with its key. Called by the face of the page.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from dataclasses import dataclass
from typing import Final

from holdfast_wire.errors import HoldfastError

from gateway.identity import page_sessions
from gateway.identity.page_sessions import PageSession
from gateway.identity.principal import Principal

from .service import Gateway

SESSION_S: Final = 12 * 3600
LINK_S: Final = 3600
_TOKEN_CHARACTERS: Final = 200


@dataclass(frozen=True, slots=True)
class Begun:
    """A session: its text, whose it is, and when it ends (seconds since the epoch)."""

    text: str
    principal: Principal
    expires_at: int


async def link(gateway: Gateway, key: str) -> tuple[str, int]:
    """The token of a new link that signs in once with this key, and when it expires.

    Raises ``key_invalid``, ``placement_unavailable``.
    """
    token = secrets.token_urlsafe(24)
    await gateway.store.offer_sign_in(_digest(token), (await gateway.tenants.principal_of(key)).credential, LINK_S)
    return token, int(time.time()) + LINK_S


async def begin_with_key(gateway: Gateway, key: str, host: str) -> Begun:
    """A session of the key. Raises ``key_invalid``."""
    principal = await gateway.tenants.principal_of(key)
    return _begin(gateway, principal, principal.credential, host)


async def begin_with_link(gateway: Gateway, token: str, host: str) -> Begun:
    """A session of the key of a link, which does not work again. Raises ``key_invalid``, ``placement_unavailable``."""
    found = await gateway.store.take_sign_in(_digest(token)) if len(token) <= _TOKEN_CHARACTERS else ""
    if not found:
        hint = "sign in with an API key; `holdfast up` prints a new link when it starts"
        raise HoldfastError("key_invalid", "the link was used already, or it has expired", hint=hint)
    return _begin(gateway, await gateway.tenants.principal_of_digest(found), found, host)


async def read(gateway: Gateway, text: str, host: str) -> Begun | None:
    """The session that a request carries; None if it is not valid here. Raises ``key_invalid`` if its key was removed."""
    session = page_sessions.read(gateway.secrets, text, host, time.time())
    if session is None:
        return None
    return Begun(text, await gateway.tenants.principal_of_digest(session.key_digest), session.expires_at)


def renewed(gateway: Gateway, session: Begun, host: str) -> Begun:
    """The session for the full time again."""
    read_ = page_sessions.read(gateway.secrets, session.text, host, time.time())
    return _begin(gateway, session.principal, read_.key_digest, host) if read_ else session


def _begin(gateway: Gateway, principal: Principal, key_digest: str, host: str) -> Begun:
    expires_at = int(time.time()) + SESSION_S
    text = page_sessions.sign(gateway.secrets[0], PageSession(key_digest, host, expires_at))
    return Begun(text, principal, expires_at)


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()
