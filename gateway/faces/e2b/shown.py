"""Sandboxes in the forms of E2B's control plane: created, listed, in detail.

Owns these forms, and the version of E2B's agent whose API is served, by which its SDKs decide what they may ask for.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

from gateway.identity.principal import Principal
from gateway.model.records import Record
from gateway.use_cases.sandbox_tokens import token_of
from gateway.use_cases.service import Gateway

ENVD_VERSION: Final = "0.6.4"
_CLIENT: Final = "holdfast"
_FAR: Final = datetime(9999, 1, 1, tzinfo=UTC)
"""The end of a sandbox that ends only when it is deleted: E2B's form needs one."""


def created(gateway: Gateway, principal: Principal, record: Record) -> dict[str, Any]:
    """A new sandbox, or one to which a client has connected. It has the token by which the client may use it."""
    body = {
        "sandboxID": record.sandbox_id,
        "templateID": record.spec.image,
        "clientID": _CLIENT,
        "envdVersion": ENVD_VERSION,
        "envdAccessToken": token_of(gateway, principal, record),
    }
    domain = gateway.settings.preview_domain
    return {**body, "domain": domain} if domain else body


def listed(record: Record) -> dict[str, Any]:
    """A sandbox of a list."""
    ends_at = None if record.lifetime_s is None else record.created_at + record.lifetime_s
    return {
        "sandboxID": record.sandbox_id,
        "templateID": record.spec.image,
        "alias": record.spec.image,
        "clientID": _CLIENT,
        "startedAt": _time(record.ready_at or record.created_at),
        "endAt": _FAR.isoformat() if ends_at is None else _time(ends_at),
        "cpuCount": max(int(record.spec.cores), 1),
        "memoryMB": record.spec.memory_bytes // 2**20,
        "diskSizeMB": (record.spec.disk_bytes or 0) // 2**20,
        "metadata": record.spec.labels,
        "state": state_of(record),
        "envdVersion": ENVD_VERSION,
    }


def detail(gateway: Gateway, principal: Principal, record: Record) -> dict[str, Any]:
    """One sandbox."""
    body = listed(record) | {
        "envdAccessToken": token_of(gateway, principal, record),
        "allowInternetAccess": record.spec.egress.mode == "internet",
        "lifecycle": {"onTimeout": "kill", "autoResume": False},
    }
    domain = gateway.settings.preview_domain
    return {**body, "domain": domain} if domain else body


def state_of(record: Record) -> str:
    return "paused" if record.paused else "running"


def _time(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).isoformat()
