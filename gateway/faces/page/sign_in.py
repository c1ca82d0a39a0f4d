"""Signing in and out, and which requests the cookie of a session permits.

Owns the cookie and the check of the page that a request comes from: its own, at the host where the session began. A page of another site,
or of a preview, sends no such cookie (``SameSite=Strict``, another host), and is refused here if a browser sends it all the same.
"""

from __future__ import annotations

import time
from typing import Final

from holdfast_wire.errors import HoldfastError
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response

from gateway.faces.table import PRINCIPAL, USE, gateway_of, header_key
from gateway.http.access import scheme_of
from gateway.http.request_fields import Fields, read_json
from gateway.http.responses import json_response
from gateway.identity.principal import Principal, Scope
from gateway.tenants.uses import Use
from gateway.use_cases import page_sessions
from gateway.use_cases.page_sessions import SESSION_S, Begun

from .files import HEADERS

COOKIES: Final = ("__Host-holdfast-page", "holdfast-page")
"""Over TLS the first, which no other host can set (RFC 6265bis §4.1.3.2); the second without TLS, where browsers refuse the first."""
_KEY_CHARACTERS: Final = 16 * 1024
"""As long as tokens of an identity provider may be."""
_BODY_BYTES: Final = _KEY_CHARACTERS + 1024
_NO_STORE: Final = HEADERS | {"Cache-Control": "no-store"}


async def begin(request: Request) -> Response:
    """``POST /ui/session`` ``{key}`` or ``{link}``: the answer sets the cookie."""
    _check_page(request, acts=True)
    gateway, host = gateway_of(request), _host(request)
    fields = Fields(await read_json(request, _BODY_BYTES))
    token = fields.text("link", "", most=1000)
    if token:
        session = await page_sessions.begin_with_link(gateway, token, host)
    else:
        session = await page_sessions.begin_with_key(gateway, fields.required("key", most=_KEY_CHARACTERS).strip(), host)
    return _answer(request, session, 201, is_new=True)


async def read(request: Request) -> Response:
    """``GET /ui/session``: who is signed in. A session whose first half is over is renewed."""
    _check_page(request, acts=False)
    session = await _session(request)
    if session is None:
        raise HoldfastError(
            "key_missing", "this browser is not signed in", hint="paste an API key, or open the link that `holdfast up` prints"
        )
    is_new = session.expires_at - time.time() < SESSION_S / 2
    return _answer(request, page_sessions.renewed(gateway_of(request), session, _host(request)) if is_new else session, 200, is_new=is_new)


async def end(request: Request) -> Response:
    """``DELETE /ui/session``: this browser forgets the session."""
    _check_page(request, acts=True)
    response = json_response({"status": "signed out"}, headers=_NO_STORE)
    secure = _is_secure(request)
    response.delete_cookie(COOKIES[0] if secure else COOKIES[1], path="/", secure=secure, httponly=True, samesite="strict")
    return response


async def link(request: Request) -> Response:
    """``POST /ui/links``, with an API key: an address that signs a browser in once, with the same key."""
    key = header_key(request)
    assert key is not None  # the row has a scope, and no grant
    gateway = gateway_of(request)
    token, expires_at = await page_sessions.link(gateway, key)
    base = gateway.settings.public_url or f"{scheme_of(request, gateway.settings)}://{request.headers.get('host', '')}"
    # After the #, which browsers send to no server: it is in no log.
    return json_response({"url": f"{base}/ui#/sign-in/{token}", "expires_at": expires_at}, 201, _NO_STORE)


async def grant(connection: HTTPConnection) -> Principal | None:
    """The principal of a request with the cookie of a session; None without. Raises ``origin_refused`` for one of another page."""
    if "x-api-key" in connection.headers or "authorization" in connection.headers:
        return None
    session = await _session(connection)
    if session is None:
        return None
    acts = connection.scope.get("method", "GET") not in ("GET", "HEAD") or "upgrade" in connection.headers
    _check_page(connection, acts=acts)
    return session.principal


async def _session(connection: HTTPConnection) -> Begun | None:
    for field in connection.headers.getlist("cookie"):
        for part in field.split(";"):
            name, _, value = part.strip().partition("=")
            if name == (COOKIES[0] if _is_secure(connection) else COOKIES[1]):
                session = await page_sessions.read(gateway_of(connection), value, _host(connection))
                if session is not None:
                    return session
    return None


def _check_page(connection: HTTPConnection, *, acts: bool) -> None:
    """Refuse a request of another page. One that acts has to name its page, which every browser does. Raises ``origin_refused``."""
    headers = connection.headers
    origin, site = headers.get("origin"), headers.get("sec-fetch-site", "same-origin")
    own = f"{scheme_of(connection, gateway_of(connection).settings)}://{_host(connection)}"
    if (acts and origin is None) or (origin is not None and origin.lower() != own) or site not in ("same-origin", "none"):
        raise HoldfastError("origin_refused", "only the page itself may use its session", hint="programs send an API key")


def _host(connection: HTTPConnection) -> str:
    return connection.headers.get("host", "").lower()


def _is_secure(connection: HTTPConnection) -> bool:
    return scheme_of(connection, gateway_of(connection).settings) == "https"


def _answer(request: Request, session: Begun, status: int, *, is_new: bool) -> Response:
    principal = request.scope[PRINCIPAL] = session.principal
    request.scope[USE] = Use(principal, Scope.READ, None, None)  # for the audit log
    body = {
        "owner": principal.member,
        "project": principal.project or None,
        "key_id": principal.key_id,
        "scopes": sorted(principal.scopes),
        "expires_at": session.expires_at,
        "preview_domain": gateway_of(request).settings.preview_domain,
    }
    response = json_response(body, status, _NO_STORE)
    if is_new:
        secure = _is_secure(request)
        name = COOKIES[0] if secure else COOKIES[1]
        response.set_cookie(name, session.text, max_age=SESSION_S, path="/", httponly=True, samesite="strict", secure=secure)
    return response
