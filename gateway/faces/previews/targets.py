"""Which port of which sandbox a request is for, and by which token it was permitted.

Owns the name of a port's host, where a request carries a link's token (a header, the query, on the host form a cookie), and which requests
of a browser its cookie permits: a page of another sandbox must not act with it. The token's content is in ``identity.preview_tokens``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote_to_bytes

from holdfast_wire.errors import HoldfastError
from starlette.requests import HTTPConnection

from gateway.faces.table import gateway_of, parts
from gateway.http.sent_fields import sent_fields
from gateway.identity.preview_tokens import PreviewToken
from gateway.identity.principal import Principal
from gateway.model.names import name_of
from gateway.model.records import Record
from gateway.use_cases import previews
from gateway.use_cases.previews import HEADER, PARAMETER

COOKIES: Final = ("__Host-holdfast-preview", "holdfast-preview")
"""Over TLS the first, which no other host can set (RFC 6265bis §4.1.3.2); the second without TLS, where browsers refuse the first."""
_HEADER: Final = HEADER.lower().encode()
_GRANT: Final = "holdfast.preview"
_TARGET: Final = "holdfast.preview_target"
_LABEL: Final = re.compile(r"([1-9][0-9]{0,4})-(.+)")
_PORT: Final = re.compile("[1-9][0-9]{0,4}")


@dataclass(frozen=True, slots=True)
class Target:
    """``prefix`` is the path before the program's own, "" on the host form.

    ``sandbox`` is the sandbox's name, on the host form its id: one name of two owners must be two hosts, because browsers separate what
    pages may do by hosts.
    """

    sandbox: str
    port: int
    prefix: str

    def name(self, owner: str) -> str:
        """What the owner calls the sandbox."""
        return self.sandbox if self.prefix else name_of(owner, self.sandbox)


@dataclass(frozen=True, slots=True)
class Grant:
    """A valid token. ``source`` is ``header``, ``query`` or ``cookie``."""

    token: PreviewToken
    text: str
    source: str


def target_of(connection: HTTPConnection) -> Target:
    """Raises ``not_found`` for a host or port that cannot be one."""
    found: Target | None = connection.scope.get(_TARGET)
    if found is None:
        found = connection.scope[_TARGET] = _target_of(connection)
    return found


def _target_of(connection: HTTPConnection) -> Target:
    params = connection.scope["path_params"]
    label = params.get("label")
    if label is not None:
        match = _LABEL.fullmatch(label)
        port, sandbox, prefix = (match[1], match[2], "") if match else ("", "", "")
    else:
        port, sandbox = params.get("port", ""), params.get("sandbox_id", "")
        prefix = f"/sandboxes/{sandbox}/ports/{port}"
    if not _PORT.fullmatch(port) or int(port) > 65535:
        hint = "a preview's host is PORT-SANDBOX below the preview domain, its path /sandboxes/SANDBOX/ports/PORT/"
        raise HoldfastError("not_found", "there is no such port", hint=hint)
    return Target(sandbox, int(port), prefix)


async def record_of(connection: HTTPConnection, target: Target) -> Record:
    """The requested sandbox. Raises what ``Gateway.ready`` raises."""
    gateway, principal = parts(connection)
    record = await previews.record_of(gateway, principal, target.name(principal.owner))
    if not target.prefix and target.sandbox != record.sandbox_id:
        raise HoldfastError("sandbox_not_found", f"there is no sandbox {target.sandbox!r}", hint="a preview's host has the sandbox's id")
    return record


async def grant(connection: HTTPConnection) -> Principal | None:
    """The principal of a request with a valid token; None without any. Raises ``key_invalid`` for a token that opens nothing here."""
    target = target_of(connection)
    sent = _tokens(connection, on_host=not target.prefix)
    for source, text in sent:
        found = await previews.granted(gateway_of(connection), text)
        if found is None:
            continue
        token, principal = found
        if (token.name, token.port) == (target.name(token.owner), target.port):
            connection.scope[_GRANT] = Grant(token, text, source)
            if source == "cookie":
                _check_page(connection, target)
            return principal
    if sent and b"x-api-key" not in sent_fields(connection.scope):
        hint = "make a new link: holdfast port --public SANDBOX PORT, or sandbox.preview_url(port)"
        raise HoldfastError("key_invalid", "the preview's link has expired, or is not of this port", hint=hint)
    return None


def grant_of(connection: HTTPConnection) -> Grant | None:
    """The token that permitted the request; None if its key did."""
    found: Grant | None = connection.scope.get(_GRANT)
    return found


def without_token(query: bytes) -> bytes:
    """A query string without the token; the rest of it as it was sent."""
    if not query:
        return query
    return b"&".join(part for part in query.split(b"&") if unquote_to_bytes(part.partition(b"=")[0]) != PARAMETER.encode())


def without_cookies(value: bytes) -> bytes:
    """A ``Cookie`` field without the tokens of previews."""
    parts = [part.strip() for part in value.split(b";")]
    return b"; ".join(part for part in parts if part and part.partition(b"=")[0].strip().decode("latin-1") not in COOKIES)


def _tokens(connection: HTTPConnection, *, on_host: bool) -> list[tuple[str, str]]:
    sent = sent_fields(connection.scope)
    found: list[tuple[str, str | None]] = []
    if _HEADER in sent:
        found.append(("header", sent[_HEADER].decode("latin-1")))
    if connection.scope["query_string"]:
        found.append(("query", connection.query_params.get(PARAMETER)))
    if on_host and b"cookie" in sent:  # a cookie of the prefix form would be the service's own
        for field in connection.headers.getlist("cookie"):
            pairs = (part.strip().partition("=") for part in field.split(";"))
            found += [("cookie", value) for name, _, value in pairs if name in COOKIES]
    return [(source, text) for source, text in found if text]


def _check_page(connection: HTTPConnection, target: Target) -> None:
    """Refuse a request that a page of another site or sandbox makes with this host's cookie. Raises ``origin_refused``."""
    headers = connection.headers
    origin = headers.get("origin")
    if origin is not None:
        refused = not _is_own(origin, target, gateway_of(connection).settings.preview_domain)
    elif headers.get("sec-fetch-site") in ("cross-site", "same-site"):
        # A link from elsewhere may be followed. Anything that is embedded, or sent by a form, acts.
        refused = headers.get("sec-fetch-dest") != "document" or connection.scope.get("method") not in ("GET", "HEAD")
    else:
        refused = False
    if refused:
        hint = f"open the preview itself; a program sends its token in the header {HEADER}"
        raise HoldfastError("origin_refused", "pages of other sites and sandboxes may not use this preview", hint=hint)


def _is_own(origin: str, target: Target, domain: str) -> bool:
    """Whether an origin is a port of the same sandbox."""
    host = origin.partition("://")[2].lower().partition(":")[0]
    match = _LABEL.fullmatch(host.removesuffix(f".{domain}")) if host.endswith(f".{domain}") else None
    return match is not None and match[2] == target.sandbox
