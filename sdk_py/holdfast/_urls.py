"""URLs: the address of a service in its parts, and paths and queries of requests.

Plain text is handled here and everything else by ``urllib.parse``, whose import takes a fourteenth of the time of a short command (decision
0042).
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast_wire.fast_dataclass import dataclass

_SIGNS = str.maketrans("", "", "._-")
_PATH_SIGNS = str.maketrans("", "", "._-/")


@dataclass(frozen=True, slots=True)
class ServiceAddress:
    """Where a service is. ``authority`` is host and port as they were written, ``path`` the prefix of the paths of all routes."""

    tls: bool
    host: str
    port: int
    authority: str
    path: str


def address_of(url: str) -> ServiceAddress:
    """The parts of an ``http`` or ``https`` URL. Raises ValueError for any other URL, and for one with a user, a query or a fragment."""
    scheme, _, rest = url.partition("://")
    authority, slash, path = rest.partition("/")
    host, colon, port = authority.partition(":")
    if scheme not in ("http", "https") or not _is_plain(host) or (path and not _is_plain(path, _PATH_SIGNS)):
        return _parsed(url)
    if colon and not (port.isascii() and port.isdecimal() and len(port) < 6 and 0 < int(port) < 65536):
        return _parsed(url)
    return ServiceAddress(scheme == "https", host.lower(), int(port) if colon else _port(scheme), authority, slash + path)


def _parsed(url: str) -> ServiceAddress:
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # an invalid port, for example
        usable = False
    if not usable:
        raise ValueError("is malformed")
    if parts.username or parts.query or parts.fragment:
        raise ValueError("must not contain a user, a query or a fragment")
    return ServiceAddress(
        parts.scheme == "https", parts.hostname or "", parts.port or _port(parts.scheme), parts.netloc.rpartition("@")[2], parts.path
    )


def quoted(text: str, safe: str = "") -> str:
    """``text`` as a part of a path."""
    if _is_plain(text):
        return text
    from urllib.parse import quote

    return quote(text, safe=safe)


def query_of(pairs: Iterable[tuple[str, object]]) -> str:
    """A query string; booleans are written ``true`` and ``false``."""
    texts = [(name, str(value).lower() if isinstance(value, bool) else str(value)) for name, value in pairs]
    if _is_plain("".join([value or "/" for _, value in texts])):
        return "&".join([f"{name}={value}" for name, value in texts])
    from urllib.parse import urlencode

    return urlencode(texts)


def _is_plain(text: str, signs: dict[int, int | None] = _SIGNS) -> bool:
    return text.isascii() and text.translate(signs).isalnum()


def _port(scheme: str) -> int:
    return 443 if scheme == "https" else 80
