"""Which web pages may open a WebSocket.

Owns the check of an upgrade's origin. Called by ``gateway.app`` for the rows that accept upgrades.
"""

from __future__ import annotations

from collections.abc import Collection

from holdfast_wire.errors import HoldfastError
from starlette.requests import HTTPConnection


def check_origin(connection: HTTPConnection, allowed: Collection[str]) -> None:
    """Refuse an upgrade from a web page that is neither of this host nor of an allowed origin. Raises ``origin_refused``."""
    origin = connection.headers.get("origin")
    if origin is None or origin in allowed:
        return
    if origin.partition("://")[2].lower() != connection.headers.get("host", "").lower():
        raise HoldfastError("origin_refused", "pages of this origin may not open sessions")
