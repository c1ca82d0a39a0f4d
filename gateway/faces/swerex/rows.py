"""The rows of SWE-ReX's API. Owns this table."""

from __future__ import annotations

from typing import Final

from gateway.faces.table import Face, Row
from gateway.identity.principal import Scope

from . import calls, uploads
from .errors import Handler, transferring

_AT: Final = "/sandboxes/{sandbox_id}/swerex"


def _row(method: str, path: str, scope: Scope, handler: Handler) -> Row:
    return Row(method, _AT + path, scope, transferring(handler))


FACE = Face(
    "swerex",
    (
        _row("GET", "/", Scope.READ, calls.greeting),
        _row("GET", "/is_alive", Scope.READ, calls.is_alive),
        _row("POST", "/create_session", Scope.EXEC, calls.create_session),
        _row("POST", "/run_in_session", Scope.EXEC, calls.run_in_session),
        _row("POST", "/close_session", Scope.EXEC, calls.close_session),
        _row("POST", "/execute", Scope.EXEC, calls.execute),
        _row("POST", "/read_file", Scope.FILES, calls.read_file),
        _row("POST", "/write_file", Scope.FILES, calls.write_file),
        _row("POST", "/upload", Scope.FILES, uploads.upload),
        _row("POST", "/close", Scope.EXEC, calls.close),
    ),
)
