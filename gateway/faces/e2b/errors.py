"""Errors in the forms that E2B's SDKs read: ``{code, message}`` over HTTP, and Connect's ``{code, message}`` for remote procedures.

Owns both translations from the one error table, and the answer for a sandbox that has ended, by which these SDKs tell it from a network
that failed: status 502 with a fixed text.
"""

from __future__ import annotations

from typing import Any, Final

import orjson
from holdfast_wire.errors import HoldfastError
from starlette.responses import Response

from gateway.http.responses import problem_headers

ENDED: Final = frozenset({"sandbox_not_found", "sandbox_gone", "sandbox_failed", "sandbox_not_ready", "sandbox_paused"})
"""Codes of a sandbox in which nothing can run."""
_NOT_FOUND: Final = "The sandbox was not found"
"""What E2B's SDKs look for in a message to report that the sandbox has ended."""
_STATUS: Final = {
    "key_invalid": 401,
    "invalid_argument": 400,
    "invalid_path": 400,
    "invalid_quantity": 400,
    "image_invalid": 400,
    "sandbox_gone": 404,
    "sandbox_failed": 404,
    "is_a_directory": 400,
    "not_a_directory": 400,
    "not_a_file": 400,
    "user_not_found": 401,
    "idempotency_conflict": 409,
    "cancelled": 499,
}
"""Statuses that differ from the table's."""
_RETRIED: Final = (429, 502, 503, 504)
"""Statuses after which these SDKs send a request again, unless ``Should-Retry`` says otherwise."""

_CODES: Final = {
    400: "invalid_argument",
    401: "unauthenticated",
    403: "permission_denied",
    404: "not_found",
    408: "deadline_exceeded",
    409: "failed_precondition",
    410: "not_found",
    413: "invalid_argument",
    422: "invalid_argument",
    429: "resource_exhausted",
    499: "canceled",
    501: "unimplemented",
    502: "unavailable",
    503: "unavailable",
    504: "unavailable",
}
"""Connect's code for each status of the table; ``internal`` for others."""
_OWN_CODES: Final = {
    "file_exists": "already_exists",
    "is_a_directory": "invalid_argument",
    "not_a_directory": "invalid_argument",
    "not_a_file": "invalid_argument",
    "user_not_found": "unauthenticated",
    "no_space": "internal",
    "outcome_unknown": "unknown",
    "cwd_forbidden": "invalid_argument",
    "internal": "internal",
}
_CONNECT_STATUS: Final = {
    "canceled": 499,
    "unknown": 500,
    "invalid_argument": 400,
    "deadline_exceeded": 504,
    "not_found": 404,
    "already_exists": 409,
    "permission_denied": 403,
    "resource_exhausted": 429,
    "failed_precondition": 400,
    "unimplemented": 501,
    "internal": 500,
    "unavailable": 503,
    "unauthenticated": 401,
}
"""The HTTP status of a unary error (Connect's specification, "Error Codes")."""


class SandboxEndedError(HoldfastError):
    """Something was requested of a sandbox in which nothing can run: it does not exist, has ended, or is paused."""

    def __init__(self, cause: HoldfastError) -> None:
        super().__init__("sandbox_not_found", f"{_NOT_FOUND}: {cause.message}", hint=cause.hint, reason=cause.reason)


def refuse(error: HoldfastError) -> Response:
    """The answer of all routes but those of remote procedures."""
    status = status_of(error)
    headers = problem_headers(error)
    if status in _RETRIED:
        headers["Should-Retry"] = "true" if error.retryable else "false"
    return Response(orjson.dumps({"code": status, "message": message_of(error)}), status, headers, "application/json")


def status_of(error: HoldfastError) -> int:
    return 502 if isinstance(error, SandboxEndedError) else _STATUS.get(error.code, error.kind.status)


def message_of(error: HoldfastError) -> str:
    """The message with the hint: E2B's form has no field of its own for it."""
    return f"{error.message} ({error.hint})" if error.hint and not isinstance(error, SandboxEndedError) else error.message


def connect_error(error: HoldfastError) -> dict[str, Any]:
    """The error of a remote procedure."""
    if isinstance(error, SandboxEndedError):
        code = "unavailable"
    else:
        code = _OWN_CODES.get(error.code) or _CODES.get(_STATUS.get(error.code, error.kind.status), "internal")
    return {"code": code, "message": message_of(error)}


def connect_status(code: str) -> int:
    """The HTTP status of a unary procedure's error."""
    return _CONNECT_STATUS[code]
