"""The heads of requests and answers as they pass through a preview. Pure.

Owns which fields pass: none that concern one connection only (RFC 9110 §7.6.1), none of the service's own, and of a program's answer none
that has an effect beyond its own host. The program is asked as ``localhost:PORT``, as its own machine would: development servers, notebooks
and DevTools refuse other names. ``X-Forwarded-*`` say how the client asked. Called by ``proxy``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from starlette.requests import HTTPConnection

from gateway.http.access import scheme_of
from gateway.http.sent_fields import sent_fields
from gateway.settings import Settings

from .targets import COOKIES, Target, grant_of, without_cookies, without_token

Fields = list[tuple[bytes, bytes]]

_HOP: Final[frozenset[bytes]] = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
_REPLACED: Final = {b"host", b"expect", b"forwarded", b"x-real-ip", b"x-api-key", b"x-holdfast-owner", b"content-length"}
_NOT_SENT: Final = _HOP | _REPLACED
_FAR_REACHING: Final = {b"clear-site-data", b"strict-transport-security", b"alt-svc", b"public-key-pins", b"nel", b"report-to"}
"""Fields of an answer with effects on other hosts, ports or requests than its own."""
_NOT_ANSWERED: Final = _HOP | _FAR_REACHING
_NONE: Final[frozenset[bytes]] = frozenset()


@dataclass(frozen=True, slots=True)
class Asked:
    """How the client asked: ``scheme`` and ``host`` of the preview, as a browser's address shows them."""

    scheme: str
    host: str

    @property
    def origin(self) -> str:
        return f"{self.scheme}://{self.host}"


def asked_of(connection: HTTPConnection, settings: Settings) -> Asked:
    """See ``scheme_of`` for the scheme."""
    return Asked(scheme_of(connection, settings), sent_fields(connection.scope).get(b"host", b"").decode("latin-1"))


def request_head(connection: HTTPConnection, target: Target, asked: Asked, settings: Settings, *, upgrade: bool) -> bytes:
    """The head of the request to the program."""
    scope, local = connection.scope, b"localhost:%d" % target.port
    path = scope["raw_path"]
    if target.prefix:
        path = b"/" + path.split(b"/", 5)[5]
    query = without_token(scope["query_string"])
    given = sent_fields(scope)
    lines = [scope["method"].encode(), b" ", path, b"?" + query if query else b"", b" HTTP/1.1\r\nhost: ", local, b"\r\n"]
    for name, value in _passed(connection, given, target, asked, local):
        lines += (name, b": ", value, b"\r\n")
    lines.append(_forwarded(connection, given, target, asked, settings))
    if b"transfer-encoding" in given:
        lines.append(b"transfer-encoding: chunked\r\n")
    elif b"content-length" in given:
        lines += (b"content-length: ", given[b"content-length"], b"\r\n")
    if upgrade:
        lines.append(b"connection: Upgrade\r\nupgrade: websocket\r\n")
    lines.append(b"\r\n")
    return b"".join(lines)


def is_chunked(connection: HTTPConnection) -> bool:
    """Whether the client sends a body of unknown length."""
    return b"transfer-encoding" in sent_fields(connection.scope)


def answer_fields(fields: Fields, target: Target, asked: Asked, status: int) -> Fields:
    """The fields of a program's answer that the client gets."""
    dropped = _NOT_ANSWERED | _nominated(fields)
    if status in (204, 304):
        dropped |= {b"content-length"}
    passed: Fields = []
    for name, value in fields:
        if name in dropped or name.startswith(b"x-holdfast-"):
            continue
        if name == b"set-cookie":
            if target.prefix or not (value := _own_cookie(value)):
                continue
        elif name == b"location":
            value = _location(value, target, asked)
        elif target.prefix and name == b"service-worker-allowed":
            continue
        passed.append((name, value))
    if target.prefix:
        # The host is the service's own: the program's pages get an origin of no rights, and run no script.
        passed += [(b"content-security-policy", b"sandbox"), (b"x-content-type-options", b"nosniff"), (b"referrer-policy", b"no-referrer")]
    return passed


