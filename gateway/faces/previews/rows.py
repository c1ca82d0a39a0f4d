"""The rows of previews: every method and path below a port's prefix, and below its host where the deployment has a preview domain.

Owns these tables. The host form is a face of its own, because its host is a setting.
"""

from __future__ import annotations

from typing import Final

from gateway.faces.table import HTTP_METHODS, Face, Row
from gateway.identity.principal import Scope

from . import pages, proxy
from .targets import grant

_PREFIX: Final = "/sandboxes/{sandbox_id}/ports/{port}"

FACE = Face(
    "previews",
    (
        *(Row(method, _PREFIX + "/{path:path}", Scope.EXEC, proxy.serve, grant=grant) for method in HTTP_METHODS),
        Row("GET", _PREFIX, Scope.EXEC, proxy.add_slash, grant=grant),
    ),
    page=pages.page,
)


def host_face(domain: str) -> Face:
    """All rows below the preview domain. No other face is served there, whatever the name before the domain."""
    rows = tuple(Row(method, "/{path:path}", Scope.EXEC, proxy.serve, grant=grant) for method in HTTP_METHODS)
    return Face("preview-hosts", rows, host="{label}." + domain, page=pages.page)
