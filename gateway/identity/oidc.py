"""Tokens of an identity provider (OpenID Connect) as keys: verified here, with the provider's keys in memory.

Owns what a token must have, which claims become owner, project and scopes, and when the provider's keys are fetched: at the first token,
after ``KEYS_S``, and for a token whose key is not known, at most every ``UNKNOWN_KEY_S``. A provider that does not answer changes nothing
for tokens whose key is known. Everything else is looked up in ``others``. Needs the package PyJWT with its extra crypto.
"""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
import json
import logging
import time
import urllib.error
import urllib.request
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from holdfast_wire.errors import HoldfastError

from .keys import digest_of, unknown_key
from .principal import OWNER, PROJECT, Identities, Principal, Scope, space_of

if TYPE_CHECKING:
    from jwt import PyJWK

log = logging.getLogger("gateway.identity")

KEYS_S: Final = 600.0
"""How long the provider's keys are used before they are fetched again: a removed key ends its tokens within this time."""
UNKNOWN_KEY_S: Final = 10.0
"""Least time between two fetches for tokens with unknown keys, which anybody may send."""
_ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Asymmetric ones: with a shared secret the provider's public key would make tokens."""
_TOKEN_BYTES: Final = 16 * 1024
_DOCUMENT_BYTES: Final = 1024 * 1024
_FETCH_S: Final = 5.0
_LEEWAY_S: Final = 30.0
_MOST: Final = 10_000
"""Tokens that are remembered."""


@dataclass(frozen=True, slots=True)
class OidcSettings:
    """What tokens are accepted, and what their claims mean."""

    issuer: str
    """HOLDFAST_OIDC_ISSUER: the claim ``iss``, below which the provider has its ``.well-known/openid-configuration``."""
    audience: str
    """HOLDFAST_OIDC_AUDIENCE: one of the claim ``aud``."""
    owner_claim: str = "sub"
    """HOLDFAST_OIDC_OWNER_CLAIM: the owner."""
    project_claim: str = ""
    """HOLDFAST_OIDC_PROJECT_CLAIM: the project; "": tokens are limited to none."""
    scopes_claim: str = "scope"
    """HOLDFAST_OIDC_SCOPES_CLAIM: a list, or words in a text; those that begin with ``scopes_prefix`` count."""
    scopes_prefix: str = "holdfast:"
    """HOLDFAST_OIDC_SCOPES_PREFIX."""


@dataclass(frozen=True, slots=True)
class _Known:
    principal: Principal
    key_id: str
    expires_at: float