def upgrade_head(passed: Fields) -> bytes:
    """The head that accepts the client's upgrade, as the program did."""
    kept = [pair for pair in passed if pair[0] not in (b"content-length", b"content-security-policy")]
    lines = b"".join(b"%s: %s\r\n" % pair for pair in kept)
    return b"HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: websocket\r\n" + lines + b"\r\n"


def _passed(connection: HTTPConnection, given: dict[bytes, bytes], target: Target, asked: Asked, local: bytes) -> Fields:
    sent: Fields = connection.scope["headers"]
    dropped = _NOT_SENT if b"connection" not in given else _NOT_SENT | _nominated(sent)
    if b"x-api-key" not in given and grant_of(connection) is None:
        dropped = dropped | {b"authorization"}  # it is the service's key
    if target.prefix:
        dropped = dropped | {b"cookie", b"referer"}  # they may be the service's own
    passed: Fields = []
    for name, value in sent:
        if name in dropped or name.startswith((b"x-forwarded-", b"x-holdfast-")):
            continue
        if name == b"cookie" and not (value := without_cookies(value)):
            continue
        if name in (b"origin", b"referer") and _begins(value, asked.origin.encode()):
            value = b"http://" + local + value[len(asked.origin) :]
        passed.append((name, value))
    return passed


def _forwarded(connection: HTTPConnection, given: dict[bytes, bytes], target: Target, asked: Asked, settings: Settings) -> bytes:
    """The lines that say how the client asked."""
    client = connection.scope["client"]
    addresses = client[0] if client else ""
    if b"x-forwarded-for" in given and _is_trusted(connection, settings):
        addresses = ", ".join(one for one in (given[b"x-forwarded-for"].decode("latin-1"), addresses) if one)
    port = asked.host.rpartition(":")[2]
    if not port.isdecimal():
        port = {"https": "443", "http": "80"}[asked.scheme]
    lines = f"x-forwarded-for: {addresses}\r\n" if addresses else ""
    lines += f"x-forwarded-proto: {asked.scheme}\r\n"
    if asked.host:
        lines += f"x-forwarded-host: {asked.host}\r\n"
    lines += f"x-forwarded-port: {port}\r\n"
    if target.prefix:
        lines += f"x-forwarded-prefix: {target.prefix}\r\n"
    return lines.encode("latin-1")


def _location(value: bytes, target: Target, asked: Asked) -> bytes:
    """An address of the program as the client can use it; all others, and relative ones, unchanged."""
    for name in (b"localhost", b"127.0.0.1", b"0.0.0.0"):
        for scheme in (b"http", asked.scheme.encode()):
            own = b"%s://%s:%d" % (scheme, name, target.port)
            if _begins(value, own):
                return asked.origin.encode() + target.prefix.encode() + (value[len(own) :] or b"/")
    prefix = target.prefix.encode()
    if prefix and value.startswith(b"/") and not value.startswith(b"//") and not _begins(value, prefix):
        return prefix + value
    return value


def _begins(value: bytes, own: bytes) -> bool:
    return value.startswith(own) and value[len(own) : len(own) + 1] in (b"", b"/", b"?", b"#")


def _own_cookie(value: bytes) -> bytes:
    """A ``Set-Cookie`` of this host alone; empty for one of the service's names. Other sandboxes must not get it."""
    parts = value.split(b";")
    if parts[0].partition(b"=")[0].strip().decode("latin-1") in COOKIES:
        return b""
    return b";".join(part for part in parts if part.partition(b"=")[0].strip().lower() != b"domain")


def _nominated(fields: Fields) -> frozenset[bytes]:
    """The fields that a ``Connection`` field names."""
    named = [word.strip().lower() for name, value in fields if name == b"connection" for word in value.split(b",")]
    return frozenset(named) if named else _NONE


def _is_trusted(connection: HTTPConnection, settings: Settings) -> bool:
    return connection.client is not None and settings.connections.is_trusted(connection.client.host)
