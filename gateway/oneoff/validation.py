"""What a session agent says, as far as it is believed: code in a sandbox may own it.

Owns which errors an agent may answer with, how much of them goes into an answer of ours, and the shape of a command's end. What
it says of files and output is the sandbox's own affair and is only shown. Called by ``operations``, ``commands`` and ``terminal``.
"""

from __future__ import annotations

import re
from typing import Any, Final, cast

from holdfast_wire.errors import HoldfastError
from holdfast_wire.frames import Exited, Failed

_TEXT_CHARACTERS: Final = 1000
_WORD_CHARACTERS: Final = 100
_LAST_MOMENT: Final = 1e11
"""In the year 5138."""
_DIGEST: Final = re.compile("[0-9a-f]{64}")
_MOST_BYTES: Final = 2**53
"""More is no number that every reader of JSON has."""
_DETAILS: Final = 16
"""What of an agent's error goes into an answer."""
_OURS_TO_SAY: Final = frozenset((
    "key_missing", "key_invalid", "origin_refused", "method_not_allowed", "sandbox_not_found", "sandbox_exists", "sandbox_not_ready",
    "sandbox_failed", "image_not_found", "image_in_use", "image_invalid", "image_pull_failed", "quota_exceeded", "overloaded",
    "group_not_found", "group_lapsed", "group_freeing", "no_capacity", "idempotency_conflict", "create_timeout", "wait_timeout",
    "placement_unavailable", "runtime_unavailable", "service_unreachable", "agent_identity",
))  # fmt: skip
"""Codes of the table that only the service has reason to use."""


def fact_error(fact: Failed | Exited) -> HoldfastError:
    """The error a Failed carries, or an Exited whose result could not be known (PROTOCOL §7.4), as far as an agent is believed.

    It cannot speak for the service (keys, quotas, other sandboxes), blame the infrastructure for what is the workload's by the table, say
    when to come again, or fill an answer with what JSON has no word for.
    """
    told = HoldfastError.from_map(cast(object, fact.error if isinstance(fact, Failed) else fact.result.get("error")))
    code = "internal" if told.code in _OURS_TO_SAY else told.code
    return HoldfastError(
        code,
        told.message[:_TEXT_CHARACTERS],
        hint=told.hint[:_TEXT_CHARACTERS] if code == told.code else None,
        fault=None if told.fault == "infrastructure" else told.fault,
        reason=told.reason[:_WORD_CHARACTERS] if told.reason else None,
        retryable=told.retryable,
        detail=_plain(told.detail),
    )


def _plain(detail: dict[str, Any]) -> dict[str, Any]:
    """Its single texts and numbers."""
    found: dict[str, Any] = {}
    for name, value in detail.items():
        if not isinstance(name, str) or len(name) > _WORD_CHARACTERS or name == "retry_after_s" or len(found) >= _DETAILS:
            continue
        if isinstance(value, str):
            found[name] = value[:_TEXT_CHARACTERS]
        elif isinstance(value, bool | int | float):
            found[name] = value
    return found


def is_short(told: object, kept_bytes: int) -> bool:
    """Whether a stream's account in a result tells of more bytes than there are here."""
    return isinstance(told, list) and bool(told) and isinstance(told[0], int) and told[0] > kept_bytes


def streams(told: object) -> dict[str, dict[str, Any]] | None:
    """What a result tells of both streams: bytes seen, bytes dropped before they could be had, SHA-256 of all seen. None: no account."""
    if not isinstance(told, dict):
        return None
    account: dict[str, dict[str, Any]] = {}
    for number, name in ((1, "stdout"), (2, "stderr")):
        row = told.get(number)
        if not isinstance(row, list) or [type(value) for value in row] != [int, int, str] or not _DIGEST.fullmatch(row[2]):
            return None
        if not all(0 <= count <= _MOST_BYTES for count in row[:2]):
            return None
        account[name] = {"seen": row[0], "dropped": row[1], "sha256": row[2]}
    return account


def moment(told: object) -> float | None:
    """Seconds since the epoch, None for what cannot be such a moment."""
    return float(told) if isinstance(told, int | float) and 0 < told < _LAST_MOMENT else None


def exit_code(told: object) -> int | None:
    """The exit code of a command's result, None for what cannot be one."""
    return told if type(told) is int and 0 <= told <= 255 else None


def cause(told: object) -> dict[str, str] | None:
    """Why a command did not end by itself, and whose fault that is. An agent is not believed to blame anybody but its own sandbox."""
    if not isinstance(told, dict):
        return None
    return {"fault": "workload", **{name: str(told.get(name) or "")[:_TEXT_CHARACTERS] for name in ("reason", "message")}}
