"""Requests in the audit log: which of them are recorded, and what is recorded of each.

Owns the form of these entries. Whatever changes something, or reaches into a sandbox, is recorded with its result; of the others only
refusals are. No field of a request's head or query is in an entry, because keys and tokens are there; handlers add facts (``note``).
Called by ``gateway.app``.
"""

from __future__ import annotations

from typing import Any, Final

from starlette.requests import HTTPConnection
from starlette.types import Scope

from gateway.audit.lines import masked
from gateway.audit.log import AuditLog
from gateway.faces.table import PRINCIPAL, PUBLIC, USE, WEBSOCKET, Row
from gateway.http.middleware import REQUEST_ID, STATUS
from gateway.identity.principal import Principal
from gateway.identity.principal import Scope as KeyScope
from gateway.tenants.uses import Use

_REFUSALS: Final = frozenset(
    {"key_missing", "key_invalid", "scope_missing", "origin_refused", "quota_exceeded", "rate_limited", "sandbox_not_found", "not_found"}
)
_NAMES: Final = {"sandbox_id": "sandbox", "label": "sandbox"}
"""Parameters of paths and hosts by another name."""
_LEFT_OUT: Final = frozenset({"path"})


def is_audited(row: Row) -> bool:
    """Whether requests of a row are recorded, whatever their result: those that change something, reach into a sandbox, or sign in."""
    if row.scope == PUBLIC:
        return row.method != "GET"
    return row.scope != KeyScope.READ and not row.unlimited


def record_request(audit: AuditLog, row: Row, path: str, scope: Scope, code: str, took_s: float | None) -> None:
    """Record a request that was answered or refused, or, without ``took_s``, one whose connection is taken over now."""
    principal: Principal | None = scope.get(PRINCIPAL)
    if not is_audited(row) and code not in _REFUSALS:
        return
    use: Use | None = scope.get(USE)
    entry: dict[str, Any] = {"event": "refused" if code in _REFUSALS else "request", "action": f"{row.method} {path}"}
    if took_s is None:
        entry["event"] = "begun"
    if principal is not None and use is not None:
        own = use.principal
        entry |= {"owner": own.member, "project": own.project, "key_id": own.key_id}
        if principal.owner != own.owner:
            entry |= {"for_owner": principal.member, "for_project": principal.project}
    params = scope.get("path_params", {})
    entry |= {_NAMES.get(name, name): masked(str(value))[:256] for name, value in params.items() if name not in _LEFT_OUT}
    if use is not None:
        entry |= use.facts
    client = HTTPConnection(scope).client
    entry |= {"address": client.host if client else "", "request_id": scope.get(REQUEST_ID, "")}
    if took_s is not None:
        entry |= {"status": scope.get(STATUS, 101 if row.upgrades or row.method == WEBSOCKET else None), "took_s": round(took_s, 4)}
    if code:
        entry["code"] = code
        entry.pop("status", None)
    audit.add(entry, anonymous=principal is None)
