"""Validation of what a session agent reports: code in the sandbox may control it.

Owns which errors an agent may answer with, how much of them is forwarded, and the checks of a command's result. Output and file contents
are the sandbox's own and forwarded unchecked. Called by ``execute``, ``agent_channel``, and faces.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, cast

from holdfast_wire.agent_errors import reported_end, reported_error
from holdfast_wire.errors import HoldfastError
from holdfast_wire.frames import Exited, Failed

from gateway.agents.agent_socket import ReportedEndError
from gateway.metrics import Metrics

_TEXT_CHARACTERS: Final = 1000
_WORD_CHARACTERS: Final = 100
_LAST_MOMENT: Final = 1e11
"""Seconds since the epoch, in the year 5138; a later time counts as unknown."""
_ENDS: Final = frozenset({"timeout", "cancelled", "oom"})
"""Causes of the end of a command that are counted by name."""
_LONGEST_S: Final = 366 * 86400.0
_DIGEST: Final = re.compile("[0-9a-f]{64}")
_MOST_BYTES: Final = 2**53
"""Larger integers are not exact in every JSON reader."""
_DETAILS: Final = 16
"""Details of an agent's error that are forwarded."""


def fact_error(fact: Failed | Exited) -> HoldfastError:
    """The error of a Failed, or of an Exited whose result is unknown (PROTOCOL §7.4), restricted to what an agent may claim.

    It cannot use the service's own codes (keys, quotas, other sandboxes), blame the infrastructure, set a Retry-After, or return values
    that JSON cannot represent. The end of the sandbox is a ``ReportedEndError``.
    """
    body = cast(object, fact.error if isinstance(fact, Failed) else fact.result.get("error"))
    reported = reported_error(body)
    return (ReportedEndError if reported_end(body) else HoldfastError)(
        reported.code,
        reported.message[:_TEXT_CHARACTERS],
        hint=reported.hint[:_TEXT_CHARACTERS],
        fault=reported.fault,
        reason=reported.reason[:_WORD_CHARACTERS] if reported.reason else None,
        retryable=reported.retryable,
        detail=_plain(reported.detail),
    )


def _plain(detail: dict[str, Any]) -> dict[str, Any]:
    """The details that are plain texts and numbers."""
    found: dict[str, Any] = {}
    for name, value in detail.items():
        if not isinstance(name, str) or len(name) > _WORD_CHARACTERS or name == "retry_after_s" or len(found) >= _DETAILS:
            continue
        if isinstance(value, str):
            found[name] = value[:_TEXT_CHARACTERS]
        elif isinstance(value, bool | int | float):
            found[name] = value
    return found


def is_truncated(reported: object, kept_bytes: int) -> bool:
    """Whether a result counts more bytes of a stream than were received."""
    return isinstance(reported, list) and bool(reported) and isinstance(reported[0], int) and reported[0] > kept_bytes


def streams(reported: object) -> dict[str, dict[str, Any]] | None:
    """The counts of both streams: bytes seen, bytes dropped, SHA-256 of all seen bytes. None if they are missing or malformed."""
    if not isinstance(reported, dict):
        return None
    account: dict[str, dict[str, Any]] = {}
    for number, name in ((1, "stdout"), (2, "stderr")):
        row = reported.get(number)
        if not isinstance(row, list) or [type(value) for value in row] != [int, int, str] or not _DIGEST.fullmatch(row[2]):
            return None
        if not all(0 <= count <= _MOST_BYTES for count in row[:2]):
            return None
        account[name] = {"seen": row[0], "dropped": row[1], "sha256": row[2]}
    return account


def moment(reported: object) -> float | None:
    """Seconds since the epoch, None for what cannot be such a time."""
    return float(reported) if isinstance(reported, int | float) and 0 < reported < _LAST_MOMENT else None


def exit_code(reported: object) -> int | None:
    """The exit code of a command's result, None for what cannot be one."""
    return reported if type(reported) is int and 0 <= reported <= 255 else None


def not_executed(reported: object) -> str | None:
    """Why a program was not executed, None if it was."""
    return reported if reported in ("not_found", "permission_denied", "not_executable") else None


def cause(reported: object) -> dict[str, str] | None:
    """Why a command was ended from outside. An agent can only report a fault of its own sandbox."""
    if not isinstance(reported, dict):
        return None
    return {"fault": "workload", **{name: str(reported.get(name) or "")[:_TEXT_CHARACTERS] for name in ("reason", "message")}}


def note_command(metrics: Metrics, via: str, result: Mapping[str, Any]) -> None:
    """Count a command that ended; ``result`` is an agent's, so its values are checked."""
    code, cause = result.get("exit_code"), result.get("cause")
    reason = cause.get("reason") if isinstance(cause, dict) else result.get("reason")
    outcome = "unknown" if code is None else "ok" if code == 0 else "failed"
    if isinstance(reason, str) and reason in _ENDS:
        outcome = reason
    metrics.count("commands_total", via=via, outcome=outcome)
    took_s = result.get("duration_s")
    if isinstance(took_s, int | float) and not isinstance(took_s, bool) and 0 <= took_s < _LONGEST_S:
        metrics.observe("command_seconds", took_s, via=via)
