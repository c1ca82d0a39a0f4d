"""The check of an upgrade's ``Origin``: which web pages may open WebSockets."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from holdfast_wire.errors import HoldfastError
from starlette.requests import HTTPConnection


def check_origin(allowed: AbstractSet[str], connection: HTTPConnection) -> None:
    """Refuse an upgrade from a page that is neither of this host nor of an ``allowed`` origin. Raises ``origin_refused``."""
    origin = connection.headers.get("origin")
    if origin is None or origin in allowed:
        return
    if origin.partition("://")[2].lower() != connection.headers.get("host", "").lower():
        raise HoldfastError("origin_refused", "pages of this origin may not open sessions")
