"""Answers of REST: JSON, and problem documents (RFC 9457) from the one error table.

Owns how an error appears over REST and before a WebSocket is accepted. Called by ``app``, the routes and the HTTP protocol.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import orjson
from holdfast_wire.errors import HoldfastError
from starlette.responses import Response

MEDIA_TYPE = "application/problem+json"

RETRY_AFTER_S = 1
"""Default advice of answers that may be retried."""


def json_response(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(orjson.dumps(body), status, headers, "application/json")


def problem(error: HoldfastError, status: int | None = None) -> dict[str, Any]:
    """The problem document of an error. The default status is that of its code."""
    status = error.kind.status if status is None else status
    body: dict[str, Any] = {
        "type": f"urn:holdfast:problem:{error.code}",
        "title": _phrase(status),
        "status": status,
        "detail": error.message,
        "code": error.code,
        "hint": error.hint,
        "retryable": error.retryable,
        "fault": error.fault,
    }
    if error.reason:
        body["reason"] = error.reason
    if error.detail:
        body["context"] = error.detail
        if "limit" in error.detail:
            body["limit"] = error.detail["limit"]
    return body


def problem_headers(error: HoldfastError) -> dict[str, str]:
    """Headers that go with it."""
    headers = {}
    if error.kind.status in (429, 503) or error.code == "sandbox_not_ready":
        after_s = error.detail.get("retry_after_s")
        headers["Retry-After"] = str(after_s if isinstance(after_s, int) else RETRY_AFTER_S)
    if error.kind.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if error.kind.status == 413:
        headers["Connection"] = "close"  # otherwise the rest of the body would be read to its end
    return headers


def problem_response(error: HoldfastError) -> Response:
    body = orjson.dumps(problem(error), default=str, option=orjson.OPT_NON_STR_KEYS)
    return Response(body, error.kind.status, problem_headers(error), MEDIA_TYPE)


def _phrase(status: int) -> str:
    return HTTPStatus(status).phrase if status in HTTPStatus._value2member_map_ else "Client Closed Request"
