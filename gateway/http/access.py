"""Which web pages may open a WebSocket, and by which scheme a request reached the service.

Owns the check of an upgrade's origin, which ``gateway.app`` calls for the rows that accept upgrades. The scheme is for the faces.
"""

from __future__ import annotations

from collections.abc import Collection

from holdfast_wire.errors import HoldfastError
from starlette.requests import HTTPConnection

from gateway.settings import Settings

from .sent_fields import sent_fields


def check_origin(connection: HTTPConnection, allowed: Collection[str]) -> None:
    """Refuse an upgrade from a web page that is neither of this host nor of an allowed origin. Raises ``origin_refused``."""
    origin = connection.headers.get("origin")
    if origin is None or origin in allowed:
        return
    if origin.partition("://")[2].lower() != connection.headers.get("host", "").lower():
        raise HoldfastError("origin_refused", "pages of this origin may not open sessions")


def scheme_of(connection: HTTPConnection, settings: Settings) -> str:
    """``http`` or ``https``: that of the public URL, else of the connection. A trusted proxy's ``X-Forwarded-Proto`` takes precedence."""
    forwarded = sent_fields(connection.scope).get(b"x-forwarded-proto", b"").decode("latin-1")
    if forwarded in ("http", "https") and connection.client is not None and settings.connections.is_trusted(connection.client.host):
        return forwarded
    return settings.public_url.partition("://")[0] or ("https" if connection.scope["scheme"] in ("https", "wss") else "http")
