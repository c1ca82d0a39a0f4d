"""The errors that an agent may report. Code in the sandbox may control its agent, so what it reports decides nothing about the service.

Owns which codes only the service may use, and the reduction of a reported error to what an agent may claim. Whether a sandbox has ended,
and why, is decided by the record in placement: a caller that reads one of ``ENDED`` from an agent must query the record. Called by the SDK
for sessions and by the gateway for REST.
"""

from __future__ import annotations

from typing import Any

from .errors import TABLE, HoldfastError

ENDED = frozenset({"sandbox_gone", "sandbox_failed", "sandbox_not_found"})
"""Codes that state the end of a sandbox."""
SERVICE_CODES = ENDED | {
    "key_missing", "key_invalid", "origin_refused", "method_not_allowed", "sandbox_exists", "sandbox_not_ready", "image_not_found",
    "image_in_use", "image_invalid", "image_pull_failed", "quota_exceeded", "overloaded", "group_not_found", "group_lapsed",
    "group_freeing", "no_capacity", "idempotency_conflict", "precondition_failed", "create_timeout", "wait_timeout", "identity_unavailable",
    "placement_unavailable",
    "runtime_unavailable", "service_unreachable", "agent_unreachable", "agent_identity", "draining", "client_closed", "in_use",
}  # fmt: skip
"""Codes of the table that only the service or a client may use."""


def reported_end(body: Any) -> bool:
    """Whether an agent's error map states that the sandbox has ended."""
    return isinstance(body, dict) and body.get("code") in ENDED


def reported_error(body: Any) -> HoldfastError:
    """The error in an agent's map. A code of the service becomes ``internal``, and the fault is never ``infrastructure``."""
    reported = HoldfastError.from_map(body)
    if reported.code in SERVICE_CODES:
        kind = TABLE["internal"]
        message = f"the sandbox's agent reported an error that only the service may report: {reported.code}: {reported.message}"
        reported = HoldfastError("internal", message, hint=kind.hint, detail=reported.detail, retryable=False)
    if reported.fault == "infrastructure":
        own = reported.kind.fault
        reported.fault = "workload" if own == "infrastructure" else own
    return reported