class Tokens:
    """An ``Identities``: tokens of the provider, and what ``others`` knows."""

    def __init__(self, settings: OidcSettings, others: Identities) -> None:
        """Raises ``ValueError`` for an address without TLS that is not on this machine, and without PyJWT."""
        try:
            import jwt
        except ImportError:
            raise ValueError("HOLDFAST_OIDC_ISSUER needs the package PyJWT: pip install 'holdfast[oidc]'") from None

        self._jwt = jwt
        self._settings = settings
        self._others = others
        self._keys: dict[str, PyJWK] = {}
        self._fetched_at = self._tried_at = -KEYS_S
        self._lock = asyncio.Lock()
        self._known: OrderedDict[str, _Known] = OrderedDict()
        _check_address(settings.issuer)

    async def principal_of(self, key: str | None) -> Principal:
        """See ``principal.Identities``. Also raises ``identity_unavailable`` while the provider's keys are not known."""
        if key is None or key.count(".") != 2 or not key.startswith("ey"):
            return await self._others.principal_of(key)
        if len(key) > _TOKEN_BYTES:
            raise unknown_key()
        digest = hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()
        if time.monotonic() - self._fetched_at > KEYS_S and not (self._keys and self._lock.locked()):
            await self._fetch(KEYS_S)  # only this request waits for it, unless no keys are known
        known = self.current(digest)
        if known is not None:
            return known
        found = await self._verified(key, digest)
        self._known[digest] = found
        while len(self._known) > _MOST:
            self._known.popitem(last=False)
        return found.principal

    async def principal_of_digest(self, digest: str) -> Principal:
        """See ``principal.Identities``."""
        return self.current(digest) or await self._others.principal_of_digest(digest)

    def current(self, digest: str) -> Principal | None:
        """See ``principal.Identities``."""
        found = self._known.get(digest)
        if found is None:
            return self._others.current(digest)
        if time.time() < found.expires_at and found.key_id in self._keys:
            return found.principal
        del self._known[digest]
        return None

    def digests_of(self, owner: str) -> list[str]:
        """See ``principal.Identities``."""
        own = [digest for digest, found in self._known.items() if found.principal.member == owner]
        return [*own, *self._others.digests_of(owner)]

    async def _verified(self, token: str, digest: str) -> _Known:
        """Raises ``key_invalid``, or ``identity_unavailable``."""
        jwt = self._jwt
        try:
            head = jwt.get_unverified_header(token)
            key_id, algorithm = str(head.get("kid") or ""), head.get("alg")
            if algorithm not in _ALGORITHMS:
                raise unknown_key()
            if key_id not in self._keys:
                await self._fetch(UNKNOWN_KEY_S)
            key = self._keys.get(key_id)
            if key is None:
                raise unknown_key()
            claims = jwt.decode(
                token,
                key.key,
                algorithms=[algorithm],
                audience=self._settings.audience,
                issuer=self._settings.issuer,
                leeway=_LEEWAY_S,
                options={"require": ["exp", "iss", "aud"]},
            )
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
            raise unknown_key() from None
        return _Known(self._principal(claims, digest), key_id, float(claims["exp"]) + _LEEWAY_S)

    def _principal(self, claims: dict[str, Any], digest: str) -> Principal:
        wanted = self._settings
        owner = claims.get(wanted.owner_claim)
        project = claims.get(wanted.project_claim) if wanted.project_claim else ""
        if not isinstance(owner, str) or not OWNER.fullmatch(owner):
            log.warning("a token's claim %s is no owner: letters, digits, '.', '_', '@' and '-', at most 64", wanted.owner_claim)
            raise unknown_key()
        if project is None or (project and not (isinstance(project, str) and PROJECT.fullmatch(project))):
            log.warning("a token's claim %s is no project", wanted.project_claim)
            raise unknown_key()
        subject = digest_of(f"{wanted.issuer} {claims.get('sub', owner)}")[:12]
        return Principal(space_of(owner, project), f"oidc-{subject}", project, self._scopes(claims), digest)

    def _scopes(self, claims: dict[str, Any]) -> frozenset[Scope]:
        value = claims.get(self._settings.scopes_claim)
        words = value.split() if isinstance(value, str) else value if isinstance(value, list) else []
        prefix = self._settings.scopes_prefix
        names = {word.removeprefix(prefix) for word in words if isinstance(word, str) and word.startswith(prefix)}
        return frozenset(scope for scope in Scope if scope.value in names)

    # The provider's keys ----------------------------------------------------------------------------------------------

    async def _fetch(self, least_s: float) -> None:
        """Fetch the keys, unless that was tried less than ``least_s`` ago, or meanwhile. Raises ``identity_unavailable`` without any."""
        tried = self._tried_at
        async with self._lock:
            pause_s = min(least_s, UNKNOWN_KEY_S)
            if self._tried_at == tried and time.monotonic() - tried >= pause_s:
                self._tried_at = time.monotonic()
                try:
                    keys = await asyncio.to_thread(_keys_of, self._settings.issuer)
                except (OSError, ValueError) as why:
                    log.warning("the keys of the identity provider cannot be fetched: %s", why)
                else:
                    self._keys = self._usable(keys)
                    self._fetched_at = time.monotonic()
        if not self._keys:
            raise HoldfastError("identity_unavailable", "the keys of the identity provider are not known")

    def _usable(self, documents: list[Any]) -> dict[str, PyJWK]:
        found = {}
        for document in documents:
            try:
                if document.get("use", "sig") == "sig":
                    found[str(document.get("kid") or "")] = self._jwt.PyJWK.from_dict(document)
            except (self._jwt.PyJWTError, AttributeError, ValueError, TypeError):
                continue  # a kind of key that this version does not know
        return found


def _keys_of(issuer: str) -> list[Any]:
    """The provider's keys as documents. Blocks. Raises ``OSError`` and ``ValueError``."""
    about = _document(f"{issuer.rstrip('/')}/.well-known/openid-configuration")
    if about.get("issuer") != issuer:
        raise ValueError("the provider's configuration names another issuer")
    address = about.get("jwks_uri")
    if not isinstance(address, str):
        raise ValueError("the provider's configuration has no jwks_uri")
    keys = _document(address).get("keys")
    if not isinstance(keys, list):
        raise ValueError("the provider has no list of keys")
    return keys


def _document(address: str) -> dict[str, Any]:
    handlers = [urllib.request.ProxyHandler({})] if _check_address(address) else []
    try:
        with urllib.request.build_opener(*handlers).open(address, timeout=_FETCH_S) as answer:
            content = answer.read(_DOCUMENT_BYTES + 1)
    except urllib.error.URLError as why:
        raise OSError(str(why.reason)) from None
    if len(content) > _DOCUMENT_BYTES:
        raise ValueError("a document of the provider is too large")
    body = json.loads(content)
    if not isinstance(body, dict):
        raise ValueError("a document of the provider is no map")
    return body


def _check_address(address: str) -> bool:
    """Whether the address is on this machine. Raises ``ValueError`` for any other without TLS."""
    parts = urlsplit(address)
    try:
        local = ipaddress.ip_address(parts.hostname or "").is_loopback
    except ValueError:
        local = parts.hostname == "localhost"
    if parts.scheme != "https" and not (local and parts.scheme == "http"):
        raise ValueError(f"{address[:200]!r} must be an https address")
    return local
