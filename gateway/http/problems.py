"""Errors as HTTP answers: problem documents (RFC 9457) from the one error table.

Owns how an error appears over REST and before a WebSocket is accepted. Unknown exceptions become ``internal`` and reveal nothing.
Called by the app's exception handlers and by ``routes.attach``.
"""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import Any

import orjson
from holdfast_wire.errors import TABLE, HoldfastError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route

log = logging.getLogger("gateway")

MEDIA_TYPE = "application/problem+json"

RETRY_AFTER_S = 1
"""Default advice of answers that may be retried."""

_BY_STATUS = {400: "invalid_json", 404: "not_found", 405: "method_not_allowed", 413: "request_too_large"}


def problem(error: HoldfastError, status: int | None = None) -> dict[str, Any]:
    """The problem document of an error, whose code decides the status where none is given."""
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


def from_http(error: HTTPException) -> HoldfastError:
    """The router's refusal, as an error of the table."""
    code = _BY_STATUS.get(error.status_code, "internal")
    messages = {"not_found": "there is no such route", "method_not_allowed": "this route does not take that method"}
    return HoldfastError(code, messages.get(code, str(error.detail)))


def methods_of(request: Request) -> list[str]:
    """The methods of a request's path: several routes share one path, and RFC 9110 §15.5.6 wants all their methods listed."""
    routes = [route for route in request.app.routes if isinstance(route, Route) and route.matches(request.scope)[0] is not Match.NONE]
    return sorted({method for route in routes for method in route.methods or ()})


def internal() -> HoldfastError:
    return HoldfastError("internal", "the gateway failed to serve this request")


async def on_error(request: Request, error: Exception) -> Response:
    """Exception handler of the app, for every class of error."""
    if isinstance(error, HTTPException):
        error = from_http(error)
    if isinstance(error, HoldfastError):
        answer = problem_response(error)
        if error.code == "method_not_allowed":
            answer.headers["Allow"] = ", ".join(methods_of(request))
        return answer
    request_id = request.scope.get("holdfast.request_id", "?")
    log.error("request %s failed: %s", request_id, type(error).__name__)
    answer = problem_response(internal())
    answer.headers["X-Request-ID"] = request_id  # this answer is sent outside of the app's own middleware
    return answer


def _phrase(status: int) -> str:
    return HTTPStatus(status).phrase if status in HTTPStatus._value2member_map_ else "Client Closed Request"


assert set(_BY_STATUS.values()) <= set(TABLE)
